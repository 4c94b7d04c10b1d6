"""Tables and models for other programs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from test_report import settings

import unalike as ua
from unalike import config, report
from unalike.cli import main
from unalike.report import export, record
from unalike.trees.xgboost import exported


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "scaffold"):
        config.run(settings(home / method, method, evaluate_clients=5), callbacks=[report.Record()])
    return home


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_csv_has_every_round_and_number(home, tmp_path, capsys):
    out = tmp_path / "rounds.csv"
    assert main(["export", str(home), "--csv", "--out", str(out)]) == 0
    assert "written to" in capsys.readouterr().out
    rows = rows_of(out)
    assert [(r["run"], r["round"]) for r in rows] == [(m, str(t)) for m in ("fedavg", "scaffold") for t in (1, 2, 3, 4)]
    truth = json.loads((home / "scaffold/rounds.jsonl").read_text().splitlines()[2])
    for name, value in truth.items():
        assert float(rows[6][name]) == value, name
    assert float(rows[6]["drift_mean"]) > 0 and rows[6]["method"] == "scaffold" and rows[6]["seed"] == "0"


def test_csv_of_clients(home, tmp_path):
    out = tmp_path / "clients.csv"
    assert main(["export", str(home / "fedavg"), "--csv", "--clients", "--out", str(out)]) == 0
    rows = [r for r in rows_of(out) if r["round"] == "4"]
    line = json.loads((home / "fedavg/record/rounds.jsonl").read_text().splitlines()[-1])
    truth = record.unpack(line["accuracy"])
    assert [int(r["client"]) for r in rows] == np.flatnonzero(~np.isnan(truth)).tolist()
    np.testing.assert_allclose([float(r["accuracy"]) for r in rows], truth[~np.isnan(truth)])


def test_names_that_need_quotes(tmp_path):
    fed = ua.load("digits").split(ua.partition.IID(), clients=3, test=0.2)
    fed.names = ['a,"b"', "two\nlines", "ünïcode"]
    ua.simulate(torch.nn.Linear(64, 10), fed, ua.FedAvg(), rounds=1, folder=tmp_path / "r", callbacks=[report.Record()])
    assert main(["export", str(tmp_path / "r"), "--csv", "--clients"]) == 0
    assert [r["name"] for r in rows_of(tmp_path / "r/clients.csv")] == fed.names


def test_parquet_holds_what_csv_holds(home, tmp_path):
    import pyarrow.parquet

    assert main(["export", str(home), "--parquet", "--out", str(tmp_path / "r.parquet")]) == 0
    found = pyarrow.parquet.read_table(tmp_path / "r.parquet").to_pydict()
    assert found == export.rounds([home])
    assert [p.name for p in tmp_path.iterdir()] == ["r.parquet"]


def test_safetensors_is_the_final_model(tmp_path):
    table = settings(tmp_path / "r")
    table["model"] = {"name": "mlp", "hidden": [9]}
    run = config.run(table)
    assert main(["export", str(tmp_path / "r"), "--safetensors"]) == 0
    weights = safetensors.torch.load_file(tmp_path / "r/model.safetensors")
    module = config.make_model(table["model"], run.data, seed=5)
    module.load_state_dict(weights)
    x = run.data.global_test[0]
    assert torch.equal(module.eval()(x), run.model(x))


def test_a_forest_is_xgboosts_json(tmp_path):
    """Raw rows of a table, with missing cells and words: the exported trees are in its own units."""
    rows = [[k % 3, k if k % 4 else "", "ab"[k % 2], "ny"[k > 30]] for k in range(60)]
    (tmp_path / "t.csv").write_text("c,age,sex,y\n" + "\n".join(",".join(map(str, row)) for row in rows))
    table = {
        "data": {"table": str(tmp_path / "t.csv"), "client": "c", "label": "y", "scale": "raw"},
        "method": {"name": "hist-boost", "depth": 2}, "run": {"rounds": 2, "folder": str(tmp_path / "r")},
    }  # fmt: skip
    run = config.run(table, callbacks=[report.Record()])
    assert main(["export", str(tmp_path / "r"), "--xgboost"]) == 0
    written = json.loads((tmp_path / "r/model.json").read_text())
    assert written == exported(run.forest)
    assert written["learner"]["feature_names"] == ["age", "sex=a", "sex=b"]
    assert run.forest.draw().startswith("age <= 30? ")


@pytest.mark.slow
def test_onnx_computes_what_torch_computes(tmp_path):
    """Convolutions, on another number of samples than the model was traced with; onnx's own reference computes it."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    table = settings(tmp_path / "r", rounds=1)
    table["model"] = {"name": "cnn-small", "width": 4}
    table["data"]["image"] = True
    run = config.run(table)
    assert main(["export", str(tmp_path / "r"), "--onnx"]) == 0
    out = tmp_path / "r/model.onnx"
    onnx.checker.check_model(onnx.load(out))
    x = run.data.global_test[0][:7]
    got = ReferenceEvaluator(str(out)).run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(got, run.model(x).detach().numpy(), atol=1e-4)


def test_exporting_leaves_the_run_as_it_was(home, tmp_path):
    before = {p: p.read_bytes() for p in (home / "scaffold").rglob("*") if p.is_file()}
    assert main(["export", str(home / "scaffold"), "--safetensors", "--out", str(tmp_path / "m")]) == 0
    assert main(["export", str(home / "scaffold"), "--csv", "--out", str(tmp_path / "c")]) == 0
    assert {p: p.read_bytes() for p in (home / "scaffold").rglob("*") if p.is_file()} == before


def test_mistakes_are_one_line(home, tmp_path, capsys):
    plain = tmp_path / "python"
    fed = ua.load("digits").split(ua.partition.IID(), clients=3)
    ua.simulate(torch.nn.Linear(64, 10), fed, ua.FedAvg(), rounds=1, folder=plain)
    config.run(settings(tmp_path / "new", rounds=0))
    (tmp_path / "new/checkpoint/manifest.json").unlink()
    for words, said in (
        (["export", str(tmp_path / "nowhere"), "--csv"], "is not a folder"),
        (["export", str(tmp_path / "nowhere"), "--safetensors"], "holds no run"),
        (["export", str(tmp_path / "new"), "--csv"], "no finished round yet"),
        (["export", str(tmp_path / "new"), "--safetensors"], "no checkpoint yet"),
        (["export", str(plain), "--safetensors"], "was written by a Python program"),
        (["export", str(plain), "--csv", "--clients"], "no records of single clients"),
        (["export", str(home / "fedavg"), "--safetensors", "--clients"], "--clients is for tables"),
        (["export", str(home / "fedavg"), "--xgboost"], "grew no trees"),
        (["export", str(home / "fedavg")], "required"),
        (["export", str(home / "fedavg"), "--csv", "--out", str(tmp_path / "no" / "x.csv")], "cannot be written"),
    ):
        assert main(words) == 2, words
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1, err


def test_what_is_missing_is_named(home, tmp_path, monkeypatch, capsys):
    for name in ("pyarrow", "pyarrow.parquet", "polars", "onnx"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    for kind, words in (("--parquet", "pip install pyarrow"), ("--onnx", "pip install onnx onnxscript")):
        assert main(["export", str(home / "fedavg"), kind, "--out", str(tmp_path / "x")]) == 2
        assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_looks_like_a_formula_is_text_in_a_csv(tmp_path):
    export.write_csv({"name": ["=1+1", "@x", "-3 degrees", "plain"], "n": [-1, 2, 3, 4]}, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "name,n\n'=1+1,-1\n'@x,2\n'-3 degrees,3\nplain,4\n"
