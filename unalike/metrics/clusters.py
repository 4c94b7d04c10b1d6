"""How well clusters agree with known groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def adjusted_rand(found: Sequence[int] | np.ndarray, planted: Sequence[int] | np.ndarray) -> float:
    """Return the adjusted Rand index (Hubert & Arabie 1985) of two divisions of the same clients: 1 for equal
    divisions, whatever their parts are called; about 0 if they agree no better than chance."""
    names, ours = np.unique(found, return_inverse=True)
    groups, theirs = np.unique(planted, return_inverse=True)
    table = np.zeros((len(names), len(groups)))
    np.add.at(table, (ours, theirs), 1)
    both, in_found, in_planted, pairs = (
        float((n * (n - 1) / 2).sum()) for n in (table, table.sum(1), table.sum(0), table.sum(keepdims=True))
    )
    chance, most = in_found * in_planted / max(pairs, 1.0), (in_found + in_planted) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)
