"""The audit log of a client: one line of JSON for every field that left the machine, in audit.jsonl.

A line has the time, the request that was answered, the field, its shape, dtype, bytes and SHA-256; never a value,
except the text of an error. It is made from the very bytes that are sent, and written before they leave. Every line
holds a hash over itself and the line before, and audit.head holds the last hash, so that a changed, inserted or removed
line is noticed. Someone who can write both files can rewrite them: the log is for the owner's own use.
"""

from __future__ import annotations

import collections
import dataclasses as dc
import datetime
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError
from unalike.network.tally import Tally

FILE, HEAD = "audit.jsonl", "audit.head"
FIRST = "0" * 64  # hash before the first line
# fields of a header that say nothing about this client
SAID = ("format", "kind", "version")
CHAIN = "chain"
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on Windows


@dc.dataclass
class Log:
    """The content of a log: its lines, and what is wrong with it, if anything."""

    lines: list[dict[str, Any]]
    fault: str = ""
    # bytes of an incomplete last line, written when the machine stopped
    cut: int = 0
    chain: str = FIRST


class Audit:
    """The log in one client's folder, opened for writing; only the process that holds the folder's lock may do so."""

    def __init__(self, folder: Path):
        self.path, self.head = folder / FILE, folder / HEAD
        log = read(folder)
        if log.fault:
            raise UnalikeError(f"{log.fault} `unalike audit {folder}` shows it; move the log away to begin a new one.")
        if log.cut:
            os.truncate(self.path, self.path.stat().st_size - log.cut)
        self.chain, self.count = log.chain, len(log.lines)
        self.answers = log.lines[-1]["answer"] + 1 if log.lines else 0
        self.tallies: dict[str, Tally] = collections.defaultdict(Tally)
        for line in _firsts(log.lines):
            if line["kind"] in ("request", "evaluate") and not line["again"]:
                self.tallies[line["run"]].add(line["round"], line["exchange"], line["kind"] == "evaluate")

    def write(self, answer: bytes, request: Mapping[str, Any], again: bool = False) -> None:
        """Record everything that leaves with an answer; request: the header of the request that it answers."""
        header, fields = contents(answer)
        about = {name: _short(request.get(name)) for name in ("run", "round", "exchange")}
        kind = "error" if header.get("kind") == "error" else str(request.get("kind"))[:40]
        common = {"time": _now(), "answer": self.answers, "kind": kind, "again": again, **about}
        lines, chain = b"", self.chain
        for field in [*_words(header, request), *fields] or [{"field": None, "bytes": 0}]:
            line = {"line": self.count, **common, **field}
            chain = _link(chain, line)
            lines += json.dumps({**line, CHAIN: chain}).encode() + b"\n"
            self.count += 1
        self._append(lines, chain)
        self.chain, self.answers = chain, self.answers + 1

    def _append(self, lines: bytes, chain: str) -> None:
        """Write lines to disk, and the chain's new last hash."""
        try:
            with open(self.path, "ab", opener=_private) as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            head = _private(str(self.head), os.O_WRONLY | os.O_CREAT)
            # overwritten in place, since its length is the same: a machine that stops now leaves no half of it
            try:
                os.write(head, f"{self.count:020d} {chain}\n".encode())
            finally:
                os.close(head)
        except OSError as error:
            raise UnalikeError(
                f"{self.path} cannot be written ({error.strerror or error}): nothing leaves without it."
            ) from None


def _private(name: str, flags: int) -> int:
    """Open a file that only its owner can read; refuse a link."""
    return os.open(name, flags | NO_FOLLOW, 0o600)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _short(value: Any) -> Any:
    """Return a value from a request if it is a number or a short text; longer values do not belong in a log."""
    short = abs(value) < 1 << 63 if type(value) is int else isinstance(value, str) and len(value) < 40
    return value if short else None


def _link(chain: str, line: Mapping[str, Any]) -> str:
    """Return the hash of a line that follows one with the hash `chain`."""
    return hashlib.sha256((chain + json.dumps(line)).encode()).hexdigest()


def contents(answer: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header of an answer, and the name, shape, dtype, bytes and hash of every tensor in it."""
    (length,) = struct.unpack("<Q", answer[:8])
    head = json.loads(answer[8 : 8 + length])
    header, data = json.loads(head.pop("__metadata__")["unalike"]), memoryview(answer)[8 + length :]
    fields = []
    for name, about in head.items():
        begin, end = about["data_offsets"]
        sha = hashlib.sha256(data[begin:end]).hexdigest()
        one = {"field": name, "shape": about["shape"], "dtype": about["dtype"], "bytes": end - begin, "sha256": sha}
        fields.append(one)
    return header, fields


def _words(header: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values in an answer's header that were not in the request."""
    told = {n: v for n, v in header.items() if n not in SAID and (n not in request or request[n] != v)}
    facts = told.pop("facts", None)
    if isinstance(facts, dict):
        told |= {f"facts.{name}": value for name, value in facts.items()}
    for name, value in told.items():
        text = json.dumps(value).encode()
        line = {"field": name, "shape": None, "dtype": "text", "bytes": len(text)}
        line["sha256"] = hashlib.sha256(text).hexdigest()
        yield {**line, "words": value} if name == "reason" else line


def _firsts(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the first line of every answer."""
    before = None
    for line in lines:
        if line["answer"] != before:
            yield line
        before = line["answer"]


def read(folder: Path) -> Log:
    """Read a log and check that it is complete and unchanged."""
    path = folder / FILE
    try:
        text = b"" if not path.exists() else path.read_bytes()
        head = (folder / HEAD).read_text() if (folder / HEAD).exists() else f"{0} {FIRST}"
        many, last = int(head.split()[0]), head.split()[1]
    except (OSError, ValueError, IndexError) as error:
        return Log([], f"The audit log {path} cannot be read ({type(error).__name__}).")
    whole = text[: text.rfind(b"\n") + 1]
    log = Log([], cut=len(text) - len(whole))
    for number, part in enumerate(whole.splitlines()):
        try:
            line = json.loads(part)
            said = line.pop(CHAIN)
            right = said == _link(log.chain, line) and line["line"] == number
        except (ValueError, KeyError, TypeError, AttributeError):
            right = False
        if not right:
            log.fault = f"The audit log {path} is not what was written: line {number + 1} does not follow."
            return log
        log.lines.append(line)
        log.chain = said
        if number + 1 == many and said != last:
            log.fault = f"The audit log {path} is not what was written: line {many} is another."
            return log
    if len(log.lines) < many:
        log.fault = f"The audit log {path} ends after line {len(log.lines)}, and {many} were written."
    return log
