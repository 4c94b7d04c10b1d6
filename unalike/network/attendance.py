"""Who takes part in a run, who keeps failing, and when somebody is asked again."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterable

from unalike.network.link import Left

FIRST_PAUSE, LONGEST_PAUSE = 4, 64  # exchanges for which a client that keeps failing is not asked; doubled each time


@dc.dataclass
class Record:
    """What the server remembers of one client.

    planned: it has accepted the run's plan; failures: in a row; pause: exchanges until it is asked again; next_pause:
    the one after; lost: exchanges in which nothing of use came; last: the last round that it answered; reason: of the
    last failure; greetings: attempts to greet it that failed; patience: exchanges until it is greeted again.
    """

    planned: bool = False
    failures: int = 0
    pause: int = 0
    next_pause: int = FIRST_PAUSE
    lost: int = 0
    last: int | None = None
    reason: str = ""
    greetings: int = 0
    patience: int = 0

    @property
    def set_aside(self) -> bool:
        return self.next_pause > FIRST_PAUSE


class Attendance:
    """The records of all clients. Whoever fails `tries` times in a row is set aside, and asked again after 4, 8, 16 …
    exchanges, so that one that never answers costs a deadline rarely. Whoever has left costs nothing, and is not."""

    def __init__(self, names: list[str], tries: int, say: Callable[[str], None], online: Callable[[], set[int]]):
        self.names, self.tries, self.say, self.online = names, tries, say, online
        self.records = [Record() for _ in names]

    def due(self, asked: Iterable[int]) -> set[int]:
        """Return which of these clients are asked this time; all of them where nobody would be."""
        planned = [k for k in asked if self.records[k].planned]
        now = set()
        for k in planned:
            record = self.records[k]
            record.pause -= record.pause > 0
            if not record.pause:
                now.add(k)
        return now or set(planned)

    def failed(self, client: int, reason: str) -> None:
        """Write down that nothing of use came from a client that was asked."""
        record = self.records[client]
        record.lost += 1
        record.reason = reason
        if isinstance(reason, Left):
            return
        record.failures += 1
        if self.tries and record.failures >= self.tries and client in self.online():
            record.pause, record.next_pause = record.next_pause, min(2 * record.next_pause, LONGEST_PAUSE)
            self.say(
                f"{self.names[client]} has failed {record.failures} times in a row and is set aside: it is asked again "
                f"in {record.pause} exchanges"
            )

    def answered(self, client: int, round: int) -> None:
        """Write down that an answer was of use."""
        record = self.records[client]
        if record.set_aside:
            self.say(f"{self.names[client]} answers again")
        record.failures, record.pause, record.next_pause, record.last = 0, 0, FIRST_PAUSE, round

    # ---- clients that come after the start

    def strangers(self) -> set[int]:
        """Return the clients that have not accepted the plan and are due to be greeted; each failure halves how often
        that is."""
        out = set()
        for k, record in enumerate(self.records):
            if record.planned:
                continue
            record.patience -= record.patience > 0
            if not record.patience:
                out.add(k)
        return out

    def not_greeted(self, client: int) -> None:
        record = self.records[client]
        record.greetings += 1
        record.patience = min(1 << record.greetings, LONGEST_PAUSE)

    def joined(self, client: int) -> None:
        self.records[client].planned = True
