"""Changes that make clients unlike: of their samples, of their labels, in groups or each in its own way.

They follow a partition, `ds.split("dirichlet:0.3|permute:2", 20)`, or are applied to clients that there are,
`fed.skewed("permute:2")`. What was planted is in `fed.planted`, by the change's name: the group of every client, or how
far it is changed.
"""

from __future__ import annotations

from unalike.data.partition.pieces import Change
from unalike.data.skew.features import Impulse, Noise, Shift
from unalike.data.skew.labels import Crowd, Permute
from unalike.data.skew.measure import measure
from unalike.data.skew.pictures import Blur, Colour, Contrast, Rotate

__all__ = [
    "CHANGES", "Blur", "Colour", "Contrast", "Crowd", "Impulse", "Noise", "Permute", "Rotate", "Shift", "measure",
]  # fmt: skip

KINDS: tuple[type[Change], ...] = (Noise, Impulse, Shift, Rotate, Blur, Contrast, Colour, Permute, Crowd)
CHANGES: dict[str, type[Change]] = {kind.name: kind for kind in KINDS}
