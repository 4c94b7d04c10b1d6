"""Noise on what crosses: numbers of single people are clipped and noised by their owner before they leave.

A row's numbers are scaled down to length `clip` if they are longer, then get Gaussian noise of deviation `noise ·
clip`. This bounds what all releases of any one row reveal together: ε at a δ, by the accountant of channels, under the
relation "replace": one person's numbers could have been any others. The parties know who is in a batch, so sampling
does not help.
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
    """The amount of noise: its deviation in multiples of the clip, and the clip. No noise by default."""

    noise: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.noise < 1e6 and 0 <= self.clip < 1e12) or bool(self.noise) != bool(self.clip):
            raise UnalikeError(f"Noise needs both `noise` and `clip` above 0; got {self.noise:g} and {self.clip:g}.")

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Noise:
        """Return the noise that a request names."""
        values = [header.get(name, 0.0) for name in ("noise", "clip")]
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            raise UnalikeError("the guest's `noise` and `clip` must be numbers.")
        return cls(float(values[0]), float(values[1]))

    def over(self, fields: Mapping[str, Tensor], method: Any, draws: Any) -> dict[str, Tensor]:
        """Return fields with the numbers of single people clipped and noised; encrypted ones unchanged."""
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
        """Return ε for one person's row after `releases` releases of one field."""
        account = Accountant(unit="row")
        account.add(LocalGaussian(self.noise), releases)
        return account.tight(delta)
