"""Account for the privacy that a run spends: add events, and compute ε at a given δ.

There are two ways, both valid upper bounds. Rényi divergences add up (RDP): quick enough for every round's line, 5 to
15 % too large, more if ε is small. `tight` is exact if every release is Gaussian without sampling, else the composed
privacy loss distribution (PLD): a second or so, for the end of a run and for calibrating the noise. docs/privacy.md
says what is guaranteed, to whom, and what is not.
"""

from __future__ import annotations

import contextlib
import dataclasses as dc
import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from unalike.channel.events import (
    REPLACE,
    CohortGaussian,
    Event,
    GaussianSum,
    LocalGaussian,
    LocalLaplace,
    SampledGaussian,
    TreeGaussian,
    dp_accounting,
)
from unalike.channel.integer_events import DiscreteGaussianSum, SkellamSum
from unalike.errors import UnalikeError, either, unknown

GAUSSIAN = (GaussianSum, SampledGaussian, CohortGaussian, TreeGaussian, LocalGaussian)
KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in (*GAUSSIAN, LocalLaplace, SkellamSum, DiscreteGaussianSum)}

# dp-accounting's own orders, listed so that another version of it gives the same ε
ORDERS = np.array([1 + k / 10 for k in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024], dtype=np.float64)
# above this ε by RDP, a loss distribution takes minutes and gigabytes for a meaningless number
PLD_UP_TO = 100.0
# grid of a loss distribution; a coarser one is quicker and gives a larger ε, which is still valid
GRID = 1e-4


@dc.dataclass(frozen=True)
class Guarantee:
    """ε at a δ: the neighbouring relation, how it was computed, and whether a client or a sample is protected."""

    epsilon: float
    delta: float
    relation: str
    way: str  # "RDP", "PLD", "exact" or "pure"
    unit: str = "client"

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.3g} at δ = {self.delta:g} ({self.relation} one {self.unit}; {self.way})"


class Accountant:
    """The events of a run and how often each occurred. `rows` is its whole state."""

    def __init__(self, rows: Iterable[list] = (), unit: str = "client"):
        self.unit = unit
        self.counts: dict[Event, int] = {}
        for *row, count in rows:
            self.add(event_of(row), count)

    @property
    def rows(self) -> list[list]:
        """Return the state as lists of text and numbers: [[kind, the event's numbers …, count], …]."""
        return [[*event.row, count] for event, count in self.counts.items()]

    def add(self, event: Event, count: int = 1) -> None:
        """Add `count` releases of this event."""
        if count < 0:
            raise UnalikeError(f"What was spent cannot be taken back: a count must be at least 0; got {count}.")
        if count:
            self.counts[event] = self.counts.get(event, 0) + count

    def after(self, event: Event, count: int = 1) -> Accountant:
        """Return a copy with `count` more releases of this event."""
        copy = Accountant(unit=self.unit)
        copy.counts = dict(self.counts)
        copy.add(event, count)
        return copy

    @property
    def relation(self) -> str:
        """Return the first relation that every event supports: the one to state."""
        for relation in Event.relations:
            if all(relation in event.relations for event in self.counts):
                return relation
        kinds = ", ".join(sorted({event.kind for event in self.counts}))
        raise UnalikeError(f"No one guarantee covers these together: {kinds}. Use one kind of noise in a run.")

    def spent(self, delta: float, relation: str | None = None) -> Guarantee:
        """Return the guarantee by RDP, or by the plain sum of ε if every event has one and it is smaller."""
        relation = self._checked(delta, relation)
        rdp = renyi_epsilon(self.counts, delta, relation)
        pure = self._sum(lambda event: event.pure(relation))
        epsilon, way = (rdp, "RDP") if pure is None or rdp <= pure else (pure, "pure")
        return Guarantee(epsilon, delta, relation, way, self.unit)

    def tight(self, delta: float, relation: str | None = None, grid: float = GRID) -> Guarantee:
        """Return the smallest ε that can be shown: exact, by PLD, or as `spent` if an event has neither."""
        relation = self._checked(delta, relation)
        squares = self._sum(lambda event: None if (mu := event.mu(relation)) is None else mu**2)
        if squares is not None:
            return Guarantee(epsilon_of_mu(math.sqrt(squares), delta), delta, relation, "exact", self.unit)
        losses = [(event.loss(relation), count) for event, count in self.counts.items()]
        if any(loss is None for loss, _ in losses):
            return self.spent(delta, relation)
        if relation == self.relation and (rdp := self.spent(delta, relation)).epsilon > PLD_UP_TO:
            return rdp
        return Guarantee(loss_epsilon(losses, delta, relation, grid), delta, relation, "PLD", self.unit)

    def _checked(self, delta: float, relation: str | None) -> str:
        if not 0 <= delta < 1:
            raise UnalikeError(f"δ must be in [0, 1); got {delta!r}.")
        for event in self.counts:
            if relation is not None and relation not in event.relations:
                raise UnalikeError(
                    f"'{event.kind}' has no guarantee for '{relation}'; {either(event.relations)} it has."
                )
        return relation or self.relation

    def _sum(self, part: Callable[[Event], float | None]) -> float | None:
        """Return Σ count · part over all events; None if an event lacks this part."""
        parts = [(part(event), count) for event, count in self.counts.items()]
        return None if any(p is None for p, _ in parts) else math.fsum(p * count for p, count in parts if p is not None)


# ---- from events to ε


def event_of(row: list) -> Event:
    """Return the event of a row that a checkpoint kept."""
    kind, *values = row
    if kind not in KINDS:
        raise unknown("event of privacy", kind, KINDS)
    return KINDS[kind](*values)


def renyi_epsilon(counts: dict[Event, int], delta: float, relation: str) -> float:
    """Return ε from Rényi divergences, with the conversion of Canonne, Kamath and Steinke (2020)."""
    if not counts:
        return 0.0
    total = sum(count * renyi_curve(event, relation) for event, count in counts.items())
    return float(dp_accounting().rdp.compute_epsilon(ORDERS, total, delta)[0])


@functools.lru_cache(maxsize=256)
def renyi_curve(event: Event, relation: str) -> np.ndarray:
    """Return an event's Rényi divergences at `ORDERS`; about 40 ms the first time, then from a cache."""
    with _quiet():
        return event.renyi(ORDERS, relation)


def loss_epsilon(losses: Iterable[tuple[Any, int]], delta: float, relation: str, grid: float) -> float:
    """Return ε from the composed privacy loss distribution of dp-accounting's events, rounded up to its grid."""
    dp = dp_accounting()
    # zeroing out changes a distribution as removing does, for all events that have a loss distribution here
    neighbours = dp.NeighboringRelation.REPLACE_ONE if relation == REPLACE else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = dp.pld.PLDAccountant(neighbours, grid)
    with _quiet():
        for event, count in losses:
            accountant.compose(event, count)
        return float(accountant.get_epsilon(delta))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return ε at δ for distinguishing N(μ, 1) from N(0, 1): exact (Balle and Wang 2018)."""
    if mu == 0:
        return 0.0
    return float(dp_accounting().get_epsilon_gaussian(1 / mu, delta)) if mu < math.inf else math.inf


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence dp-accounting's warnings about orders that it leaves out: fewer orders give a larger ε, which is still
    valid."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
