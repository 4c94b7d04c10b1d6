"""Rows in this process, in the form in which trees are grown on them: codes by column, derivatives, and each row's
place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unalike.trees.tree import LEAF, Tree

EXACT = 2.0**53  # below it a float64 holds every whole number
# histograms that the rows of a single node take turns at: an addition to the cell of the row before would wait for it
TURNS = 4


class Rows:
    """The codes of rows, column by column, and the place of each row in the growing tree."""

    def __init__(self, codes: Tensor, bins: int, categories: Tensor):
        self.codes = np.ascontiguousarray(codes.numpy().T)
        self.bins, self.categories = bins, categories.numpy()
        self.place = np.ones(self.codes.shape[1], np.int64)

    def begin(self, derivatives: Tensor) -> None:
        """Put all rows at the root, with these derivatives, [rows, 2]."""
        self.place[:] = 1
        self.pair = [np.ascontiguousarray(part) for part in derivatives.numpy().T]
        most = max(float(np.abs(part).astype(np.float64).sum()) for part in self.pair)
        self.add = added_as_floats if most < EXACT else added_as_whole
        if most < EXACT:
            self.pair = [part.astype(np.float64) for part in self.pair]

    def sums(self, asked: np.ndarray) -> Tensor:
        """Return the histograms of these places, [places, columns, bins + 1, 2]."""
        number = np.full(int(max(asked.max(), self.place.max())) + 1, -1)
        number[asked] = np.arange(len(asked))
        slot = number[self.place]
        rows = slice(None) if len(asked) == 1 and asked[0] == 1 else np.flatnonzero(slot >= 0)
        slot, pair = slot[rows], [part[rows] for part in self.pair]
        turns = max(1, TURNS // len(asked))
        offset = (slot * turns + np.arange(len(slot)) % turns) * (self.bins + 1)
        out = np.empty((len(self.codes), 2, len(asked) * turns * (self.bins + 1)), self.pair[0].dtype)
        for column, codes in enumerate(self.codes):
            where = codes[rows] + offset
            for k in (0, 1):
                out[column, k] = self.add(where, pair[k], out.shape[2])
        whole = out.reshape(len(self.codes), 2, len(asked), turns, -1).sum(3)
        return torch.from_numpy(whole.transpose(2, 0, 3, 1).astype(np.int64))

    def divide(self, tree: Tree, divided: np.ndarray) -> None:
        """Move the rows of these places to their children."""
        if not len(divided):
            return
        split = np.zeros(len(tree.column), bool)
        split[divided] = True
        column, bin, place = np.where(split, tree.column, 0), tree.bin.astype(np.uint8), self.place
        count = len(place)
        code, bin = self.codes.reshape(-1).take((column * count)[place] + np.arange(count)), bin[place]
        left = code <= bin
        if self.categories.any():
            left = np.where(self.categories[column][place], code != bin, left)
        left = np.where(code == self.bins, tree.missing_left[place], left)
        np.copyto(place, 2 * place + ~left, where=split[place])


def added_as_floats(where: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Return sums of whole numbers by place, added as floats; exact, because they stay below 2^53."""
    return np.bincount(where, weights=values, minlength=size)


def added_as_whole(where: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Return sums of whole numbers by place."""
    out = np.zeros(size, np.int64)
    np.add.at(out, where, values)
    return out


def places(codes: np.ndarray, tree: Tree, bins: int, categories: np.ndarray) -> np.ndarray:
    """Return the place of the leaf in which each row ends; codes: [rows, columns]."""
    place, rows = np.ones(len(codes), np.int64), np.arange(len(codes))
    for _ in range(tree.depth):
        column = tree.column[place]
        # for rows at a leaf it reads the last column, which does not count
        code, bin = codes[rows, column], tree.bin[place]
        left = np.where(categories[column], code != bin, code <= bin)
        left = np.where(code == bins, tree.missing_left[place], left)
        place = np.where(column == LEAF, place, 2 * place + ~left)
    return place
