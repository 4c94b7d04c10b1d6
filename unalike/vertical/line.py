"""A plain TLS link between parties, for an exchange every batch: the keys and certificates are those of federations.

The guest listens (`unalike keys server`); hosts connect, check the guest's certificate against ca.crt, and prove who
they are by signing a fresh challenge with their own key (`unalike keys node`), bound to that certificate. Whoever is
not in the guest's clients/ folder is refused with one line. A frame is a length of eight bytes and that many bytes of
message.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from unalike.errors import UnalikeError, first_line
from unalike.messages import wire
from unalike.network import keys
from unalike.network.audit import Audit
from unalike.network.link import MAX_MESSAGE
from unalike.text import listed
from unalike.vertical.links import Gone, ask
from unalike.vertical.node import Node, Parts

LABEL = b"unalike vertical 1"
# seconds for a stranger to identify itself
GREETING_SECONDS = 10.0
# most bytes of a message from a party that has not proved its identity
FIRST_BYTES = 4096
STRANGERS = 32  # most strangers greeted at the same time
# seconds between a host's attempts to connect
AGAIN_SECONDS = 0.2


class Line:
    """One end of a connection: frames in and out."""

    def __init__(self, stream: socket.socket):
        self.stream = stream

    def write(self, data: bytes) -> None:
        self.stream.sendall(struct.pack("<Q", len(data)) + data)

    def read(self, most: int = MAX_MESSAGE) -> bytes:
        (length,) = struct.unpack("<Q", self._exactly(8))
        if length > most:
            raise UnalikeError(f"A message of {length} bytes was announced; at most {most} are taken.")
        return self._exactly(length)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()

    def _exactly(self, count: int) -> bytes:
        parts, left = [], count
        while left:
            part = self.stream.recv(min(left, 1 << 20))
            if not part:
                raise ConnectionError("the other end has closed the line")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


class Unlogged(UnalikeError):
    """Raised when the audit log cannot be written: this party sends nothing more."""


class SocketLink:
    """A party on another machine, as the guest reaches it."""

    def __init__(self, name: str, line: Line, seconds: float):
        self.name, self.line = name, line
        with self._watched():  # it may be closed already
            line.stream.settimeout(seconds)

    def send(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        with self._watched():
            self.line.write(wire.encode(header, tensors))

    def receive(self) -> Parts:
        with self._watched():
            data = self.line.read()
        return wire.decode(data)

    @contextlib.contextmanager
    def _watched(self) -> Any:
        try:
            yield
        except (OSError, ConnectionError) as error:
            self.line.close()
            raise Gone(self.name, first_line(error)) from None


class Listener:
    """The guest's listening port: admits parties that prove to be registered.

    folder: of `unalike keys server`. seconds: how long an answer may take.
    """

    def __init__(self, folder: Path, address: tuple[str, int], seconds: float, say: Callable[[str], None]):
        self._roster, self._say, self._seconds = keys.roster(folder), say, seconds
        self._certificate = ssl.PEM_cert_to_DER_cert((folder / "server.crt").read_text())
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self._lines: dict[str, Line] = {}
        self._came = threading.Condition()
        self._open = threading.BoundedSemaphore(STRANGERS)
        try:
            self._door = socket.create_server(address)
        except OSError as error:
            raise UnalikeError(f"{address[0]}:{address[1]} cannot be listened on: {error.strerror}.") from None
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def names(self) -> list[str]:
        """Return the names of the registered parties."""
        return list(self._roster)

    def links(self, names: Iterable[str], patience: float) -> list[SocketLink]:
        """Wait until all these parties are connected and return their links."""
        wanted, until = list(names), time.monotonic() + patience
        for name in wanted:
            if name not in self._roster:
                raise UnalikeError(f"{name} has no key in clients/: ask for its .pub file.")
        with self._came:
            if late := [name for name in wanted if name not in self._lines]:
                self._say(f"waiting up to {patience:g} s for {listed(late)} at port {self.port}")
            while missing := [name for name in wanted if name not in self._lines]:
                if not self._came.wait(max(0.0, until - time.monotonic())):
                    raise UnalikeError(f"{', '.join(missing)} did not come within {patience:g} s.")
            return [SocketLink(name, self._lines[name], self._seconds) for name in wanted]

    def forget(self, name: str) -> None:
        """Close a party's connection, so that it is waited for again."""
        with self._came:
            line = self._lines.pop(name, None)
        if line is not None:
            line.close()

    def done(self, finished: bool = True) -> None:
        """Tell every connected party that the run is over, and whether it was finished; close the port."""
        for name in list(self._lines):
            with contextlib.suppress(UnalikeError):
                ask(SocketLink(name, self._lines[name], GREETING_SECONDS), "done", finished=finished)
        self.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, where: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.done(finished=kind is None)
        else:
            self.close()  # it was interrupted, and may be started again: parties come again

    def close(self) -> None:
        """Close the port and all connections."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._door.close()
        for name in list(self._lines):
            self.forget(name)

    def _accept(self) -> None:
        while True:
            try:
                stream, address = self._door.accept()
            except OSError:
                return
            if self._open.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(stream, address), daemon=True).start()
            else:
                stream.close()

    def _greet(self, stream: socket.socket, address: Any) -> None:
        deadline = threading.Timer(GREETING_SECONDS, _shut, [stream])  # also of somebody who sends a byte now and then
        deadline.start()
        try:
            stream.settimeout(GREETING_SECONDS)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(self._context.wrap_socket(stream, server_side=True))
            nonce = secrets.token_bytes(32)
            line.write(wire.encode({"kind": "challenge", "nonce": nonce.hex()}, {}))
            name, refusal = self._who(wire.decode(line.read(FIRST_BYTES))[0], nonce)
            line.write(wire.encode({"kind": "refused", "reason": refusal} if refusal else {"kind": "welcome"}, {}))
            if refusal:
                self._say(f"refused from {address[0]}: {refusal}")
                line.close()
                return
            with self._came:
                old, self._lines[name] = self._lines.get(name), line
                self._came.notify_all()
            if old is not None:
                old.close()
        except (OSError, ssl.SSLError, UnalikeError, ConnectionError) as error:
            self._say(f"refused from {address[0]}: {first_line(error)}")
            stream.close()
        finally:
            deadline.cancel()
            self._open.release()

    def _who(self, header: dict[str, Any], nonce: bytes) -> tuple[str, str]:
        name, signature = header.get("name"), header.get("signature")
        if not isinstance(name, str) or name not in self._roster or not isinstance(signature, str):
            return "", f"{str(name)[:60]!r} is not registered here: its .pub file is not in clients/."
        if not _signed(self._roster[name], signature, challenge(nonce, self._certificate, name)):
            return "", f"the key is not the one that {name!r} is registered with."
        return name, ""


def _shut(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)


def challenge(nonce: bytes, certificate: bytes, name: str) -> bytes:
    """Return the bytes that a host signs: this challenge, from this guest, as this party."""
    return LABEL + nonce + hashlib.sha256(certificate).digest() + name.encode()


def connect(address: tuple[str, int], ca: Path, key: Path, name: str) -> Line:
    """Connect to the guest and prove one's identity."""
    context = ssl.create_default_context(cafile=str(ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    stream = context.wrap_socket(socket.create_connection(address, GREETING_SECONDS), server_hostname=address[0])
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line, certificate = Line(stream), stream.getpeercert(binary_form=True)
    try:
        header, _ = wire.decode(line.read(FIRST_BYTES))
        nonce = bytes.fromhex(str(header.get("nonce")))
    except ValueError:
        raise UnalikeError("The server's greeting is not that of a guest.") from None
    signature = _private(key).sign(challenge(nonce, certificate or b"", name), _algorithm())
    line.write(wire.encode({"kind": "join", "name": name, "signature": signature.hex()}, {}))
    header, _ = wire.decode(line.read(FIRST_BYTES))
    if header.get("kind") != "welcome":
        line.close()
        raise UnalikeError(f"The guest refuses {name}: {str(header.get('reason'))[:300]}")
    stream.settimeout(None)
    return line


def attend(
    node: Node,
    address: tuple[str, int],
    ca: Path,
    key: Path,
    patience: float,
    say: Callable[[str], None] = print,
    audit: Audit | None = None,
) -> None:
    """Answer the guest until it says that the run is over; reconnect whenever the connection breaks. audit: the log of
    everything that leaves."""
    while True:
        line = _connected(node.name, address, ca, key, patience, say)
        say(f"{node.name} is with the guest")
        try:
            finished = _answers(node, line, audit)
        except Unlogged:
            raise
        except (OSError, ConnectionError, UnalikeError) as error:
            say(f"the line broke ({first_line(error)}); connecting again")
            continue
        finally:
            line.close()
        if not finished:
            raise UnalikeError("The guest ended the run before it was finished: see there why, and join again.")
        say(f"{node.name} is done")
        return


def _answers(node: Node, line: Line, audit: Audit | None) -> bool:
    """Answer requests on a connection until the run is over; return whether it was finished."""
    while True:
        data = line.read()
        answer, request = node.answer(data), _header(data)
        if audit is not None:
            _note(audit, answer, request, node.alignment)
        line.write(answer)
        if request.get("kind") == "done":
            return request.get("finished") is not False


def _header(data: bytes) -> dict[str, Any]:
    try:
        return wire.decode(data)[0]
    except UnalikeError:
        return {}


def _note(audit: Audit, answer: bytes, request: dict[str, Any], alignment: str) -> None:
    """Log what leaves, in the terms of federations: an epoch is a round, a batch an exchange."""
    epoch = request.get("epoch")
    about = {"run": alignment, "round": epoch - 1 if type(epoch) is int and epoch > 0 else None}
    try:
        audit.write(answer, {"kind": request.get("kind"), **about, "exchange": request.get("step")})
    except UnalikeError as error:
        raise Unlogged(str(error)) from None


def _connected(
    name: str, address: tuple[str, int], ca: Path, key: Path, patience: float, say: Callable[[str], None]
) -> Line:
    until, first = time.monotonic() + patience, True
    while True:
        try:
            return connect(address, ca, key, name)
        except ssl.SSLCertVerificationError as error:
            raise UnalikeError(
                f"{address[0]}:{address[1]} is not the guest of this ca.crt: {first_line(error)}."
            ) from None
        except (OSError, ConnectionError) as error:
            if time.monotonic() > until:
                raise UnalikeError(f"{address[0]}:{address[1]} did not answer: {first_line(error)}.") from None
            if first:
                say(f"no guest at {address[0]}:{address[1]} yet; trying for {patience:g} s")
            first = False
            time.sleep(AGAIN_SECONDS)


def _signed(public: bytes, signature: str, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    try:
        key: Any = serialization.load_ssh_public_key(b" ".join(public.split()[:2]))
        key.verify(bytes.fromhex(signature), data, _algorithm())
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(file: Path) -> Any:
    from cryptography.hazmat.primitives import serialization

    try:
        return serialization.load_ssh_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UnalikeError(
            f"The key {file} cannot be read ({first_line(error)}): `unalike keys node` makes one."
        ) from None


def _algorithm() -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(hashes.SHA384())
