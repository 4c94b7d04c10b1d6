"""Child processes that never outlive their parent, however it ends.

Every child's standard input is a pipe that the parent holds. When the parent ends, normally or by kill -9, the pipe
closes and the child ends too. This works on every Unix, and needs no supervising process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from unalike.errors import UnalikeError

SECONDS = 10.0  # seconds that cleaning up may take
# set for a child: its standard input closes when the parent ends
LIFELINE = "UNALIKE_LIFELINE"


def lifeline(scratch: Path | None = None) -> None:
    """In a child process: end when the parent does, and remove the parent's scratch folder."""
    if os.environ.pop(LIFELINE, None) is None:
        return

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        if scratch is not None:
            until = time.monotonic() + SECONDS
            # other processes that are ending may still write there
            while scratch.exists() and time.monotonic() < until:
                shutil.rmtree(scratch, ignore_errors=True)
                time.sleep(0.05)
        # nothing to finish: files are renamed into place
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Processes:
    """Child processes, each with a log."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, arguments: list[str], handles: tuple[int, ...] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start `python -m ...` in its own session, so that only the parent receives Ctrl-C; `handles` are passed
        on."""
        log = self.folder / f"{name}.log"
        with open(log, "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=handles,
                env={**os.environ, LIFELINE: "1", "PYTHONUNBUFFERED": "1", **environment},
            )  # fmt: skip
        self._running[name] = process
        return process

    def __getitem__(self, name: str) -> subprocess.Popen[bytes]:
        return self._running[name]

    def check(self, *names: str) -> None:
        """Raise an error with the last line of a child's log if it should be running and is not."""
        for name in names or tuple(self._running):
            if self._running[name].poll() is not None:
                raise UnalikeError(f"{name} has ended: {self.last_line(name)}")

    def last_line(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return (text.strip().splitlines() or ["it said nothing."])[-1][:500]

    def forget(self, name: str) -> None:
        """Stop checking a child that was ended on purpose."""
        self._end(self._running.pop(name), 5.0)

    def stop(self, seconds: float = 5.0) -> None:
        """Stop all children at once, by closing their lifelines as if this process had been killed. They survive that
        without damage, while an orderly farewell takes seconds on a busy machine. A child that does not yet watch its
        lifeline has nothing to lose, and gets a signal."""
        for process in self._running.values():
            if process.stdin:
                process.stdin.close()
            process.terminate()
        for process in self._running.values():
            self._end(process, seconds)
        self._running.clear()

    @staticmethod
    def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()
