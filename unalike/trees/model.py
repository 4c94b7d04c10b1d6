"""Boosted trees as a model: margins of rows, probabilities, importance, JSON of our own and XGBoost's."""

from __future__ import annotations

import dataclasses as dc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from unalike.errors import UnalikeError, line_of
from unalike.files import complaining, replace
from unalike.trees import exact
from unalike.trees.bins import codes
from unalike.trees.table import places
from unalike.trees.tree import Tree

FORMAT = "unalike trees 1"
Unit = Callable[[int, float], float]  # turns a column's value into its owner's unit
ARRAYS = {"column": np.int64, "bin": np.int64, "missing_left": bool, "gain": float, "weight": float, "value": float}


@dc.dataclass
class Boosted:
    """Boosted trees: those of every round, one or one per class; the cuts of the columns, which of them are categories,
    and the start of margins. classes: None for a number to predict; run: the run that grew them by messages, if one
    did."""

    cuts: Tensor
    categories: Tensor
    classes: int | None
    base: float = 0.0
    trees: list[list[Tree]] = dc.field(default_factory=list)
    names: list[str] | None = None
    run: Any = dc.field(default=None, repr=False, compare=False)

    @property
    def bins(self) -> int:
        return self.cuts.shape[1] + 1

    @property
    def outputs(self) -> int:
        """Return the number of margins per row."""
        return exact.outputs(self.classes)

    def codes(self, x: Any) -> Tensor:
        """Return the codes of rows, uint8 [rows, columns]."""
        x = torch.as_tensor(np.asarray(x), dtype=torch.float32)
        if x.dim() != 2 or x.shape[1] != len(self.cuts):
            raise UnalikeError(f"x has shape {list(x.shape)}: it must be [rows, {len(self.cuts)}].")
        return codes(x, self.cuts, self.categories)

    def start(self, rows: int) -> Tensor:
        """Return the margins of rows before the first tree."""
        return torch.full((rows, self.outputs), self.base, dtype=torch.float64)

    def margins(self, x: Any, rounds: int | None = None) -> Tensor:
        """Return the margins of rows after this many rounds (default all), float64 [rows, outputs]."""
        return self.margins_of(self.codes(x), rounds)

    def margins_of(self, codes: Tensor, rounds: int | None = None) -> Tensor:
        """Return the margins of rows whose codes are known."""
        out, own = self.start(len(codes)).numpy(), codes.numpy()
        for grown in self.trees[:rounds]:
            for output, tree in enumerate(grown):
                out[:, output] += tree.value[places(own, tree, self.bins, self.categories.numpy())]
        return torch.from_numpy(out)

    def predict(self, x: Any) -> Tensor:
        """Return the predicted number, or class, of each row."""
        margins = self.margins(x)
        if self.classes is None:
            return margins[:, 0]
        return (margins[:, 0] > 0).to(torch.int64) if self.outputs == 1 else margins.argmax(1)

    def probabilities(self, x: Any) -> Tensor:
        """Return the probabilities of classes, float64 [rows, classes]."""
        if self.classes is None:
            raise UnalikeError("These trees predict a number: there are no classes to have probabilities.")
        margins = self.margins(x)
        if self.outputs > 1:
            return exact.softmax(margins)
        one = exact.sigmoid(margins)
        return torch.cat([1 - one, one], 1)

    def importance(self) -> dict[str, float]:
        """Return each column's share of the total gain, largest first, for columns that are split by."""
        total = np.zeros(len(self.cuts))
        for tree in self.all_trees:
            np.add.at(total, tree.column[tree.splits], tree.gain[tree.splits])
        order = [k for k in np.argsort(-total, kind="stable").tolist() if total[k] > 0]
        return {self.name(k): float(total[k] / total.sum()) for k in order}

    @property
    def all_trees(self) -> list[Tree]:
        return [tree for grown in self.trees for tree in grown]

    def name(self, column: int) -> str:
        """Return a column's name."""
        return self.names[column] if self.names else f"column {column}"

    def same(self, other: Boosted) -> bool:
        """Return whether another model has the same trees and cuts, bit for bit."""
        mine, theirs = self.all_trees, other.all_trees
        alike = torch.equal(self.cuts, other.cuts) and self.base == other.base and len(mine) == len(theirs)
        return alike and all(a.same(b) for a, b in zip(mine, theirs, strict=True))

    def draw(self, round: int = 0, output: int = 0, unit: Unit = lambda column, value: value) -> str:
        """Return a tree as lines of text. unit: turns a column's value into its owner's unit, such as
        `fed.preparation.raw`."""
        return "\n".join(self._lines(self.trees[round][output], 1, "", unit))

    def _lines(self, tree: Tree, place: int, indent: str, unit: Unit) -> list[str]:
        if place not in tree.splits:
            return [f"{indent}{tree.value[place]:+.4f}"]
        column, bin = int(tree.column[place]), int(tree.bin[place])
        test = f"is not {bin}" if self.categories[column] else f"<= {unit(column, float(self.cut(column, bin))):g}"
        lacking = "yes" if tree.missing_left[place] else "no"
        head = f"{indent}{self.name(column)} {test}? (gain {tree.gain[place]:.4g}; missing: {lacking})"
        left, right = (self._lines(tree, 2 * place + k, indent + "    ", unit) for k in (0, 1))
        return [head, f"{indent}  yes:", *left, f"{indent}  no:", *right]

    def cut(self, column: int, bin: int) -> Tensor:
        """Return the largest value that goes left at this bin."""
        last = torch.tensor(torch.finfo(torch.float32).max)
        return self.cuts[column, bin] if bin < self.cuts.shape[1] else last

    # ---- files

    def plain(self) -> dict[str, Any]:
        """Return the model as plain values for JSON; every number is exact."""
        trees = [[{name: getattr(t, name).tolist() for name in ARRAYS} for t in grown] for grown in self.trees]
        facts = {"classes": self.classes, "base": self.base, "names": self.names}
        return {
            "format": FORMAT,
            **facts,
            "cuts": self.cuts.tolist(),
            "categories": self.categories.tolist(),
            "trees": trees,
        }

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return the model that `plain` wrote."""
        try:
            if plain["format"] != FORMAT:
                raise ValueError(f"the format {plain['format']!r}")
            trees = [
                [Tree(**{n: np.array(t[n], kind) for n, kind in ARRAYS.items()}) for t in g] for g in plain["trees"]
            ]
            cuts, categories = torch.tensor(plain["cuts"], dtype=torch.float32), torch.tensor(plain["categories"])
            return cls(cuts, categories, plain["classes"], plain["base"], trees, plain["names"])
        except (KeyError, TypeError, ValueError) as error:
            raise UnalikeError(f"That is no file of trees: {line_of(error)}.") from error

    def save(self, path: str | os.PathLike) -> Path:
        """Write the model as JSON."""
        with complaining(f"{path} cannot be written"):
            replace(Path(path), json.dumps(self.plain()).encode())
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read a model that `save` wrote."""
        try:
            return cls.from_plain(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UnalikeError(f"{path} cannot be read as trees: {line_of(error)}.") from error
