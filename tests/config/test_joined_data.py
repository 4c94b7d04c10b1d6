"""[data.NAME]: a config whose clients have samples of different shapes."""

import copy
import json
import tomllib

import numpy as np
import pytest
import torch
from small import refused
from test_config import SCHEMA, numbers, valid

import unalike as ua
from unalike import cli, config
from unalike.config import defaults
from unalike.report import export

TEXT = """
[data.pictures]
folder = "pictures"
test = 0.25

[data.signals]
name = "digits"
clients = 3
public = "rows.npz"
shipped = true

[models.pictures]
name = "mlp"
hidden = [6]

[models.signals]
name = "linear"

[local]
batch_size = 100

[run]
rounds = 2
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files of two clients, and public sets."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for k in range(2):
        x = rng.normal(size=(20, 1, 4, 4)).astype(np.float32)
        np.savez(tmp_path / "pictures" / f"{k}.npz", x=x, y=np.arange(20) % 10)
    for name, shape in (("rows", (64,)), ("squares", (1, 4, 4)), ("few", (1, 4, 4))):
        count = 3 if name == "few" else 7
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(count, *shape)).astype(np.float32))
    return tmp_path


def tables(text=TEXT, **run):
    out = tomllib.loads(text.replace("test = 0.25", 'test = 0.25\npublic = "squares.npz"\nshipped = true'))
    return {**out, "run": {**out["run"], **run}}


def test_file_and_python_give_the_same_run(here):
    assert valid(tables(), SCHEMA)
    done = config.run(tables(folder=str(here / "out")))
    assert done.data.architecture == ["pictures"] * 2 + ["signals"] * 3
    pictures = ua.Federation.from_folder("pictures", test_fraction=0.25)
    pictures = pictures.with_public(np.load("squares.npz")["x"], shipped=True)
    signals = ua.load("digits").split(clients=3, public="rows.npz", shipped=True)
    networks = {"pictures": ua.models.mlp(16, (6,), classes=10), "signals": ua.models.softmax_regression(64, 10)}
    fed = ua.Federation.joined({"pictures": pictures, "signals": signals})
    same = ua.simulate(networks, fed, ua.FedAvg(), rounds=2, local=ua.LocalTraining(batch_size=100))
    assert numbers(done.history) == numbers(same.history)
    assert all(torch.equal(done.server.w[name], same.server.w[name]) for name in networks)
    assert done.history[0]["setup_bytes_down"] == 7 * 4 * (2 * 16 + 3 * 64)
    written = tomllib.loads((here / "out/config.toml").read_text())
    assert valid(written, SCHEMA) and written["data"]["pictures"]["folder"] == str(here / "pictures")
    assert written["data"]["signals"]["public"] == str(here / "rows.npz")
    again = config.run({**config.read_tables(here / "out/config.toml")}, resume=True)
    assert numbers(again.history) == numbers(done.history)
    export.write_safetensors(here / "out", here / "model.safetensors", "signals")
    assert (here / "model.safetensors").is_file()


def test_loopback_and_one_part(here):
    assert config.run(tables(rounds=1, engine="loopback")).data.public_rows == 7
    alone = tables()
    del alone["data"]["pictures"], alone["models"]["pictures"]
    assert valid(alone, SCHEMA) and len(config.run({**alone, "run": {"rounds": 0}}).data) == 3


@pytest.mark.parametrize(
    ("old", "new", "match", "schema"),
    [
        ("[models.signals]", "[models.sounds]", r"are \[data.pictures\], \[data.signals\] and \[models.pictures\], "
         r"\[models.sounds\]: give data and a network for every name", True),
        ("rounds = 2", 'rounds = 2\narchitecture = "pictures:2, signals:3"', "say it already: leave it out", True),
        ("[data.pictures]", '[data]\nname = "digits"\n[data.pictures]', r"\[data\] has name, and there are", False),
        ("[data.pictures]", "[data.splits]\na = 0.5\n[data.pictures]", r"\[data\] has splits, and there are", False),
        ('folder = "pictures"', "", r"\[data.pictures\] needs a name or a folder", False),
        ('name = "digits"', 'name = "digts"', "data set 'digts'", False),
        ("clients = 3", "client = 3", r"\[data.signals\].*client", False),
        ("clients = 3", "clients = 0", r"\[data.signals\] clients", False),
        ("clients = 3", "test = 1.5", r"\[data.signals\] test and validation must leave something", True),
        ("clients = 3", 'partition = "irid"', "irid", True),
        ('public = "rows.npz"\n', "", r"\[data.signals\] shipped is about a public set, and there is none", True),
        ('"squares.npz"', '"few.npz"', "'signals' and 'pictures' have 7 and 3 samples", True),
        ('"squares.npz"', '"none.npz"', r"\[data.pictures\]: The public set", True),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(old, new, match, schema, here):
    whole = TEXT.replace("test = 0.25", 'test = 0.25\npublic = "squares.npz"\nshipped = true')
    assert old in whole
    wrong = tomllib.loads(whole.replace(old, new))
    assert valid(copy.deepcopy(wrong), SCHEMA) == schema  # what only the check can see, it sees
    with refused(match):
        config.run(wrong)


def test_how_many_clients_there_will_be():
    parts = {"a": {"name": "digits", "clients": 3}, "b": {"name": "digits"}}
    assert config.population(parts) == 13 and config.population({**parts, "c": {"folder": "x"}}) is None


def test_shares_are_held_out_where_data_are_ones_own(here):
    given = tables(TEXT.replace("test = 0.25", ""))
    given["data"]["signals"].pop("public"), given["data"]["signals"].pop("shipped")
    assert defaults.own(given)
    table, fed, _ = defaults.held_out(given["data"], "test")
    assert table["pictures"]["test"] == 0.2 and "test" not in table["signals"]
    assert fed.test.sizes.tolist() == [4, 4, 0, 0, 0]
    assert not defaults.own({"data": {"a": {"name": "digits"}, "b": {"name": "digits"}}})


def test_commands(here, capsys):
    (here / "run.toml").write_text(TEXT.replace("test = 0.25", 'test = 0.25\npublic = "squares.npz"'))
    assert cli.main(["data", "describe", "run.toml", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert parts["pictures"]["clients"] == 2 and parts["signals"]["a sample"] == "float32 [64]"
    assert parts["signals"]["public samples"] == 7
    assert cli.main(["data", "describe", "run.toml"]) == 0
    assert "pictures: pictures" in (said := capsys.readouterr().out) and "signals: digits" in said
    assert cli.main(["data", "describe", "run.toml", "--clients", "3"]) == 2
    assert "a config file says all settings" in capsys.readouterr().err
    assert cli.main(["run", "run.toml", "--quiet"]) == 0
    assert (here / "runs" / "fedavg-pictures-signals-1" / "config.toml").is_file()
    capsys.readouterr()
    assert cli.main(["report", "runs/fedavg-pictures-signals-1"]) == 0
    capsys.readouterr()
    assert cli.main(["compare", "fedavg", "run.toml"]) == 2
    assert "Methods are compared on data of one shape" in capsys.readouterr().err
    assert cli.main(["local-federation", "4", "run.toml"]) == 2
    assert "the data are those of 5 clients, not 4" in capsys.readouterr().err
