"""What one party may see of jointly grown trees (`unalike.trees.picture`).

The guest sees its own splits, all leaves and, for a host's split, only that it exists and its gain. A host sees how
often it was split by which of its own columns, and neither trees nor gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unalike.trees.picture import MOST_TREES, Unit, pictured, shared, title
from unalike.trees.tree import LEAF, Tree
from unalike.vertical.method import Me


def guest_view(me: Me, names: Sequence[str], features: Sequence[str], unit: Unit) -> dict[str, Any]:
    """Return the guest's view; names: of all parties, its own first; features: of its own columns."""
    party, record, gain = me.forest[0], me.forest[1], me.gain
    total = float(gain[party != LEAF].sum()) or 1.0
    by_party = {name: float(gain[party == k].sum()) / total for k, name in enumerate(names)}
    own = {n: float(gain[(party == 0) & (record == k)].sum()) / total for k, n in enumerate(features)}
    own = {name: share for name, share in own.items() if share}
    trees = [(number, output) for number in range(int(me.count)) for output in range(me.outputs)]
    drawn = [_drawn(me, number, output, names, features, unit) for number, output in trees[:MOST_TREES]]
    shares = [shared("share of all gain, by party", by_party), shared("share of all gain, own columns", own)]
    return {"who": me.name, "trees": len(trees), "shares": shares, "drawn": drawn}


def _drawn(
    me: Me, number: int, output: int, names: Sequence[str], features: Sequence[str], unit: Unit
) -> dict[str, Any]:
    party, record, bin, missing_left = me.forest[:, number, output].numpy()
    column = np.where(party == LEAF, LEAF, record)
    weight = np.zeros(len(column))
    tree = Tree(
        column, bin, missing_left > 0, me.gain[number, output].numpy(), weight, me.value[number, output].numpy()
    )

    def ask(place: int) -> str:
        if party[place]:
            return f"{names[party[place]]}, split {record[place]}"
        cut = float(me.cuts[record[place], bin[place]])
        return f"{features[record[place]]} ≤ {unit(int(record[place]), cut):.4g}"

    return pictured(title(me.outputs, number, output), tree, ask)


def host_view(me: Me, features: Sequence[str]) -> dict[str, Any]:
    """Return a host's view; features: of its own columns."""
    columns = me.lookup[: int(me.count), 0].tolist()
    times = {name: columns.count(k) / max(1, len(columns)) for k, name in enumerate(features) if k in columns}
    of = f"share of this party's own {len(columns)} splits"
    return {"who": me.name, "trees": None, "shares": [shared(of, times)], "drawn": []}
