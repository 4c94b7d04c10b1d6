"""Limits on what a server accepts from its clients, and on how many clients it needs."""

from __future__ import annotations

import dataclasses as dc
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from unalike.errors import UnalikeError

# classes that a client may claim beyond the others' numbers, unless the server is told the number
MOST_CLASSES = 1000
OUT_OF_LINE = 10  # times the median number of classes
# default limit on samples, times the median over clients
USUAL_SAMPLES = 1000.0


@dc.dataclass(frozen=True)
class Bound:
    """A number that may not be exceeded: `most`, or `times` the median of the others' numbers; inf means no bound."""

    most: float = math.inf
    times: float = math.inf

    @classmethod
    def read(cls, text: str | float, flag: str) -> Bound:
        """Read a bound from "1e6", "5x" (five times the median) or both, "1e6,5x"; "none" is no bound."""
        found = {"most": math.inf, "times": math.inf}
        for part in [] if text == "none" else str(text).split(","):
            kind = "times" if part.strip().endswith("x") else "most"
            try:
                found[kind] = float(part.strip().removesuffix("x"))
            except ValueError:
                found[kind] = -1.0
            if not 0 < found[kind] < math.inf:
                raise UnalikeError(
                    f"{flag} must be a number (1e6), a multiple of the median (5x) or both; got {text!r}."
                )
        return cls(**found)

    def limit(self, others: Sequence[float]) -> float:
        """Return the limit, given the other clients' numbers. The median counts only if there are at least three and it
        is not 0."""
        middle = statistics.median(others) if len(others) >= 3 else 0.0
        return min(self.most, self.times * middle if middle > 0 and self.times < math.inf else math.inf)


@dc.dataclass(frozen=True)
class Limits:
    """What a server needs and accepts.

    least: clients needed to begin and to continue (None: all to begin, one to continue); samples: most that a client
    may claim; norm: largest norm of each field of an update; enough: answers that close an exchange, a count or a share
    of those asked; tries: failures in a row after which a client is set aside (0: never); classes: the number of
    classes, if the server is told.
    """

    least: int | None = None
    samples: Bound = Bound(times=USUAL_SAMPLES)
    norm: Bound = Bound()
    enough: float = 1.0
    tries: int = 3
    classes: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("least", 1), ("tries", 0), ("classes", 1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < low):
                raise UnalikeError(f"{name} must be a whole number of at least {low}; got {value!r}.")
        whole = self.enough >= 1 and float(self.enough).is_integer()
        if not (whole or 0 < self.enough < 1):
            raise UnalikeError(f"enough must be a share in (0, 1] or a whole number; got {self.enough!r}.")

    def needed(self, clients: int) -> int:
        """Return how many of `clients` registered clients must be there to begin."""
        if self.least is not None and self.least > clients:
            raise UnalikeError(f"least is {self.least}, and {clients} clients are registered.")
        return clients if self.least is None else self.least

    def sufficient(self, asked: int) -> int:
        """Return how many answers close an exchange with `asked` clients; 1.0 means all of them."""
        count = asked if self.enough == 1 else math.ceil(self.enough * asked) if self.enough < 1 else int(self.enough)
        return min(asked, max(1, count))

    def too_many_samples(self, sizes: Mapping[int, int]) -> dict[int, str]:
        """Return the clients that claim more samples than the server accepts, each with the reason."""
        most = self.samples.limit([*sizes.values()])
        told = "--max-samples"
        return {
            k: f"it says that it has {n:,} samples, and the server takes at most {most:,.0f} of a client ({told})."
            for k, n in sizes.items()
            if n > most
        }

    def too_many_classes(self, claimed: Mapping[int, int | None], known: Iterable[int] = ()) -> dict[int, str]:
        """Return the clients whose number of classes is implausible, each with the reason; known: numbers that the
        server has from elsewhere. This matters because every client's model is as large as the largest number asks
        for."""
        counts = [count for count in claimed.values() if count is not None]
        if not counts:
            return {}
        usual = max(MOST_CLASSES, int(OUT_OF_LINE * statistics.median_low(counts)), *known)
        most = usual if self.classes is None else self.classes
        said = f"the run has {most} (--classes)" if self.classes is not None else "say how many there are (--classes)"
        return {
            k: f"it says that it has {count:,} classes: {said}."
            for k, count in claimed.items()
            if count is not None and count > most
        }
