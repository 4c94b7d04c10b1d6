"""The report of a vertical run: its curves, coefficients, matching, and who sees what, whatever its files hold."""

import json

import numpy as np
import pytest

import unalike as ua
from unalike import report
from unalike.report import read

X = np.random.default_rng(0).normal(size=(60, 6))
Y = (X.sum(1) > 0).astype(int)


def run(folder, method=None, y=Y, **options):
    parties = ua.vertical.split((X, y), {"bank": 2, "shop": 2, "depot": 2}, test=0.25)
    method = method or ua.vertical.LogisticRegression(lr=0.5)
    return ua.vertical.fit(method, parties, folder=folder, **{"epochs": 3, "batch_size": 15, **options})


def test_a_run_becomes_a_page(tmp_path):
    found = run(tmp_path / "run", secure_sum=True)
    data = read.read(read.find([tmp_path / "run"]))
    assert data["title"] == "logistic: bank, shop and depot" and data["step"] == "epoch"
    assert data["facts"] == [
        "bank: 2 columns", "shop: 2 columns", "depot: 2 columns", "45 training rows", "15 test rows", "3 epochs",
    ]  # fmt: skip
    one = data["runs"][0]
    assert one["x"]["rounds"] == [1, 2, 3] and "seconds" not in one["x"] and one["asked"] == 3
    assert one["y"]["test_auc"] == pytest.approx([line["test_auc"] for line in found.history], rel=1e-4)
    assert "exchanges" not in one["y"] and "epoch" not in one["y"]
    (shown,) = data["vertical"]
    assert "60 matched; bank alone 0; shop alone 0" in shown["matching"]
    sums = "the sum of the hosts' shares of every row's score, and no host's own"
    assert ["bank", sums, "z from shop and depot, masked: only the sum over hosts can be read"] in shown["sees"]
    assert [c["party"] for c in shown["coefficients"]] == ["bank", "shop", "depot"]
    theta = found.parties.hosts[0].me.theta[:, 0].tolist()
    assert sorted(v[0] for _, v in shown["coefficients"][1]["rows"]) == pytest.approx(sorted(theta), rel=1e-3)
    bank = shown["coefficients"][0]["rows"]
    assert bank[-1] == ["(intercept)", [pytest.approx(float(found.session.me.b), rel=1e-3)]]
    assert abs(bank[0][1][0]) >= abs(bank[1][1][0])
    assert report.write(tmp_path / "run").stat().st_size > 50_000


def test_each_method_s_own_numbers(tmp_path):
    """Split networks have no coefficients; Hardy's intercept is one more column; of classes there is one for each."""
    run(tmp_path / "split", ua.vertical.SplitNN())
    hardy = run(tmp_path / "hardy", ua.vertical.HardyLogistic(bits=512), batch_size=None, epochs=1)
    run(tmp_path / "many", y=np.arange(60) % 3)
    by = {v["label"]: v["coefficients"] for v in read.read(read.find([tmp_path]))["vertical"]}
    assert by["split-network"] == []
    assert [len(c["rows"]) for c in by["hardy"]] == [3, 2, 2]
    assert by["hardy"][0]["rows"][-1] == ["(intercept)", [pytest.approx(float(hardy.session.me.theta[-1]), rel=1e-3)]]
    many = next(coefficients for label, coefficients in by.items() if label.startswith("logistic"))
    assert many[1]["outputs"] == ["class 0", "class 1", "class 2"] and len(many[1]["rows"][0][1]) == 3


@pytest.mark.parametrize(
    "content",
    [
        "no json",
        "[1]",
        "{}",
        json.dumps({"parties": 3, "matching": "x", "sees": [1, {}], "coefficients": [7, {"columns": [1]}], "rows": 2}),
        json.dumps(
            {"parties": [{"name": ["x"]}], "coefficients": [{"columns": ["a"], "values": [[1e999, "x", None]]}]}
        ),
    ],
)
def test_a_file_of_nonsense_does_not_stop_a_report(content, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('[vertical]\nmethod = "logistic"\n\n[run]\nepochs = 5\n')
    (path / "rounds.jsonl").write_text('{"round": 1, "epoch": 1, "test_auc": 0.5}\n')
    (path / "vertical.json").write_text(content)
    assert "logistic" in report.html([path])
