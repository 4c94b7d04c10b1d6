"""The interface that a network must have for a federation: carrying bytes between a server and its clients, no more.

To use another network than Flower's, implement these two protocols. Requests come in parts, so that the part that is
equal for all clients need be uploaded only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from unalike.errors import UnalikeError

# most bytes of one message that either end accepts
MAX_MESSAGE = 2 << 30

Parts = Sequence[bytes]


class Lost(str):
    """Why a client's answer will not come."""


class Left(Lost):
    """The client has left: it is not waited for."""


class Away(Exception):
    """Raised when the server is out of reach, or has forgotten this client: join again."""


class Untrusted(UnalikeError):
    """Raised when the server shows a certificate that this federation's authority has not signed."""


class ServerLink(Protocol):
    """The server's end. Clients are numbered by their place in the list of registered keys.

    A call may need several exchanges, one after another. A link may have `notice(client, text)`, which the server sets;
    the link calls it with messages about a client for the server's operator. It may have `times`, a
    `unalike.network.profile.Times`, to record where the seconds of an exchange go.
    """

    def online(self) -> set[int]:
        """Return the clients that are connected now."""
        ...

    def exchange(self, requests: Mapping[int, Parts], seconds: float) -> Iterator[tuple[int, bytes | Lost]]:
        """Send each client its request and yield the answers as they come; end when all have come or the time is
        over."""
        ...

    def close(self, done: bool) -> None: ...


class StreamingLink(ServerLink, Protocol):
    """A server's end that can send while it waits, for asynchronous runs."""

    def stream(self, more: Callable[[], Mapping[int, Parts]], seconds: float) -> Iterator[tuple[int, bytes | Lost]]:
        """Give the answers as they come to requests that `more` hands out in between, each within so many seconds; ends
        when there are none left."""
        ...


class ClientLink(Protocol):
    """A client's end."""

    def join(self) -> None:
        """Connect; wait for a server that is away, up to the time set."""
        ...

    def receive(self) -> Parts | None:
        """Return the next request, or None if there is none now."""
        ...

    def reply(self, answer: bytes) -> None:
        """Answer the last request received."""
        ...

    def leave(self) -> None: ...
