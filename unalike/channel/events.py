"""What one release of a noised sum spends of a client's privacy, as plain data.

An event knows its noise and who was drawn, not the numbers that were sent. `noise` is always the standard deviation
divided by the clip C (Laplace: the scale divided by the clip in the 1-norm). What it spends depends on who counts as a
neighbour, the `relation`:

    "add or remove"   one client more or less: the sum moves by C
    "zero out"        one client sends zeros instead: the sum moves by C, who takes part does not change
    "replace"         one client sends anything else: the sum moves by 2C

Several sums of one round over the *same* drawn clients are one event with the noise `together(z1, z2)`, not two events:
two would be accounted as if clients had been drawn twice.
"""

from __future__ import annotations

import dataclasses as dc
import math
from typing import Any, ClassVar

import numpy as np

from unalike.errors import UnalikeError

ADD_REMOVE, ZERO_OUT, REPLACE = "add or remove", "zero out", "replace"


def dp_accounting() -> Any:
    """Return the package dp-accounting, which is an optional dependency because it brings scipy."""
    try:
        import dp_accounting
    except ImportError as error:
        raise UnalikeError(f'Accounting for privacy needs {error.name}: pip install "unalike[privacy]".') from None
    return dp_accounting


def together(*noises: float) -> float:
    """Return the noise of one Gaussian release that spends as much as several on the same clients."""
    return sum(z**-2 for z in noises) ** -0.5 if all(noises) else 0.0


def noise_beside_count(noise: float, count_std: float) -> float:
    """Return the noise that updates need so that they and a noised count of clipped clients spend `noise` together.

    Adaptive clipping (Andrew et al. 2021) counts bits with noise `count_std`. A bit minus ½ moves the count by ½, so
    its noise is 2·count_std: (z⁻² − (2·count_std)⁻²)^(−½). The ½ must really be there: share = ½ + (Σ(bit − ½) +
    noise)/n.
    """
    if 2 * count_std <= noise:
        raise UnalikeError(
            f"The count of an adaptive clip needs noise above {noise / 2:g} beside noise {noise:g}; got {count_std:g}."
        )
    return (noise**-2 - (2 * count_std) ** -2) ** -0.5 if noise else 0.0


@dc.dataclass(frozen=True)
class Event:
    """One release. At least its `renyi` is known; `mu`, `pure` and `loss` may be None."""

    kind: ClassVar[str] = ""
    relations: ClassVar[tuple[str, ...]] = (ADD_REMOVE, ZERO_OUT, REPLACE)

    @property
    def row(self) -> list[str | float]:
        """Return the event as a list that a checkpoint can keep."""
        return [self.kind, *(getattr(self, field.name) for field in dc.fields(self))]

    def renyi(self, orders: np.ndarray, relation: str) -> np.ndarray:
        """Return the Rényi divergence at each order."""
        mu = self.mu(relation)
        assert mu is not None
        return orders * mu**2 / 2

    def mu(self, relation: str) -> float | None:
        """Return μ if the release is exactly as hard to distinguish as N(0, 1) from N(μ, 1)."""
        return None

    def pure(self, relation: str) -> float | None:
        """Return ε if the release has one at δ = 0."""
        return None

    def loss(self, relation: str) -> Any:
        """Return dp-accounting's event for a privacy loss distribution; its PLD itself doubles the sensitivity for
        REPLACE_ONE."""
        mu = self.mu(relation)
        return mu and dp_accounting().GaussianDpEvent((2 if relation == REPLACE else 1) / mu)


@dc.dataclass(frozen=True)
class GaussianSum(Event):
    """Noise on the sum of all clients' updates, or of clients who were not drawn in secret: no amplification by
    sampling."""

    noise: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        at_least_zero(self, "noise")

    def mu(self, relation: str) -> float | None:
        return moved(relation) / self.noise if self.noise else math.inf


@dc.dataclass(frozen=True)
class SampledGaussian(Event):
    """Noise on the sum of clients who each took part with probability q, independently and in secret (DP-FedAvg)."""

    q: float
    noise: float
    kind: ClassVar[str] = "sampled gaussian"

    def __post_init__(self) -> None:
        probability(self, "q")
        at_least_zero(self, "noise")

    def renyi(self, orders: np.ndarray, relation: str) -> np.ndarray:
        if self.q == 1 or not self.noise:
            return super().renyi(orders, relation)
        if relation == REPLACE:
            raise UnalikeError(
                "Rényi accounting of Bernoulli sampling has no 'replace': ask for the tight ε, of this noise alone."
            )
        dp = dp_accounting()
        return curve(dp.PoissonSampledDpEvent(self.q, dp.GaussianDpEvent(self.noise)), orders)

    def mu(self, relation: str) -> float | None:
        return GaussianSum(self.noise).mu(relation) if self.q == 1 or not self.noise else None

    def loss(self, relation: str) -> Any:
        dp = dp_accounting()
        return dp.PoissonSampledDpEvent(self.q, dp.GaussianDpEvent(self.noise))


@dc.dataclass(frozen=True)
class CohortGaussian(Event):
    """Noise on the sum of a cohort of fixed size, drawn in secret. The bound holds for any mechanism, so it is loose:
    Bernoulli sampling spends about a tenth. Only "replace" is supported."""

    clients: int
    size: int
    noise: float
    kind: ClassVar[str] = "fixed cohort"
    relations: ClassVar[tuple[str, ...]] = (REPLACE,)

    def __post_init__(self) -> None:
        at_least_zero(self, "noise")
        if not 1 <= self.size <= self.clients:
            raise UnalikeError(f"A cohort has from 1 to {self.clients} of {self.clients} clients; got {self.size}.")

    def renyi(self, orders: np.ndarray, relation: str) -> np.ndarray:
        if self.mu(relation) is not None:
            return super().renyi(orders, relation)
        dp = dp_accounting()
        # dp-accounting's RDP does not itself double the sensitivity
        halved = dp.GaussianDpEvent(self.noise / 2)
        event = dp.SampledWithoutReplacementDpEvent(self.clients, self.size, halved)
        return curve(event, orders, "REPLACE_ONE")

    def mu(self, relation: str) -> float | None:
        return GaussianSum(self.noise).mu(relation) if self.size == self.clients or not self.noise else None


@dc.dataclass(frozen=True)
class TreeGaussian(Event):
    """A whole tree of noised prefix sums, `noise` on each node (DP-FTRL): no sampling, but each client takes part at
    most once in a tree. A restart is one more event; add it when its tree begins."""

    leaves: int
    noise: float
    kind: ClassVar[str] = "tree"
    relations: ClassVar[tuple[str, ...]] = (ZERO_OUT, REPLACE)

    def __post_init__(self) -> None:
        at_least_zero(self, "noise")
        if self.leaves < 1:
            raise UnalikeError(f"A tree has at least one leaf; got {self.leaves!r}.")

    @property
    def depth(self) -> int:
        """Return the number of nodes that contain a leaf: ⌊log₂ leaves⌋ + 1, also in an incomplete tree."""
        return self.leaves.bit_length()

    def mu(self, relation: str) -> float | None:
        return math.sqrt(self.depth) * moved(relation) / self.noise if self.noise else math.inf


@dc.dataclass(frozen=True)
class LocalGaussian(Event):
    """Noise that a client adds to its own reply: its reply could have been any other, and sampling does not help."""

    noise: float
    kind: ClassVar[str] = "local gaussian"
    relations: ClassVar[tuple[str, ...]] = (REPLACE,)

    def __post_init__(self) -> None:
        at_least_zero(self, "noise")

    def mu(self, relation: str) -> float | None:
        return 2 / self.noise if self.noise else math.inf


@dc.dataclass(frozen=True)
class LocalLaplace(Event):
    """Laplace noise that a client adds to its own reply; `noise` is its scale divided by the clip in the 1-norm. A clip
    C in the 2-norm of d numbers is one of √d·C in the 1-norm."""

    noise: float
    kind: ClassVar[str] = "local laplace"
    relations: ClassVar[tuple[str, ...]] = (REPLACE,)

    def __post_init__(self) -> None:
        at_least_zero(self, "noise")

    def pure(self, relation: str) -> float | None:
        return 2 / self.noise if self.noise else math.inf

    def renyi(self, orders: np.ndarray, relation: str) -> np.ndarray:
        if not self.noise:
            return np.full_like(orders, math.inf)
        return curve(dp_accounting().LaplaceDpEvent(self.noise / 2), orders)


def moved(relation: str) -> int:
    """Return how far a neighbour moves the sum, in multiples of the clip."""
    return 2 if relation == REPLACE else 1


def curve(event: Any, orders: np.ndarray, relation: str = "ADD_OR_REMOVE_ONE") -> np.ndarray:
    """Return dp-accounting's Rényi curve of its own event."""
    dp = dp_accounting()
    return dp.rdp.RdpAccountant(orders, dp.NeighboringRelation[relation]).compose(event).rdp


def at_least_zero(event: Event, *names: str) -> None:
    """Check that these numbers of an event are not negative."""
    for name in names:
        value = getattr(event, name)
        if not 0 <= value < math.inf:
            raise UnalikeError(f"{type(event).__name__} {name} must be a number of at least 0; got {value!r}.")


def probability(event: Event, name: str) -> None:
    """Check that an event's sampling rate is a probability."""
    value = getattr(event, name)
    if not 0 < value <= 1:
        raise UnalikeError(f"{type(event).__name__} {name} must be in (0, 1]; got {value!r}.")
