"""Changes of labels: clients that call the same thing by other names."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch

from unalike import draws
from unalike.data.columns import Columns
from unalike.data.partition import tools
from unalike.data.partition.pieces import Change
from unalike.data.skew.planted import drawn_groups
from unalike.errors import UnalikeError


@dataclasses.dataclass(frozen=True)
class Permute(Change):
    """Label preference: groups of clients that name the classes otherwise, in training and in their own tests.

    Group 0 keeps the labels; every other group has a permutation of its own, which moves the share `strength` of the
    classes (at least two, where it is above 0). The global test set keeps its labels.
    """

    name: ClassVar[str] = "permute"
    groups: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.count("Permute's groups", self.groups, least=2)

    def change(self, fed: Any, seed: int) -> Any:
        if fed.classes is None:
            raise UnalikeError("permute gives classes other names, and these data have a number to predict.")
        groups = drawn_groups(self.name, len(fed), self.groups, seed)
        names = np.stack([self._names(fed.classes, g, seed) for g in range(self.groups)])

        def renamed(columns: Columns) -> Columns:
            of = torch.from_numpy(names[groups[columns.owners()]]).to(columns.y.device)
            y = of.gather(1, columns.y[:, None].long())[:, 0].to(columns.y.dtype)
            return Columns(columns.x, y, columns.offsets)

        return fed.map(renamed, planted={**fed.planted, self.name: groups})

    def _names(self, classes: int, group: int, seed: int) -> np.ndarray:
        """What a group calls each class: a cycle of some classes, the others as they are."""
        names = np.arange(classes)
        moved = 0 if group == 0 or not self.strength or classes < 2 else max(2, round(self.strength * classes))
        some = draws.generator(draws.check_seed(seed), "permute", group).permutation(classes)[:moved]
        names[some] = np.roll(some, 1)
        return names
