"""The runs of a reproduction, one after another, each an ordinary run folder called by a hash of its settings.

A run that has left its result is never made again; one that was killed goes on from its checkpoint. A resumed run is
bit-identical on a CPU, so an interrupted queue ends with the same numbers.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unalike import config, runs
from unalike.callbacks import Callback
from unalike.data.federation import Federation
from unalike.errors import Diverged, UnalikeError
from unalike.reproduce import locals as local_models
from unalike.reproduce.define import Job
from unalike.reproduce.results import Result, Results, collect, diverged

SAY_EVERY = 10.0  # seconds between lines of progress


class OutOfTime(Exception):
    """The budget is spent; everything is saved."""


class NoData(UnalikeError):
    """A data set is not here and cannot be fetched: its rows wait, the others go on."""


class Clock:
    """The time that may be spent."""

    def __init__(self, budget: float | None = None):
        self.began, self.budget = time.monotonic(), budget

    @property
    def over(self) -> bool:
        return self.budget is not None and time.monotonic() - self.began >= self.budget


class Watch(Callback):
    """A line now and then, and the end when the time is over."""

    def __init__(self, clock: Clock, title: str, quiet: bool):
        self.clock, self.title, self.quiet, self.said = clock, title, quiet, 0.0

    def on_start(self, run: Any) -> None:
        self.began, self.first = time.monotonic(), run.rounds_done
        if self.first:
            self._say(f"goes on after round {self.first}")

    def on_round(self, run: Any, line: dict[str, Any]) -> bool:
        done, now = line["round"], time.monotonic()
        if now - self.said > SAY_EVERY or done == run.rounds:
            self.said = now
            left = (now - self.began) / (done - self.first) * (run.rounds - done)
            name = next((n for n in ("test_accuracy", "clients_accuracy_mean") if line.get(n) is not None), None)
            score = f"  accuracy {line[name]:.4f}" if name else ""
            self._say(f"round {done}/{run.rounds}{score}  {left:.0f} s left")
        return self.clock.over

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(f"{self.title}  {text}", file=sys.stderr, flush=True)


class Queue:
    """Where runs are made and results kept, and on what machine."""

    def __init__(
        self,
        folder: Path,
        results: Results,
        clock: Clock,
        machine: dict[str, Any],
        data_folders: dict[str, str],
        quiet: bool = False,
        local_models: bool = False,
    ):
        self.folder, self.results, self.clock = folder, results, clock
        self.machine, self.data_folders, self.quiet, self.local_models = machine, data_folders, quiet, local_models
        self._table: dict[str, Any] | None = None
        self._data: Federation | None = None
        self.made = 0
        self.without: dict[str, NoData] = {}  # data sets that could not be had

    def make(self, jobs: Sequence[Job]) -> list[Result]:
        """The results of all jobs whose data can be had."""
        out = []
        for number, job in enumerate(jobs, 1):
            there = self.results.of(job)
            if there is None:
                title = f"[{number}/{len(jobs)}] {job.row} {job.method} seed {job.seed}"
                try:
                    fed = self.data(job)
                except NoData:
                    continue
                there = self._run(job, fed, title)
                self.results.add(job.name, there)
                self.made += 1
                gc.collect()  # a run holds itself in circles, and its tensors are large
            out.append(there)
        return out

    def data(self, job: Job) -> Federation:
        """The job's data; kept for the next one."""
        table = self.placed(job)["data"]
        name = str(table.get("name") or table.get("folder") or table.get("table"))
        if name in self.without:
            raise self.without[name]
        if self._data is None or self._table != table:
            self._data = None  # two sets at once may be too much
            checked = config.check(self.placed(job))["data"]
            try:
                self._table, self._data = table, config.make_data(checked)
            except UnalikeError as error:
                self.without[name] = NoData(str(error))
                raise self.without[name] from error
        return self._data

    def placed(self, job: Job) -> dict[str, dict[str, Any]]:
        """A job's settings on this machine."""
        data = dict(job.tables["data"])
        name = data.get("name", "")
        if name in self.data_folders:
            data["folder"] = self.data_folders[name]
        run = {**job.tables["run"], **self.machine, "folder": str(self.place(job))}
        return {**job.tables, "data": data, "run": run}

    def place(self, job: Job) -> Path:
        """A run's folder, found by its key whatever row it was made for; in another precision it is another run."""
        precision = self.machine.get("precision", "highest")
        ending = job.key if precision == "highest" else f"{job.key}-{precision}"
        return next(self.folder.glob(f"*-{ending}"), self.folder / f"{job.name.removesuffix(job.key)}{ending}")

    def _run(self, job: Job, fed: Federation, title: str) -> Result:
        run = self.go(job, fed, title)
        if isinstance(run, Diverged):
            return diverged(job, runs.read_rounds(self.place(job) / "rounds.jsonl"), run.round)
        return collect(job, run, runs.read_rounds(self.place(job) / local_models.FILE))

    def go(self, job: Job, fed: Federation, title: str) -> Any:
        """The finished run, or how it diverged."""
        if self.clock.over:
            raise OutOfTime
        callbacks: list[Callback] = [local_models.LocalModels()] if self.local_models else []
        callbacks.append(Watch(self.clock, title, self.quiet))
        try:
            run = config.run(self.placed(job), callbacks=callbacks, resume=True, federation=fed)
        except Diverged as error:
            return error
        if run.rounds_done < job.rounds:
            raise OutOfTime
        if not run.client_values and run.data.test is not None and len(run._evaluated_clients):
            run._evaluate(run.rounds_done - 1)  # a run that was finished before this process knows no clients' values
        return run


def parse_budget(text: str) -> float:
    """25m, 90s, 2h, or seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        value = float(text.rstrip("smh")) * units.get(text[-1:], 1)
    except ValueError:
        value = -1.0
    if value <= 0:
        raise UnalikeError(f"--budget must be a time such as 25m, 90s or 2h; got {text!r}.")
    return value
