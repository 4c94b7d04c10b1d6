"""Measure the cost of a step on this machine: how `auto` decides on a CPU if a rule by size would be a guess.

A few steps of FedAvg on the run's own model and data: one client alone, one on every core at once, a narrow and a wide
stack. Together about 20 ms for a small model. The figures are kept in a file beside the cached data, so that the same
work always gets the same engine on the same machine.
"""

from __future__ import annotations

import contextlib
import dataclasses as dc
import functools
import hashlib
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from unalike.client import ClientStore, Job
from unalike.contract import Call, Method
from unalike.data.fetch import cache
from unalike.engines.batched import Batched
from unalike.engines.engine import Engine
from unalike.engines.sequential import Sequential
from unalike.engines.workers import Workers, available_cores
from unalike.files import replace
from unalike.nn.numerics import one_thread

# up to so many parameters, a stack of clients usually beats single ones on a CPU
TINY = 50_000
# from so many parameters on, with several cores, threads need no measurement
LARGE = 1_000_000
# clients of the wider stack that is measured
WIDE = 8
# seconds after which a measurement is not repeated
PATIENCE = 0.02
# another engine is chosen only if its time is below this share of the usual one's: a busy machine misleads
CLEARLY = 0.75
# seconds to compile a step on a machine that never has (two cores: 13 to 18 the very first time, 3 to 6 later)
COMPILING = 10.0
# the shares of a step's fixed cost, and of its cost per client, that remain when compiled (measured on two cores: 0.05
# to 0.15, and 0.2 for 600 parameters to 0.6 for 26,000)
COMPILED, COMPILED_EACH = 0.1, 0.6
# runs with fewer steps are not worth a measurement
FEW = 2000


@dc.dataclass(frozen=True)
class Costs:
    """Seconds per step: of one client alone; of one client while every core has one; of a stack: fixed, and per
    client. And the seconds that compiling such a step takes: as far as is known, and the first time (0 if it never
    was compiled)."""

    single: float
    crowd: float
    stack: float
    each: float
    compiling: float = COMPILING
    first: float = 0.0
    # whether other programs were at work then: measured again on a quiet machine
    busy: bool = False

    def choose(
        self, usual: str, longest: float, total: float, rounds: int, compiler: bool
    ) -> tuple[str, dict[str, float]]:
        """Return the engine with the shortest predicted run, if it is clearly shorter than the usual engine's, and the
        predictions. A round has `total` steps, of which one client alone takes `longest`."""
        seconds = {
            "sequential": total * self.single,
            "workers": max(longest * self.crowd, total * self.crowd / available_cores()),
            "batched": longest * self.stack + total * self.each,
        }
        if compiler:
            compiled = COMPILED * longest * self.stack + COMPILED_EACH * total * self.each
            seconds["batched, compiled"] = compiled + self.compiling / max(1, rounds)
        best = min(seconds, key=lambda name: seconds[name])
        name = best if seconds[best] < CLEARLY * seconds[usual] else usual
        return name, {name: s * rounds for name, s in seconds.items()}


def compiler() -> bool:
    """Return whether PyTorch's compiler finds a C++ compiler."""
    usual = "clang++" if sys.platform == "darwin" else "cl" if sys.platform == "win32" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


def workload(job: Job, cohort: int) -> tuple[float, float]:
    """Return the steps of the longest client and the steps of all clients in a typical round."""
    # in a joined federation, a part has samples only at its own clients
    own = np.flatnonzero(job.data.train.sizes)
    some = own if len(own) <= 1000 else own[np.linspace(0, len(own) - 1, 1000).astype(np.int64)]
    steps = np.sort(job.local.counts(some, job.data.train.sizes[some], 0))[::-1]
    # from the longest client down: the probability that it is the longest one drawn
    longest, without = 0.0, 1.0
    for k, count in enumerate(steps):
        drawn = min(1.0, cohort / (len(steps) - k))
        longest += without * drawn * count
        without *= 1 - drawn
    return longest, float(steps.mean() * cohort)


def measured(job: Job) -> Costs:
    """Return the costs from the file, or measure them."""
    key, file = _key(job), cache() / "step-costs.json"
    known = _known(str(file))
    before, busy = known.get(key), _busy()
    if before is None or (before.busy and not busy):
        others = [cost.first for cost in known.values() if cost.first]
        # other work that was compiled here tells better than a constant
        compiling = before.compiling if before else statistics.median(others) if others else COMPILING
        first = before.first if before else 0.0
        known[key] = dc.replace(_measure(job, busy), compiling=compiling, first=first, busy=busy)
        if not busy:
            _write(file, {k: dc.asdict(v) for k, v in known.items()})
    return known[key]


def keep_compiling(job: Job, seconds: float) -> None:
    """Keep how long compiling this work took, for the next choice."""
    key, file = _key(job), cache() / "step-costs.json"
    known = _known(str(file))
    if key in known:  # (on a busy machine too: what it took there is no worse a guess than a constant)
        known[key] = dc.replace(known[key], compiling=seconds, first=known[key].first or seconds)
        _write(file, {k: dc.asdict(v) for k, v in known.items()})


def _busy() -> bool:
    """Return whether other programs occupy the cores: then the gain from threads cannot be measured."""
    with contextlib.suppress(OSError, AttributeError):  # Windows does not tell
        return os.getloadavg()[0] > available_cores() - 0.5
    return False


@functools.cache
def _known(file: str) -> dict[str, Costs]:
    try:
        return {k: Costs(**v) for k, v in json.loads(Path(file).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):  # no file yet, or not ours
        return {}


def _write(file: Path, known: dict[str, dict[str, float]]) -> None:
    """Write the figures; a disk that cannot be written to must not stop a run."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, json.dumps(known, indent=1).encode(), sync=False, mark=str(os.getpid()))


def _key(job: Job) -> str:
    """Return everything that the cost of a step depends on, as a text."""
    task, local, x = job.task, job.local, job.data.train.x
    facts = [torch.__version__, platform.machine(), platform.processor(), available_cores(), str(task.module)]
    facts += [str(task.dtype), task.precision, str(x.dtype), list(x.shape[1:])]
    facts += [local.batch_size or int(job.data.train.sizes.max()), local.optimizer, bool(local.momentum), local.augment]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _measure(job: Job, busy: bool) -> Costs:
    wide, cores = min(WIDE, len(job.data)), available_cores()
    with one_thread():
        single = _step(_engine(job, Sequential), 1)
        if cores == 1:
            crowd = single
        # the usual case: small operations wait for the interpreter's lock
        elif busy:
            crowd = single if job.task.layout.size > TINY else cores * single
        # by the wall clock: threads that wait for each other use no CPU time
        else:
            workers = _engine(job, Workers)
            crowd = max(single, _step(workers, cores, time.perf_counter))
            workers.close()
        stack = _engine(job, Batched, compile=False)
        narrow, broad = _step(stack, 1), _step(stack, wide)
    each = max(0.0, (broad - narrow) / max(1, wide - 1))
    return Costs(single, crowd, max(1e-7, narrow - each), each)


def _engine(job: Job, kind: Callable[..., Engine], **options: bool) -> Engine:
    """Return an engine for FedAvg on the same model and data, without effect on the run. A round's number is its number
    of steps."""
    local = job.local.replaced(steps=lambda client, round: max(1, round), keep_optimizer=False, lr=1e-4)
    states = ClientStore({}, len(job.data))
    return kind(Job(Method(), job.task, job.data, local, job.seed, states, job.mean_samples), **options)


def _step(engine: Engine, width: int, clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds per step of `width` clients: the difference that four more steps make, the least of a few
    tries. In CPU time, so that other programs on a busy machine do not count."""
    own = np.flatnonzero(engine.sizes)
    ids = own[np.arange(width) % len(own)]

    def seconds(steps: int) -> float:
        call = Call("client", {"w": engine.job.task.start}, {}, steps, 0)
        began = clock()
        for _ in engine.call(call, ids):
            pass
        return clock() - began

    seconds(1)
    began, pairs = clock(), [(seconds(1), seconds(5))]
    while len(pairs) < 3 or (len(pairs) < 10 and clock() - began < PATIENCE):
        pairs.append((seconds(1), seconds(5)))
    one, five = map(min, zip(*pairs, strict=True))
    return max(1e-7, (five - one) / 4)
