"""A bound on the norm of every field of an update: absolute, or relative to the median of the exchange.

The median is known only when all clients have answered. So that the server need not hold all replies until then, it
passes on at once every reply within the bound of those that have come so far, and holds the others and the first two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from unalike.contract.call import Outcome


class Norms:
    """Takes the outcomes of an exchange one by one. bound: has `most`, `times` and `limit(norms)`
    (`unalike.network.limits.Bound`); beyond: the clients that are refused in the end, each with the reason."""

    def __init__(self, bound: Any):
        self.bound = bound
        self.seen: dict[str, list[float]] = {}  # norms of each field so far
        self.held: list[tuple[Outcome, dict[str, float]]] = []
        self.beyond: dict[int, str] = {}

    @property
    def waiting(self) -> int:
        """Return how many outcomes are held."""
        return len(self.held)

    def take(self, outcome: Outcome) -> Iterator[Outcome]:
        """Yield this outcome if it is within the bound, and held outcomes that now are."""
        if math.isinf(self.bound.most) and math.isinf(self.bound.times):
            yield outcome
            return
        norms = norms_of(outcome)
        for name, norm in norms.items():
            self.seen.setdefault(name, []).append(norm)
        self.held.append((outcome, norms))
        if math.isinf(self.bound.times) or len(next(iter(self.seen.values()), ())) >= 3:
            yield from self._within()

    def rest(self) -> Iterator[Outcome]:
        """Yield the held outcomes that are within the bound now that all have come; the others are `beyond`."""
        yield from self._within()
        for outcome, norms in self.held:
            name = next(name for name in norms if norms[name] > self.bound.limit(self.seen[name]))
            limit = self.bound.limit(self.seen[name])
            reason = f"the norm of its {name!r} is {norms[name]:.3g}, and at most {limit:.3g} is taken (--max-norm)."
            self.beyond[int(outcome.ids[0])] = reason
        self.held = []

    def _within(self) -> Iterator[Outcome]:
        limits = {name: self.bound.limit(norms) for name, norms in self.seen.items()}
        held, self.held = self.held, []
        for outcome, norms in held:
            if all(norm <= limits[name] for name, norm in norms.items()):
                yield outcome
            else:
                self.held.append((outcome, norms))


def norms_of(outcome: Outcome) -> dict[str, float]:
    """Return the norm of each float field of one client's reply."""
    return {name: float(value.double().norm()) for name, value in outcome.up.items() if value.is_floating_point()}
