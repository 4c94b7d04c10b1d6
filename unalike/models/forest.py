"""A forest of decision trees as a module: written by methods that grow trees, and evaluated like any model."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from unalike.models._options import Classes, Features, whole
from unalike.models.start import remembered
from unalike.settings.knobs import Knob


@remembered("forest")
def forest(
    features: Features,
    classes: Classes,
    trees: Annotated[int, Knob("rounds of trees that there is room for", least=1)] = 100,
    depth: Annotated[int, Knob("splits between root and leaf", least=1)] = 5,
) -> nn.Module:
    """Trees that a method grows (hist-boost); all dimensions after the batch are flattened. For two classes there is
    one tree per round, with the log odds of the second class; for more, one tree per class."""
    return Forest(whole("features", features), whole("classes", classes), whole("trees", trees), whole("depth", depth))


class Forest(nn.Module):
    """Trees in a flat vector; `head` has the numbers, so that a sample's features are the sample."""

    def __init__(self, features: int, classes: int, trees: int, depth: int):
        super().__init__()
        self.head = Trees(classes, trees, depth)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Trees(nn.Module):
    """Complete trees: `inner` splits each (column, cut, whether a missing value goes left), and values of leaves."""

    def __init__(self, classes: int, trees: int, depth: int):
        super().__init__()
        self.classes, self.depth = classes, depth
        self.width = classes if classes > 2 else 1
        inner, count = (1 << depth) - 1, trees * self.width
        self.base = nn.Parameter(torch.zeros(classes))  # start of the margins; for a number to predict, one value
        self.column, self.cut, self.missing_left = (nn.Parameter(torch.zeros(count, inner)) for _ in range(3))
        self.value = nn.Parameter(torch.zeros(count, inner + 1))

    def forward(self, x: Tensor) -> Tensor:
        count, inner = self.column.shape
        place = torch.zeros(len(x), count, dtype=torch.int64, device=x.device)
        for _ in range(self.depth):
            column, cut, lacking = (p.T.gather(0, place) for p in (self.column, self.cut, self.missing_left))
            value = x.gather(1, column.to(torch.int64))
            left = torch.where(torch.isnan(value), lacking > 0.5, value <= cut)
            place = 2 * place + 2 - left.to(torch.int64)
        added = self.value.T.gather(0, place - inner)
        margins = self.base[-self.width :] + added.reshape(len(x), count // self.width, self.width).sum(1)
        return torch.cat([torch.zeros_like(margins), margins], 1) if self.classes == 2 else margins
