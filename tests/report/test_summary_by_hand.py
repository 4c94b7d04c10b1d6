"""The summary of a report: every column against the lines of the runs it stands for."""

import json
import re

import numpy as np
import pytest

from unalike import config, report

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """rFedAvg, which has traffic before round 1, beside FedAvg, which has none; two seeds, with validation data."""
    home = tmp_path_factory.mktemp("compared")
    for method in ("fedavg", "rfedavg"):
        for seed in SEEDS:
            config.run(
                {
                    "data": {
                        "name": "digits", "partition": "dirichlet:0.3", "clients": 10, "test": 0.3, "validation": 0.2,
                    },
                    "model": {"name": "linear"},
                    "method": {"name": method},
                    "local": {"epochs": 1, "batch_size": 16, "lr": 0.5},
                    "run": {
                        "rounds": 4, "clients_per_round": 0.5, "seed": seed, "folder": str(home / f"{method}-{seed}"),
                    },
                }
            )  # fmt: skip
    return home


def lines_of(home, method):
    files = [home / f"{method}-{seed}" / "rounds.jsonl" for seed in SEEDS]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def content(home):
    page = report.write(home).read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


def selected(lines):
    return max(lines, key=lambda line: (line["validation_accuracy"], -line["validation_loss"]))["test_accuracy"]


def traffic(lines):
    return sum(value for line in lines for name, value in line.items() if "bytes" in name)


CELLS = {
    "accuracy": lambda lines: lines[-1]["test_accuracy"],
    "selected on validation": selected,
    "mean over clients": lambda lines: lines[-1]["clients_accuracy_mean"],
    "worst 20 %": lambda lines: lines[-1]["clients_accuracy_worst20"],
    "variance, pp²": lambda lines: lines[-1]["clients_accuracy_variance_pp2"],
    "loss": lambda lines: lines[-1]["test_loss"],
    "bytes": traffic,
    "time": lambda lines: sum(line["seconds"] for line in lines),
}


def test_every_column_shows_what_its_label_says(compared):
    summary = content(compared)["summary"]
    assert [column["label"] for column in summary["columns"]] == [*CELLS]  # all did the same rounds: no column
    for row, method in zip(summary["rows"], ("fedavg", "rfedavg"), strict=True):
        assert row["seeds"] == 2
        for column in summary["columns"]:
            values = [CELLS[column["label"]](lines) for lines in lines_of(compared, method)]
            expected = [np.mean(values), np.std(values, ddof=1)]
            assert row["cells"][column["key"]] == pytest.approx(expected, rel=1e-4, abs=1e-6), (method, column)


def test_bytes_before_the_first_round_are_on_the_axis(compared):
    """rFedAvg's clients report their mean features before round 1; FedAvg's send nothing."""
    for run, lines in zip(content(compared)["runs"][2:], lines_of(compared, "rfedavg"), strict=True):
        assert lines[0]["setup_bytes_up"] > 0 and lines[0]["setup_bytes_down"] > 0
        assert run["x"]["bytes"][-1] == traffic(lines)
    assert "setup_bytes_up" not in lines_of(compared, "fedavg")[0][0]
