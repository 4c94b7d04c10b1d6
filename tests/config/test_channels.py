"""Channels in files and flags: the same run as in Python, mistakes before anything is loaded, stages of one's own."""

import json
import tomllib

import pytest
import torch
from test_config import GOOD, SCHEMA, numbers, valid

import unalike as ua
from unalike import cli, config
from unalike.comparison.arms import arms_of
from unalike.report.read import command

TABLES = '[[channel]]\nkind = "clip"\nnorm = 0.5\n\n[[channel]]\nkind = "topk"\nshare = 0.1\n'
OWN = '''
import dataclasses as dc
import unalike as ua

@dc.dataclass(frozen=True)
class Damp(ua.channel.Stage):
    """Everything times a factor."""

    factor: float = ua.knob(0.5, "what it is multiplied by", least=0)

    def one(self, flight, name, way):
        return dc.replace(flight, values=flight.values * self.factor)

nothing = 3
'''


def run(text, **changes):
    tables = tomllib.loads(text)
    tables["run"] |= changes
    return config.run(tables)


def test_tables_text_and_python_give_the_same_run(tmp_path):
    tables = run(GOOD + TABLES, folder=str(tmp_path / "a"))
    text = run(GOOD + 'channel = "clip:0.5,topk:0.1"')
    module, fed = ua.models.mlp(64, (16,), classes=10), None
    fed = ua.load("digits").split("dirichlet:0.1", clients=8, seed=0, test=0.2)
    stages = [ua.channel.Clip(0.5), ua.channel.TopK(0.1)]
    python = ua.simulate(
        lambda: module, fed, ua.FedProx(mu=0.5), rounds=2, clients_per_round=0.5, seed=4,
        local=ua.LocalTraining(epochs=1, batch_size=10), channel=stages,
    )  # fmt: skip
    assert numbers(tables.history) == numbers(text.history)
    assert [line["bytes_up"] for line in python.history] == [line["bytes_up"] for line in text.history]
    assert text.history[0]["bytes_up"] < text.history[0]["bytes_up_plain"] / 5
    # the folder's config is such a file again
    again = config.read(tmp_path / "a/config.toml")
    assert again["run"]["channel"] == [{"kind": "clip", "norm": 0.5}, {"kind": "topk", "share": 0.1}]
    written = tomllib.loads((tmp_path / "a/config.toml").read_text())
    assert valid(written, SCHEMA) and written["facts"]["channel"]["stages"] == ["clip:0.5", "topk:0.1"]
    again["run"]["folder"] = str(tmp_path / "b")
    assert numbers(config.run(again).history) == numbers(tables.history)
    assert "--channel clip:norm=0.5,topk:share=0.1" in command(written)


@pytest.mark.parametrize(
    ("added", "line", "schema"),
    [
        ('channel = "clip:0.5"\n' + TABLES, "has [[channel]] tables, and [run] has channel too: give one", 0),
        (TABLES.replace("norm = 0.5", "norm = -1.0"), "[[channel]] 1: clip: norm must be a number above 0; got -1", 0),
        (TABLES.replace("share = 0.1", "share = 2"), "[[channel]] 2: topk: share must lie in (0, 1]; got 2", 0),
        (TABLES.replace('"topk"', '"tpk"'), "[[channel]] 2: There is no stage of a channel 'tpk'. Did you mean", 0),
        (TABLES.replace("share =", "shar ="), "[[channel]] 2: There is no setting of the stage topk 'shar'", 0),
        (TABLES.replace('kind = "topk"\n', ""), "[[channel]] 2: it lacks kind, the name of a stage", 0),
        (TABLES.replace('"clip"', '"none.py:Damp"'), "there is no file 'none.py'", 1),
        (TABLES.replace("[[channel]]", "[channel]").split("\n\n")[0], "channel must be tables, [[channel]]", 0),
        ('channel = "quantise:8,topk:0.1"', "topk:0.1: it comes after quantise:8", 1),
        ('channel = "clip:0.5@dlta"', "There is no field for clip:0.5@dlta 'dlta'. Did you mean 'delta'?", 1),
        ("channel = 3", "[run] channel must be text or a list of texts or a list of tables; got 3", 0),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_before_anything_is_loaded(added, line, schema, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(config.runner, "make_data", lambda *_: pytest.fail("data were loaded"))
    monkeypatch.setattr("unalike.cli.run.config.make_data", lambda *_: pytest.fail("data were loaded"))
    file = tmp_path / "run.toml"
    file.write_text(GOOD + added)
    assert cli.main(["run", str(file)]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert str(file) in error or "[[channel]]" not in error
    assert valid(tomllib.loads(GOOD + added), SCHEMA) == bool(schema)


def test_a_channel_outside_of_tables(tmp_path):
    with pytest.raises(ua.UnalikeError, match=r"channel must be tables, \[\[channel\]\].*belongs under \[run\]"):
        config.check({**tomllib.loads(GOOD), "channel": "clip:1.0"})


def test_schema_accepts_all_ways():
    for added in (TABLES, 'channel = "clip:1.0"', 'channel = ["clip:1.0", "half"]', 'channel = [{kind = "half"}]'):
        assert valid(tomllib.loads(GOOD + added), SCHEMA), added
    own = GOOD + '[[channel]]\nkind = "a/b.py:Damp"\nfactor = 2\n'
    assert valid(tomllib.loads(own), SCHEMA)


def test_a_stage_of_ones_own_from_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    runs = [
        run(GOOD + 'channel = "own.py:Damp:0,half"', folder="a"),
        run(GOOD + '[[channel]]\nkind = "own.py:Damp"\nfactor = 0'),
    ]
    assert all(torch.equal(done.server.w, done.task.start) for done in runs)
    kind = f"{tmp_path / 'own.py'}:Damp"
    written = config.read(tmp_path / "a/config.toml", allow_code=True)["run"]["channel"]
    assert written == [{"kind": kind, "factor": 0.0}, {"kind": "half"}]
    assert f"--channel {kind}:factor=0.0,half" in command(config.load_toml("a/config.toml"))
    file = tmp_path / "run.toml"
    file.write_text(GOOD)
    assert cli.main(["run", str(file), "--channel", "own.py:nothing"]) == 2
    assert (
        "'own.py:nothing' is not a stage: it must be a class made from unalike.channel.Stage" in capsys.readouterr().err
    )


def test_flags_take_the_place_of_a_files_channel(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(GOOD + TABLES)

    def found(*words):
        assert cli.main(["--json", "run", str(file), "--dry-run", *words]) == 0
        return json.loads(capsys.readouterr().out)

    assert found()["found"]["channel"] == "clip:0.5, then topk:0.1"
    other = found("--channel", "half")
    assert other["found"]["channel"] == "half"
    assert {row["of"] for row in other["who_sees"] if row["who"] == "on the wire"} == {
        "every message",
        "half",
        "a reply",
    }
    assert "channel" not in found("--channel", "none")["found"]


@pytest.mark.slow
def test_a_dry_run_finds_the_noise_for_all_rounds(tmp_path, capsys):
    pytest.importorskip("dp_accounting")
    file = tmp_path / "run.toml"
    file.write_text(GOOD.replace("mu = 0.5", 'weights = "uniform"').replace("fedprox", "fedavg"))

    def found(rounds):
        words = ["--rounds", str(rounds), "--epsilon", "8", "--channel", "clip:1,noise:auto"]
        assert cli.main(["--json", "run", str(file), "--dry-run", "--clients-per-round", "bernoulli:0.5", *words]) == 0
        said = json.loads(capsys.readouterr().out)["found"]
        return float(said["channel"].rpartition(":")[2]), said["privacy"]

    (few, privacy), (many, _) = found(2), found(20)
    assert many > 1.3 * few and privacy.startswith("ε = 8 at δ = 1e-05") and "after all rounds" in privacy


def test_networks_that_differ_need_channels_of_their_own():
    tables = {"data": {"name": "digits"}, "models": {"a": {"name": "linear"}, "b": {"name": "mlp"}}}
    tables["run"] = {"rounds": 1, "architecture": "a:5,b:5", "channel": "clip:1.0"}
    with pytest.raises(ua.UnalikeError, match="clients have different networks; a channel needs one for all"):
        config.check(tables | {"method": {"name": "fedproto"}})


def test_several_channels_are_compared_and_reference_lines_have_none():
    start = tomllib.loads(GOOD + 'channel = "half"')
    del start["method"]
    methods = ["fedavg", "scaffold", "centralized", "local-only"]

    def channels(*given):
        arms = arms_of(methods, [("channel", text) for text in given], start, False)
        return [(arm.label, arm.tables["run"].get("channel")) for arm in arms]

    assert channels() == [("fedavg", "half"), ("scaffold", "half"), ("centralized", None), ("local-only", None)]
    assert channels("clip:1,topk:0.1")[1] == ("scaffold", "clip:1,topk:0.1")
    assert channels("none", "clip:1,half")[:2] == [
        ("fedavg channel=none", "none"),
        ("fedavg channel=clip:1,half", "clip:1,half"),
    ]
    assert len(channels("none", "clip:1,half")) == 6
    with pytest.raises(ua.UnalikeError, match="unalike compare: --channel is given twice with the same stages"):
        channels("half", "half")
