"""The settings of boosting, described once: horizontal and vertical training take the same."""

from __future__ import annotations

import dataclasses as dc

from unalike.settings.knobs import knob

# so that a code, or the mark of a missing value, fits into a byte
MOST_BINS = 255
MOST_DEPTH = 10


@dc.dataclass(frozen=True)
class Boosting:
    """The settings of gradient-boosted trees on histograms."""

    trees: int = knob(100, "most trees (of each class, where there are more than two); one every round", least=1)
    depth: int = knob(5, "most splits between the root and a leaf", least=1, most=MOST_DEPTH, tune=[3, 4, 5, 6])
    leaves: int | None = knob(None, "most leaves of a tree; a level's best splits come first", least=2)
    rate: float = knob(0.3, "η, what every tree is shrunk by", values="0.1 to 0.3", above=0, tune=(0.05, 0.5))
    lam: float = knob(1.0, "λ, added to the second derivatives of a node", least=0, tune=(0.1, 10.0))
    gamma: float = knob(0.0, "γ, what a split must gain", least=0)
    least: float = knob(1.0, "sum of second derivatives that a child must have", least=0)
    bins: int = knob(32, "bins of a column: its quantiles over all rows", least=2, most=MOST_BINS)
    columns: float = knob(1.0, "share of the columns that a tree may split by", above=0, most=1)
    rows: float = knob(1.0, "share of the rows that a tree learns from", above=0, most=1)
    patience: int | None = knob(None, "trees without a smaller validation loss after which it ends", least=1)
    base: float | None = knob(None, "where margins begin (not given: 0, of a number to predict its mean)")
