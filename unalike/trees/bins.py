"""Bins of columns: quantiles over all rows, found by counting alone, and the codes of rows.

A float32 number has a place in the order of all float32 numbers, its key. The k-th cut of a column is the smallest
number that at least k/bins of its present values do not exceed. Four exchanges find it, each of 255 counts a cut: how
many values have a key of at most t. Counts are summed over clients, so the cuts are those of the pooled table, exactly,
and no range need be agreed on.

A row's code is the number of cuts below its value: code <= j means value <= cut j. Missing values have the code `bins`.
The code of a category is its number.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unalike.errors import UnalikeError

STEPS = 8  # exchanges in which a cut is found
WAYS = 16  # parts into which each of them divides what is left
LOWEST = -(1 << 31)
MISSING = 1 << 31  # the key of a value that is not there: above all others
FARTHEST = float(np.finfo(np.float32).max)  # stands for a cut that is not there


def keys(x: Tensor) -> Tensor:
    """Return where numbers stand among all float32 numbers, int64; a missing one stands above all."""
    x = x.to(torch.float32) + 0.0  # minus zero is zero
    order = x.contiguous().view(torch.int32).to(torch.int64)
    order = torch.where(order < 0, order ^ 0x7FFFFFFF, order)
    return torch.where(torch.isnan(x), MISSING, order)


def numbers(keys: Tensor) -> Tensor:
    """Return the float32 numbers that stand at these places."""
    order = torch.where(keys < 0, keys ^ 0x7FFFFFFF, keys)
    return order.to(torch.int32).view(torch.float32)


def ranks(present: Tensor, bins: int) -> Tensor:
    """Return the rank of each cut among the present values of a column, [columns, bins - 1]."""
    parts = torch.arange(1, bins, device=present.device)
    return (present[:, None] * parts + bins - 1) // bins


class Search:
    """Finds the cuts of all columns: ask for the counts at (`low`, `step`), give their sum to `take`, eight times."""

    def __init__(self, present: Tensor, bins: int):
        """present: how many rows have a value, of each column."""
        self.ranks = ranks(present, bins)
        self.low = torch.full_like(self.ranks, LOWEST)
        self.step = (1 << 32) // WAYS

    def take(self, counts: Tensor) -> None:
        """Take in how many values have a key of at most each threshold."""
        self.low = self.low + self.step * (counts < self.ranks[..., None]).sum(-1)
        self.step //= WAYS

    @property
    def cuts(self) -> Tensor:
        """The cuts, float32 [columns, bins - 1], ascending, each once; what is left over is `FARTHEST`."""
        last = int(keys(torch.tensor(FARTHEST)))
        return distinct(numbers(self.low.clamp(-last - 1, last)))


def distinct(cuts: Tensor) -> Tensor:
    """Return ascending cuts with each once, and `FARTHEST` behind."""
    again = torch.zeros_like(cuts, dtype=torch.bool)
    again[:, 1:] = cuts[:, 1:] == cuts[:, :-1]
    return torch.where(again, torch.tensor(FARTHEST), cuts).sort(1).values


def thresholds(low: Tensor, step: Tensor | int) -> Tensor:
    """Return the keys that a search at `low` and `step` asks for counts of, [columns, bins - 1, 15]."""
    return low[..., None] + step * torch.arange(1, WAYS, device=low.device) - 1


def pooled_cuts(x: Tensor, bins: int) -> Tensor:
    """Return the cuts of a table that is all here: what `Search` finds, by sorting."""
    own = keys(x).T.contiguous().sort(1).values
    present = (own < MISSING).sum(1)
    place = (ranks(present, bins) - 1).clamp(min=0)
    found = numbers(own.gather(1, place).clamp(max=int(keys(torch.tensor(FARTHEST)))))
    return distinct(torch.where(present[:, None] > 0, found, torch.tensor(-FARTHEST)))


def codes(x: Tensor, cuts: Tensor, categories: Tensor) -> Tensor:
    """Return the codes of rows, uint8 [rows, columns]; categories: of each column, whether its values are numbers of
    categories."""
    x, bins = x.to(torch.float32), cuts.shape[1] + 1
    number = torch.searchsorted(cuts.contiguous(), x.T.contiguous()).T
    number = torch.where(categories, torch.nan_to_num(x).to(torch.int64), number)
    return torch.where(torch.isnan(x), bins, number).to(torch.uint8)


def check_categories(x: Tensor, categories: Tensor, bins: int, names: list[str] | None = None) -> None:
    """Refuse a column of categories whose values are no numbers from 0 to bins - 1."""
    for column in torch.nonzero(categories).flatten().tolist():
        own = x[:, column]
        own = own[~torch.isnan(own)]
        if len(own) and (bool((own != own.floor()).any()) or float(own.min()) < 0 or float(own.max()) >= bins):
            name = repr(names[column]) if names else str(column)
            raise UnalikeError(
                f"Column {name} has categories from {float(own.min()):g} to {float(own.max()):g}: they must be whole "
                f"numbers from 0 to bins - 1, {bins - 1}; give more bins (up to 255)."
            )
