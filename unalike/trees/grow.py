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
from unalike.trees.exact import SCALE
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
        self._sums = torch.zeros(2 << settings.depth, 2, dtype=torch.int64)  # sums of derivatives, by place
        self._parents = torch.empty(0)  # histograms of the divided places

    def take(self, sums: Tensor) -> None:
        """Take the histograms of the places asked for, and split this level."""
        places, here = self._histograms(sums)
        if self.level == 0:
            self._leaves(np.array([1]), here[:, 0].sum(1))
        chosen = self.split(places, self._best(here))
        self.divided, self._parents = places[chosen], here[chosen]
        self.level += 1
        self.asked = self._lighter(self.divided if self.level < self.settings.depth else self.divided[:0])

    def _best(self, histograms: Tensor) -> Best:
        """Return the best split of each node."""
        settings, lacking = self.settings, bool(histograms[..., -1, :].any())
        return best_splits(histograms, self.allowed, self.categories, settings.lam, settings.least, lacking)

    def split(self, places: np.ndarray, found: Best) -> np.ndarray:
        """Write the splits that gain enough into the tree, and return their numbers among these places."""
        gain, column, bin, missing_left, _ = (part.numpy() for part in found)
        chosen = self._affordable(np.flatnonzero(gain > max(self.settings.gamma, SMALLEST)), gain)
        here, tree, left = places[chosen], self.tree, found.left[chosen]
        tree.column[here], tree.bin[here], tree.gain[here] = column[chosen], bin[chosen], gain[chosen]
        tree.missing_left[here], tree.value[here] = missing_left[chosen], 0.0
        self._leaves(np.concatenate([2 * here, 2 * here + 1]), torch.cat([left, self._sums[here] - left]))
        return chosen

    def _affordable(self, gaining: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """Return the best splits of the level for which there are leaves left."""
        if self.settings.leaves is None:
            return gaining
        left = self.settings.leaves - len(self.tree.leaves)
        best = np.argsort(-gain[gaining], kind="stable")[: max(left, 0)]
        return np.sort(gaining[best])

    def _leaves(self, places: np.ndarray, sums: Tensor) -> None:
        """Make these places leaves; sums: of their rows' derivatives, [places, 2]."""
        self._sums[places] = sums
        self.tree.weight[places] = sums[:, 1].double() / SCALE
        self.tree.value[places] = leaf_value(sums, self.settings.lam, self.settings.rate)

    def _lighter(self, places: np.ndarray) -> np.ndarray:
        """Return the lighter child of each place."""
        left, right = (self._sums[children, 1] for children in (2 * places, 2 * places + 1))
        return 2 * places + (left > right).numpy()

    def _histograms(self, sums: Tensor) -> tuple[np.ndarray, Tensor]:
        """Return the places of this level in ascending order and their histograms: those asked for, and their siblings'
        from the parents'."""
        if len(sums) != len(self.asked):
            raise UnalikeError(f"{len(self.asked)} histograms were asked for, and {len(sums)} came.")
        if self.level == 0:
            return self.asked, sums
        places, here = np.concatenate([self.asked, self.asked ^ 1]), torch.cat([sums, self._parents - sums])
        order = np.argsort(places)
        return places[order], here[order]
