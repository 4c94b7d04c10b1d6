"""The clients whose sum a client has agreed to, and the state that it replied from, exchange by exchange: on its disk
before its reply or its vote leaves.

A restarted client must not vote for a second sum, so the file is never made shorter, and outlives the runs in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unalike.crypto.secure_sum import KEY
from unalike.crypto.votes import Reply
from unalike.errors import UnalikeError, Withheld
from unalike.files import NO_FOLLOW

FILE = "sums.jsonl"
HASH = "sha256"
Exchange = tuple[str, int, int]  # run, round, exchange


class Settled:
    """What one client has agreed to, and the identity under which it did. file: kept there; without one, in memory
    only (`loopback`)."""

    def __init__(self, file: Path | None = None):
        self.file = file
        self._clients: dict[Exchange, str] = {}  # a hash of the identities in the sum
        self._lists: dict[tuple[Exchange, str], str] = {}  # by label too: a hash of the list of replies
        self._abouts: dict[Exchange, str] = {}
        self._states: dict[Exchange, str] = {}  # a hash of the state that this client replied from
        lines = [] if file is None else self._read(file)
        for line in lines[1:]:
            self._take(line)
        self.identity = bytes.fromhex(lines[0]["identity"]) if lines else os.urandom(KEY)
        if not lines:
            self._append({"identity": self.identity.hex()})

    def settle(self, exchange: Exchange, label: bytes, replies: Sequence[Reply], about: bytes = b"") -> None:
        """Record that this client agrees to the sum of these replies. Refuse a sum over other clients than those of the
        exchange's first, or one with the same label of other replies: their difference could tell one client's. about:
        if given, stands for something else that all sums of the exchange must have alike."""
        clients = hashlib.sha256(b"".join(sorted(reply.identity for reply in replies))).hexdigest()
        listed = hashlib.sha256(b"".join(reply.to_bytes() for reply in replies)).hexdigest()
        one = exchange, label.hex()
        others = self._clients.get(exchange, clients) != clients
        moved = bool(about) and self._abouts.get(exchange, about.hex()) != about.hex()
        if others or moved or self._lists.get(one, listed) != listed:
            raise self.refusal(
                f"This client has agreed to a sum of round {exchange[1] + 1}. The server asks for a second sum of it, "
                f"over other {'clients' if others else 'replies'}, whose difference would tell too much: refused."
            )
        if one not in self._lists:
            self._note(exchange, {"label": one[1], "clients": clients, "list": listed, "about": about.hex()})

    def is_same_state(self, exchange: Exchange, state: bytes) -> bool:
        """Record the state from which this client replies in an exchange, if it is the first reply in it; return
        whether it is the recorded one. state: a hash of it, and of the samples."""
        if exchange not in self._states:
            self._note(exchange, {"state": state.hex()})
        return self._states[exchange] == state.hex()

    def refusal(self, words: str) -> UnalikeError:
        """Return the error that says so, with what an owner who knows better can do for the owner alone: the server has
        no use for a path of this machine."""
        if self.file is None:
            return UnalikeError(words)
        error = Withheld(f"{words} Its log says what its owner can do.")
        error.__cause__ = UnalikeError(f"{words} If you know why it has to, stop this client and remove {self.file}.")
        return error

    def _note(self, exchange: Exchange, what: dict[str, str]) -> None:
        line = {**dict(zip(("run", "round", "exchange"), exchange, strict=True)), **what}
        self._append(line)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        exchange = line["run"], line["round"], line["exchange"]
        if "state" in line:
            self._states[exchange] = line["state"]
            return
        self._clients[exchange] = line["clients"]
        self._lists[exchange, line["label"]] = line["list"]
        self._abouts |= {exchange: line["about"]} if line["about"] else {}

    def _append(self, line: dict[str, Any]) -> None:
        if self.file is None:
            return
        size = self.file.stat().st_size if self.file.exists() else 0
        try:
            with open(self.file, "ab", opener=lambda name, flags: os.open(name, flags | NO_FOLLOW, 0o600)) as file:
                file.write(json.dumps({**line, HASH: _hash(line)}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.file, size)  # half a line would spoil the next
            raise UnalikeError(
                f"{self.file} cannot be written ({error.strerror or error}): this client agrees to no sum without it."
            ) from None

    def _read(self, file: Path) -> list[dict[str, Any]]:
        """Return the lines of the file; drop one that was being written when the machine stopped, as no vote for it has
        left."""
        try:
            text = file.read_bytes() if file.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            lines = [json.loads(part) for part in whole.splitlines()]
            right = all(line.pop(HASH) == _hash(line) for line in lines)
            if right and len(whole) < len(text):
                os.truncate(file, len(whole))
        except (OSError, ValueError, KeyError, AttributeError):
            right = False
        if not right:
            raise UnalikeError(f"{file} is not what this client wrote, or cannot be read: put the right one back.")
        return lines


def _hash(line: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line).encode()).hexdigest()
