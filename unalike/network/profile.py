"""Where the seconds of a round go: clients, serialisation, the SuperLink, the network, the server."""

from __future__ import annotations

import contextlib
import dataclasses as dc
import time
from collections.abc import Iterator
from typing import Any

from unalike.run.callbacks import Callback
from unalike.run.run import Run

PARTS = {
    "clients": "the slowest client of each exchange, from request to answer",
    "serialisation": "requests into bytes and answers out of them, at the server",
    "superlink": "handing requests to the SuperLink and fetching answers from it",
    "network": "the rest of the exchanges: lines, polling, clients that nobody heard of yet",
    "server": "the rest of the round: sums, the method's server half, evaluation, checkpoints",
}


@dc.dataclass
class Times:
    """Seconds so far, by part."""

    clients: float = 0.0
    serialisation: float = 0.0
    superlink: float = 0.0
    # from sending requests to the last answer, without serialisation
    exchanges: float = 0.0

    @contextlib.contextmanager
    def spent(self, part: str) -> Iterator[None]:
        """Add the seconds of this block to a part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - began)


class Profile(Callback):
    """Collects a round's seconds by part (`PARTS`); `rows` is the table of `serve --profile`."""

    def __init__(self, times: Times):
        self.times, self.rounds = times, list[dict[str, float]]()

    def on_start(self, run: Run) -> None:
        self._mark()

    def _mark(self) -> None:
        self._began, self._before = time.perf_counter(), dc.replace(self.times)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        now, before = self.times, self._before
        total = time.perf_counter() - self._began
        parts = {name: getattr(now, name) - getattr(before, name) for name in ("clients", "serialisation", "superlink")}
        exchanges = now.exchanges - before.exchanges
        parts["network"] = max(0.0, exchanges - parts["clients"] - parts["superlink"])
        parts["server"] = max(0.0, total - exchanges - parts["serialisation"])
        self.rounds.append({**parts, "total": total})
        self._mark()

    def rows(self) -> list[list[str]]:
        """Return one row per part: name, mean seconds per round, share, meaning. The first round, which includes
        warming up, is left out if there are others."""
        rounds = self.rounds[1:] or self.rounds
        if not rounds:
            return []
        mean = {name: sum(one[name] for one in rounds) / len(rounds) for name in rounds[0]}
        out = [[name, f"{mean[name]:.3f}", f"{mean[name] / mean['total']:.0%}", PARTS[name]] for name in PARTS]
        return [*out, ["a round", f"{mean['total']:.3f}", "", f"mean of {len(rounds)} rounds"]]
