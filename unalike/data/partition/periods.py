"""Clients that saw different times."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from unalike.data.partition.pieces import Dealer
from unalike.data.partition.tools import checked


@dataclasses.dataclass(frozen=True)
class Periods(Dealer):
    """Temporal skew: the rows in the order of time, cut into stretches of equal size; client 0 has the oldest.

    `column` None is the column that the data set itself calls its time, else the order in which rows are stored. Whole
    numbers are compared as numbers, texts as texts (2024-03-01 is before 2024-11-30); rows of the same time stay in
    their order. The seed changes nothing. Called by itself it is given the times in place of labels. A size law behind
    it makes the stretches unequal.
    """

    name: ClassVar[str] = "periods"
    stretches: ClassVar[bool] = True
    column: str | None = None

    def parts(self, times: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        times = checked(times, clients, 1, self.name)
        return np.array_split(np.argsort(times, kind="stable"), clients)
