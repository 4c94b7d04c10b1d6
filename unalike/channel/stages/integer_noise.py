"""Noise of whole numbers, for codes of a common unit: each client adds a share, and the shares add up in the sum.

Meant for secure sums, of which the server sees nothing but the noised sum. Without one it sees every client's noised
codes, which hold a share of the noise only: the guarantee is then towards those who see the model.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.channel.events import Event
from unalike.channel.integer_events import DiscreteGaussianSum, SkellamSum, rounded_norms
from unalike.channel.stage import Flight, Form, Sees, Stage, Total, Way, refuse
from unalike.channel.stages.clip import AdaptiveClip
from unalike.channel.stages.noise import Noise, fine
from unalike.channel.stages.quantise import Quantiser
from unalike.errors import UnalikeError
from unalike.settings.knobs import knob

Uniforms = Callable[[str], Tensor]  # by purpose: numbers in [0, 1), float64
# standard deviations on either side of a table; the tail beyond is below the resolution of 53-bit draws
REACH = 12
LARGEST = 1 << 24  # most entries of a table


@dc.dataclass(frozen=True)
class IntegerNoise(Noise):
    """Clip, then whole codes of a common unit (`quantise` with a limit), then this.

    The noise of the sum has the standard deviation z·C; in codes σ = z·C / unit, and each client adds noise of the
    variance σ²/t, t = `clients`: what so many add is accounted for. Rounding to codes lengthens a reply; its norm in
    codes is then held to a bound Δ (`rounded_norms`; Kairouz, Liu & Steinke 2021): one that is longer is shrunk towards
    zero, where they round again. So the guarantee is of Δ and not of C: let the unit be small against C / √P.

    Where fewer than t answer, the server adds the shares that are missing: without a secure sum it is trusted anyway.
    Under one such a sum is void: clients do not open it.
    """

    clients: int = knob(1, "t, how many clients' shares together are the whole noise", least=1)
    size: int = dc.field(default=0, kw_only=True, compare=False, repr=False)  # P
    unit: float = dc.field(default=0.0, kw_only=True, compare=False, repr=False)

    @property
    def sees(self) -> Sees:
        return Sees(
            server="each client's codes with a share of the noise: ε is for those who see the sum or the model only",
            clients="the model, in which ε bounds what can be learnt of one client",
        )

    def seen(self, summed: bool) -> Sees:
        words = f"the sum with the noise of all {self.clients} clients or more: ε bounds what it tells of one client"
        return self.sees._replace(server=words) if summed else self.sees

    def fit(self, before: Sequence[Stage], size: int) -> Stage:
        fitted = super().fit(before, size)
        units = {stage.limit_unit for stage in before if isinstance(stage, Quantiser)} - {None}
        if len(units) != 1:
            raise refuse(self, "it needs whole codes of one common unit before it: quantise:8:0.05, with a limit.")
        if isinstance(fitted.clip, AdaptiveClip):  # type: ignore[attr-defined]
            raise refuse(self, "an adaptive clip before it would change what its codes must hold: take clip.")
        return dc.replace(fitted, size=size, unit=units.pop())  # type: ignore[call-arg]

    def _check_bounded(self, stages: Sequence[Stage]) -> None:
        """Refuse stages between the clip and the noise that lengthen a reply, other than rounding to codes."""
        super()._check_bounded([stage for stage in stages if not isinstance(stage, Quantiser)])

    @property
    def lengths(self) -> tuple[float, float]:
        """Return the largest 1-norm and 2-norm of a reply in codes."""
        return rounded_norms(self._clipped / self.unit, self.size)

    @property
    def _clipped(self) -> float:
        norm = self.clip.bound({})
        assert norm is not None
        return norm

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the sum's noise, in codes."""
        return self.z * self._clipped / self.unit

    @property
    def share(self) -> float:
        """Return the variance of one client's noise, in codes."""
        return self.sigma**2 / self.clients

    def form(self, form: Form) -> Form:
        if form.kind != "codes" or form.unit != "common" or form.positions != "all":
            raise refuse(self, "it needs whole codes of a common unit for all entries before it: quantise:8:0.05.")
        most = form.most + self.largest
        return dc.replace(form, bits=(2 * most).bit_length(), most=most)

    @property
    def largest(self) -> int:
        """Return the largest number that can be drawn."""
        raise NotImplementedError

    def drawn(self, uniforms: Uniforms, purpose: str) -> Tensor:
        """Return one share of the noise, shaped like the uniform numbers of this purpose."""
        raise NotImplementedError

    def client(self, way: Way) -> None:
        squares = torch.stack([flight.values.double().square().sum(1) for flight in way.flights.values()]).sum(0)
        shrink = (self.lengths[1] / squares.sqrt().clamp_min(1e-30))[:, None]
        for name, flight in way.flights.items():
            values = flight.values.double()
            values = torch.where(shrink < 1, (values * shrink).trunc(), values)
            if self.z:
                values = values + self.drawn(_of_clients(way, values.shape[1]), f"share {name}")
            way.flights[name] = Flight(self.form(flight.form), values.to(flight.values.dtype), flight.at, flight.unit)

    def server(self, total: Total) -> None:
        if total.hidden and total.came < self.clients and self.z:
            raise UnalikeError(
                f"Round {total.round + 1}: {total.came} clients' shares of the noise are in the sum, and {self} states "
                f"{self.clients}: the sum is void."
            )
        for name, value in total.sums.items() if self.z else ():
            for missing in range(total.came, self.clients):
                share = self.drawn(_of_server(total, value), f"share {missing} {name}")
                total.sums[name] = total.sums[name] + self.unit * share


@dc.dataclass(frozen=True)
class Skellam(IntegerNoise):
    """A difference of two Poisson numbers of the rate v/2 (Agarwal, Kairouz & Liu 2021). Sums of Skellam numbers are
    Skellam: what is accounted for is what the sum has."""

    name = "skellam"

    def event(self, q: float) -> Event:
        return SkellamSum(self.sigma**2, *self.lengths, q)

    @property
    def largest(self) -> int:
        low, cumulated = poisson_table(self.share / 2)
        return low + len(cumulated) - 1

    def drawn(self, uniforms: Uniforms, purpose: str) -> Tensor:
        table = poisson_table(self.share / 2)
        one, other = (inverted(table, uniforms(f"{purpose} {side}")) for side in ("up", "down"))
        return one - other


@dc.dataclass(frozen=True)
class DiscreteGaussian(IntegerNoise):
    """P(k) ∝ exp(−k² / 2σ²) on whole numbers (Canonne, Kamath & Steinke 2020), from a table of 53 bits. A sum of such
    numbers is not quite of this law: the accountant adds what it differs by, which is nothing where a client's own
    share is of some units."""

    name = "discrete-gaussian"

    def event(self, q: float) -> Event:
        return DiscreteGaussianSum(self.sigma**2, *self.lengths, q, self.clients, self.size)

    @property
    def largest(self) -> int:
        return -gaussian_table(self.share)[0]

    def drawn(self, uniforms: Uniforms, purpose: str) -> Tensor:
        return inverted(gaussian_table(self.share), uniforms(purpose))


def _of_clients(way: Way, count: int) -> Uniforms:
    """Return a function that gives each client's uniform numbers, [c, count], by purpose."""
    return lambda purpose: fine(way.draw.uniform, purpose, (count,))


def _of_server(total: Total, like: Tensor) -> Uniforms:
    """Return a function that gives the server's uniform numbers, shaped like a sum: Φ of normal numbers, which the
    server can draw."""
    return lambda purpose: torch.special.ndtr(total.normal(purpose, tuple(like.shape), like))


# the smallest number, and the cumulative probabilities from it on
Table = tuple[int, np.ndarray]


@functools.lru_cache(maxsize=16)
def gaussian_table(variance: float) -> Table:
    """Return the table of the discrete Gaussian with this σ²."""
    most = _reach(variance)
    k = np.arange(-most, most + 1, dtype=np.float64)
    return -most, _cumulated(np.exp(-(k**2) / (2 * variance)) if variance else (k == 0) * 1.0)


@functools.lru_cache(maxsize=16)
def poisson_table(rate: float) -> Table:
    """Return the table of the Poisson distribution: p(k + 1) = p(k) · rate / (k + 1), from the mode outwards."""
    middle, most = math.floor(rate), _reach(rate)
    low = max(0, middle - most)
    above = np.cumprod(rate / np.arange(middle + 1, middle + most + 1, dtype=np.float64))
    below = np.cumprod(np.arange(middle, low, -1, dtype=np.float64) / rate)[::-1] if low < middle else np.empty(0)
    return low, _cumulated(np.concatenate([below, [1.0], above]))


def _reach(variance: float) -> int:
    most = math.ceil(REACH * math.sqrt(variance)) + 40
    if most > LARGEST:
        raise UnalikeError(f"Integer noise of variance {variance:g} in codes is too large for a table: coarser codes.")
    return most


def _cumulated(weights: np.ndarray) -> np.ndarray:
    return np.cumsum(weights) / weights.sum()


def inverted(table: Table, uniforms: Tensor) -> Tensor:
    """Return whole numbers distributed as the table says, from uniform numbers in [0, 1), float64."""
    low, cumulated = table
    edges = torch.from_numpy(cumulated).to(uniforms.device)
    return (torch.searchsorted(edges, uniforms, right=True).clamp_max(len(cumulated) - 1) + low).double()
