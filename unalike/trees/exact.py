"""Arithmetic that gives the same bits wherever it runs: fixed point, and an exponential of plain IEEE operations.

First and second derivatives are rounded to multiples of 2^-30. Their sums are whole numbers, so neither the order of
rows, nor who holds them, nor a mask or a cipher on the way changes a bit. The exponential is made of additions and
products alone, which IEEE 754 rounds the same on every machine; `torch.exp` differs between processors in the last bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SCALE = 1 << 30
LARGEST = 2.0**62  # limit for a sum of whole numbers
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_TERMS = [1 / math.factorial(k) for k in range(13, -1, -1)]
_LOWEST = -1022
_POWERS = torch.tensor([2.0**k for k in range(_LOWEST, 1024)], dtype=torch.float64)


def exponential(x: Tensor) -> Tensor:
    """Return e^x of float64 numbers, accurate to one or two units in the last place."""
    x = x.clamp(-700.0, 700.0)
    k = torch.floor(x * _LOG2E + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    out = torch.full_like(r, _TERMS[0])
    for term in _TERMS[1:]:
        out = out.mul_(r).add_(term)
    return out * _POWERS.to(x.device)[k.to(torch.int64) - _LOWEST]


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + e^-x)."""
    return 1.0 / (1.0 + exponential(-x))


def softmax(x: Tensor) -> Tensor:
    """Return the probabilities of classes (last dimension), with the sum taken from first to last."""
    powers = exponential(x - x.max(-1, keepdim=True).values)
    total = powers[..., 0]
    for k in range(1, x.shape[-1]):
        total = total + powers[..., k]
    return powers / total[..., None]


def fixed(x: Tensor) -> Tensor:
    """Return numbers as whole multiples of 2^-30, int64."""
    return torch.round(x * SCALE).to(torch.int64)


def derivatives(margin: Tensor, y: Tensor, classes: int | None) -> Tensor:
    """Return first and second derivatives of the loss, whole multiples of 2^-30, [rows, outputs, 2].

    margin: float64 [rows, outputs]; y: class numbers, or numbers to predict (classes None: squared error, halved). With
    two classes there is one output, the log odds of class 1. Second derivatives are XGBoost's (twice p(1 - p) where
    there are several classes).
    """
    y = y.to(margin.dtype)
    if classes is None:
        first = margin - y[:, None]
        return torch.stack([fixed(first), torch.full_like(first, SCALE, dtype=torch.int64)], -1)
    if classes <= 2:
        p = sigmoid(margin)
        return torch.stack([fixed(p - y[:, None]), fixed(p * (1 - p))], -1)
    p = softmax(margin)
    label = (y[:, None] == torch.arange(classes, device=y.device)).to(p.dtype)
    return torch.stack([fixed(p - label), fixed(2 * p * (1 - p))], -1)


def losses(margin: Tensor, y: Tensor, classes: int | None) -> Tensor:
    """Return one loss per row, a whole multiple of 2^-30: log loss, or half the squared error."""
    if classes is None:
        return fixed((margin[:, 0] - y.to(margin.dtype)).square() / 2)
    if classes <= 2:
        p = sigmoid(torch.where(y[:, None] > 0, margin, -margin))[:, 0]
    else:
        p = softmax(margin).gather(1, y.to(torch.int64)[:, None])[:, 0]
    return fixed(-torch.log(p.clamp(min=1e-300)).clamp(max=700.0))


def outputs(classes: int | None) -> int:
    """Return how many trees a round grows: one, or one per class if there are more than two."""
    return 1 if classes is None or classes <= 2 else classes
