"""A filter between the clients' port and Flower's SuperLink: it limits what an outsider can make the server read, store
and wait for.

An outsider may open a few connections, each for some seconds, and send headers of some kilobytes. A body is read only
after the headers have named a registered key, only up to the limit of its call, and only as long as it keeps coming.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

HANDSHAKE = 10.0  # seconds for the TLS handshake
# seconds from a connection, or from the last answer, to the end of a request's headers
HEADERS = 10.0
PAUSE = 30.0  # longest pause, in seconds, within a body
WHOLE = 900.0  # seconds for a whole call
# most bytes before a request's headers end
MAX_HEADERS = 64 << 10
# connections per address: this many, or this many per registered key
PER_PEER, PER_KEY = 64, 8
# open files that the process needs beside its connections
RESERVE = 64

# (path, headers) -> most bytes of the body; a negative HTTP status refuses
Admit = Callable[[str, dict[bytes, bytes]], int]
Inspect = Callable[[str], Callable[[bytes], bool] | None]  # path -> a check of the complete body, if there is one


class Refused(Exception):
    """Raised for a request that is answered with a status and nothing else."""

    def __init__(self, status: int):
        super().__init__(str(status))
        self.status = status


class Gate:
    """Counts connections by address, and closes slow ones."""

    def __init__(self, keys: int = 1, most: int = 10_000):
        self.per_peer, self.most = max(PER_PEER, PER_KEY * keys), most
        self.open = Counter[str]()
        self._slow: dict[Any, asyncio.TimerHandle] = {}
        self._close: dict[Any, Callable[[], None]] = {}

    def enter(self, peer: str) -> bool:
        """Return whether one more connection from this address is allowed, and count it."""
        if self.open[peer] >= self.per_peer or self.open.total() >= self.most:
            return False
        self.open[peer] += 1
        return True

    def leave(self, peer: str) -> None:
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.open[peer]

    def connected(self, client: Any, close: Callable[[], None]) -> None:
        """Register a connection after its handshake; it must soon send the headers of a request."""
        self._close[client] = close
        self.waiting(client)

    def waiting(self, client: Any) -> None:
        """Start the time limit for the next request's headers on a connection."""
        self.heard(client)
        if client in self._close:
            self._slow[client] = asyncio.get_running_loop().call_later(HEADERS, self._close[client])

    def heard(self, client: Any) -> None:
        """Note that a request's headers have arrived."""
        if (timer := self._slow.pop(client, None)) is not None:
            timer.cancel()

    def gone(self, client: Any) -> None:
        self.heard(client)
        self._close.pop(client, None)


def door(app: Any, admit: Admit, inspect: Inspect = lambda path: None, gate: Gate | None = None) -> Any:
    """Return the app wrapped in the filter. `admit` judges path and headers before any of the body is read."""

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        if gate is not None:
            gate.heard(client := tuple(scope.get("client") or ()))
        try:
            if scope["type"] != "http":
                raise Refused(404)
            await _through(app, scope, receive, send, admit, inspect)
        except Refused as refused:
            await _answer(send, refused.status)
        finally:
            if gate is not None:
                gate.waiting(client)

    return guard


async def _through(app: Any, scope: Any, receive: Any, send: Any, admit: Admit, inspect: Inspect) -> None:
    path, headers = scope["path"], dict(scope["headers"])
    most = admit(path, headers)
    if most < 0:
        raise Refused(-most)
    length = headers.get(b"content-length")
    if length is not None and (not length.isdigit() or int(length) > most):
        raise Refused(413)
    body = Body(receive, most)
    check = inspect(path)
    if check is not None:
        content = await _whole(body)
        if not check(content):
            raise Refused(400)
        body = Body(_again(content, receive), most)
    begun = False

    async def answer(event: Any) -> None:
        nonlocal begun
        if body.refused is None:
            begun = True
            await send(event)

    try:
        await asyncio.wait_for(app(scope, body, answer), WHOLE)
    except TimeoutError:
        body.refused = Refused(408)
    # the app may have turned the refusal into another error
    except Exception:
        if body.refused is None:
            raise
    if body.refused is not None and not begun:
        raise body.refused


class Body:
    """ASGI's `receive` with limits on the total bytes and on the seconds per piece of a body. refused: why it ended."""

    refused: Refused | None = None

    def __init__(self, receive: Callable[[], Awaitable[Any]], most: int):
        self.receive, self.most, self.seen, self.whole = receive, most, 0, False

    async def __call__(self) -> Any:
        # the body is complete: the next event is the end of the connection, with no time limit
        if self.whole:
            return await self.receive()
        try:
            event = await asyncio.wait_for(self.receive(), PAUSE)
        except TimeoutError:
            event = {"type": "http.disconnect"}
            self.refused = Refused(408)
        self.seen += len(event.get("body", b""))
        self.whole = not event.get("more_body", False)
        if self.seen > self.most:
            self.refused = Refused(413)
        if self.refused is not None:
            raise self.refused
        return event


async def _whole(receive: Callable[[], Awaitable[Any]]) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if event["type"] != "http.request" or not event.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Return a `receive` that first gives this body, then further events."""
    events = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return events.pop() if events else await receive()

    return again


async def _answer(send: Any, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


# ---------------------------------------------------------------- connections


def guarded(kind: type, gate: Gate, peer: str) -> type:
    """Return uvicorn's protocol class for a connection, extended to report to the gate and to limit the bytes of
    headers."""

    class Guarded(kind):  # type: ignore[misc, valid-type]
        before = 0  # bytes of headers so far
        # inside: headers have ended and the body has not; ended: either ended just now
        inside = ended = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            gate.connected(self.client, transport.abort)

        def connection_lost(self, error: Exception | None) -> None:
            gate.gone(self.client)
            gate.leave(peer)
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            self.ended = False
            super().data_received(data)
            self.before = 0 if self.inside or self.ended else self.before + len(data)
            if self.before > MAX_HEADERS and hasattr(kind, "on_headers_complete"):
                self.transport.abort()

        def on_headers_complete(self) -> None:  # httptools only; h11 has its own limit
            self.inside = self.ended = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self.inside, self.ended = False, True

    return Guarded


class Listener:
    """Accepts connections on one socket, as far as the gate allows."""

    def __init__(self, sock: socket.socket, gate: Gate, tls: ssl.SSLContext | None, protocol: Callable[[type], Any]):
        self.sock, self.gate, self.tls, self.protocol = sock, gate, tls, protocol
        sock.setblocking(False)
        self._tasks = {asyncio.create_task(self._take_in())}

    async def _take_in(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self.sock)
            except OSError:  # no file descriptor is free at the moment
                await asyncio.sleep(0.05)
                continue
            peer = str(address[0])
            if not self.gate.enter(peer):
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

        made = guarded(AutoHTTPProtocol, self.gate, peer)
        limit = {"ssl_handshake_timeout": HANDSHAKE} if self.tls else {}
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: self.protocol(made), connection, ssl=self.tls, **limit)
        except (OSError, asyncio.CancelledError, ConnectionError):  # no handshake, or not in time
            self.gate.leave(peer)
            with contextlib.suppress(OSError):
                connection.close()

    def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


def gated(config: Any, gate: Gate) -> Any:
    """Return uvicorn's server with its connections going through the gate."""
    import uvicorn

    class Guarded(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await self.lifespan.startup()

            def protocol(kind: type) -> Any:
                return kind(config=config, server_state=self.server_state, app_state=self.lifespan.state)

            self.servers = [Listener(sock, gate, config.ssl, protocol) for sock in sockets or ()]  # type: ignore[misc]
            self.started = True

    return Guarded(config)


def raise_file_limit() -> int:
    """Raise this process's limit on open files as far as allowed; return how many connections that allows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 500 - RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(RESERVE, (wanted if soft == resource.RLIM_INFINITY else soft) - RESERVE)
