"""benchmarks/leak.py: a plan with one sample a step gives it away, and the default policy refuses such plans."""

import importlib.util

import numpy as np
import torch
from paths import ROOT

from unalike.network.policy import Policy


def leak():
    spec = importlib.util.spec_from_file_location("leak", ROOT / "benchmarks" / "leak.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_sample_a_step_is_read_and_refused_by_default():
    module, rng = leak(), np.random.default_rng(0)
    x, y = rng.random((32, 64)), rng.integers(0, 10, 32)
    given = "linear", torch.tensor(x), torch.tensor(y)
    assert module.read(module.attacked(*given, Policy.open(), 1, 1), x) == 1
    for batch, steps in ((1, 1), (1, 32), (7, 4), (8, 3)):
        assert module.attacked(*given, Policy(), batch, steps) is None
    assert module.read(module.attacked(*given, Policy(), 8, 4), x) == 0
