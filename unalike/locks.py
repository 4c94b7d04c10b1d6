"""Locks between processes: a lock goes with the process that holds it, however that ends."""

from __future__ import annotations

import os
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path


def hold(path: Path, wait: bool = False) -> int | None:
    """A handle of this file (made if need be) or folder that locks it until it is closed; None where there are no
    locks: on Windows, and on some file systems. BlockingIOError: another process has it."""
    try:
        import fcntl
    except ImportError:
        return None
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return handle


def release(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


class Company:
    """Which other processes of a kind run on this machine: each holds the lock of a file of its own."""

    def __init__(self, kind: str):
        self._folder = Path(tempfile.gettempdir()) / f"unalike-{kind}"
        self._mine = self._folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._handle: int | None = None
        with suppress(OSError):  # somebody else's folder: then nobody is seen
            self._folder.mkdir(exist_ok=True)
            self._handle = hold(self._mine)

    def others(self) -> int:
        found = 0
        with suppress(OSError):
            for file in self._folder.iterdir():
                if file == self._mine:
                    continue
                try:
                    release(hold(file))
                    file.unlink(missing_ok=True)  # of a process that has ended
                except BlockingIOError:
                    found += 1
        return found

    def leave(self) -> None:
        release(self._handle)
        self._handle = None
        self._mine.unlink(missing_ok=True)
