"""benchmarks/norms.py: BatchNorm fails with one class a client where the head reads channels' means; GroupNorm, and
BatchNorm with clients alike, do not."""

import importlib.util

import pytest
from paths import ROOT


def norms():
    spec = importlib.util.spec_from_file_location("norms", ROOT / "benchmarks" / "norms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_batch_norm_fails_with_one_class_a_client():
    pytest.importorskip("sklearn")
    found = {
        (row, split): norms().trained("pooled", row, split, 0)[0]
        for row, split in (
            ("GroupNorm", "one class"),
            ("BatchNorm, statistics averaged", "one class"),
            ("BatchNorm, statistics averaged", "iid"),
        )
    }
    fails = found.pop(("BatchNorm, statistics averaged", "one class"))
    assert fails < min(found.values()) - 0.15, (fails, found)
