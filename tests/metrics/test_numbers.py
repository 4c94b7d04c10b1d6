"""What numbers mean: one table, and metrics of one's own from a run to its report and to a comparison."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import unalike as ua
from unalike import config, report
from unalike.cli import main
from unalike.metrics import lines, names, spread
from unalike.results import evidence

METRICS = """
import torch

def miss(output, y):
    return 100 * (1 - torch.softmax(output, 1)[torch.arange(len(y)), y])

miss.higher_is_better = False

def top2(output, y):
    return (output.topk(2, 1).indices == y[:, None]).any(1).float()
"""
RUN = "--data digits --partition dirichlet:0.3 --clients 6 --test 0.2 --validation 0.1 --rounds 3 --epochs 1"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "own.py").write_text(METRICS)
    return tmp_path


def do(capsys, line):
    capsys.readouterr()
    code = main(shlex.split(line))
    return code, *capsys.readouterr()


def content(file):
    return json.loads(re.search(r'id="data">(.*?)</script>', Path(file).read_text(), re.S)[1])


# ---------------------------------------------------------------- the table


def test_every_number_of_a_round_is_in_the_table():
    fed = ua.load("digits").split(ua.partition.IID(), clients=4, test=0.2, validation=0.2)
    run = ua.simulate(torch.nn.Linear(64, 10), fed, ua.FedAvg(), rounds=1)
    assert set(run.history[0]) <= set(names.NUMBERS)
    assert [s.key for s in names.scores()] == ["test_accuracy", "clients_accuracy_mean", "test_loss", "clients_loss"]


def test_directions_and_units():
    ways = {key: number.better for key, number in names.NUMBERS.items()}
    assert ways["test_accuracy"] == ways["clients_accuracy_worst20"] == ways["validation_accuracy"] == "higher"
    assert ways["test_loss"] == ways["clients_accuracy_variance_pp2"] == ways["train_loss"] == "lower"
    assert ways["bytes"] == ways["seconds"] == ways["drift_cosine"] == "neither"
    assert names.of("clients_accuracy_variance_pp2").unit == "pp²" and names.of("test_two_accuracy").unit == "percent"
    assert names.of("test_two_loss").better == "lower" and names.of("test_two_loss").words == "test two loss"


def test_a_metric_of_ones_own_stands_between_accuracy_and_loss():
    known = names.numbers({"far_off": False})
    assert [s.key for s in names.scores(known)][2:4] == ["test_far_off", "clients_far_off_mean"]
    number = known["test_far_off"]
    assert (number.label, number.unit, number.better) == ("Far off, test set", "plain", "lower")
    assert known["clients_far_off_worst20"].summary == "far off, worst 20 %"


def test_the_first_metric_is_the_headline():
    """On the test set, then over all samples together, then over clients; accuracy keeps test set, then clients."""
    known = names.numbers({"auc": True, "accuracy": True, "rmse": False})
    assert [s.key for s in names.scores(known)] == [
        "test_auc", "pooled_auc", "clients_auc_mean", "test_accuracy", "clients_accuracy_mean", "test_rmse",
        "pooled_rmse", "clients_rmse_mean", "test_loss", "clients_loss",
    ]  # fmt: skip
    assert known["pooled_auc"].label == "AUC, all clients' samples together" and known["pooled_auc"].name == "AUC"
    assert (known["pooled_auc"].unit, names.numbers({"balanced_accuracy": True})["test_balanced_accuracy"].unit) == (
        "plain",
        "percent",
    )
    assert known["pooled_rmse"].better == "lower" and known["clients_accuracy_mean"].words.startswith("accuracy, ")
    line = {"clients_auc_mean": 0.5, "pooled_auc": 0.6, "clients_accuracy_mean": 0.9}
    assert names.score_in(line, known).key == "pooled_auc"
    assert names.score_in({**line, "test_auc": None}, known).key == "pooled_auc"  # undefined is no score


def test_a_report_s_table_is_short_beside_the_headline():
    summary = {n.key for n in names.numbers({"auc": True, "f1": True}).values() if n.summary and n.metric == "f1"}
    assert summary == {"test_f1", "pooled_f1"}
    assert names.numbers({"auc": True})["clients_auc_worst20"].summary


def test_every_number_of_a_metric_has_its_direction():
    """A miss is better where it is less, a hit where it is more, on test data and on validation data alike."""
    known = names.numbers({"miss": False, "hit": True})
    for key in ("test_{}", "selected_{}", "validation_{}", "clients_{}_mean", "clients_{}_worst20"):
        assert (known[key.format("miss")].better, known[key.format("hit")].better) == ("lower", "higher"), key


def test_the_worst_clients_are_those_with_the_most_where_less_is_better():
    values = np.array([1.0, 2.0, 3.0, 4.0, 9.0])
    assert (spread(values)["worst20"], spread(values)["best20"]) == (1.0, 9.0)
    assert (spread(values, higher=False)["worst20"], spread(values, higher=False)["best20"]) == (9.0, 1.0)


def test_a_direction_is_true_or_false():
    def odd(output, y):
        return output[:, 0]

    odd.higher_is_better = "no"
    fed = ua.load("digits").split(ua.partition.IID(), clients=2)
    with pytest.raises(ua.UnalikeError, match="higher_is_better of the metric 'odd' must be True or False; got 'no'"):
        ua.simulate(torch.nn.Linear(64, 10), fed, ua.FedAvg(), rounds=1, metrics={"odd": odd})


def test_numbers_and_bytes_of_a_line():
    assert lines.is_number(float("nan")) and not lines.is_finite(float("nan")) and not lines.is_number(True)
    assert lines.traffic({"bytes_down": 1, "bytes_up": 2, "setup_bytes_down": 3, "setup_bytes_up": None}) == 6


@pytest.mark.parametrize(("value", "larger", "target"), [(10, True, 9.5), (10, False, 10.5), (-10, True, -10.5)])
def test_a_target_is_never_better_than_the_baseline(value, larger, target):
    score = names.numbers({"own": larger})["test_own"]
    assert evidence.target_of(evidence.Evidence("a", "a", [0], selected=[value]), score) == target


# ---------------------------------------------------------------- run, report, compare


def test_a_metric_of_which_less_is_better_from_a_run_to_its_report(here, capsys):
    code, out, _ = do(capsys, f"run {RUN} --metrics own.py:miss,own.py:top2 --folder a")
    assert code == 0 and "test miss" in out and "clients top2 worst20" in out
    facts = config.load_toml("a/config.toml")["facts"]["model"]
    assert facts["metrics"] == ["miss", "top2"] and facts["lower_is_better"] == ["miss"]
    rounds = [json.loads(line) for line in Path("a/rounds.jsonl").read_text().splitlines()]
    chosen = min(rounds, key=lambda line: line["validation_miss"])
    assert f"test miss of round {chosen['round']}, best on validation" in out
    assert rounds[-1]["clients_miss_worst20"] > rounds[-1]["clients_miss_mean"]
    assert rounds[-1]["clients_top2_worst20"] < rounds[-1]["clients_top2_mean"]
    data = content(report.write("a"))
    columns = {column["key"]: column for column in data["summary"]["columns"]}
    assert columns["test_miss"] == {"label": "miss", "key": "test_miss", "kind": "plain", "better": "lower"}
    assert columns["clients_top2_mean"]["better"] == "higher"
    cells = data["summary"]["rows"][0]["cells"]
    assert cells["selected_miss"][0] == chosen["test_miss"]
    assert (data["runs"][0]["score"], data["runs"][0]["better"]) == ("miss", "lower")
    assert data["metrics"][0]["label"] == "Miss, test set"
    assert do(capsys, "run --resume a --rounds 4 --allow-code -q")[0] == 0


def test_a_run_of_an_earlier_version_reads_and_goes_on(here, capsys):
    """Without the new fact: higher is better, and a metric that says nothing else is the same run."""
    assert do(capsys, f"run {RUN} --metrics own.py:top2 --folder a -q")[0] == 0
    text = Path("a/config.toml").read_text()
    assert "lower_is_better" not in text  # as it was before there were directions
    columns = {c["key"]: c["better"] for c in content(report.write("a"))["summary"]["columns"]}
    assert columns["test_top2"] == "higher"
    assert do(capsys, "run --resume a --rounds 4 --allow-code -q")[0] == 0


def test_methods_are_compared_by_a_metric_of_ones_own(here, capsys):
    line = f"compare fedavg fedprox {RUN} --metrics own.py:miss,own.py:top2 --seeds 2 --no-references --folder c"
    code, out, _ = do(capsys, line)
    assert code == 0
    found = json.loads(Path("c/comparison.json").read_text())
    case = found["cases"][0]
    assert case["score"]["key"] == "test_miss" and case["score"]["larger"] is False
    assert "miss of the global model on the test set" in out and "the lowest miss" in out
    assert any("highest 20 %" in answer["wish"] for answer in found["answers"])
    for method in case["methods"][:-1]:  # the last is the constant guess, which is no run
        for seed in (0, 1):
            rounds = Path(f"c/{method['label']}-seed{seed}/rounds.jsonl").read_text().splitlines()
            best = min(map(json.loads, rounds), key=lambda line: line["validation_miss"])
            assert (
                method["selected"][seed] == best["test_miss"] and method["worst"][seed] == best["clients_miss_worst20"]
            )
            assert method["others"]["top2"][seed] == best["test_top2"]
    assert "top2" in found["table"][0] and found["table"][0]["miss"]
    with open("c/comparison.csv", newline="") as file:
        assert float(next(csv.DictReader(file))["top2"]) == case["methods"][0]["others"]["top2"][0]
    again = do(capsys, line)  # from the folders alone
    assert again[0] == 0 and json.loads(Path("c/comparison.json").read_text())["cases"] == found["cases"]
    columns = {c["key"]: c["better"] for c in content("c/report.html")["summary"]["columns"]}
    assert columns["test_miss"] == columns["clients_miss_worst20"] == "lower" and columns["test_top2"] == "higher"


def test_methods_are_compared_by_the_first_metric(here, capsys):
    given = "--metrics auc,accuracy,f1,brier,balanced_accuracy --seeds 2 --no-references --folder c"
    code, out, _ = do(capsys, f"compare fedavg fedprox {RUN} {given}")
    assert code == 0 and "\nthe highest AUC" in out and "AUC of the global model on the test set" in out
    case = json.loads(Path("c/comparison.json").read_text())["cases"][0]
    assert case["score"]["key"] == "test_auc"
    assert list(case["methods"][0]["others"]) == ["accuracy", "F1", "Brier score", "balanced accuracy"]
    page = content("c/report.html")
    assert [run["name"] for run in page["runs"]] == ["AUC"] * 4 and not page["runs"][0]["percent"]
    rows = page["runs"][0]["by_class"]
    assert len(rows) == 10 and rows[3].keys() == {"class", "samples", "recall", "precision", "f1"}
    assert do(capsys, f"run {RUN} --metrics auc,own.py:miss --folder a -q")[0] == 0  # both kinds, mixed
    assert config.load_toml("a/config.toml")["facts"]["model"]["metrics"] == ["auc", "miss"]
    code, _, err = do(capsys, f"run {RUN} --metrics acu --folder b -q")
    assert code == 2 and "Did you mean 'auc'" in err and not Path("b").exists()
