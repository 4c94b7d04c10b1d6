"""Trees as data for a report page: the first few node by node, and each column's contribution.

A view is what one reader may see:

    who      the reader, if not all see the same
    trees    the number of trees
    shares   lists of (name, share), each with words for what it is a share of
    drawn    the first trees: a title, and nodes (place, words, gain or None, whether rows without a value go on above),
             leaves (place, what they add); the root is 1, the children of k are 2k (the words are true) and 2k + 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from unalike.trees.model import Boosted, Unit
from unalike.trees.tree import LEAF, Tree

FILE = "forest.json"  # a party's view, in its folder
MOST_TREES = 3
MOST_NAMES = 20


def view(model: Boosted, unit: Unit = lambda column, value: value) -> dict[str, Any]:
    """Return the view of a reader who may see everything."""
    gain = model.importance()
    of = "share of all gain" if gain else "share of all splits"
    some = [(number, output, tree) for number, grown in enumerate(model.trees) for output, tree in enumerate(grown)]
    drawn = [
        pictured(title(model.outputs, number, output), tree, partial(words, model, tree, unit))
        for number, output, tree in some[:MOST_TREES]
    ]
    return {"trees": len(some), "shares": [shared(of, gain or splits(model))], "drawn": drawn}


def splits(model: Boosted) -> dict[str, float]:
    """Return each column's share of all splits, largest first, for columns that are split by."""
    columns = np.concatenate([tree.column[tree.splits] for tree in model.all_trees] or [np.empty(0, int)])
    named, counts = np.unique(columns, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {model.name(int(named[k])): float(counts[k] / len(columns)) for k in order}


def shared(of: str, shares: Mapping[str, float]) -> dict[str, Any]:
    """Return shares by name in the form of a view: the largest, and the rest as one."""
    rows = sorted(shares.items(), key=lambda item: -item[1])
    rest = rows[MOST_NAMES:]
    more = [(f"{len(rest)} more", sum(share for _, share in rest))] if rest else []
    return {"of": of, "rows": [[name, round(share, 5)] for name, share in [*rows[:MOST_NAMES], *more]]}


def title(outputs: int, number: int, output: int) -> str:
    """Return the title of a tree."""
    return f"Tree {number + 1}" + (f", class {output}" if outputs > 1 else "")


def words(model: Boosted, tree: Tree, unit: Unit, place: int) -> str:
    """Return the condition of a split in words."""
    column, bin = int(tree.column[place]), int(tree.bin[place])
    if model.categories[column]:
        return f"{model.name(column)} is not {bin}"
    return f"{model.name(column)} ≤ {unit(column, float(model.cut(column, bin))):.4g}"


def pictured(name: str, tree: Tree, ask: Callable[[int], str]) -> dict[str, Any]:
    """Return a tree in the form of a view; ask: returns the words of a split."""
    nodes: list[list[Any]] = []
    for place in np.sort(np.concatenate([tree.splits, tree.leaves])).tolist():
        if tree.column[place] == LEAF:
            nodes.append([place, float(f"{tree.value[place]:.4g}")])
        else:
            gain = float(f"{tree.gain[place]:.4g}") if tree.gain[place] else None
            nodes.append([place, ask(place), gain, bool(tree.missing_left[place])])
    return {"title": name, "nodes": nodes}
