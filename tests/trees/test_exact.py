import math

import pytest
import torch

from unalike.trees import exact

X = torch.cat([torch.linspace(-40, 40, 1001), torch.tensor([-800.0, 800.0, 0.0, 1e-9])]).double()


def test_exponential():
    got = exact.exponential(X.clamp(-700, 700))
    wanted = torch.tensor([math.exp(v) for v in X.clamp(-700, 700).tolist()], dtype=torch.float64)
    assert float(((got - wanted) / wanted).abs().max()) < 1e-15


def test_the_same_bits_however_numbers_lie():
    """A vectorised exp may differ between a stack, a stride and a single number; this one is plain IEEE arithmetic."""
    whole = exact.sigmoid(X)
    assert torch.equal(torch.stack([exact.sigmoid(v) for v in X]), whole)
    assert torch.equal(exact.sigmoid(X[::3]), whole[::3])
    assert torch.equal(torch.func.vmap(exact.sigmoid)(X.reshape(15, 67)).flatten(), whole)


def test_derivatives_of_each_loss():
    margin = torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    p = 1 / (1 + math.exp(-0.5))
    g, h = exact.derivatives(margin, torch.tensor([1, 0]), 2)[0, 0].tolist()
    assert (g, h) == (round((p - 1) * 2**30), round(p * (1 - p) * 2**30))
    assert exact.derivatives(margin, torch.tensor([2.0, 0.0]), None)[0, 0].tolist() == [round(-1.5 * 2**30), 2**30]
    several = exact.derivatives(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([2]), 4)[0]
    assert several.tolist() == [[2**28, 3 * 2**27]] * 2 + [[-3 * 2**28, 3 * 2**27]] + [[2**28, 3 * 2**27]]


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_losses(classes):
    margin = torch.linspace(-2, 2, 6 if classes == 3 else 4).double().reshape(-1, 3 if classes == 3 else 1)
    y = torch.tensor([1.0, 0.0, 1.0, 0.0])[: len(margin)]
    got = exact.losses(margin, y if classes is None else y.long(), classes).double() / 2**30
    if classes is None:
        wanted = (margin[:, 0] - y).square() / 2
    elif classes == 2:
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(margin[:, 0], y.double(), reduction="none")
    else:
        wanted = torch.nn.functional.cross_entropy(margin, y.long(), reduction="none")
    assert float((got - wanted).abs().max()) < 1e-8
