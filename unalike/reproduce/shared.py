"""Several processes that work through one table: each run is made by one of them.

While a process makes a run it holds a lock on a file with the run's key, in `.at-work` beside the results. The lock
ends with the process: a run whose process was killed is free again. Where a system has no locks every run is free.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from unalike.files import complaining, hold, release

FOLDER = ".at-work"


class Shared:
    """The runs that this process has taken, of those whose results go to a folder."""

    def __init__(self, results: Path):
        self.folder = results / FOLDER
        self._held: dict[str, int | None] = {}

    def take(self, key: str) -> bool:
        """Take a run; return False where another process is at work on it."""
        path = self.folder / key
        while True:
            with complaining(f"Cannot write to {self.folder}"):
                self.folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = hold(path)
            except BlockingIOError:
                return False
            except FileNotFoundError:  # somebody has tidied the folder away
                continue
            if handle is None or _is(handle, path):
                self._held[key] = handle
                return True
            release(handle)  # its last owner removed it between our opening and our locking it

    def leave(self, key: str) -> None:
        """Let others have it; a result must have been written by now if there is one."""
        (self.folder / key).unlink(missing_ok=True)
        release(self._held.pop(key))
        with suppress(OSError):  # there are others
            self.folder.rmdir()


def _is(handle: int, path: Path) -> bool:
    """Return whether the open file is the one with this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
