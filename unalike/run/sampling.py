"""Which clients take part in a round: a function of (seed, round). A draw costs in proportion to the cohort, not the
population; only `BySize` looks at every client's size."""

from __future__ import annotations

import dataclasses as dc
from typing import Any

import numpy as np

from unalike import draws
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Uniform:
    """`count` clients, or a `fraction` of all (at least one), without replacement."""

    count: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.count is None) == (self.fraction is None):
            raise UnalikeError(f"Uniform takes a count or a fraction; got {self.count!r} and {self.fraction!r}.")
        if self.fraction is not None:
            _share("Uniform: the fraction", self.fraction)

    def size(self, population: int) -> int:
        if self.count is not None:
            return self.count
        assert self.fraction is not None
        return max(1, round(self.fraction * population))

    def mean(self, population: int) -> float:
        return float(self.size(population))

    def check(self, population: int) -> None:
        _count("clients_per_round", self.size(population), population)

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        return rng.choice(population, self.size(population), replace=False, shuffle=False)


@dc.dataclass(frozen=True)
class Bernoulli:
    """Draw every client independently with this probability, so that the cohort's size varies; draw again if it is
    empty. FedDyn's and FedDC's programs sample like this, and so does DP-FedAvg. empty: let an empty cohort be a round,
    of sums that are zero and of noise, as the bounds of differential privacy require."""

    probability: float
    empty: bool = False

    def size(self, population: int) -> int:
        return max(1, round(self.probability * population))

    def mean(self, population: int) -> float:
        return self.probability * population

    def __post_init__(self) -> None:
        _share("Bernoulli: the probability", self.probability)

    def check(self, population: int) -> None:
        mean = self.probability * population
        if mean < 0.01:
            raise UnalikeError(
                f"Bernoulli({self.probability!r}) of {population} clients leaves {mean:.2g} a round: raise it."
            )

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        # the same law as single draws, at the cohort's cost: a binomial count, then a uniform choice
        count = int(rng.binomial(population, self.probability))
        while count == 0 and not self.empty:
            count = int(rng.binomial(population, self.probability))
        return rng.choice(population, count, replace=False, shuffle=False)


@dc.dataclass(frozen=True)
class Counted:
    """Base class of samplings with the same number of clients in every round."""

    count: int

    def size(self, population: int) -> int:
        return self.count

    def mean(self, population: int) -> float:
        return float(self.size(population))

    def check(self, population: int) -> None:
        _count(type(self).__name__, self.count, population)


@dc.dataclass(frozen=True)
class BySize(Counted):
    """`count` clients without replacement; a client's chance grows with its number of samples. Weigh replies uniformly
    with it, else size counts twice."""

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        return rng.choice(population, self.count, replace=False, p=sizes / sizes.sum())


@dc.dataclass(frozen=True)
class Turns(Counted):
    """Every client once before any client repeats: all clients in a random order, `count` per round, the remainder in
    the last round of a turn; then a new order. For noise on a tree (`tree-noise`)."""

    def rounds(self, population: int) -> int:
        """Return the number of rounds in a turn."""
        return -(-population // self.count)

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        """rng: the generator of the turn's first round."""
        place = round % self.rounds(population)
        return rng.permutation(population)[place * self.count : (place + 1) * self.count]


@dc.dataclass(frozen=True)
class Listed:
    """An explicit list of clients for each round (exact replay); the list starts again when it ends."""

    rounds: tuple[tuple[int, ...], ...]

    def size(self, population: int) -> int:
        return max(len(r) for r in self.rounds)

    def mean(self, population: int) -> float:
        return float(self.size(population))

    def check(self, population: int) -> None:
        if not self.rounds:
            raise UnalikeError("clients_per_round: the list of client lists is empty.")
        for t, ids in enumerate(self.rounds):
            wrong = [k for k in ids if not 0 <= k < population]
            if wrong or not ids or len(set(ids)) != len(ids):
                what = f"names client {wrong[0]} of {population}" if wrong else "is empty or names a client twice"
                raise UnalikeError(f"clients_per_round: the list of round {t + 1} {what}.")

    def draw(self, rng: np.random.Generator, round: int, population: int, sizes: np.ndarray) -> np.ndarray:
        return np.array(self.rounds[round % len(self.rounds)])


Sampling = Uniform | Bernoulli | BySize | Turns | Listed


def _share(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UnalikeError(f"{what} must lie in (0, 1]; got {value!r}.")


def _count(what: str, value: Any, population: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= population:
        raise UnalikeError(
            f"{what}: {value!r} of {population} clients; it must be a whole number from 1 to {population}."
        )


def sampling(value: Any) -> Sampling:
    """Return a sampling made from a fraction, a count or lists of clients; a sampling is returned unchanged."""
    if isinstance(value, Sampling):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return Uniform(count=int(value))
    if isinstance(value, float) and 0 < value <= 1:
        return Uniform(fraction=value)
    lists = isinstance(value, list | tuple | np.ndarray) and all(
        isinstance(r, list | tuple | np.ndarray) for r in value
    )
    if lists and all(isinstance(k, int | np.integer) for r in value for k in r):
        return Listed(tuple(tuple(int(k) for k in r) for r in value))
    raise UnalikeError(
        f"clients_per_round must be a fraction in (0, 1], a whole number, or a list of client lists; got {value!r}."
    )


def draw(how: Sampling, seed: int | bytes, round: int, sizes: np.ndarray) -> np.ndarray:
    """Return the clients of a round, in ascending order; seed: the run's, or the server's secret."""
    if type(how) is Uniform and how.size(len(sizes)) == len(sizes):  # all clients: nothing to draw
        return np.arange(len(sizes))
    first = round - round % how.rounds(len(sizes)) if isinstance(how, Turns) else round
    ids = how.draw(draws.generator(seed, "sampling", first), round, len(sizes), sizes)
    return np.sort(ids.astype(np.int64))
