"""Bins of columns: quantiles over all rows, found by counting alone, and the codes of rows.

A float32 number has a rank in the order of all float32 numbers, its key. The k-th cut of a column is the smallest
number that at least k/bins of its present values do not exceed. A few exchanges find it by counting how many values
have a key of at most t. Counts are summed over clients, so the cuts are exactly those of the pooled table, and no range
need be agreed on.

A row's code is the number of cuts below its value: code <= j means value <= cut j. Missing values have the code `bins`.
The code of a category is its number.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unalike.errors import UnalikeError

STEPS = 8  # exchanges needed to find a cut
# parts into which each exchange divides the remaining range
WAYS = 16
LOWEST = -(1 << 31)
# the key of a missing value: above all others
MISSING = 1 << 31
MOST = 255  # the largest code
FARTHEST = float(np.finfo(np.float32).max)  # stands for a missing cut


def keys(x: Tensor) -> Tensor:
    """Return the rank of each number among all float32 numbers, int64; missing ones are above all."""
    x = x.to(torch.float32) + 0.0  # minus zero is zero
    order = x.contiguous().view(torch.int32).to(torch.int64)
    order = torch.where(order < 0, order ^ 0x7FFFFFFF, order)
    return torch.where(torch.isnan(x), MISSING, order)


def numbers(keys: Tensor) -> Tensor:
    """Return the float32 numbers with these keys."""
    order = torch.where(keys < 0, keys ^ 0x7FFFFFFF, keys)
    return order.to(torch.int32).view(torch.float32)


def ranks(present: Tensor, bins: int) -> Tensor:
    """Return the rank of each cut among the present values of a column, [columns, bins - 1]."""
    parts = torch.arange(1, bins, device=present.device)
    return (present[:, None] * parts + bins - 1) // bins


class Search:
    """Finds the cuts of all columns: ask for the counts at (`low`, `step`) and pass their sum to `take`, `STEPS`
    times."""

    def __init__(self, present: Tensor, bins: int):
        """present: number of rows that have a value, for each column."""
        self.ranks = ranks(present, bins)
        self.low = torch.full_like(self.ranks, LOWEST)
        self.step = (1 << 32) // WAYS

    def take(self, counts: Tensor) -> None:
        """Take the number of values with a key of at most each threshold."""
        self.low = self.low + self.step * (counts < self.ranks[..., None]).sum(-1)
        self.step //= WAYS

    @property
    def cuts(self) -> Tensor:
        """Return the cuts, float32 [columns, bins - 1], ascending and distinct; unused places have `FARTHEST`."""
        last = int(keys(torch.tensor(FARTHEST)))
        return distinct(numbers(self.low.clamp(-last - 1, last)))


def distinct(cuts: Tensor) -> Tensor:
    """Return ascending cuts without duplicates, filled up with `FARTHEST`."""
    again = torch.zeros_like(cuts, dtype=torch.bool)
    again[:, 1:] = cuts[:, 1:] == cuts[:, :-1]
    return torch.where(again, torch.tensor(FARTHEST), cuts).sort(1).values


def thresholds(low: Tensor, step: Tensor | int) -> Tensor:
    """Return the keys for which a search at `low` and `step` needs counts, [columns, bins - 1, 15]."""
    return low[..., None] + step * torch.arange(1, WAYS, device=low.device) - 1


def pooled_cuts(x: Tensor, bins: int) -> Tensor:
    """Return the cuts of a table that is in one place, by sorting; the same that `Search` finds."""
    own = keys(x).T.contiguous().sort(1).values
    present = (own < MISSING).sum(1)
    place = (ranks(present, bins) - 1).clamp(min=0)
    found = numbers(own.gather(1, place).clamp(max=int(keys(torch.tensor(FARTHEST)))))
    return distinct(torch.where(present[:, None] > 0, found, torch.tensor(-FARTHEST)))


def codes(x: Tensor, cuts: Tensor, categories: Tensor | None = None) -> Tensor:
    """Return the codes of rows, uint8 [rows, columns]; categories: for each column, whether its values are category
    numbers; without it, none has."""
    x, bins = x.to(torch.float32), cuts.shape[1] + 1
    columns = x.T.contiguous()
    number = torch.zeros_like(columns, dtype=torch.uint8)
    for cut in cuts.unbind(1):  # a few dozen comparisons of whole columns: several times faster than `searchsorted`
        number += columns > cut[:, None]
    number = number.T
    if categories is not None:
        number = torch.where(categories, torch.nan_to_num(x).clamp(0, MOST).to(torch.uint8), number)
    return torch.where(torch.isnan(x), bins, number)


def check_categories(x: Tensor, categories: Tensor, bins: int, names: list[str] | None = None) -> None:
    """Refuse a column of categories whose values are not whole numbers from 0 to bins - 1."""
    for column in torch.nonzero(categories).flatten().tolist():
        own = x[:, column]
        own = own[~torch.isnan(own)]
        if len(own) and (bool((own != own.floor()).any()) or float(own.min()) < 0 or float(own.max()) >= bins):
            name = repr(names[column]) if names else str(column)
            raise UnalikeError(
                f"Column {name} has categories from {float(own.min()):g} to {float(own.max()):g}: they must be whole "
                f"numbers from 0 to bins - 1, {bins - 1}; give more bins (up to 255)."
            )
