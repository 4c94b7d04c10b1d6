"""Which clients take part in a run, which keep failing, and when a failing client is asked again."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterable

from unalike.network.link import Left

# exchanges for which a failing client is not asked; doubled each time
FIRST_PAUSE, LONGEST_PAUSE = 4, 64


@dc.dataclass
class Record:
    """What the server remembers about one client.

    planned: it has accepted the run's plan; failures: number in a row; pause: exchanges until it is asked again;
    next_pause: the length of the next pause; lost: exchanges without a usable answer; last: the last round that it
    answered; reason: of the last failure; greetings: failed attempts to greet it; patience: exchanges until it is
    greeted again.
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
    """The records of all clients. A client that fails `tries` times in a row is set aside and asked again after 4, 8,
    16 … exchanges, so that a client that never answers rarely costs a deadline. A client that has left costs no time,
    and is not set aside."""

    def __init__(self, names: list[str], tries: int, say: Callable[[str], None], online: Callable[[], set[int]]):
        self.names, self.tries, self.say, self.online = names, tries, say, online
        self.records = [Record() for _ in names]

    def due(self, asked: Iterable[int]) -> set[int]:
        """Return which of these clients to ask in this exchange; all of them if otherwise none would be asked."""
        planned = [k for k in asked if self.records[k].planned]
        now = set()
        for k in planned:
            record = self.records[k]
            record.pause -= record.pause > 0
            if not record.pause:
                now.add(k)
        return now or set(planned)

    def failed(self, client: int, reason: str) -> None:
        """Record that a client that was asked gave no usable answer."""
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
        """Record that a client gave a usable answer."""
        record = self.records[client]
        if record.set_aside:
            self.say(f"{self.names[client]} answers again")
        record.failures, record.pause, record.next_pause, record.last = 0, 0, FIRST_PAUSE, round

    # ---- clients that come after the start

    def strangers(self) -> set[int]:
        """Return the clients that have not accepted the plan and should be greeted now; each failure halves how
        often."""
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
