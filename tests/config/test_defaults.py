"""What data of one's own decide where nothing is said."""

import numpy as np
import pytest

import unalike as ua
from unalike.config import defaults

EMPTY = {name: {} for name in ("data", "model", "method", "local", "run")}


def federation(rows, clients=3, shape=(4,), target=False, imbalanced=False):
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(clients):
        y = (
            rng.normal(size=rows)
            if target
            else np.arange(rows) % (20 if imbalanced else 2) // (19 if imbalanced else 1)
        )
        parts.append((rng.normal(size=(rows, *shape)).astype(np.float32), y))
    return ua.Federation.from_arrays(parts)


def suited(fed, **tables):
    return defaults.suited({**EMPTY, **tables}, fed)


@pytest.mark.parametrize("rows", [20, 60, 200, 1000, 5000])
def test_a_client_of_the_usual_size_makes_twelve_to_twenty_four_steps(rows):
    local = suited(federation(rows))["local"]
    batch, steps = local["batch_size"], local["epochs"] * max(1, rows / local["batch_size"])
    assert 16 <= batch <= 256 and batch & (batch - 1) == 0 and 11.9 < steps < 24.1


def test_numbers_are_learned_with_a_smaller_rate_and_judged_by_their_error():
    found = suited(federation(100, target=True))
    assert found["local"]["lr"] == 0.03 < suited(federation(100))["local"]["lr"]
    assert found["model"]["metrics"][0] == "rmse"
    assert suited(federation(100))["model"]["metrics"][0] == "accuracy"
    assert suited(federation(100, imbalanced=True))["model"]["metrics"][0] == "auc"


def test_what_is_said_stays():
    given = {"local": {"steps": 7, "lr": 0.5}, "model": {"name": "linear", "metrics": ["f1"]}}
    found = suited(federation(100), **given)
    assert found["local"]["lr"] == 0.5 and found["local"]["steps"] == 7 and "epochs" not in found["local"]
    assert found["model"] == {"name": "linear", "metrics": ["f1"]}
    assert suited(federation(100), local={"batch_size": "full"})["local"] | {"lr": 0} == {
        "batch_size": "full", "epochs": 12.0, "lr": 0, "lr_decay": 0.93, "weight_decay": 0.003,
    }  # fmt: skip
    assert suited(federation(100), local={"batch_size": 50})["local"]["epochs"] == 6


def test_models_by_what_a_sample_is():
    assert suited(federation(30))["model"] | {"metrics": 0} == {
        "name": "mlp",
        "hidden": [32],
        "skip": True,
        "metrics": 0,
    }
    assert suited(federation(8, shape=(1, 8, 8)))["model"]["name"] == "cnn-small"
    assert "name" not in suited(federation(30), model={"file": "own.py:build"})["model"]


def test_data_with_a_name_are_not_ones_own():
    assert not defaults.own({**EMPTY, "data": {"name": "digits"}}) and defaults.own(
        {**EMPTY, "data": {"table": "a.csv"}}
    )
