"""Noise on what crosses: numbers of single people are clipped and noised by their owner before they leave.

A row's numbers are scaled down to length `clip` where they are longer, then get Gaussian noise of deviation `noise ·
clip`. Of any one row that bounds what all its releases together tell: ε at a δ, by the accountant of channels, under
the relation "replace": one person's numbers could have been any others. Rows are told apart by nobody else than the
parties, which know who is in a batch; so nothing is gained by sampling.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unalike.channel.accountant import Accountant, Guarantee
from unalike.channel.events import LocalGaussian
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Noise:
    """How much: the deviation in clips, and the clip. No noise by default."""

    noise: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.noise < 1e6 and 0 <= self.clip < 1e12) or bool(self.noise) != bool(self.clip):
            raise UnalikeError(f"Noise needs both `noise` and `clip` above 0; got {self.noise:g} and {self.clip:g}.")

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Noise:
        """Return what a request says of it."""
        values = [header.get(name, 0.0) for name in ("noise", "clip")]
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            raise UnalikeError("the guest's `noise` and `clip` must be numbers.")
        return cls(float(values[0]), float(values[1]))

    def over(self, fields: Mapping[str, Tensor], method: Any, draws: Any) -> dict[str, Tensor]:
        """Return fields with the numbers of single people clipped and noised; sealed ones as they are."""
        if not self.noise:
            return dict(fields)
        return {
            name: self._noised(value, draws, name) if method.sends[name].per_row else value
            for name, value in fields.items()
        }

    def _noised(self, value: Tensor, draws: Any, name: str) -> Tensor:
        lengths = value.flatten(1).norm(dim=1).clamp(min=self.clip)
        clipped = value * (self.clip / lengths).reshape(-1, *[1] * (value.dim() - 1))
        return clipped + self.noise * self.clip * draws.normal(name, tuple(value.shape))

    def spent(self, releases: int, delta: float) -> Guarantee:
        """Return ε of one person's row after so many releases of one field."""
        account = Accountant(unit="row")
        account.add(LocalGaussian(self.noise), releases)
        return account.tight(delta)
