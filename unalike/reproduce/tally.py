"""Every printed number of a paper with its verdict."""

from __future__ import annotations

import dataclasses as dc
from collections import Counter
from collections.abc import Iterable

from unalike.reproduce import judge
from unalike.reproduce.define import Paper
from unalike.reproduce.measure import Cell
from unalike.reproduce.numbers import Printed


@dc.dataclass(frozen=True)
class Judged:
    """A printed number, the cell of ours that corresponds to it, and the verdict on it."""

    printed: Printed
    cell: Cell | None

    @property
    def verdict(self) -> str:
        return self.cell.verdict if self.cell else judge.NO_ROW


def tally(paper: Paper, cells: Iterable[tuple[str, Cell]]) -> list[Judged]:
    """Judge all printed numbers by our cells, each with its table. Of several readings of a row or a method the nearest
    counts."""
    readings: dict[tuple[str, str, str, str], list[Cell]] = {}
    for table, cell in cells:
        if cell.paper is not None and paper.numbers.source(table) == cell.paper.table:
            readings.setdefault(_place(cell.paper), []).append(cell)
    found = {place: min(own, key=_distance) for place, own in readings.items()}
    return [Judged(one, found.get(_place(one))) for one in paper.numbers.counted()]


def _place(one: Printed) -> tuple[str, str, str, str]:
    return one.table, one.row, one.method, one.metric


def _distance(cell: Cell) -> tuple[int, float]:
    difference = cell.difference
    return judge.ORDER.index(cell.verdict), float("inf") if difference is None else abs(difference)


def counts(judged: Iterable[Judged]) -> Counter[str]:
    return Counter(one.verdict for one in judged)
