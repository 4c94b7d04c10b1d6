"""What is kept of a run: a small JSON file with its settings, its numbers and how long it took; no data, no weights.

final, last5, last10   numbers of the last round; mean and deviation over the last rounds
records                every round that beat all before it, so that the best round and the first one to reach any
                       target are exact though the curve is thinned
curve                  at most 200 rounds, evenly spaced
start                  numbers of round 0, where a callback has any
beside                 the most other queues that ran on the machine meanwhile; if any, its seconds say little
together               how many runs shared a stack of clients; the seconds are this run's share
clients                how many clients have an accuracy of 0..5 %, 5..10 %, ..., after the last round
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unalike
from unalike.errors import UnalikeError
from unalike.files import complaining, replace
from unalike.metrics.lines import is_number, thin, traffic
from unalike.metrics.names import of
from unalike.reproduce.define import Job, plain
from unalike.run.run import Run

POINTS = 200
BINS = 20
Result = dict[str, Any]


class Results:
    """The results of a paper in a folder, by the key of their run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.found: dict[str, Result] = {}
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            self._read(file)

    def _read(self, file: Path) -> None:
        try:
            result = json.loads(file.read_text(encoding="utf-8"))
            self.found[result["key"]] = result
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnalikeError(f"{file} is no result of a run ({error}): delete it and run it again.") from error

    def look(self, key: str) -> None:
        """Read what other processes may have left of this run meanwhile."""
        for file in self.folder.glob(f"*-{key}.json"):
            self._read(file)

    def of(self, job: Job, timed: bool = False) -> Result | None:
        """Its result; where times are what is asked for, only of a run that had its device to itself."""
        result = self.found.get(job.key)
        return None if result and timed and result.get("beside") else result

    def add(self, name: str, result: Result) -> None:
        """Written under a new name and renamed: it is there as a whole or not at all."""
        content = (json.dumps(result, indent=1) + "\n").encode()
        with complaining(f"Cannot write to {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace(self.folder / f"{name}.json", content, mark=str(os.getpid()))  # others may write the same choice
        self.found[result["key"]] = result


def collect(job: Job, run: Run, more: Sequence[dict[str, Any]] = ()) -> Result:
    """What a finished run says; `more` has a line a round of numbers that rounds.jsonl does not have."""
    extra: dict[int, dict[str, Any]] = {}
    for line in more:
        extra.setdefault(line["round"], {}).update(line)
    lines = [{**extra.get(line["round"], {}), **line} for line in run.history]
    return {
        **_head(job, lines),
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


def diverged(job: Job, lines: list[dict[str, Any]], round: int) -> Result:
    """Return the result of a run that diverged."""
    return {**_head(job, lines), "diverged": round}


def _head(job: Job, lines: list[dict[str, Any]]) -> Result:
    metrics = sorted({n for line in lines for n, v in line.items() if is_number(v) and of(n).source != "bookkeeping"})
    shown = [line for line in lines if any(n.endswith(("accuracy", "accuracy_mean", "_loss")) for n in line)] or lines
    kept = thin(len(lines), POINTS).tolist()
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
        "last5": _last(lines, metrics, 5),
        "last10": _last(lines, metrics, 10),
        "records": {n: _records(lines, n) for n in metrics if "accuracy" in n},
        "curve": {
            "round": [lines[k]["round"] for k in kept],
            **{n: [_short(lines[k].get(n)) for k in kept] for n in metrics if "variance" not in n},
        },
    }


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


def commit() -> str | None:
    """The commit of the source tree that this runs from, where that can be seen."""
    git = Path(unalike.__file__).resolve().parents[1] / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        return (git / head.removeprefix("ref: ")).read_text().strip() if head.startswith("ref: ") else head
    except OSError:
        return None
