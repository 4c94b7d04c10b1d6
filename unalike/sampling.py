"""Who takes part in a round: a function of (seed, round), at a cost that does not grow with the population."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Sequence

import numpy as np

from unalike import random
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Uniform:
    """`count` clients, or a `fraction` of all (at least one), without replacement."""

    count: int | None = None
    fraction: float | None = None

    def size(self, population: int) -> int:
        if self.count is not None:
            return self.count
        assert self.fraction is not None
        return max(1, round(self.fraction * population))

    def check(self, population: int) -> None:
        size = self.size(population)
        if not 1 <= size <= population:
            raise UnalikeError(f"clients_per_round={size}: there are {population} clients.")

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        size = self.size(population)
        if size == population:
            return np.arange(population)
        return rng.choice(population, size, replace=False, shuffle=False)


@dc.dataclass(frozen=True)
class Bernoulli:
    """Every client by itself with this probability, so that the number varies; drawn again if nobody comes.
    FedDyn's and FedDC's programs sample like this, and so does DP-FedAvg."""

    probability: float

    def size(self, population: int) -> int:
        return max(1, round(self.probability * population))

    def check(self, population: int) -> None:
        if not 0 < self.probability <= 1:
            raise UnalikeError(f"Bernoulli: the probability must lie in (0, 1]; got {self.probability!r}.")

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        count = 0
        while count == 0:  # a binomial count and a uniform choice are the same law, at the cohort's cost
            count = int(rng.binomial(population, self.probability))
        return rng.choice(population, count, replace=False, shuffle=False)


@dc.dataclass(frozen=True)
class BySize:
    """`count` clients without replacement, likelier the more samples they have. With it, weigh replies uniformly:
    size would count twice otherwise."""

    count: int

    def size(self, population: int) -> int:
        return self.count

    def check(self, population: int) -> None:
        if not 1 <= self.count <= population:
            raise UnalikeError(f"BySize({self.count}): there are {population} clients.")

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        return rng.choice(population, self.count, replace=False, p=sizes / sizes.sum())


@dc.dataclass(frozen=True)
class Listed:
    """An explicit list of clients for each round (exact replay); the list starts again when it ends."""

    rounds: tuple[tuple[int, ...], ...]

    def size(self, population: int) -> int:
        return max(len(r) for r in self.rounds)

    def check(self, population: int) -> None:
        for t, ids in enumerate(self.rounds):
            wrong = [k for k in ids if not 0 <= k < population]
            if wrong or not ids or len(set(ids)) != len(ids):
                what = f"names client {wrong[0]} of {population}" if wrong else "is empty or names a client twice"
                raise UnalikeError(f"clients_per_round: the list of round {t + 1} {what}.")

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        return np.array(self.rounds[round % len(self.rounds)])


Sampling = Uniform | Bernoulli | BySize | Listed


def sampling(value: object) -> Sampling:
    """A fraction, a count, lists of clients, or a sampling itself."""
    if isinstance(value, Uniform | Bernoulli | BySize | Listed):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return Uniform(count=int(value))
    if isinstance(value, float) and 0 < value <= 1:
        return Uniform(fraction=value)
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if listed and all(isinstance(r, Sequence | np.ndarray) for r in value):  # type: ignore[attr-defined]
        return Listed(tuple(tuple(int(k) for k in r) for r in value))  # type: ignore[attr-defined]
    raise UnalikeError(
        f"clients_per_round must be a fraction in (0, 1], a whole number, or a list of client lists; got {value!r}."
    )


def draw(how: Sampling, seed: int, round: int, sizes: np.ndarray) -> np.ndarray:
    """The clients of a round, in ascending order."""
    ids = how.draw(random.generator(seed, "sampling", round), round, len(sizes), sizes)
    return np.sort(ids.astype(np.int64))
