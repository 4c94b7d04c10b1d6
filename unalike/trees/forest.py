"""The forest in its three forms: arrays by place, messages between server and clients, and the model's vector."""

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

PARTS = ("column", "bin", "missing_left", "value")  # arrays of a forest: [rounds, outputs, places] each
# what only a server that grows trees knows about them
ABOUT = ("gain", "weight")
KINDS = dict(zip((*PARTS, *ABOUT), (torch.int32, torch.int32, torch.bool, *[torch.float64] * 3), strict=True))


def no_trees(outputs: int, depth: int, parts: Sequence[str] = PARTS) -> dict[str, Tensor]:
    """Return a forest without trees."""
    return {name: torch.zeros(0, outputs, 2 << depth, dtype=KINDS[name]) for name in parts}


def classes_of(layout: Layout) -> int | None:
    """Return the number of classes that a forest predicts, None if it predicts a number."""
    base = next(shape for name, shape in layout.named if name.endswith("base"))
    return None if base[0] == 1 else base[0]


def instruction(growth: Growth, level: int) -> dict[str, Tensor]:
    """Return the message to clients after a level of a tree: its splits, and for each parent the child whose sums are
    wanted."""
    first, last = 1 << level, 2 << level
    asked = torch.full((first,), -1, dtype=torch.int64)
    wanted = torch.from_numpy(growth.asked) if growth.level == level + 1 else torch.empty(0, dtype=torch.int64)
    asked[wanted // 2 - first] = wanted % 2
    column = torch.from_numpy(growth.tree.column[first:last]).clone()
    tree = growth.tree
    bin, missing_left = (torch.from_numpy(part[first:last]) for part in (tree.bin, tree.missing_left))
    return {"column": column, "bin": bin, "missing_left": missing_left, "asked": asked}


def as_tensors(tree: Tree) -> dict[str, Tensor]:
    """Return a tree as tensors in a forest's form."""
    return {name: torch.from_numpy(getattr(tree, name)).to(kind) for name, kind in KINDS.items()}


def boosted(values: Mapping[str, Any], classes: int | None, names: Sequence[str] | None = None) -> Boosted:
    """Return the server's trees as a model; values: the server's, by name."""
    # (for trees that clients grew, the server knows no gain)
    none = torch.zeros_like(values["value"])
    arrays = {name: values.get(name, none).cpu().numpy().astype(kind) for name, kind in ARRAYS.items()}
    rounds, outputs, _ = none.shape
    tree = lambda *at: Tree(**{name: part[at].copy() for name, part in arrays.items()})  # noqa: E731
    trees = [[tree(number, output) for output in range(outputs)] for number in range(rounds)]
    cuts = values["cuts"].cpu().float()
    plain = torch.zeros(len(cuts), dtype=torch.bool)
    return Boosted(cuts, plain, classes, float(values["base"]), trees, list(names) if names else None)


def stacked(parts: list[dict[str, Tensor]], rounds: bool = False) -> dict[str, Tensor]:
    """Stack the tensors of several trees."""
    out = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return {name: value[None] for name, value in out.items()} if rounds else out


def written(w: Tensor, layout: Layout, forest: dict[str, Tensor], cuts: Tensor, base: float) -> Tensor:
    """Return the model's vector with these trees written into it."""
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
    """Return trees in the model's form: thresholds in place of bins, and all leaves at the bottom level."""
    column, bin, missing_left, value = (forest[name].flatten(0, 1).clone() for name in PARTS)
    inner = column.shape[1] // 2
    value = value.clone()
    # a node that ends here gives its value to all leaves below
    for place in range(1, inner):
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
