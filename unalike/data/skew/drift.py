"""Changes that happen as rounds pass: a change that grows, and a stream of samples seen through a moving window.

They are declared on a federation (`fed.drift`) and applied by `fed.at(round)`. Clients keep their numbers of samples.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar

import numpy as np
import torch

from unalike import draws
from unalike.data.columns import Columns
from unalike.data.drifting import Drifting
from unalike.data.federation import as_arguments
from unalike.data.partition import tools
from unalike.data.partition.pieces import Change
from unalike.data.skew.planted import levels
from unalike.errors import UnalikeError

ORDERS = ("time", "labels")


class DriftingChange(Change):
    """A change that happens as rounds pass: it begins in round 1 and is complete in round `rounds`."""

    drifts: ClassVar[bool] = True
    rounds: int

    def change(self, fed: Any, seed: int) -> Any:
        """Return the federation with this drift declared; its samples stay as they are."""
        before = () if fed.drift is None else fed.drift.changes
        drift = Drifting((*before, (self, draws.check_seed(seed))))
        return fed.replace(planted={**fed.planted, **self.plants(fed, seed)}, drift=drift)

    def plants(self, fed: Any, seed: int) -> dict[str, np.ndarray]:
        """Return what it plants in every client, by name; raise if these data cannot drift in this way."""
        raise NotImplementedError

    def phase(self, round: int) -> int:
        """Return a number that changes whenever the samples change."""
        raise NotImplementedError

    def present(self, now: Any, base: Any, seed: int, round: int) -> Any:
        """Return the federation as it is in this round; now: the federation after earlier changes, base: before any."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Drift(DriftingChange):
    """A change that grows: its strength is 0 in round 1 and rises in equal steps to its full value, reached in round
    `rounds`. As text 'drift:50:rotate:4', or 'drift:50:5:rotate:4' in 5 steps."""

    name: ClassVar[str] = "drift"
    rounds: int
    skew: Any  # a change, or its text
    steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.count("Drift's rounds", self.rounds, least=2)
        tools.count("Drift's steps", self.steps)
        skew = _parsed(self.skew) if isinstance(self.skew, str) else self.skew
        if not isinstance(skew, Change) or isinstance(skew, DriftingChange):
            raise UnalikeError(f"{skew} cannot grow as rounds pass: Drift takes a change, such as 'permute:2'.")
        # one strength for both, so that `parse` reads back the same change
        object.__setattr__(self, "strength", self.strength * skew.strength)
        object.__setattr__(self, "skew", skew.at(1.0))

    @property
    def of_features(self) -> bool:  # type: ignore[override]
        """Return whether samples drift; they must then be prepared first."""
        return self.skew.of_features

    @classmethod
    def read(cls, values: list[str], whole: str) -> Drift:
        """Make a drift from the arguments of a text: rounds, optionally steps, and the change with its own
        arguments."""
        numbers = next((k for k, value in enumerate(values) if not re.fullmatch("[0-9]{1,9}", value)), len(values))
        if numbers not in (1, 2) or numbers == len(values):
            raise UnalikeError(
                f"The partition {whole!r} does not say what drifts: write 'drift:rounds:change' or "
                "'drift:rounds:steps:change', such as 'drift:50:permute:2'."
            )
        rounds, *steps = (int(value) for value in values[:numbers])
        return cls(rounds, ":".join(values[numbers:]), *steps)

    def __str__(self) -> str:
        steps = "" if self.steps == 10 else f":{self.steps}"
        return f"drift:{self.rounds}{steps}:{self.skew}{self.at_strength}"

    def plants(self, fed: Any, seed: int) -> dict[str, np.ndarray]:
        there = self.skew.change(fed, seed)
        before, after = ({n: (c.x.shape, c.sizes.tobytes()) for n, c in one.splits.items()} for one in (fed, there))
        if before != after:
            raise UnalikeError(f"{self.skew} changes how many samples clients have: it cannot grow as rounds pass.")
        return there.planted

    def phase(self, round: int) -> int:
        """Return how many of the steps are done."""
        return min(self.steps, (round - 1) * self.steps // (self.rounds - 1))

    def present(self, now: Any, base: Any, seed: int, round: int) -> Any:
        strength = self.strength * self.phase(round) / self.steps
        return self.skew.at(strength).change(now, seed) if strength else now


@dataclasses.dataclass(frozen=True)
class Stream(DriftingChange):
    """A stream: every client has its samples in time order, the share `share` of them at a time, from the oldest in
    round 1 to the newest from round `rounds` on.

    order: "time", as they are stored, or "labels": the clients' labels drift from the first class to the last (or from
    the smallest number to the largest). ahead: clients are up to so many rounds ahead of each other (one process,
    offset in time); how far each is, from 0 to 1, is planted. At a strength below 1 so many samples keep their place in
    the order, and the others change places at random.
    """

    name: ClassVar[str] = "stream"
    in_order: ClassVar[bool] = True
    of_features: ClassVar[bool] = False
    rounds: int
    share: float = 0.5
    order: str = "time"
    ahead: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.count("Stream's rounds", self.rounds, least=2)
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share < 1:
            raise UnalikeError(f"Stream's share={self.share!r} must be a number above 0 and below 1, such as 0.5.")
        if self.order not in ORDERS:
            raise UnalikeError(f"Stream's order={self.order!r} must be one of {', '.join(ORDERS)}.")
        tools.count("Stream's ahead", self.ahead, least=0)

    def plants(self, fed: Any, seed: int) -> dict[str, np.ndarray]:
        if fed.drift is not None and any(isinstance(change, Stream) for change, _ in fed.drift.changes):
            raise UnalikeError("These data are a stream already: ask for one.")
        return {self.name: levels(self.name, len(fed), 0, seed)[0]} if self.ahead else {}

    def phase(self, round: int) -> int:
        return min(round, self.rounds)

    def present(self, now: Any, base: Any, seed: int, round: int) -> Any:
        ahead = self.ahead * levels(self.name, len(base), 0, seed)[1]
        passed = np.minimum((round - 1 + ahead) / (self.rounds - 1), 1.0)
        orders = {name: self._ordered(columns, seed) for name, columns in base.splits.items()}
        splits = {name: self._window(columns, orders[name], passed) for name, columns in now.splits.items()}
        return now.replace(**as_arguments(splits))

    def _window(self, columns: Columns, order: np.ndarray, passed: np.ndarray) -> Columns:
        """Return the current window of a split, whose rows have this order; passed: how far each client's window has
        moved, from 0 to 1."""
        sizes = columns.sizes
        some = np.minimum(np.maximum(_floor(self.share * sizes), 1), sizes)
        first = columns.offsets[:-1] + _floor((sizes - some) * passed)
        within = np.arange(some.sum()) - np.repeat(np.cumsum(some) - some, some)
        return columns.take(order[np.repeat(first, some) + within], some)

    def _ordered(self, columns: Columns, seed: int) -> np.ndarray:
        """Return the rows in the order of the stream, client after client, int64 [total]."""
        owners, rows = columns.owners(), np.arange(len(columns.y))
        if self.order == "labels":
            labels = columns.y.reshape(len(rows), -1)[:, 0].cpu().numpy()  # of several numbers, the first
            rows = np.lexsort((labels, owners))
        if self.strength < 1:
            keys = draws.client_keys(seed, 0, "stream", np.arange(len(columns)))
            place = torch.from_numpy(rows - np.repeat(columns.offsets[:-1], columns.sizes))
            key = torch.from_numpy(np.repeat(keys, columns.sizes))
            loose = draws.whole(key, place).numpy() >= self.strength * (1 << 24)
            drawn = draws.bits(draws.fold(key, 1), place).numpy()[loose]
            rows[loose] = rows[loose][np.lexsort((drawn, owners[loose]))]
        return rows


def _floor(values: np.ndarray) -> np.ndarray:
    """Round down to whole numbers; a value that is below one only by rounding error counts as that number."""
    return np.floor(values + 1e-9).astype(np.int64)


def _parsed(text: str) -> Any:
    # imported here, because the registry imports all changes
    from unalike.data.partition import parse

    return parse(text)
