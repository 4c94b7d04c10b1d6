"""Grow a tree level by level, from histograms that the caller sums.

    growth = Growth(settings, allowed, categories)
    while len(growth.asked):
        growth.take(sums of the nodes `growth.asked`)      # [nodes, columns, bins + 1, 2], whole multiples of 2^-30
        rows move on as `growth.tree` and `growth.divided` say
    growth.tree

The sums may come from one table, many clients, or parties that hold different columns. Of two children only the lighter
one is asked for; the other's histogram is its parent's minus that.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unalike.errors import UnalikeError
from unalike.trees.settings import Boosting
from unalike.trees.splits import SMALLEST, Best, best_splits, leaf_value
from unalike.trees.tree import Tree


class Growth:
    """One tree being grown. asked: the places whose histograms are wanted next; divided: the places of the last level
    that were split."""

    def __init__(self, settings: Boosting, allowed: Tensor, categories: Tensor):
        self.settings, self.allowed, self.categories = settings, allowed, categories
        self.tree = Tree.empty(settings.depth)
        self.asked, self.divided = np.array([1]), np.empty(0, np.int64)
        self.level = 0
        self._sums: dict[int, Tensor] = {}  # histograms of places that may be split
        self._parents: dict[int, Tensor] = {}

    def take(self, sums: Tensor) -> None:
        """Take the histograms of the places asked for, and split this level."""
        here = self._histograms(sums)
        places = np.array(sorted(here))
        stacked = torch.stack([here[place] for place in places.tolist()])
        if self.level == 0:
            self._leaf(1, stacked[0, 0].sum(0))
        found = best_splits(stacked, self.allowed, self.categories, self.settings.lam, self.settings.least)
        self.divided = self.split(places, found)
        self.level += 1
        self._parents = {place: here[place] for place in self.divided.tolist()}
        self.asked = np.array([self._lighter(place) for place in self.divided.tolist()], np.int64)
        if self.level == self.settings.depth:
            self.asked = self.asked[:0]

    def split(self, places: np.ndarray, found: Best) -> np.ndarray:
        """Write the splits that gain enough into the tree, and return their places."""
        gain = found.gain.numpy()
        chosen = self._affordable(np.flatnonzero(gain > max(self.settings.gamma, SMALLEST)), gain)
        for k in chosen.tolist():
            place, total = int(places[k]), self._sums[int(places[k])]
            tree, left = self.tree, found.left[k]
            tree.column[place], tree.bin[place], tree.gain[place] = int(found.column[k]), int(found.bin[k]), gain[k]
            tree.missing_left[place], tree.value[place] = bool(found.missing_left[k]), 0.0
            self._leaf(2 * place, left)
            self._leaf(2 * place + 1, total - left)
        return places[chosen]

    def _affordable(self, gaining: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """Return the best splits of the level for which there are leaves left."""
        if self.settings.leaves is None:
            return gaining
        left = self.settings.leaves - len(self.tree.leaves)
        best = np.argsort(-gain[gaining], kind="stable")[: max(left, 0)]
        return np.sort(gaining[best])

    def _leaf(self, place: int, sums: Tensor) -> None:
        """Make this place a leaf."""
        self._sums[place] = sums
        self.tree.weight[place] = float(sums[1]) / (1 << 30)
        self.tree.value[place] = float(leaf_value(sums, self.settings.lam, self.settings.rate))

    def _lighter(self, place: int) -> int:
        left, right = (int(self._sums[child][1]) for child in (2 * place, 2 * place + 1))
        return 2 * place if left <= right else 2 * place + 1

    def _histograms(self, sums: Tensor) -> dict[int, Tensor]:
        """Return the histogram of every place of this level, from those asked for and their parents'."""
        if len(sums) != len(self.asked):
            raise UnalikeError(f"{len(self.asked)} histograms were asked for, and {len(sums)} came.")
        here = dict(zip(self.asked.tolist(), sums, strict=True))
        if self.level:
            here |= {place ^ 1: self._parents[place // 2] - own for place, own in [*here.items()]}
        return here
