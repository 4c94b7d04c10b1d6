"""benchmarks/tables.py: the yardstick is tested on our test rows, and our numbers are read from the chosen round."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from paths import ROOT

from unalike import config
from unalike.config.defaults import SHARES


@pytest.fixture(scope="module")
def tables():
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tables"] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tables"]


@pytest.mark.parametrize("seed", [0, 2])
def test_the_yardstick_has_the_rows_of_the_comparison(tables, seed):
    diabetes = next(table for table in tables.TEN if table.name == "diabetes")
    columns = diabetes.columns()
    says = {"client": "group", "label": "progression", "regression": True, "scale": "none", **SHARES}
    fed = config.make_data({"table": columns, **says, "seed": seed})
    rows = tables.split(diabetes, columns, seed)
    for name, part in fed.splits.items():
        bmi = np.array(columns["bmi"], np.float32)[rows[name]]
        assert np.array_equal(part.x[:, diabetes.features(columns).index("bmi")].numpy(), bmi), name
        assert np.array_equal(part.y.numpy(), np.array(columns["progression"], np.float32)[rows[name]]), name


def test_quantiles_are_of_the_first_number_that_is_not_the_label(tables):
    columns = {"y": list("98765"), "word": list("abcde"), "x": ["3", "10", "1", "30", "2"]}
    assert tables.quantiles(columns, "y") == ["part 3", "part 4", "part 1", "part 5", "part 2"]


def test_missing_cells_are_nan_and_dates_are_days(tables):
    assert np.array_equal(tables.numbers(["1", "NA", ""]), [1, np.nan, np.nan], equal_nan=True)
    days = tables.numbers(["2024-03-01", "2024-02-28"])
    assert days[0] - days[1] == 2 and tables.numbers(["1", "one"]) is None


def test_ours_is_read_in_the_chosen_round(tables, tmp_path):
    rows = ["label,seed,diverged_in_round,selected_round,folder"]
    for seed, auc in enumerate((0.5, 0.6, 0.7)):
        for label, diverged in (("fedavg", ""), ("scaffold", "2" if seed == 1 else ""), ("centralized", "")):
            run = tmp_path / f"{label}-{seed}"
            run.mkdir()
            lines = [{"round": 1, "pooled_auc": auc}, {"round": 2, "pooled_auc": 0.99}]
            (run / "rounds.jsonl").write_text("\n".join(map(json.dumps, lines)))
            rows.append(f"{label},{seed},{diverged},1,{run.name}")
    (tmp_path / "comparison.csv").write_text("\n".join(rows))
    found = tables.ours(tables.TEN[0], tmp_path)
    assert list(found) == ["fedavg", "scaffold"] and np.isnan(found["scaffold"])
    assert found["fedavg"] == pytest.approx(0.6)


def test_goals(tables):
    classes, number = tables.TEN[0], tables.TEN[3]

    def found(table, yardstick, seconds=1.0, **scores):
        return tables.Found(table, 1, 1, 2, 0, yardstick, scores, seconds, "")

    assert found(classes, 0.9, fedavg=0.89, scaffold=0.85).best == "fedavg"
    assert found(classes, 0.9, fedavg=0.881).good and not found(classes, 0.9, fedavg=0.879).good
    assert not found(classes, 0.9, 61, fedavg=0.9).good
    assert found(number, 100, fedavg=103.1, scaffold=102.9).best == "scaffold"
    assert found(number, 100, fedavg=102.9).good and not found(number, 100, fedavg=103.1).good
    assert not found(number, 100, fedavg=float("nan")).good
