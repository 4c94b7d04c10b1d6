"""Comparisons on raw tables, through the command: runs that diverge, learn nothing, or have one rare class."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_compare import do

from unalike import config

FAST = "--rounds 6 --epochs 2 --batch-size 16 --seeds 2"
SITES = ("north", "south", "east")


def write(rows_of, head, seed=0, rows=60, name="my.csv"):
    """A table of three sites; `rows_of(draw, site)` gives one row's cells."""
    draw, lines = np.random.default_rng(seed), [f"site,{head}"]
    for k, site in enumerate(SITES):
        lines += [f"{site}," + ",".join(map(str, rows_of(draw, k))) for _ in range(rows)]
    Path(name).write_text("\n".join(lines) + "\n")


def units(draw, site):
    """Two features in unlike units that tell the outcome, and an empty cell now and then."""
    a, b = draw.normal(size=2)
    area = "" if draw.random() < 0.05 else f"{2000 + 800 * b + 200 * site:.1f}"
    return f"{0.01 + 0.002 * a:.5f}", area, "ill" if a + b > 0 else "well"


def compare(capsys, line, folder="a"):
    code, out, _said = do(capsys, f"compare {line} --table my.csv --client site --folder {folder} -q")
    content = json.loads((Path(folder) / "comparison.json").read_text())
    rows = {row["wish"]: f"{row['method']} | {row['sure']}" for row in content["answers"]}
    lines = {text.partition(":")[0]: text.partition(": ")[2] for text in content["verdict"]}
    return code, " ".join(out.split()), lines | rows


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def test_a_raw_table_gives_a_right_answer(here, capsys):
    write(units, "smooth,area,outcome")
    code, out, verdict = compare(capsys, f"fedavg fedprox --label outcome {FAST}")
    found = json.loads(Path("a/comparison.json").read_text())["cases"][0]["methods"]
    scores = {m["label"]: np.mean(m["selected"]) for m in found}
    assert code == 0 and scores["fedavg"] > 0.9 and scores["constant"] < 0.65 and "constant" in out
    assert verdict["In short"].startswith("fedavg") or "not decided" in verdict["In short"]


def test_features_left_in_their_units_have_no_verdict_but_a_cure(here, capsys):
    write(units, "smooth,area,outcome")
    code, out, verdict = compare(capsys, f"fedavg fedprox --label outcome {FAST} --lr 0.01 --scale none")
    assert code == 3 and verdict["In short"] == "no verdict; no method has learned anything here."
    assert verdict["What to try"].startswith("--scale standard") and "the highest" not in out


def test_features_that_tell_nothing_have_no_verdict(here, capsys):
    write(lambda draw, site: (*(f"{v:.3f}" for v in draw.normal(size=2)), "yn"[draw.integers(2)]), "u,v,outcome")
    code, _, verdict = compare(capsys, f"fedavg scaffold --label outcome {FAST}")
    assert code == 3 and verdict["In short"].startswith("no verdict") and "is it worth" not in str(verdict)


def test_one_method_that_diverges_is_named_and_the_others_judged(here, capsys):
    write(units, "smooth,area,outcome")
    code, _out, verdict = compare(capsys, f"fedavg fedprox scaffold --label outcome {FAST} --fedprox.mu 1e9")
    assert code == 3 and verdict["Diverged"].startswith("fedprox in 2 of 2 seeds (round 1); not judged")
    assert "fedavg" in verdict["In short"] and "fedprox" not in verdict["the highest accuracy"]


def number(draw, site):
    a, b = draw.normal(size=2)
    return f"{0.01 + 0.002 * a:.5f}", f"{2000 + 800 * b:.1f}", f"{150 + 40 * a - 30 * b + 5 * draw.normal():.2f}"


def test_where_all_diverge_nothing_false_is_said_of_a_number_to_predict(here, capsys):
    write(number, "smooth,area,dose")
    code, out, verdict = compare(capsys, f"fedavg fedprox --label dose {FAST} --lr 1e6")
    assert code == 3 and set(verdict) == {"In short", "Diverged"} and "accuracy" not in out
    assert verdict["In short"] == "no verdict; no method got through in every seed."
    assert "Measured" not in out and "no validation data" not in out and "test set" not in out


def test_a_number_to_predict_is_judged_in_its_own_unit(here, capsys):
    write(number, "smooth,area,dose")
    code, _out, verdict = compare(capsys, f"fedavg fedprox --label dose {FAST}")
    found = {m["label"]: m for m in json.loads(Path("a/comparison.json").read_text())["cases"][0]["methods"]}
    assert code == 0 and verdict["Measured"].startswith("RMSE over all clients' test samples together")
    assert 4 < np.mean(found["fedavg"]["selected"]) < 9 and 40 < np.mean(found["constant"]["selected"]) < 62
    assert "the lowest RMSE" in verdict and "R²" in found["fedavg"]["others"]


def test_of_a_rare_class_accuracy_is_not_the_headline(here, capsys):
    def rare(draw, site):
        ill = draw.random() < 0.08
        return f"{1000 + 300 * draw.normal() + 700 * ill:.1f}", f"{draw.normal():.3f}", "ill" if ill else "well"

    write(rare, "marker,noise,outcome", rows=150)
    code, _out, verdict = compare(capsys, f"fedavg fedprox --label outcome {FAST}")
    found = {m["label"]: m for m in json.loads(Path("a/comparison.json").read_text())["cases"][0]["methods"]}
    assert code == 0 and verdict["Measured"].startswith("AUC over all clients' test samples together")
    assert "the highest AUC" in verdict and found["constant"]["selected"] == [0.5, 0.5]
    assert np.mean(found["fedavg"]["selected"]) > 0.85 and np.mean(found["constant"]["others"]["accuracy"]) > 0.85


def test_a_run_on_a_table_shows_how_good_the_model_is(here, capsys):
    write(units, "smooth,area,outcome")
    code, out, said = do(capsys, "run --table my.csv --client site --label outcome --rounds 3 --folder r")
    assert code == 0 and "clients accuracy mean" in out and "pooled auc" in out
    assert "20% of every client's samples are held out as its test" in " ".join(said.split())
    assert "Features reach from 0.0161 at most (smooth) to 4" in " ".join(said.split())
    assert config.read("r/config.toml")["data"]["test"] == 0.2 and Path("r/preparation.json").exists()
    assert do(capsys, "run --resume r --rounds 4 -q")[0] == 0


def test_a_word_that_is_no_scale_is_no_file(here, capsys):
    write(units, "smooth,area,outcome")
    code, _, said = do(capsys, "run --table my.csv --client site --label outcome --rounds 1 --scale bogus")
    assert code == 2 and "'bogus'" in said and "standard" in said


@pytest.mark.slow
def test_clients_of_a_row_or_two_choose_no_round(here, capsys):
    write(units, "smooth,area,outcome", rows=4)
    code, out, _ = do(
        capsys, "compare fedavg fedprox --table my.csv --client site --label outcome --seeds 1 --folder a"
    )
    assert code in (0, 3) and "after the last round (no validation data)" in " ".join(out.split())


def test_a_run_that_diverges_has_exit_code_3(here, capsys):
    write(units, "smooth,area,outcome")
    line = "run --table my.csv --client site --label outcome --rounds 3 --lr 1e30 --folder r -q"
    assert do(capsys, line)[0] == 3
