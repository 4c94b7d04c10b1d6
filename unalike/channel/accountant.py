"""What a run has spent of its clients' privacy: events are added, ε at a δ comes out.

Two ways to compute it, both upper bounds that hold. Rényi divergences add up (RDP): quick enough for every round's
line, 5 to 15 % too large, more where ε is small. `tight` is exact where every release is Gaussian without sampling,
else the composed privacy loss distribution (PLD): a second or so, for the end of a run and for finding the noise.
docs/privacy.md says what is guaranteed, to whom, and what is not.
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

from unalike.channel.events import REPLACE, Event, dp_accounting, event_of
from unalike.errors import UnalikeError

# dp-accounting's own orders, written out so that another version of it gives the same ε
ORDERS = np.array([1 + k / 10 for k in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024], dtype=np.float64)
PLD_UP_TO = 100.0  # above this ε by RDP, a loss distribution takes minutes and gigabytes for a number without meaning
GRID = 1e-4  # of a loss distribution; a coarser one is quicker and gives a larger ε, which holds too
TOLERANCE = 1e-4  # of a noise that is looked for, relative
MOST_NOISE = 2.0**20
MOST_ROUNDS = 1 << 40


@dc.dataclass(frozen=True)
class Guarantee:
    """ε at a δ: who counts as a neighbour, how it was computed, and whether a client or a sample is protected."""

    epsilon: float
    delta: float
    relation: str
    way: str  # "RDP", "PLD", "exact" or "pure"
    unit: str = "client"

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.3g} at δ = {self.delta:g} ({self.relation} one {self.unit}; {self.way})"


class Accountant:
    """The events of a run and how often each came. `rows` is all its state."""

    def __init__(self, rows: Iterable[list] = (), unit: str = "client"):
        self.unit = unit
        self.counts: dict[Event, int] = {}
        for *row, count in rows:
            self.add(event_of(row), count)

    @property
    def rows(self) -> list[list]:
        """The state as lists of text and numbers: [[kind, the event's numbers …, count], …]."""
        return [[*event.row, count] for event, count in self.counts.items()]

    def add(self, event: Event, count: int = 1) -> None:
        """Add what `count` releases spend."""
        if count < 0:
            raise UnalikeError(f"What was spent cannot be taken back: a count must be at least 0; got {count}.")
        if count:
            self.counts[event] = self.counts.get(event, 0) + count

    def after(self, event: Event, count: int = 1) -> Accountant:
        """Return a copy that has spent `count` releases more."""
        copy = Accountant(self.rows, self.unit)
        copy.add(event, count)
        return copy

    @property
    def relation(self) -> str:
        """The first relation that every event has: the one to state."""
        for relation in Event.relations:
            if all(relation in event.relations for event in self.counts):
                return relation
        kinds = ", ".join(sorted({event.kind for event in self.counts}))
        raise UnalikeError(f"No one guarantee covers these together: {kinds}. Use one kind of noise in a run.")

    def spent(self, delta: float, relation: str | None = None) -> Guarantee:
        """Return what was spent, by RDP, or by the plain sum of ε where every event has one and it is smaller."""
        relation = self._checked(delta, relation)
        rdp = renyi_epsilon(self.counts, delta, relation)
        pure = self._sum(lambda event: event.pure(relation))
        epsilon, way = (rdp, "RDP") if pure is None or rdp <= pure else (pure, "pure")
        return Guarantee(epsilon, delta, relation, way, self.unit)

    def tight(self, delta: float, relation: str | None = None, grid: float = GRID) -> Guarantee:
        """Return the smallest ε that can be shown: exact, by PLD, or as `spent` where an event has neither."""
        relation = self._checked(delta, relation)
        squares = self._sum(lambda event: None if (mu := event.mu(relation)) is None else mu**2)
        if squares is not None:
            return Guarantee(epsilon_of_mu(math.sqrt(squares), delta), delta, relation, "exact", self.unit)
        losses = [(event.loss(relation), count) for event, count in self.counts.items()]
        if any(loss is None for loss, _ in losses) or self._is_hopeless(delta, relation):
            return self.spent(delta, relation)
        return Guarantee(loss_epsilon(losses, delta, relation, grid), delta, relation, "PLD", self.unit)

    def rounds_left(self, event: Event, most: float, delta: float, tight: bool = False) -> int:
        """Return how many more releases of this kind fit under ε = `most`; `tight` takes some seconds."""
        count = 0
        for spends in ways(delta, tight):
            count = _most(functools.partial(self._fits, event, most, spends), count)
        return count

    def _fits(self, event: Event, most: float, spends: Callable[[Accountant], float], count: int) -> bool:
        return spends(self.after(event, count)) <= most

    def _checked(self, delta: float, relation: str | None) -> str:
        if not 0 <= delta < 1:
            raise UnalikeError(f"δ must be in [0, 1); got {delta!r}.")
        for event in self.counts:
            if relation is not None and relation not in event.relations:
                raise UnalikeError(f"'{event.kind}' has no guarantee for '{relation}', only: {event.relations}.")
        return relation or self.relation

    def _is_hopeless(self, delta: float, relation: str) -> bool:
        # Bernoulli sampling has no Rényi curve for "replace"; the limit need not be exact
        rough = Event.relations[0] if relation == REPLACE and self.relation != REPLACE else relation
        return renyi_epsilon(self.counts, delta, rough) > PLD_UP_TO

    def _sum(self, part: Callable[[Event], float | None]) -> float | None:
        """Return Σ count · part over all events; None where an event has none."""
        parts = [(part(event), count) for event, count in self.counts.items()]
        return None if any(p is None for p, _ in parts) else math.fsum(p * count for p, count in parts if p is not None)


def noise_for(epsilon: float, delta: float, rounds: int, make: Callable[[float], Event], tight: bool = True) -> float:
    """Return the least noise with which `rounds` releases spend at most ε at δ.

    `make` gives the event of a noise: `lambda noise: SampledGaussian(0.01, noise)`. With `tight` (a few seconds where
    clients are drawn) the ε is that of `Accountant.tight`; a run that states RDP in each line then shows more than ε.
    """
    if not epsilon > 0 or not 0 < delta < 1 or rounds < 1:
        raise UnalikeError(
            f"Noise is found for ε above 0, δ in (0, 1) and at least one round; got {epsilon!r}, {delta!r}, {rounds!r}."
        )

    def spends(way: Callable[[Accountant], float], noise: float) -> float:
        return way(Accountant().after(make(noise), rounds))

    by_renyi, *tighter = (functools.partial(spends, way) for way in ways(delta, tight))
    enough = 1.0
    while by_renyi(enough) > epsilon:
        enough *= 2
        if enough > MOST_NOISE:
            raise UnalikeError(
                f"No noise up to {MOST_NOISE:g} clips keeps {rounds} rounds below ε = {epsilon:g} at δ = {delta:g}: "
                "allow a larger ε or δ, or fewer rounds."
            )
    enough = _least(by_renyi, epsilon, enough, step=0.5)
    for way, step in zip(tighter, (0.95, 1 / (1 + TOLERANCE)), strict=False):
        enough = _least(way, epsilon, enough, step)
    return enough


def ways(delta: float, tight: bool) -> list[Callable[[Accountant], float]]:
    """Return ways to compute ε, each smaller and slower than the one before: a search begins with the quick ones."""

    def quick(account: Accountant) -> float:
        return account.spent(delta).epsilon

    def slow(account: Accountant, grid: float) -> float:
        return account.tight(delta, grid=grid).epsilon

    return [quick, *(functools.partial(slow, grid=grid) for grid in (10 * GRID, GRID) if tight)]


def _least(spends: Callable[[float], float], target: float, enough: float, step: float) -> float:
    """Return the least noise that spends at most the target, given one that does and a first step down from it."""
    while spends(little := enough * step) <= target:
        enough, step = little, step**2
        if little < 1 / MOST_NOISE:
            return enough
    while enough > little * (1 + TOLERANCE):
        middle = math.sqrt(little * enough)
        little, enough = (little, middle) if spends(middle) <= target else (middle, enough)
    return enough


def _most(fits: Callable[[int], bool], count: int) -> int:
    """Return the largest count that fits, given one that does."""
    step = 1
    while fits(count + step):
        count, step = count + step, 2 * step
        if step > MOST_ROUNDS:
            raise UnalikeError("Any number of rounds fits: this noise, or the ε allowed, is too large to speak of.")
    while step > 1:
        step //= 2
        count += step if fits(count + step) else 0
    return count


# ---- from events to ε


def renyi_epsilon(counts: dict[Event, int], delta: float, relation: str) -> float:
    """Return ε from Rényi divergences, with the conversion of Canonne, Kamath and Steinke (2020)."""
    if not counts:
        return 0.0
    total = sum(count * renyi_curve(event, relation) for event, count in counts.items())
    return float(dp_accounting().rdp.compute_epsilon(ORDERS, total, delta)[0])


@functools.lru_cache(maxsize=256)
def renyi_curve(event: Event, relation: str) -> np.ndarray:
    """Return an event's Rényi divergences at `ORDERS`; some 40 ms the first time, nothing afterwards."""
    with _quiet():
        return event.renyi(ORDERS, relation)


def loss_epsilon(losses: Iterable[tuple[Any, int]], delta: float, relation: str, grid: float) -> float:
    """Return ε from the composed privacy loss distribution of dp-accounting's events, rounded up to its grid."""
    dp = dp_accounting()
    # what is zeroed out differs as what is removed does, for all events that have a loss distribution here
    neighbours = dp.NeighboringRelation.REPLACE_ONE if relation == REPLACE else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = dp.pld.PLDAccountant(neighbours, grid)
    with _quiet():
        for event, count in losses:
            accountant.compose(event, count)
        return float(accountant.get_epsilon(delta))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return ε at δ of telling N(μ, 1) from N(0, 1): exact (Balle and Wang 2018)."""
    if mu == 0:
        return 0.0
    return float(dp_accounting().get_epsilon_gaussian(1 / mu, delta)) if mu < math.inf else math.inf


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hush dp-accounting's warnings of orders that it leaves out: fewer orders give a larger ε, which still holds."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
