"""Public sets from rows, files and noise, and further splits, from Python and from config files."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from unalike import cli, config
from unalike.comparison.arms import arms_of, pieces
from unalike.config import flags
from unalike.data import Dataset, Federation, RemoteFederation, noise_like
from unalike.data.extras import parse_public, read_public, rows_aside, with_extras
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def numbered(n=20, **more):
    """A data set whose rows can be told apart."""
    x = np.arange(n, dtype=np.float32)[:, None] + np.array([[0, 100]], np.float32)
    return Dataset(x, np.arange(n) % 3, classes=3, **more)


def firsts(x):
    return sorted(x[:, 0].tolist())


# ---- rows set aside


def test_rows_are_set_aside_before_clients_get_theirs():
    data = numbered(columns={"who": np.arange(20) // 5}, natural="who")
    fed = data.split("iid", 3, seed=1, public=0.25, test=0.2)
    assert len(fed.public[0]) == 5 and fed.public[1].tolist() == [int(v) % 3 for v in fed.public[0][:, 0]]
    everything = torch.cat([fed.public[0], fed.train.x, fed.test.x])
    assert firsts(everything) == list(range(20))
    same, other = data.split("iid", 7, seed=1, public=0.25), data.split("iid", 3, seed=2, public=0.25)
    assert torch.equal(same.public[0], fed.public[0]) and not torch.equal(other.public[0], fed.public[0])
    assert len(data.split("iid", 3, public=4).public[0]) == 4
    bare = data.split(public=4, public_labels=False)  # by the column, whose rows went along
    assert bare.public[1] is None and len(bare) == 4
    for k, name in enumerate(bare.names):
        assert {int(v) // 5 for v in bare.train.of(k)[0][:, 0]} == {int(name)}
    assert data.split("iid", 3).public is None


def test_preparation_sees_the_clients_rows_only():
    rng = np.random.default_rng(0)
    data = Dataset(rng.normal(5, 3, (30, 2)), rng.integers(0, 2, 30), scale="standard")
    raw, done = data.split("iid", 2, public=10, raw=True), data.split("iid", 2, public=10)
    mean, deviation = raw.train.x.mean(0), raw.train.x.std(0, correction=0)
    torch.testing.assert_close(done.public[0], ((raw.public[0] - mean) / deviation).float())
    assert raw.recipe is not None and done.preparation is not None


@pytest.mark.parametrize(
    "public, line",
    [
        (20, "leave some on either side"),
        (0.01, "of 20 samples is 0"),
        (1.0, "must be a share in"),
        (-1, "must be a share"),
        (True, "must be a share"),
        ("sometimes", "must be a share of the samples such as 0.1"),
        ("noise:many", "after the colon there must be a whole number"),
        ("noise:0", "after the colon there must be a whole number"),
        ("gone.npz", "The public set gone.npz must be an .npz"),
        (np.zeros((2, 2)), "The public set is a ndarray"),
    ],
)
def test_public_sets_that_cannot_be(public, line):
    with says(line):
        numbered().split("iid", 2, public=public)


def test_shares_are_rounded():
    assert [rows_aside(share, 10) for share in (0.14, 0.16, 0.0, 0, 3)] == [1, 2, 0, 0, 3]


# ---- other data, files, noise


def test_other_data_may_be_public():
    fed = numbered().split("iid", 2, public=Dataset(np.ones((4, 2), np.float32), [0, 1, 2, 0]))
    assert fed.public[1].tolist() == [0, 1, 2, 0] and len(fed.train.x) == 20
    assert numbered().split("iid", 2, public=(np.ones((4, 2)), None)).public[1] is None


def test_a_public_file(tmp_path):
    x, y = np.ones((4, 2), np.float32), np.array([0, 1, 2, 0])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    save_file({"x": x}, tmp_path / "b.safetensors")
    assert numbered().split("iid", 2, public=str(tmp_path / "a.npz")).public[1].tolist() == [0, 1, 2, 0]
    assert numbered().split("iid", 2, public=str(tmp_path / "a.npz"), public_labels=False).public[1] is None
    assert read_public(tmp_path / "b.safetensors")[1] is None
    np.savez(tmp_path / "c.npz", x=x, y=y, x_test=x)
    with says("c.npz has the keys x, x_test, y"):
        read_public(tmp_path / "c.npz")
    assert parse_public("noise:7") == 7 and parse_public("a/b.npz").name == "b.npz"


def test_noise_is_uniform_in_every_features_range():
    fed = numbered().split("iid", 2)
    x = noise_like(fed, 500, seed=3)
    assert x.dtype == torch.float32 and x.shape == (500, 2)
    low, high = fed.train.x.amin(0), fed.train.x.amax(0)
    assert (x >= low).all() and (x <= high).all()
    assert ((x.amax(0) - x.amin(0)) > 0.95 * (high - low)).all() and ((x.mean(0) - (low + high) / 2).abs() < 1).all()
    assert torch.equal(noise_like(fed, 500, 3), x) and not torch.equal(noise_like(fed, 500, 4), x)
    tokens = Federation.from_arrays([(np.array([[0, 5], [3, 9]]), [0, 1])])
    drawn = noise_like(tokens, 200)
    assert drawn.dtype == torch.int64 and drawn.amin(0).tolist() == [0, 5] and drawn.amax(0).tolist() == [3, 9]
    gaps = Federation.from_arrays([(np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, np.nan]]), [0, 1, 1])])
    drawn = noise_like(gaps, 50)
    assert drawn[:, 0].min() >= 1 and drawn[:, 0].max() <= 2 and (drawn[:, 1] == 0).all()
    with says("0 samples of noise"):
        noise_like(fed, 0)
    like = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    with says("range of data on other machines"):
        noise_like(RemoteFederation.from_sizes({"train": np.array([2])}, like, keys=["k"], classes=2), 5)


def test_clients_that_bring_their_own_samples_give_none_away():
    fed = numbered().split("iid", 2)
    with says("public=0.1 sets samples aside", "give a file, or noise"):
        with_extras(fed, 0.1)
    assert with_extras(fed) is fed and with_extras(fed, 0) is fed
    more = with_extras(fed, "noise:3", splits={"support": 0.5})
    assert len(more.public[0]) == 3 and list(more.further) == ["support"]


# ---- config files and flags

DIGITS = {"name": "digits", "clients": 4, "public": 0.1, "splits": {"support": 0.5, "query": 0.5}}


def test_config_files_say_it(tmp_path):
    fed = config.make_data(config.check({"data": DIGITS, "run": {"rounds": 1}})["data"])
    assert len(fed.public[0]) == 144 and list(fed.further) == ["support", "query"] and len(fed.train.x) == 1438 - 144
    assert config.make_data({**DIGITS, "public_labels": False}).public[1] is None
    natural = {"name": "synthetic-feddc", "public": "noise:9", "splits": {"half": 0.5}}
    fed = config.make_data(config.check({"data": natural, "run": {"rounds": 1}})["data"])
    assert fed.public[0].shape == (9, 30) and fed.public[1] is None and fed.splits["half"].sizes.tolist() == [100] * 20
    dealt = config.make_data({"name": "synthetic-feddc", "partition": "iid", "public": 40})
    assert len(dealt.public[0]) == 40 and len(dealt) == 20
    for k in range(2):
        np.savez(tmp_path / f"{k}.npz", x=np.random.default_rng(k).normal(size=(6, 2)), y=np.arange(6) % 2)
    folder = {"folder": str(tmp_path), "scale": "standard", "public": "noise:5", "splits": {"half": 0.5}}
    fed, raw = config.make_data(folder), config.make_data(folder, raw=True)
    assert fed.preparation is not None and raw.preparation is None and fed.further["half"].sizes.tolist() == [3, 3]
    torch.testing.assert_close(fed.public[0], fed.preparation.apply(raw.public[0]))


@pytest.mark.parametrize(
    "data, line",
    [
        ({"public": 1.5}, r"\[data\] public=1.5 must be a share"),
        ({"public": -1}, r"\[data\] public must be at least 0"),
        ({"public": "all of it"}, r"\[data\] public='all of it' must be"),
        ({"public": True}, r"\[data\] public must be a number or text; got True"),
        ({"splits": {"test": 0.5}}, r"\[data\] A further split is named 'test'"),
        ({"splits": {"a": 0.7, "b": 0.7}}, r"\[data\] The shares of the splits \(a, b\) sum to 1.4"),
        ({"splits": {"a": "half"}}, r"\[data\] splits must be a table of numbers by name; got"),
        ({"splits": 0.5}, r"\[data\] splits must be a table of numbers by name; got 0.5"),
    ],
)
def test_config_files_that_say_it_wrongly(data, line):
    with says(line):
        config.check({"data": {"name": "digits", **data}, "run": {"rounds": 1}})


def test_flags_say_it_too(tmp_path, monkeypatch):
    def data(*words):
        plain, given = flags.split(["run", *words])
        assert plain == ["run"]
        return flags.collect(given, {})["data"]

    assert data("--data", "digits", "--public", "0.1") == {"name": "digits", "public": 0.1}
    assert data("--data", "digits", "--public", "noise:9", "--no-public-labels")["public_labels"] is False
    assert data("--data", "digits", "--splits", "support=0.5,query=0.5")["splits"] == {"support": 0.5, "query": 0.5}
    assert data("--data", "digits", "--splits", "{support = 0.5}")["splits"] == {"support": 0.5}
    with says("--splits must be a table of numbers by name; got '0.5,x'"):
        data("--data", "digits", "--splits", "0.5,x")
    monkeypatch.chdir(tmp_path)
    tables = {"data": {"public": "a.npz"}, "model": {}, "method": {}, "local": {}, "run": {}}
    assert config.absolute(tables)["data"]["public"] == str(tmp_path / "a.npz")
    assert config.absolute({**tables, "data": {"public": "noise:9"}})["data"]["public"] == "noise:9"


def test_a_table_of_shares_is_no_grid():
    assert pieces("a=1,b=2") == ["a=1", "b=2"] and pieces("{a = 1, b = 2},{a = 1}") == ["{a = 1, b = 2}", "{a = 1}"]
    one = arms_of(
        ["fedavg"], [("splits", "support=0.5,query=0.5")], {"data": {"name": "digits"}, "run": {"rounds": 1}}, False
    )
    assert [arm.tables["data"]["splits"] for arm in one] == [{"support": 0.5, "query": 0.5}]


def test_a_run_folders_config_can_be_run_again():
    import tomllib

    from unalike.settings.toml import dump_toml

    assert tomllib.loads(dump_toml({"data": DIGITS})) == {"data": DIGITS}
    properties = config.schema()["properties"]["data"]["properties"]
    assert properties["splits"]["additionalProperties"] == {"type": "number"}
    assert {"type": "string"} in properties["public"]["anyOf"] and properties["public_labels"]["type"] == "boolean"


def test_describe_mentions_them(capsys):
    words = ["data", "describe", "digits", "--clients", "3", "--public", "10", "--splits", "support=0.5"]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["public samples"] == 10 and found["support samples"] == 714 and found["public labels"] == "yes"
