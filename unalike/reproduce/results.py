"""What is kept of a run: a line of JSON with its settings, its numbers and how long it took; no data, no weights.

A table has a file, TABLE.jsonl, for the runs that were made for it; tables that need the same run find it there. Of two
lines of one run that one counts whose run had the machine to itself, or else the later one.

final                  all numbers of the last round
last5, last10          mean and deviation over the last rounds, of the numbers that the paper's tables are about
records                of these, every round that beat all before it, so that the best round and the first one to reach
                       any target are exact though the curve is thinned
curve                  of these, at most 200 rounds, evenly spaced; without rounds that were not evaluated
start                  numbers of round 0, where a callback has any
beside                 the most other queues that ran on the machine meanwhile; if any, its seconds say little
together               how many runs shared a stack of clients; the seconds are this run's share
virtual                of a run with a clock, the virtual seconds of rounds with a record; the curve has them too
clients                how many clients have an accuracy of 0..5 %, 5..10 %, ..., after the last round
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unalike
from unalike.metrics.lines import is_number, thin, traffic
from unalike.metrics.names import of
from unalike.reproduce.define import Job, plain
from unalike.reproduce.line_file import LineFile, append
from unalike.run.run import Run

POINTS = 200
TIME = "virtual_seconds"
BINS = 20
Result = dict[str, Any]


class Results:
    """The results of a paper in a folder, by the key of their run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.found: dict[str, Result] = {}
        self._files: dict[Path, LineFile] = {}
        self.look()

    def look(self) -> None:
        """Read results that other processes may have written meanwhile."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for result in self._files.setdefault(path, LineFile(path)).more():
                if not result.get("beside") or self.found.get(result["key"], result).get("beside"):
                    self.found[result["key"]] = result

    @property
    def torn(self) -> list[Path]:
        """Return the files whose last line is incomplete, because the process that wrote it was killed."""
        return [path for path, file in self._files.items() if file.torn]

    def of(self, job: Job, timed: bool = False) -> Result | None:
        """Return a job's result; timed: only of a run that had its device to itself."""
        result = self.found.get(job.key)
        return None if result and timed and result.get("beside") else result

    def add(self, table: str, result: Result) -> None:
        append(self.folder / f"{table}.jsonl", result)
        self.found[result["key"]] = result


def collect(job: Job, run: Run, more: Sequence[dict[str, Any]] = (), measured: Collection[str] | None = None) -> Result:
    """Return the result of a finished run; more: lines with further numbers per round that rounds.jsonl does not have;
    measured: the numbers that tables are about (None: all)."""
    extra: dict[int, dict[str, Any]] = {}
    for line in more:
        extra.setdefault(line["round"], {}).update(line)
    lines = [{**extra.get(line["round"], {}), **line} for line in run.history]
    return {
        **_head(job, lines, measured),
        "device": _device(run),
        "precision": run.task.precision,
        "engine": run.reason,
        "together": getattr(run.engine, "together", 1),
        "start": {n: _short(v) for n, v in extra.get(0, {}).items() if n != "round"},
        "parameters": run.task.layout.size,
        "population": len(run.data),
        "samples": int(run.data.train.sizes.sum()),
        "clients": _histogram(run.client_values),
    }


def diverged(job: Job, lines: list[dict[str, Any]], round: int, measured: Collection[str] | None = None) -> Result:
    """Return the result of a run that diverged."""
    return {**_head(job, lines, measured), "diverged": round}


def _head(job: Job, lines: list[dict[str, Any]], measured: Collection[str] | None) -> Result:
    metrics = sorted({n for line in lines for n, v in line.items() if is_number(v) and of(n).source != "bookkeeping"})
    shown = [line for line in lines if any(n.endswith(("accuracy", "accuracy_mean", "_loss")) for n in line)] or lines
    some = [name for name in metrics if measured is None or name in measured]
    final = shown[-1] if shown else {}
    last = lines[-1] if lines else {"clients": 0, "bytes_down": 0, "bytes_up": 0}
    return {
        **{name: getattr(job, name) for name in ("key", "paper", "row", "method", "seed")},
        "settings": plain(job.tables),
        "unalike": unalike.__version__,
        "commit": commit(),
        "rounds": len(lines),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "seconds_evaluation": round(sum(line["seconds_evaluation"] for line in lines), 3),
        "seconds_median": round(statistics.median(line["seconds"] for line in lines), 4) if lines else None,
        "bytes": sum(map(traffic, lines)),
        "participants": last["clients"],
        "down": last["bytes_down"],
        "up": last["bytes_up"],
        "diverged": None,
        "final": {n: _short(final[n]) for n in metrics if n in final},
        "last5": _last(lines, some, 5),
        "last10": _last(lines, some, 10),
        "records": {n: _records(lines, n) for n in some if "accuracy" in n},
        "curve": _curve(lines, [n for n in some if "variance" not in n]),
        **_virtual(lines, some),
    }


def _virtual(lines: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return the virtual seconds of rounds with a record, where the run had a clock."""
    if not lines or TIME not in lines[-1]:
        return {}
    rounds = {round for n in names if "accuracy" in n for round, _ in _records(lines, n)}
    return {"virtual": [[line["round"], _short(line[TIME])] for line in lines if line["round"] in rounds]}


def _curve(lines: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    there = [line for line in lines if any(line.get(name) is not None for name in names)]
    kept = [there[k] for k in thin(len(there), POINTS).tolist()]
    names = [*names, *([TIME] if lines and TIME in lines[-1] else [])]
    return {"round": [line["round"] for line in kept], **{n: [_short(line.get(n)) for line in kept] for n in names}}


def _short(value: Any) -> float | None:
    return None if value is None or value != value else round(float(value), 6)


def _last(lines: Sequence[dict[str, Any]], names: Sequence[str], count: int) -> dict[str, list[float]]:
    out = {}
    for name in names:
        values = [line[name] for line in lines if line.get(name) is not None and math.isfinite(line[name])][-count:]
        if values:
            out[name] = [round(statistics.fmean(values), 6), round(statistics.pstdev(values), 6)]
    return out


def _records(lines: Sequence[dict[str, Any]], name: str) -> list[list[float]]:
    out: list[list[float]] = []
    for line in lines:
        value = line.get(name)
        if value is not None and (not out or value > out[-1][1]):
            out.append([line["round"], round(value, 6)])
    return out


def _histogram(values: dict[str, np.ndarray]) -> list[int] | None:
    if "accuracy" not in values:
        return None
    return np.histogram(values["accuracy"], bins=BINS, range=(0, 1))[0].tolist()


def _device(run: Run) -> str:
    if run.task.device.type == "cuda":
        return torch.cuda.get_device_name(run.task.device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def commit(root: Path | None = None) -> str | None:
    """Return the commit of the source tree that this runs from, if it can be found; also of a further worktree, whose
    .git is a file that names its folder, and of branches that `git pack-refs` has put into one file."""
    git = (root or Path(unalike.__file__).resolve().parents[1]) / ".git"
    try:
        if git.is_file():
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        branch = head.removeprefix("ref: ")
        if (common / branch).is_file():
            return (common / branch).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), None)
    except OSError:
        return None
