"""Every printed number of a paper with its verdict."""

from __future__ import annotations

import dataclasses as dc
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from unalike.reproduce import judge
from unalike.reproduce.define import Paper
from unalike.reproduce.measure import Cell
from unalike.reproduce.numbers import Printed

Reading = dict[str, Cell]  # by the printed number's metric


@dc.dataclass(frozen=True)
class Judged:
    """A printed number, the cell of ours that corresponds to it, and the verdict on it."""

    printed: Printed
    cell: Cell | None

    @property
    def verdict(self) -> str:
        return self.cell.verdict if self.cell else judge.NO_ROW


def tally(paper: Paper, cells: Iterable[tuple[str, Cell]]) -> list[Judged]:
    """Judge all printed numbers by our cells, each with its table. Of several readings of a row and method the one that
    is nearest to its numbers counts, for all of these. A number that two tables print counts once."""
    readings: dict[tuple[str, str, str], dict[tuple[str, str], Reading]] = {}
    for table, cell in cells:
        one = cell.paper
        if one is not None and paper.numbers.source(table) == one.table:
            own = readings.setdefault(place(one)[:3], {})
            reading = own.setdefault((cell.row.id, cell.method), {})
            reading[one.metric] = min(cell, reading.get(one.metric, cell), key=_distance)
    found = {where: _nearest([*own.values()]) for where, own in readings.items()}
    judged, first = [], dict[tuple[Any, ...], str]()
    for one in paper.numbers.counted():
        if first.setdefault((one.row, one.method, one.metric, one.value, one.spread), one.table) == one.table:
            reading = found.get(place(one)[:3], {})
            judged.append(Judged(one, reading.get(one.metric)))
    return judged


def place(one: Printed) -> tuple[str, str, str, str]:
    """Return where a number stands in its paper."""
    return one.table, one.row, one.method, one.metric


def _nearest(readings: list[Reading]) -> Reading:
    metrics = {metric for reading in readings for metric in reading}

    def distance(reading: Reading) -> tuple[int, float]:
        far = [_distance(reading[m]) if m in reading else (len(judge.ORDER), math.inf) for m in metrics]
        return sum(verdict for verdict, _ in far), sum(difference for _, difference in far)

    return min(readings, key=distance)


def _distance(cell: Cell) -> tuple[int, float]:
    difference = cell.difference
    return judge.ORDER.index(cell.verdict), math.inf if difference is None else abs(difference)


def counts(judged: Iterable[Judged]) -> Counter[str]:
    return Counter(one.verdict for one in judged)
