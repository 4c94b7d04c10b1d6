"""Files with one JSON object per line, which several processes read and append to.

A process that is killed while it writes leaves an incomplete last line. Readers leave it out and report it, and the
next line replaces it. If a system has no locks, only one process may write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError
from unalike.files import complaining, hold, release

Line = dict[str, Any]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = hold(path, wait=True)
    try:
        yield
    finally:
        release(handle)


def append(path: Path, line: Line) -> None:
    """Write a line after the last complete one, and wait until it is on disk."""
    text = json.dumps(line, separators=(",", ":")) + "\n"
    with complaining(f"Cannot write to {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path), open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            content = file.read()
            file.seek(content.rfind(b"\n") + 1)
            if _whole(content[file.tell() :]):  # an editor has removed the last newline
                text = "\n" + text
                file.seek(0, os.SEEK_END)
            file.write(text.encode())
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


class LineFile:
    """A reader that remembers how far it has read."""

    def __init__(self, path: Path):
        self.path, self.read, self.torn = path, 0, False

    def more(self) -> list[Line]:
        """Return the lines that were appended since the last call."""
        if self.path.stat().st_size == self.read:
            return []
        content = self._content()
        if not _ends_whole(content):
            # lets a process that is writing finish first
            with _locked(self.path):
                content = self._content()
        lines, _, tail = content.rpartition(b"\n")
        self.torn = bool(tail) and not _whole(tail)
        self.read += len(content) - len(tail)
        texts = [*lines.split(b"\n"), *([] if self.torn else [tail])]
        return [self._parsed(text) for text in texts if text]

    def _content(self) -> bytes:
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self.read:  # the file was replaced by another one
                self.read = 0
            file.seek(self.read)
            return file.read()

    def _parsed(self, text: bytes) -> Line:
        found = _object(text)
        if found is None:
            begin = text[:40].decode(errors="replace")
            raise UnalikeError(f"{self.path} has a line that is no result of a run ({begin!r}): delete that line.")
        return found


def _ends_whole(content: bytes) -> bool:
    return content.endswith(b"\n") or _whole(content.rpartition(b"\n")[2])


def _whole(text: bytes) -> bool:
    return _object(text) is not None


def _object(text: bytes) -> Line | None:
    """Return the JSON object; None if there is none, or only the beginning of one."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "key" in found else None
