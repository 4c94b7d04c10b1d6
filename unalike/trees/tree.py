"""A tree as arrays by place: the root is 1, the children of k are 2k and 2k + 1."""

from __future__ import annotations

import dataclasses as dc
from typing import Any, Self

import numpy as np

LEAF = -1  # in the place of a column


@dc.dataclass
class Tree:
    """One tree. At place k: the column it splits by (or LEAF), the bin, whether rows without a value go left, the gain,
    the sum of second derivatives, and the value for a row that ends there."""

    column: np.ndarray
    bin: np.ndarray
    missing_left: np.ndarray
    gain: np.ndarray
    weight: np.ndarray
    value: np.ndarray

    @classmethod
    def empty(cls, depth: int) -> Self:
        """Return a tree that is a single leaf with value 0."""
        size = 2 << depth
        whole, real = np.zeros(size, np.int64), np.zeros(size)
        return cls(np.full(size, LEAF), whole, np.zeros(size, bool), real, real.copy(), real.copy())

    @property
    def depth(self) -> int:
        return len(self.column).bit_length() - 2

    @property
    def splits(self) -> np.ndarray:
        """Return the places of its splits."""
        return np.flatnonzero(self.column != LEAF)

    @property
    def leaves(self) -> np.ndarray:
        """Return the places of its leaves."""
        inner = self.splits
        children = np.sort(np.concatenate([[1], 2 * inner, 2 * inner + 1]))
        return children[self.column[children] == LEAF]

    def plain(self, place: int = 1) -> dict[str, Any]:
        """Return the tree as nested dicts, as in the golden files."""
        if self.column[place] == LEAF:
            return {"leaf": float(self.value[place])}
        left, right = self.plain(2 * place), self.plain(2 * place + 1)
        split = {"feature": int(self.column[place]), "bin": int(self.bin[place]), "gain": float(self.gain[place])}
        return {**split, "missing_left": bool(self.missing_left[place]), "left": left, "right": right}

    def same(self, other: Tree) -> bool:
        """Return whether another tree equals this one, bit for bit."""
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in dc.fields(self))
