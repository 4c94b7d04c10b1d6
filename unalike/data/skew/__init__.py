"""Changes that make clients unlike: of their samples or their labels, by groups or for each client in its own way.

They follow a partition, `ds.split("dirichlet:0.3|permute:2", 20)`, or are applied to existing clients,
`fed.skewed("permute:2")`. `fed.planted` records each change by its name: the group of every client, or how far it is
changed.
"""

from __future__ import annotations

from unalike.data.partition.pieces import Change
from unalike.data.skew.drawing import picture
from unalike.data.skew.drift import Drift, Stream
from unalike.data.skew.features import Impulse, Noise, Shift
from unalike.data.skew.labels import Crowd, Permute
from unalike.data.skew.measure import measure
from unalike.data.skew.pictures import Blur, Colour, Contrast, Rotate
from unalike.data.skew.views import Views

__all__ = [
    "CHANGES", "Blur", "Change", "Colour", "Contrast", "Crowd", "Drift", "Impulse", "Noise", "Permute", "Rotate",
    "Shift", "Stream", "Views", "measure", "picture",
]  # fmt: skip

KINDS: tuple[type[Change], ...] = (
    Noise, Impulse, Shift, Rotate, Blur, Contrast, Colour, Views, Permute, Crowd, Drift, Stream,
)  # fmt: skip
CHANGES: dict[str, type[Change]] = {kind.name: kind for kind in KINDS}
