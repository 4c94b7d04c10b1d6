"""Losses: one of two classes, one of several, or a number. Labels are the guest's, so all of this happens at the
guest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Loss:
    """The mean loss of outputs, and its gradient with respect to the output for each row (`residue`, not divided by the
    number of rows)."""

    task = ""
    linear = False  # whether the residue is linear in the output

    def outputs(self, classes: int | None) -> int:
        return 1

    def residue(self, z: Tensor, y: Tensor) -> Tensor:
        """Return ∂loss/∂z for each row: [rows, outputs]."""
        raise NotImplementedError

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def likelihood(self, z: Tensor) -> Tensor:
        """Return the probability of every class."""
        raise NotImplementedError


class Binary(Loss):
    """Logistic loss: y is 0 or 1, z the log-odds of 1."""

    task = "binary"

    def residue(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(z) - y.to(z.dtype)[:, None]

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z[:, 0], y.to(z.dtype))

    def likelihood(self, z: Tensor) -> Tensor:
        return torch.cat([torch.sigmoid(-z), torch.sigmoid(z)], 1)


class Classes(Loss):
    """Softmax loss: y is a class's number."""

    task = "classes"

    def outputs(self, classes: int | None) -> int:
        return classes or 1

    def residue(self, z: Tensor, y: Tensor) -> Tensor:
        return z.softmax(1) - F.one_hot(y, z.shape[1]).to(z.dtype)

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y)

    def likelihood(self, z: Tensor) -> Tensor:
        return z.softmax(1)


class Number(Loss):
    """Half the squared error."""

    task = "number"
    linear = True

    def residue(self, z: Tensor, y: Tensor) -> Tensor:
        return z - y.to(z.dtype)[:, None]

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return (z[:, 0] - y.to(z.dtype)).square().mean() / 2


LOSSES: dict[str, Loss] = {kind.task: kind() for kind in (Binary, Classes, Number)}


def task_of(y: Tensor, classes: int | None) -> Loss:
    """Return the loss that fits a label."""
    if y.is_floating_point():
        return LOSSES["number"]
    return LOSSES["binary" if (classes or int(y.max()) + 1) == 2 else "classes"]
