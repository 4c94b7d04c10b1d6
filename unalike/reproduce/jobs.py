"""The runs of a reproduction, one after another, each an ordinary run folder named by a hash of its settings.

A run that has left its result is never made again; one that was killed continues from its checkpoint. A resumed run is
bit-identical on a CPU, so an interrupted queue ends with the same numbers. Runs of a tiny model that differ only in
seed, fold, rate or the scale of the start run as one stack of clients (unalike.engines.together): each still has its
own folder and result, with the same numbers as alone, up to rounding. Several processes with the same folder of results
divide the runs among themselves.
"""

from __future__ import annotations

import functools
import gc
import json
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from unalike import config
from unalike.data.federation import Federation
from unalike.engines.batched.lockstep import Member, together
from unalike.engines.choose import stacks_pay
from unalike.errors import Diverged, EngineRefused, UnalikeError
from unalike.files import OtherProcesses
from unalike.metrics.names import score_in
from unalike.reproduce import centroids, groups, local_models
from unalike.reproduce.define import Job, plain
from unalike.reproduce.results import Result, Results, collect, diverged
from unalike.reproduce.shared import Shared
from unalike.run import folder
from unalike.run.callbacks import Callback

SAY_EVERY = 10.0  # seconds between lines of progress
# seconds between checks for results of other processes
WAIT = 1.0
# in a run's folder: rounds during which other queues were working
BESIDE = "beside.jsonl"
# settings in which runs of one stack may differ
LOOSE = {"data": "seed", "run": "seed", "local": "lr", "model": "sigma"}
STACK_BYTES = 1 << 30  # most bytes of all data in a stack
STACKS = ("auto", "always", "never")  # whether runs share stacks


class OutOfTime(Exception):
    """Raised when the budget is spent; everything is saved."""


class NoData(UnalikeError):
    """Raised when a data set is missing and cannot be fetched: its rows wait, the others go on."""


class Clock:
    """The time budget."""

    def __init__(self, budget: float | None = None):
        self.began, self.budget = time.monotonic(), budget

    @property
    def over(self) -> bool:
        return self.budget is not None and time.monotonic() - self.began >= self.budget


class Watch(Callback):
    """Print a line from time to time, and end the run when the time is over."""

    def __init__(self, clock: Clock, title: str, quiet: bool, others: OtherProcesses):
        self.clock, self.title, self.quiet, self.said, self.processes = clock, title, quiet, 0.0, others

    def on_start(self, run: Any) -> None:
        run.folder.trim(BESIDE, run.rounds_done)
        self.began, self.first = time.monotonic(), run.rounds_done
        if self.first:
            self._say(f"goes on after round {self.first}")

    def on_round(self, run: Any, line: dict[str, Any]) -> bool:
        done, now = line["round"], time.monotonic()
        if others := self.processes.others():
            run.folder.append(BESIDE, {"round": done, "others": others})
        if now - self.said > SAY_EVERY or done == run.rounds:
            self.said = now
            left = (now - self.began) / (done - self.first) * (run.rounds - done)
            score = score_in(line, run.numbers)
            words = f"  {score.name} {line[score.key]:.4f}" if score else ""
            self._say(f"round {done}/{run.rounds}{words}  {left:.0f} s left")
        return self.clock.over

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(f"{self.title}  {text}", file=sys.stderr, flush=True)


class Queue:
    """Makes runs and keeps their results, on this machine."""

    def __init__(
        self,
        folder: Path,
        results: Results,
        clock: Clock,
        machine: dict[str, Any],
        data_folders: dict[str, str],
        quiet: bool = False,
        local_models: bool = False,
        centroids: bool = False,
        measured: Collection[str] | None = None,
        stacks: str = "auto",
    ):
        self.folder, self.results, self.clock, self.machine = folder, results, clock, machine
        self.data_folders, self.quiet, self.local_models, self.centroids = data_folders, quiet, local_models, centroids
        self.measured = measured  # the numbers whose curves are kept
        self.stacks = stacks
        self.table = "runs"  # the table that runs are made for
        self._table: dict[str, Any] | None = None
        self._data: Federation | None = None
        self.made = self._ended = 0
        self.without: dict[str, NoData] = {}  # data sets that could not be fetched
        self._other_processes = OtherProcesses("queues")
        self._shared = Shared(results.folder)
        self._again: set[str] = set()  # runs repeated for their time
        # when the user was last told that this process waits
        self._said = 0.0

    @property
    def beside_others(self) -> bool:
        """Return whether other processes are at work now."""
        return bool(self._other_processes.others())

    def close(self) -> None:
        self._other_processes.leave()

    def make(self, jobs: Sequence[Job], timed: bool = False, waits: bool = True) -> list[Result]:
        """Return the results of all jobs whose data are available; timed: only of runs that had the machine to
        themselves. Unless it waits, runs that other processes are at work on are left to them."""
        missing = [job for job in jobs if self.results.of(job, timed) is None]
        for job in missing:
            if self.results.of(job) is not None:
                self._again.add(job.key)
                # an earlier attempt that was not alone either
                if self._beside(self.place(job)):
                    shutil.rmtree(self.place(job))
        titles = {job.key: f"[{n}/{len(jobs)}] {job.row} {job.method}" for n, job in enumerate(jobs, 1)}
        known = functools.partial(self.results.of, timed=timed)
        self.runs(missing, self.data, lambda job: titles[job.key], self._keep, known, waits)
        return [there for job in jobs if (there := self.results.of(job)) is not None]

    def runs(
        self,
        jobs: Sequence[Job],
        data: Callable[[Job], Federation],
        title: Callable[[Job], str],
        then: Callable[[Job, Any], None],
        known: Callable[[Job], Any],
        waits: bool = True,
    ) -> None:
        """Make runs until all are `known` (have results), except those without data; runs that another process makes
        are waited for, if it `waits`. `then` keeps the result of a finished run (or `Diverged`). Runs that fit go into
        one stack; a run's `then` does not wait for the others."""
        waiting, kinds = [*jobs], {job.key: _kind(job) for job in jobs}
        while waiting:
            job = next((job for job in waiting if self._take(job, known)), None)
            waiting = [other for other in waiting if known(other) is None]
            if job is None and not waits:
                return
            if job is None and waiting:
                self._wait(len(waiting))
            if job is None:
                continue
            group = [job]
            try:
                fed = data(job)
                group += self._beside_it(job, fed, [o for o in waiting if kinds[o.key] == kinds[job.key]], known)
                self._make(group, fed, data, title, then)
            except NoData:
                pass
            finally:
                for one in group:
                    self._shared.leave(one.key)
            made = {one.key for one in group}
            waiting = [other for other in waiting if other.key not in made]
            # a run contains reference cycles, and its tensors are large
            gc.collect()
            self._ended += 1
            if self._ended % 8 == 0 and "torch._dynamo" in sys.modules:
                # drops compiled steps of ended engines: the compiler gives up when it has many
                torch._dynamo.reset()

    def _take(self, job: Job, known: Callable[[Job], Any]) -> bool:
        """Take a run that no process has made or is working on; return whether it was free."""
        if not self._shared.take(job.key):
            return False
        self.results.look()
        if known(job) is None:
            return True
        self._shared.leave(job.key)
        return False

    def _wait(self, runs: int) -> None:
        """Wait a little for other processes, which are working on everything that is missing."""
        if self.clock.over:
            raise OutOfTime
        if not self.quiet and time.monotonic() - self._said > SAY_EVERY:
            self._said = time.monotonic()
            print(f"waiting for {runs} runs of other processes", file=sys.stderr, flush=True)
        time.sleep(WAIT)

    def _beside_it(self, job: Job, fed: Federation, alike: list[Job], known: Callable[[Job], Any]) -> list[Job]:
        """Take the runs that fit into one stack with this one."""
        # bytes that a run takes in a stack: its data, and a copy of them
        a_run = 2 * fed.train.x.nbytes + 1
        others = [other for other in alike if other is not job][: max(1, STACK_BYTES // a_run) - 1]
        return [other for other in others if self._take(other, known)] if others and self._stacks(job, fed) else []

    def _make(
        self,
        group: list[Job],
        fed: Federation,
        data: Callable[[Job], Federation],
        title: Callable[[Job], str],
        then: Callable[[Job, Any], None],
    ) -> None:
        """Make runs in one stack, or a single run; `fed` has the first one's data."""

        def one(job: Job, fed: Federation, title: str, member: Member | None = None) -> None:
            then(job, self.go(job, fed, title, member))

        job = group[0]
        if len(group) == 1:
            return one(job, fed, f"{title(job)} {_which([job])}")
        words = f"{title(job)} {_which(group)}"  # one of them reports for all
        starts = [functools.partial(one, j, data(j), words if j is job else "") for j in group]
        settings = self.placed(job)["run"]
        try:
            together(starts, settings.get("precision", "highest"), settings.get("deterministic", False))
        # a model that cannot be stacked: `auto` finds another engine
        except EngineRefused:
            for j in group:
                one(j, data(j), f"{title(j)} {_which([j])}")
        return None

    def _stacks(self, job: Job, fed: Federation) -> bool:
        """Return whether to stack several runs: if nothing else was asked for, where it pays off, since the model is
        tiny, and of a kind that is fast in stacks."""
        tables = self.placed(job)
        if config.MODELS_TABLE in tables or tables["run"].get("engine", "auto") not in ("auto", "batched"):
            return False
        if self.stacks != "auto":
            return self.stacks == "always"
        return stacks_pay(config.make_model(config.check(tables)["model"], fed, 0), fed.train.sizes)

    def data(self, job: Job) -> Federation:
        """Return the job's data; cached for the next job."""
        table = self.placed(job)["data"]
        name = str(table.get("name") or table.get("folder") or table.get("table"))
        if name in self.without:
            raise self.without[name]
        if self._data is None or self._table != table:
            # first, because two sets at once may be too much memory
            self._data = None
            checked = config.check(self.placed(job))["data"]
            try:
                self._table, self._data = table, config.make_data(checked)
            except UnalikeError as error:
                self.without[name] = NoData(str(error))
                raise self.without[name] from error
        return self._data

    def placed(self, job: Job) -> dict[str, dict[str, Any]]:
        """Return a job's settings on this machine."""
        data, run = job.tables["data"], {**job.tables["run"], **self.machine, "folder": str(self.place(job))}
        folder = self.data_folders.get(data.get("name", ""))
        return {**job.tables, "data": {**data, "folder": folder} if folder is not None else dict(data), "run": run}

    def place(self, job: Job) -> Path:
        """Return a run's folder, which depends on its key and not on its row; another precision is another run."""
        precision = self.machine.get("precision", "highest")
        ending = job.key if precision == "highest" else f"{job.key}-{precision}"
        ending += "-again" if job.key in self._again else ""
        return next(self.folder.glob(f"*-{ending}"), self.folder / f"{job.name.removesuffix(job.key)}{ending}")

    @staticmethod
    def _beside(place: Path) -> int:
        """Return the largest number of other queues that were working in any round of a run."""
        return max((line["others"] for line in folder.read_rounds(place / BESIDE)), default=0)

    def _keep(self, job: Job, run: Any) -> None:
        place = self.place(job)
        if isinstance(run, Diverged):
            result = diverged(job, folder.read_rounds(place / "rounds.jsonl"), run.round, self.measured)
        else:
            files = (local_models.FILE, centroids.FILE, groups.FILE)
            more = [line for file in files for line in folder.read_rounds(place / file)]
            result = collect(job, run, [*more, groups.of_groups(run)], self.measured)
        self.results.add(self.table, {**result, "beside": self._beside(place)})
        self.made += 1

    def go(self, job: Job, fed: Federation, title: str, member: Member | None = None) -> Any:
        """Return the finished run, or how it diverged. As a member it is one of several in a stack; without a title it
        prints nothing."""
        if self.clock.over:
            raise OutOfTime
        callbacks: list[Callback] = [local_models.LocalModels()] if self.local_models else []
        callbacks += [centroids.Centroids()] if self.centroids else []
        callbacks += [groups.BySpeed()] if "slow_accuracy" in (self.measured or ()) else []
        callbacks.append(Watch(self.clock, title, self.quiet or not title, self._other_processes))
        tables = self.placed(job)
        options: dict[str, Any] = {"member": member} if member else {}
        if member:
            # `auto` measures times, so its choice might differ between runs
            tables["run"]["engine"] = "batched"
        try:
            run = config.run(tables, callbacks=callbacks, resume=True, federation=fed, **options)
        except Diverged as error:
            return error
        if run.rounds_done < job.rounds:
            raise OutOfTime
        if not run.client_values and run.data.test is not None and len(run.evaluated_clients):
            # a run that was finished before this process started has no clients' values yet
            run.evaluate()
        return run


def _kind(job: Job) -> str:
    """Return a value that is equal for runs that may share a stack."""
    tables = plain(job.tables)
    for table, setting in LOOSE.items():
        tables.get(table, {}).pop(setting, None)
    return json.dumps([job.method, tables], sort_keys=True)


def _which(jobs: Sequence[Job]) -> str:
    seeds = [*{job.seed: None for job in jobs}]
    folds = [*{job.fold + 1: None for job in jobs if job.fold is not None}]
    words = [f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"]
    words += [f"folds {', '.join(map(str, folds))}"] if folds else []
    return " ".join(words) + (f" ({len(jobs)} runs in one stack)" if len(jobs) > 1 else "")
