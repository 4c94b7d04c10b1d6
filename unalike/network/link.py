"""What a network has to do for a federation, and no more: carry bytes between a server and its clients.

Whoever wants another network than Flower's writes these two. Requests come in parts, so that what is the same for all
clients need travel to the middle only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from unalike.errors import UnalikeError

MAX_MESSAGE = 2 << 30  # bytes of one message that either end takes

Parts = Sequence[bytes]


class Lost(str):
    """Why a client's answer will not come."""


class Left(Lost):
    """The client is not there: nobody waits for it."""


class Away(Exception):
    """The server is out of reach, or has forgotten this client: join again."""


class Untrusted(UnalikeError):
    """The server shows a certificate that this federation's authority has not signed."""


class ServerLink(Protocol):
    """The server's end. Clients go by their number in the list of registered keys.

    A call may need several exchanges, one after another. A link may have `notice(client, text)`, which the server sets:
    the link tells by it what the server's operator should hear of a client. It may have `times`, a
    `unalike.network.profile.Times`, into which it writes where the seconds of an exchange go.
    """

    def online(self) -> set[int]:
        """Who is there now."""
        ...

    def exchange(self, requests: Mapping[int, Parts], seconds: float) -> Iterator[tuple[int, bytes | Lost]]:
        """Send to each and give the answers as they come; ends when all have come or the time is over."""
        ...

    def close(self, done: bool) -> None: ...


class ClientLink(Protocol):
    """A client's end."""

    def join(self) -> None:
        """Be there. Waits for a server that is away, as long as it was told to."""
        ...

    def receive(self) -> Parts | None:
        """The next request, or None if there is none now."""
        ...

    def reply(self, answer: bytes) -> None:
        """Answer the request received last."""
        ...

    def leave(self) -> None: ...
