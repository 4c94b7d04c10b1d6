"""Changes that make clients unlike: of their samples, of their labels, in groups or each in its own way.

They follow a partition, `ds.split("dirichlet:0.3|permute:2", 20)`, or are applied to clients that there are,
`fed.skewed("permute:2")`. What was planted is in `fed.planted`, by the change's name: the group of every client, or how
far it is changed.
"""

from __future__ import annotations

from unalike.data.partition.pieces import Change
from unalike.data.skew.labels import Permute
from unalike.data.skew.measure import measure

__all__ = ["CHANGES", "Permute", "measure"]

KINDS: tuple[type[Change], ...] = (Permute,)
CHANGES: dict[str, type[Change]] = {kind.name: kind for kind in KINDS}
