"""The forest between server, clients and model: arrays by place, as messages, and as the model's vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unalike.nn.layout import Layout
from unalike.trees.bins import FARTHEST
from unalike.trees.grow import Growth
from unalike.trees.model import ARRAYS, Boosted
from unalike.trees.tree import LEAF, Tree

PARTS = ("column", "bin", "missing_left", "value")  # of a forest: [rounds, outputs, places] each
ABOUT = ("gain", "weight")  # what a server that grows trees knows of them besides
KINDS = dict(zip((*PARTS, *ABOUT), (torch.int32, torch.int32, torch.bool, *[torch.float64] * 3), strict=True))


def no_trees(outputs: int, depth: int, parts: Sequence[str] = PARTS) -> dict[str, Tensor]:
    """Return a forest without trees."""
    return {name: torch.zeros(0, outputs, 2 << depth, dtype=KINDS[name]) for name in parts}


def classes_of(layout: Layout) -> int | None:
    """Return how many classes a forest tells apart, None where it predicts a number."""
    base = next(shape for name, shape in layout.named if name.endswith("base"))
    return None if base[0] == 1 else base[0]


def instruction(growth: Growth, level: int) -> dict[str, Tensor]:
    """Return what clients are told about a tree after a level: its splits, and of each parent the child wanted."""
    first, last = 1 << level, 2 << level
    asked = torch.full((first,), -1, dtype=torch.int64)
    wanted = torch.from_numpy(growth.asked) if growth.level == level + 1 else torch.empty(0, dtype=torch.int64)
    asked[wanted // 2 - first] = wanted % 2
    column = torch.from_numpy(growth.tree.column[first:last]).clone()
    tree = growth.tree
    bin, missing_left = (torch.from_numpy(part[first:last]) for part in (tree.bin, tree.missing_left))
    return {"column": column, "bin": bin, "missing_left": missing_left, "asked": asked}


def as_tensors(tree: Tree) -> dict[str, Tensor]:
    """Return a tree as a forest has it."""
    return {name: torch.from_numpy(getattr(tree, name)).to(kind) for name, kind in KINDS.items()}


def boosted(values: Mapping[str, Any], classes: int | None, names: Sequence[str] | None = None) -> Boosted:
    """Return the trees that a server has as a model; values: the server's, by name."""
    none = torch.zeros_like(values["value"])  # (of trees that clients grew the server knows no gain)
    arrays = {name: values.get(name, none).cpu().numpy().astype(kind) for name, kind in ARRAYS.items()}
    rounds, outputs, _ = none.shape
    tree = lambda *at: Tree(**{name: part[at].copy() for name, part in arrays.items()})  # noqa: E731
    trees = [[tree(number, output) for output in range(outputs)] for number in range(rounds)]
    cuts = values["cuts"].cpu().float()
    plain = torch.zeros(len(cuts), dtype=torch.bool)
    return Boosted(cuts, plain, classes, float(values["base"]), trees, list(names) if names else None)


def stacked(parts: list[dict[str, Tensor]], rounds: bool = False) -> dict[str, Tensor]:
    """Return tensors of several trees as one each."""
    out = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return {name: value[None] for name, value in out.items()} if rounds else out


def written(w: Tensor, layout: Layout, forest: dict[str, Tensor], cuts: Tensor, base: float) -> Tensor:
    """Return the model's vector with these trees in it."""
    views = {name.rpartition(".")[2]: (name, value.clone()) for name, value in layout.views(w).items()}
    parts = {name: value for name, (_, value) in views.items()}
    whole = complete(forest, cuts)
    count = forest["value"].shape[0] * forest["value"].shape[1]
    for name, value in parts.items():
        value.zero_()
        if name == "base":
            value[:] = base
        else:
            value[:count] = whole[name].to(value)
    return layout.flat({full: value for full, value in views.values()})


def complete(forest: dict[str, Tensor], cuts: Tensor) -> dict[str, Tensor]:
    """Return trees as the model has them: values of columns in the place of bins, and leaves all at the bottom."""
    column, bin, missing_left, value = (forest[name].flatten(0, 1).clone() for name in PARTS)
    inner = column.shape[1] // 2
    value = value.clone()
    for place in range(1, inner):  # what ends here, ends in all leaves below
        leaf = column[:, place] == LEAF
        for child in (2 * place, 2 * place + 1):
            value[:, child] = torch.where(leaf, value[:, place], value[:, child])
            if child < inner:
                column[:, child] = torch.where(leaf, LEAF, column[:, child])
    last = torch.full((len(cuts), 1), FARTHEST)
    at = torch.cat([cuts.float().cpu(), last], 1)[column.clamp(min=0).long(), bin.long()]
    split = slice(1, inner)
    return {
        "column": column[:, split].clamp(min=0),
        "cut": at[:, split],
        "missing_left": missing_left[:, split],
        "value": value[:, inner:],
    }
