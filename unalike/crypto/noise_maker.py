"""Make noise for encryption in advance, in a separate process, while the key's owner waits for others.

Most of an encryption's cost is its noise, which does not depend on the number. `NoiseMaker` asks a second process for
as much as will be needed, and hands it out; each piece is used once. The process reads the owner's key, then requested
counts, and writes noise.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from unalike.crypto.paillier import SecretKey

CHILD = f"import sys; from {__name__} import made; made(sys.stdin.buffer, sys.stdout.buffer)"
BLOCK = 64  # pieces of noise written at once


class NoiseMaker:
    """Noise for one secret key. `ask(count)` requests it; iterating returns it."""

    def __init__(self, key: SecretKey):
        self.key, self.width, self.left = key, key.width, 0
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        secret = key.secret_to_bytes()
        self._write(len(secret).to_bytes(8, "little") + key.randomness.encode().ljust(8) + secret)
        self._ready: list[bytes] = []
        self._there = threading.Lock()
        given = self._process, self.width, self._ready, self._there
        self._reader = threading.Thread(target=_gather, args=given, daemon=True)
        self._reader.start()
        self.close = weakref.finalize(self, _end, self._process, self._reader)  # ends the process

    def ask(self, count: int) -> None:
        """Request noise until this much is unused."""
        more = max(0, count - self.left)
        self.left += more
        self._write(more.to_bytes(8, "little"))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """Return noise that is ready; if there is none, make it here while the process makes more."""
        with self._there:
            piece = self._ready.pop() if self._ready else None
        if piece is None:
            return self.key.noise()
        self.left -= 1
        return int.from_bytes(piece, "little")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()


def _gather(process: subprocess.Popen, width: int, ready: list[bytes], there: threading.Lock) -> None:
    """Collect what the process writes."""
    assert process.stdout is not None
    while len(piece := process.stdout.read(width)) == width:
        with there:
            ready.append(piece)


def _end(process: subprocess.Popen, reader: threading.Thread) -> None:
    process.kill()
    process.wait()
    reader.join()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def made(source: BinaryIO, sink: BinaryIO) -> None:
    """Make noise as requested, until the source ends."""
    length = int.from_bytes(source.read(8), "little")
    randomness = source.read(8).decode().strip()
    key = SecretKey.secret_from_bytes(source.read(length), randomness)
    while asked := source.read(8):
        left = int.from_bytes(asked, "little")
        while left > 0:
            some = min(left, BLOCK)
            sink.write(key.ciphers_to_bytes(key.noise() for _ in range(some)))
            sink.flush()
            left -= some
