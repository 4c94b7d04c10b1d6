"""Record on disk what a real federation's noise spends, before it is spent: a crash cannot make the server forget
it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError
from unalike.files import replace
from unalike.run.folder import RunFolder

LEDGER = "spent.jsonl"


class Ledger:
    """spent.jsonl of a run's folder: one line per exchange under noise, with the total spent up to and including it,
    written before clients are asked. Lines are never removed. count: number of lines; last: the account of the last
    line.

    Checkpoints are written after a round. Clients may already have seen a round that a crash interrupted, and it is
    repeated with other noise: both count as spent.
    """

    def __init__(self, folder: RunFolder):
        self._folder, self._path = folder, folder.path / LEDGER
        text = self._path.read_bytes() if self._path.exists() else None
        # a torn line had not reached the disk, so no client was asked
        whole, _, torn = (text or b"").rpartition(b"\n")
        lines = [self._read(line) for line in whole.split(b"\n")] if whole else []
        self.count, self.last = len(lines), lines[-1]["spent"] if lines else []
        if text is None or torn:
            with folder.writing():
                replace(self._path, whole + b"\n" if whole else b"")
                _sync(folder.path)

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
            return {"spent": list(found["spent"])}
        except (ValueError, KeyError, TypeError):
            raise self.changed() from None

    def changed(self) -> UnalikeError:
        """Return the error for a file that is not as the run left it."""
        return UnalikeError(f"{self._path} was changed, so that what was spent is not known: begin a new run.")

    def write(self, round: int, exchange: int, rows: list[list]) -> int:
        """Write an exchange's line to disk (round: from 0, -1 for the set-up); return the number of lines."""
        line = {"round": round + 1, "exchange": exchange + 1, "spent": rows}
        with self._folder.writing(), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.count, self.last = self.count + 1, rows
        return self.count


def _sync(folder: Path) -> None:
    """Wait until a folder's list of files is on disk, where the system allows."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
