"""A host's part in growing a tree: the possible splits by its columns, and their sums under encryption.

A candidate is (column, bin, way), as in `unalike.trees.splits`; the guest knows it by a number that is shuffled for
every tree, so that it learns neither columns nor the order of bins. Of a candidate's two sides the host sums the one
without the column's commonest code: rows of that code are never added. The guest does not know which side that is; the
gain is the same for both.

Rows are first added by joint cells of several columns, then cells by column: with two columns of 32 bins that is one
addition per row instead of two.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np


class Candidate(NamedTuple):
    """One possible split of rows."""

    column: int
    bin: int
    way: int


class Candidates:
    """The candidates of one host's columns for the rows of a tree.

    codes: uint8 [rows, columns], missing values have the code `bins`; allowed: columns that this tree may split by.
    """

    def __init__(self, codes: np.ndarray, bins: int, allowed: np.ndarray, shuffled: bool = True):
        self.codes, self.bins = codes, bins
        self.lists, self.common, self.lacking = [], [], []
        for column in range(codes.shape[1]):
            counts = np.bincount(codes[:, column], minlength=bins + 1)
            self.common.append(int(counts.argmax()))
            self.lacking.append(bool(counts[bins]))
            self.lists += self._of(column, counts) if allowed[column] else []
        order = list(range(len(self.lists)))
        if shuffled:
            secrets.SystemRandom().shuffle(order)
        # the guest knows candidate k by its position here
        self.order = order
        self.number = {candidate: n for n, candidate in enumerate(order)}

    def _of(self, column: int, counts: np.ndarray) -> list[Candidate]:
        """Return a column's candidates, without those that would certainly leave a side empty."""
        present = np.flatnonzero(counts[: self.bins])
        last = int(present[-1]) if len(present) else 0
        found = [Candidate(column, bin, way) for bin in range(last) for way in range(1 + self.lacking[column])]
        return [*found, Candidate(column, last, 0)] if self.lacking[column] else found

    def __len__(self) -> int:
        return len(self.lists)

    def at(self, number: int) -> tuple[int, Candidate]:
        """Return the candidate that the guest knows by this number, and its index in the order of columns."""
        return self.order[number], self.lists[self.order[number]]

    def left(self, candidate: Candidate) -> np.ndarray:
        """Return which codes of the column go left."""
        out = np.arange(self.bins + 1) <= candidate.bin
        out[self.bins] = candidate.way == 1
        return out

    def sends_left(self, candidate: Candidate) -> bool:
        """Return whether the left side is summed: the commonest code is not on it."""
        return not self.left(candidate)[self.common[candidate.column]]

    def sums(self, rows: np.ndarray, values: Any, one: Any, add: Any) -> list[Any]:
        """Return the sum over these rows of each candidate's side, in the shuffled order.

        values: of each row of the tree; one: the value of an empty sum; add: adds two values.
        """
        cells = self.cells(rows, values, one, add)
        sides = {c: self._sides(cells[c], one, add) for c in {candidate.column for candidate in self.lists}}
        out = []
        for candidate in (self.lists[k] for k in self.order):
            left = self.sends_left(candidate)
            total = sides[candidate.column][0 if left else 1][candidate.bin]
            with_missing = (candidate.way == 1) == left
            out.append(add(total, cells[candidate.column][self.bins]) if with_missing else total)
        return out

    def _sides(self, cells: list[Any], one: Any, add: Any) -> tuple[list[Any], list[Any]]:
        """Return the sums of all codes up to each bin, and of those above it; missing values are on neither side."""
        below, above = [cells[0]], [one] * self.bins
        for cell in cells[1 : self.bins]:
            below.append(add(below[-1], cell))
        for bin in range(self.bins - 2, -1, -1):
            above[bin] = add(above[bin + 1], cells[bin + 1])
        return below, above

    def cells(self, rows: np.ndarray, values: Any, one: Any, add: Any) -> list[list[Any]]:
        """Return the sums of rows by column and code, with `one` for the commonest code of each column."""
        out = [[one] * (self.bins + 1) for _ in range(self.codes.shape[1])]
        for group in self.groups(rows):
            joint, skipped = self._joint(rows, group)
            found: dict[int, Any] = {}
            for row, key in zip(rows[~skipped].tolist(), joint[~skipped].tolist(), strict=True):
                found[key] = add(found[key], values[row]) if key in found else values[row]
            for key, total in found.items():
                for column in reversed(group):
                    key, code = divmod(key, self.bins + 1)
                    if code != self.common[column]:
                        out[column][code] = add(out[column][code], total)
        return out

    def _joint(self, rows: np.ndarray, group: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return one number for the codes of several columns together, and which rows have the commonest code in
        all."""
        key, skipped = np.zeros(len(rows), np.int64), np.ones(len(rows), bool)
        for column in group:
            code = self.codes[rows, column]
            key, skipped = key * (self.bins + 1) + code, skipped & (code == self.common[column])
        return key, skipped

    def groups(self, rows: np.ndarray) -> list[list[int]]:
        """Return groups of columns that are added together, as long as their joint cells are few compared with the
        rows."""
        columns = {candidate.column for candidate in self.lists}
        sizes = {c: len(np.unique(self.codes[rows, c])) for c in columns}
        out: list[list[int]] = []
        cells = 0
        for column in sorted(columns, key=lambda c: sizes[c]):
            few = out and cells * sizes[column] * (len(out[-1]) + 1) <= len(rows) // 3
            if few and (self.bins + 1) ** (len(out[-1]) + 1) < 1 << 63:  # the joint number must fit into an int64
                out[-1].append(column)
                cells *= sizes[column]
            else:
                out.append([column])
                cells = sizes[column]
        return out
