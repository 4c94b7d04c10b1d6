"""Replies that began with different versions of a model, as one sum in which old ones count less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.channel.sums import Sums
from unalike.contract import Field


class AgedSums:
    """The sums of several versions' replies, each with how much it counts: in sums and in the weights that means divide
    by alike, so that a mean stays a mean."""

    def __init__(self, parts: Sequence[tuple[float, Sums]]):
        self.parts = parts

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.parts[0][1].fields

    @property
    def weights(self) -> dict[str, float]:
        return {name: sum(factor * part.weights[name] for factor, part in self.parts) for name in self.names}

    @property
    def ids(self) -> np.ndarray:
        return np.concatenate([part.ids for _, part in self.parts])

    @property
    def losses(self) -> np.ndarray:
        return np.concatenate([part.losses for _, part in self.parts])

    @property
    def names(self) -> list[str]:
        return self.parts[0][1].names

    def total(self, name: str) -> Tensor:
        """Return Σ factor · weight · value, float64."""
        return torch.stack([factor * part.total(name) for factor, part in self.parts]).sum(0)

    def rows(self, name: str) -> Tensor:
        """Return one row per client; none of a method that runs so declares any."""
        return torch.cat([part.rows(name) for _, part in self.parts])
