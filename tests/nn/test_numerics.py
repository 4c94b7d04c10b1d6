"""bfloat16 products on a CPU, where it has them."""

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.errors import UnalikeError
from unalike.nn import numerics


def run(**options):
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 8, 8)).astype(np.float32), np.arange(n) % 3) for n in (12, 20, 7)]
    fed = ua.Federation.from_arrays(parts, classes=3)
    torch.manual_seed(0)
    model = ua.models.small_cnn(1, 8, 3)
    return ua.simulate(model, fed, ua.Scaffold(), rounds=2, local=ua.LocalTraining(epochs=2, batch_size=5), **options)


@pytest.fixture
def a_cpu_with_bf16(monkeypatch):
    monkeypatch.setattr(numerics, "_bf16_on_cpu", lambda: True)  # without the hardware it is only slow


@pytest.mark.parametrize("engine", ["sequential", "workers", "batched"])
def test_bf16_is_near_float32_and_not_float32(engine, a_cpu_with_bf16):
    exact, rough = (run(engine=engine, precision=p).server.w for p in ("highest", "bf16"))
    assert rough.dtype == torch.float32
    off = float((rough - exact).norm() / exact.norm())
    assert 1e-6 < off < 0.02


@pytest.mark.parametrize("precision", ["highest", "bf16"])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_run_has_its_own_precision_within_the_callers(engine, precision, a_cpu_with_bf16):
    """PyTorch's `autocast` would compute in another, and keeps its copies of weights until the caller's ends."""
    alone = run(engine=engine, precision=precision)
    with torch.autocast("cpu", torch.bfloat16):
        within = run(engine=engine, precision=precision)
        assert torch.is_autocast_enabled("cpu")
        again = within.evaluate()
    assert torch.equal(alone.server.w, within.server.w)
    assert alone.history[-1]["train_loss"] == within.history[-1]["train_loss"]
    assert again == alone.evaluate()


def test_what_a_cpu_does_not_have_is_refused(monkeypatch):
    monkeypatch.setattr(numerics, "_bf16_on_cpu", lambda: False)
    for precision in ("bf16", "tf32"):
        with pytest.raises(UnalikeError, match=f"precision='{precision}' is not for this CPU: use 'highest'."):
            run(precision=precision)


def test_rows_are_finite_throughout_or_not():
    far = torch.finfo(torch.float32).max  # two of them: a sum that is infinite, of finite numbers
    rows = torch.tensor([[1.0, 2.0], [far, far], [torch.nan, 0.0], [torch.inf, -torch.inf], [0.0, -torch.inf]])
    assert numerics.finite_rows(rows).tolist() == [True, True, False, False, False]
    assert numerics.finite_rows(rows[:1]).tolist() == [True]
    assert numerics.finite_rows(rows[1:2]).tolist() == [True]
    assert numerics.finite_rows(rows[:, :, None].expand(-1, -1, 3)).tolist() == [True, True, False, False, False]
