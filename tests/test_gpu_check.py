"""benchmarks/gpu_check.py: the part on pictures goes through, here without a GPU; and NaN is no agreement."""

import importlib.util
import math

import pytest
import torch
from paths import ROOT

import unalike as ua
from unalike.data.pixels import Held


@pytest.fixture
def check():
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "benchmarks" / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, 0), (1.01, 8)])
def test_pictures(check, factor, wrong, monkeypatch):
    def here(*given, compile=False, **options):
        return simulate(*given, **{**options, "device": "cpu", "compile": False})

    simulate, read = ua.simulate, Held.read
    monkeypatch.setattr(ua, "simulate", here)
    monkeypatch.setattr(Held, "read", lambda self, rows=None: read(self, rows) * (1.0 if rows is None else factor))
    assert check.pictures() == wrong


def test_a_number_that_is_none_is_not_near(check):
    one = torch.ones(3)
    assert check.apart([one, 1.1 * one], [one, one]) == pytest.approx(0.1, rel=1e-5)
    for given in ([one, one * math.nan], [one * math.nan, one]):
        assert math.isnan(check.apart(given, [one, one]))
