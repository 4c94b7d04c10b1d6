"""All tests of a comparison, corrected together: with a chance of 95 % everything that is printed as sure is right,
whichever seed one stops at.

A measure is something to care about (accuracy, the worst clients, rounds, ...) with one number per seed for each
method. Every method is tested against the baseline on every measure, and against training alone and all data in one
place. Seven tenths of the level go to the headline, the rest to all other measures (Holm's correction with weights).
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Sequence

from unalike.results import stats
from unalike.results.evidence import Evidence

Values = Callable[[Evidence], Sequence[float]]
HEADLINE = 0.7  # share of the level


@dc.dataclass(frozen=True)
class Measure:
    """Something to care about: its words, a method's values (one per seed), which direction is better, how values are
    shown, the methods that have them, and the method they are tested against (None: nothing is tested)."""

    wish: str
    values: Values
    larger: bool
    show: Callable[[Evidence], str]
    methods: Sequence[Evidence]
    other: Evidence | None
    unit: str = "plain"

    def best(self, among: Sequence[Evidence] | None = None) -> Evidence:
        """Return the method with the best mean; of equal ones the simplest."""
        sign = 1 if self.larger else -1
        some = self.methods if among is None else among
        return max(some, key=lambda m: (sign * stats.mean(self.values(m)), *(-c for c in cost(m))))

    def always_ahead(self, method: Evidence, other: Evidence) -> bool:
        """Return whether a method is ahead of another in every seed."""
        pairs = zip(self.values(method), self.values(other), strict=True)
        return all(a != b and (a > b) == self.larger for a, b in pairs)


@dc.dataclass(frozen=True)
class Claim:
    """A comparison of two methods on one measure: the test, and p after the correction for all claims."""

    wish: str
    method: str
    other: str
    test: stats.Sequential
    larger: bool
    unit: str
    corrected: float = 1.0

    @property
    def sure(self) -> bool:
        return self.corrected <= stats.ALPHA

    @property
    def better(self) -> bool:
        return (self.test.difference > 0) == self.larger

    @property
    def ahead(self) -> int:
        """Return in how many seeds the method is better than the other."""
        return self.test.ahead if self.larger else self.test.behind


Claims = dict[tuple[str, str], Claim]  # by wish and method


def make(measures: Sequence[Measure]) -> Claims:
    """Test every method on every measure, and correct for all tests; the first measure is the headline."""
    found = [_claim(measure, method) for measure in measures for method in _tested(measure)]
    first = sum(claim.wish == measures[0].wish for claim in found) if measures else 0
    rest = len(found) - first
    alone = not first or not rest
    weights = [1.0 if alone else HEADLINE / first if k < first else (1 - HEADLINE) / rest for k in range(len(found))]
    corrected = stats.holm([claim.test.p for claim in found], weights)
    return {(c.wish, c.method): dc.replace(c, corrected=p) for c, p in zip(found, corrected, strict=True)}


def _tested(measure: Measure) -> list[Evidence]:
    """Return the methods to test: not the reference method itself, nor one whose runs are identical to it."""
    return [m for m in measure.methods if measure.other is not None and m is not measure.other and not m.twin]


def _claim(measure: Measure, method: Evidence) -> Claim:
    assert measure.other is not None
    test = stats.sequential(measure.values(method), measure.values(measure.other))
    return Claim(measure.wish, method.label, measure.other.label, test, measure.larger, measure.unit)


def level_of_headline(claims: Claims, wish: str) -> float:
    """Return the largest p with which a claim on the headline is sure, if it is the first."""
    mine = sum(claim.wish == wish for claim in claims.values())
    return stats.ALPHA * (1 if mine == len(claims) else HEADLINE) / max(1, mine)


def singly(method: Evidence) -> bool:
    """Return whether the server, or other clients, see values of single clients."""
    return bool(method.traits.each or method.traits.peers)


def cost(method: Evidence) -> tuple[float, ...]:
    """Return a sort key for how demanding a method is: whether it reads clients one by one, whether they keep state,
    bytes."""
    keeps, other = bool(method.traits.state), method.method != "fedavg"
    return (float(singly(method)), float(keeps), float(sum(method.bytes)), float(other))
