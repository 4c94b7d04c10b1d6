"""What noise in whole numbers spends: each client adds a share, and a secure sum adds the shares up (distributed
privacy).

All in units of the integer grid: an update is clipped to C, scaled by s, and rounded at random, which lengthens it:
`rounded_norms` bounds by how much. The variance is that of the noise that is certain to be in the *sum*: if clients may
drop out, of the shares of those who must remain.

A client brings its share of the noise with it, so a sum with one more client has more noise: who takes part is visible,
and there is no guarantee for "add or remove". For "zero out" and "replace" the client takes part in both runs.
"""

from __future__ import annotations

import dataclasses as dc
import math
from typing import ClassVar

import numpy as np

from unalike.channel.events import REPLACE, ZERO_OUT, Event, at_least_zero, moved, probability
from unalike.errors import UnalikeError


def rounded_norms(length: float, dimension: int, beta: float = math.exp(-0.5)) -> tuple[float, float]:
    """Return bounds of the 1-norm and the 2-norm of a vector whose 2-norm was at most `length`, rounded at random.

    With `beta` above 0 a client rounds again while the bound is exceeded, which happens with a probability of at most
    beta (Kairouz, Liu and Steinke 2021, proposition 22); with 0 the bound holds for every rounding.
    """
    longest = length + math.sqrt(dimension)
    if beta:
        likely = length**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (length + math.sqrt(dimension) / 2)
        longest = min(longest, math.sqrt(likely))
    return longest * min(math.sqrt(dimension), longest), longest


@dc.dataclass(frozen=True)
class IntegerSum(Event):
    """Integer noise of this variance on a sum that one client moves by at most `l1` and `l2` in the two norms.

    A subclass defines `bound`, which holds at integer orders; (order − 1) · divergence is convex between them. With
    clients drawn at probability q: see `sampled`.
    """

    relations: ClassVar[tuple[str, ...]] = (ZERO_OUT, REPLACE)

    variance: float
    l1: float
    l2: float
    q: float = 1.0

    def __post_init__(self) -> None:
        at_least_zero(self, "variance", "l1", "l2")
        probability(self, "q")

    def bound(self, orders: np.ndarray, relation: str) -> np.ndarray:
        """Return the Rényi divergences at integer orders, without sampling."""
        raise NotImplementedError

    def renyi(self, orders: np.ndarray, relation: str) -> np.ndarray:
        if not self.variance:
            return np.full_like(orders, math.inf)
        whole = np.arange(2, math.ceil(orders.max()) + 1)
        divergences = self.bound(whole, relation)
        if self.q < 1:
            divergences = sampled(whole, divergences, self.q)
        moments = np.concatenate([[0.0], (whole - 1) * divergences])  # at orders 1, 2, …
        return np.interp(orders, np.arange(1, len(moments) + 1), moments) / (orders - 1)


@dc.dataclass(frozen=True)
class SkellamSum(IntegerSum):
    """Skellam noise (a difference of two Poisson variables): sums of it are Skellam again, exactly (Agarwal, Kairouz
    and Liu 2021): α l2²/(2v) + min(((2α − 1) l2² + 6 l1)/(4v²), 3 l1/(2v))."""

    kind: ClassVar[str] = "skellam"

    def bound(self, orders: np.ndarray, relation: str) -> np.ndarray:
        l1, l2, v = moved(relation) * self.l1, moved(relation) * self.l2, self.variance
        rest = np.minimum(((2 * orders - 1) * l2**2 + 6 * l1) / (4 * v**2), 3 * l1 / (2 * v))
        return orders * l2**2 / (2 * v) + rest


@dc.dataclass(frozen=True)
class DiscreteGaussianSum(IntegerSum):
    """Discrete Gaussian noise from `clients` of them, each with an equal share of the variance. The sum is not quite a
    discrete Gaussian; τ bounds by how much (Kairouz, Liu and Steinke 2021, proposition 14; shares of σ ≥ ½)."""

    clients: int = 1
    dimension: int = 1
    kind: ClassVar[str] = "discrete gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variance and self.variance / self.clients < 0.25:
            raise UnalikeError(
                f"Each client's share of discrete Gaussian noise must have a standard deviation of at least 0.5 on the "
                f"integer grid; got {math.sqrt(self.variance / self.clients):g}: use a finer grid, or Skellam noise."
            )

    @property
    def tau(self) -> float:
        k = np.arange(1, self.clients)
        return float(10 * np.exp(-2 * math.pi**2 * self.variance / self.clients * k / (k + 1)).sum())

    def bound(self, orders: np.ndarray, relation: str) -> np.ndarray:
        tau, d, sigma = self.tau, self.dimension, math.sqrt(self.variance)
        l1, l2 = moved(relation) * self.l1 / sigma, moved(relation) * self.l2 / sigma
        squares = min(l2**2 + 2 * l1 * tau + tau**2 * d, (l2 + math.sqrt(d) * tau) ** 2)
        return np.minimum(orders * l2**2 / 2 + tau * d, orders * squares / 2)


def sampled(orders: np.ndarray, divergences: np.ndarray, q: float) -> np.ndarray:
    """Return a bound of the Rényi divergences when each client is drawn with probability q.

    Drawn or not, the client's part of the two runs is (1 − q) A + q B and (1 − q) A + q B′: the moments e^((α − 1) D)
    are jointly convex, so theirs is at most 1 − q + q e^((α − 1) D(B, B′)). Sampling gives more where A = B′ (Zhu and
    Wang 2019), but here A lacks the share of noise that the client brings.
    """
    moments = np.logaddexp(math.log1p(-q), math.log(q) + (orders - 1) * divergences)
    return moments / (orders - 1)
