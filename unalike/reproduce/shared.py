"""Several processes that work through one table: each run is made by only one of them.

While a process makes a run it holds a lock on a file named by the run's key, in `.at-work` beside the results. The lock
ends with the process: a run whose process was killed is free again. If a system has no locks, every run is free.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from unalike.files import complaining, hold, release

FOLDER = ".at-work"


class Shared:
    """The runs that this process has taken, among those whose results go to a folder."""

    def __init__(self, results: Path):
        self.folder = results / FOLDER
        self._held: dict[str, int | None] = {}

    def take(self, key: str) -> bool:
        """Take a run; return False if another process is working on it."""
        path = self.folder / key
        while True:
            with complaining(f"Cannot write to {self.folder}"):
                self.folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = hold(path)
            except BlockingIOError:
                return False
            except FileNotFoundError:  # somebody has removed the folder
                continue
            if handle is None or _is(handle, path):
                self._held[key] = handle
                return True
            # its last owner removed it between our opening and locking it
            release(handle)

    def leave(self, key: str) -> None:
        """Release a run; its result, if there is one, must have been written before."""
        (self.folder / key).unlink(missing_ok=True)
        release(self._held.pop(key))
        with suppress(OSError):  # the folder may have other files
            self.folder.rmdir()


def _is(handle: int, path: Path) -> bool:
    """Return whether an open file is the one with this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
