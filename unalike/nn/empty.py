"""A stand-in for the model of methods that have none."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NoModel(nn.Module):
    """A model without parameters: its vector has length 0, its features are the sample, and its outputs mean
    nothing."""

    def __init__(self, outputs: int):
        super().__init__()
        self.head = _Nothing(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class _Nothing(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.outputs = outputs
        self.none = nn.Parameter(torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.none.sum().expand(len(x), self.outputs)  # an empty sum: 0
