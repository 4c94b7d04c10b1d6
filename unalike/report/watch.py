"""Show the report while runs go on: a server for this machine alone, which serves one page and its version.

It reads the files of run folders and runs no code from them. It answers GET of "/" and "/version" for requests to
127.0.0.1 or localhost and refuses any other Host header, so that a web page whose name points to this machine cannot
read the report. The page is rebuilt only if a file has changed, and at most once in two seconds, however many requests
come.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from unalike import report
from unalike.errors import UnalikeError
from unalike.report import read

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
# least seconds between two looks at the folders
LEAST_SECONDS = 2.0
MOST_REQUESTS = 8  # most requests at once
PATIENCE = 10.0  # seconds for a request to arrive
WATCHED = ("config.toml", "rounds.jsonl", "record/rounds.jsonl", "record/last.json")
WAITING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'"><title>unalike watch</title></head>
<body><p>No finished round yet. This page looks again every two seconds.</p></body></html>"""


class Page:
    """The current page of some folders, rebuilt if a file has changed."""

    def __init__(self, folders: Sequence[Path], clock: Callable[[], float] = time.monotonic):
        self.folders, self.clock = list(folders), clock
        self.lock = threading.Lock()
        self.looked, self.version, self.text = -LEAST_SECONDS, "", WAITING

    def now(self) -> tuple[str, str]:
        """Return the page's version and text."""
        with self.lock:
            if self.clock() - self.looked >= LEAST_SECONDS:
                version = _version(self.folders)
                if version != self.version:
                    self.version, self.text = version, self._made(version)
                self.looked = self.clock()
            return self.version, self.text

    def _made(self, version: str) -> str:
        try:
            return report.html(self.folders, live=version)
        # no finished round yet, or a folder still being written
        except (UnalikeError, OSError):
            return WAITING


def _version(folders: Sequence[Path]) -> str:
    """Return a hash of the sizes and times of the files that the page is made from."""
    try:
        runs = read.find(list(folders))
    except (UnalikeError, OSError):
        return ""
    files = [run / name for run in runs for name in WATCHED] + [folder / report.COMPARISON for folder in folders]
    seen = []
    for file in files:
        try:
            found = file.stat()
            seen.append(f"{file} {found.st_size} {found.st_mtime_ns}")
        except OSError:
            continue
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def server(folders: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """Return a server for the page of these folders, bound to a port (0: any free one) but not yet serving."""
    page, room = Page(folders), threading.BoundedSemaphore(MOST_REQUESTS)

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version, sys_version = "unalike", ""

        def do_GET(self) -> None:
            if not room.acquire(blocking=False):
                self._answer(503, "Too many requests at once.")
                return
            try:
                self._get()
            finally:
                room.release()

        def _get(self) -> None:
            allowed = {f"{name}:{self.server.server_port}" for name in NAMES}  # type: ignore[attr-defined]
            if self.headers.get_all("Host") not in [[name] for name in allowed]:
                self._answer(403, "This page is for this machine alone.")
            elif self.path == "/version":
                self._answer(200, page.now()[0])
            elif self.path == "/":
                self._answer(200, page.now()[1], "text/html")
            else:
                self._answer(404, "There is nothing here.")

        def _answer(self, code: int, text: str, kind: str = "text/plain") -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            """Log nothing: the requests come from our own page."""

    try:
        found = ThreadingHTTPServer((ADDRESS, port), Handler)
    except OSError as error:
        raise UnalikeError(
            f"The port {port} of {ADDRESS} cannot be had: {error.strerror}. Give another --port."
        ) from error
    found.daemon_threads = True
    return found
