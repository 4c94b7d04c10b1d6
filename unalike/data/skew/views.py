"""Several views of the same samples: clients that have the same samples and see different parts of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import torch

from unalike.data.columns import Columns, offsets_of
from unalike.data.partition import tools
from unalike.data.partition.pieces import Change
from unalike.data.pixels import numbers
from unalike.data.skew.samples import ready
from unalike.errors import UnalikeError

CHUNK = 1 << 22  # numbers that are changed at a time


@dataclasses.dataclass(frozen=True)
class Views(Change):
    """Attribute skew: every client becomes `views` clients, which have the same things and see other windows of them.

    Windows divide the last axis: the width of a picture, the time of a signal, the columns of a vector. They are
    equally wide, cover it together, and neighbours share `overlap` of a window (0: nothing, 1: all see all). Features
    outside are faded by the strength, at 1 they are 0: the mean of features that were prepared, black in a picture.
    Of V views, clients V·s … V·s + V - 1 have the same things, divided alike into training, validation and test;
    `planted` is the view of each. The global test set shows everything.
    """

    name: ClassVar[str] = "views"
    views: int = 2
    overlap: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.count("Views' views", self.views, least=2)
        tools.number("Views' overlap", self.overlap, 0, 1, 0.5)

    @property
    def copies(self) -> int:
        return self.views

    def windows(self, width: int) -> list[tuple[int, int]]:
        """Return where each view's window begins and ends among `width` columns."""
        if width < self.views:
            raise UnalikeError(
                f"views divides {width} columns into {self.views} windows: ask for at most {width} views, of samples "
                "with several columns."
            )
        wide = width / (1 + (self.views - 1) * (1 - self.overlap))
        starts = [v * wide * (1 - self.overlap) for v in range(self.views)]
        return [(_nearest(start), _nearest(start + wide)) for start in starts]

    def change(self, fed: Any, seed: int) -> Any:
        ready(self.name, fed)
        x = fed.train.x
        if not x.is_floating_point() or x.ndim < 2:
            raise UnalikeError("views shows parts of samples of numbers, and these are tokens or single numbers.")
        seen = np.full((self.views, x.shape[-1]), 1.0 - self.strength)
        for row, (start, stop) in zip(seen, self.windows(x.shape[-1]), strict=True):
            row[start:stop] = 1
        views = np.tile(np.arange(self.views), len(fed))
        planted = {name: np.repeat(values, self.views) for name, values in fed.planted.items()}
        names = fed.names and [f"{name} view {v}" for name in fed.names for v in range(self.views)]
        return fed.map(
            lambda columns: _faded(_repeated(columns, self.views), seen),
            planted={**planted, self.name: views},
            names=names,
        )


def _nearest(place: float) -> int:
    # rounds halves up, even if they are missed by a last digit
    return math.floor(place + 0.5 + 1e-9)


def _repeated(columns: Columns, times: int) -> Columns:
    """Return columns in which every client is repeated `times` times in succession."""
    sizes = np.repeat(columns.sizes, times)
    first = np.repeat(columns.offsets[:-1], times)
    offsets = offsets_of(sizes)
    rows = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], sizes)
    return columns.take(rows, sizes)


def _faded(columns: Columns, seen: np.ndarray) -> Columns:
    """Return columns that nobody else has, with the samples of client k multiplied by row k mod V of `seen`
    [V, width]."""
    x, view = numbers(columns.x), torch.from_numpy(columns.owners() % len(seen)).to(columns.x.device)
    factors = torch.from_numpy(seen).to(x.device, x.dtype)
    step = max(1, CHUNK // max(1, x[:1].numel()))
    for start in range(0, len(x), step):
        some = slice(start, start + step)
        x[some] *= factors[view[some]].reshape(-1, *[1] * (x.ndim - 2), x.shape[-1])
    return Columns(x, columns.y, columns.offsets)
