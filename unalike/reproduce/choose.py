"""Choose settings by validation inside the federation: every client holds out a fold of its own samples.

A paper's [choose] has folds, rounds, and steps. A step tries the `values` of a setting with one method, with the
settings of `off` added, and gives the value with the best mean validation accuracy over the folds to all methods of
`give`. Steps follow one another, so that a regulariser is chosen at the rate that an earlier step found; regularisers
are chosen one at a time, with the others off. The seed is not one of those reported.

`tried = 1` tries only the first fold. With `every = 2` and `last = 5` a trial is scored by the mean of its last 5
evaluations, of every second round, instead of its last round alone. Every trial is kept when it ends, as its own line
among the table's results; the choice is kept when all have ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from unalike import draws
from unalike.data.federation import Federation
from unalike.errors import Diverged
from unalike.reproduce.define import Job, Paper, Row, Tables, plain
from unalike.reproduce.jobs import Queue
from unalike.reproduce.results import Results, commit
from unalike.results import stats

SEED = 1000


def fold(fed: Federation, k: int, folds: int, seed: int) -> Federation:
    """Hold out every `folds`-th of each client's shuffled samples for validation; the folds are a partition."""
    columns = fed.train
    held = np.zeros(len(columns.x), bool)
    for client in range(len(columns)):
        rows = np.arange(columns.offsets[client], columns.offsets[client + 1])
        held[draws.generator(seed, "folds", client).permutation(rows)[k::folds]] = True
    owners = columns.owners()

    def part(mask: np.ndarray) -> Any:
        return columns.take(np.flatnonzero(mask), np.bincount(owners[mask], minlength=len(columns)))

    # further splits would contain samples that are now held out
    return fed.replace(train=part(~held), validation=part(held), test=None, global_test=None, splits={})


def identity(paper: Paper, row: Row) -> str:
    """Return a text that identifies everything the choice depends on."""
    methods = {step["method"]: plain(paper.settings(row, step["method"])) for step in paper.choices["steps"]}
    for tables in methods.values():
        tables["run"].pop("rounds")  # the choice has its own number of rounds
    return hashlib.sha256(json.dumps([paper.choices, methods], sort_keys=True).encode()).hexdigest()[:12]


def known(paper: Paper, row: Row, results: Results) -> dict[str, Any] | None:
    """Return the choice made earlier for this row."""
    return results.found.get(identity(paper, row))


def settings(paper: Paper, row: Row, method: str, choice: dict[str, Any] | None) -> Tables:
    """Return a row's settings with those chosen for the method."""
    tables = {name: dict(table) for name, table in paper.settings(row, method).items()}
    for step in (choice or {"steps": []})["steps"]:
        if method in step["give"]:
            _put(tables, step["set"], step["chosen"])
    return tables


def _put(tables: Tables, places: list[str], values: list[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        table, setting = place.split(".")
        tables[table][setting] = value


def ranking(choice: dict[str, Any]) -> list[str]:
    """Return the methods that were tried, ordered by their best score, without those that always diverged."""
    best: dict[str, float] = {}
    for step in choice["steps"]:
        scores = [score for score in step["scores"] if score is not None]
        if "method" in step and scores:
            best[step["method"]] = max(scores)
    return sorted(best, key=lambda method: -best[method])


def choose(paper: Paper, row: Row, queue: Queue, waits: bool = True) -> dict[str, Any] | None:
    """Return the settings that validation prefers for this row; computed once, and kept among the results. Unless it
    waits, None where other processes are at work on trials."""
    if (there := known(paper, row, queue.results)) is not None:
        return there
    choice: dict[str, Any] = {"key": identity(paper, row), "paper": paper.id, "choice": row.id, "steps": []}
    data = _Folds(queue, paper.choices["folds"])
    for steps in _waves(paper.choices["steps"]):
        tried = [_trials(paper, row, step, choice) for step in steps]
        jobs = [job for trials in tried for folds in trials for job in folds]
        # first, because without data there is no choice
        queue.data(jobs[0])
        queue.runs(
            jobs,
            data,
            lambda job: f"choosing for {row.id}: {job.method}",
            lambda job, run: queue.results.add(queue.table, _trial(paper, job, run)),
            lambda job: queue.results.found.get(job.key),
            waits,
        )
        if any(job.key not in queue.results.found for job in jobs):
            return None
        choice["steps"] += [_chosen(step, trials, queue.results) for step, trials in zip(steps, tried, strict=True)]
    queue.results.look()
    if known(paper, row, queue.results) is None:  # another process may have written it meanwhile
        queue.results.add(queue.table, choice)
    return choice


class _Folds:
    """The data of trials; the last ones are cached."""

    def __init__(self, queue: Queue, folds: int):
        self.queue, self.folds = queue, folds
        self.whole: Federation | None = None
        self.parts: dict[int, Federation] = {}

    def __call__(self, job: Job) -> Federation:
        assert job.fold is not None
        whole = self.queue.data(job)
        if whole is not self.whole:
            self.whole, self.parts = whole, {}
        if job.fold not in self.parts:
            self.parts[job.fold] = fold(whole, job.fold, self.folds, SEED)
        return self.parts[job.fold]


def _waves(steps: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the steps in groups whose trials may run in any order: none needs another's result."""
    out: list[list[dict[str, Any]]] = []
    for step in steps:
        if not out or any(step["method"] in before["give"] for before in out[-1]):
            out.append([])
        out[-1].append(step)
    return out


def _trials(paper: Paper, row: Row, step: dict[str, Any], choice: dict[str, Any]) -> list[list[Job]]:
    """Return the runs of each of a step's values, one run per fold."""
    rounds, folds = paper.choices["rounds"], paper.choices.get("tried", paper.choices["folds"])
    every, out = paper.choices.get("every", rounds), []
    for value in step["values"]:
        tables = settings(paper, row, step["method"], choice)
        for table, off in step.get("off", {}).items():
            tables[table] |= off
        _put(tables, _list(step["set"]), value if isinstance(step["set"], list) else [value])
        tables["run"] |= {"rounds": rounds, "evaluate_every": every, "checkpoint_every": rounds}
        tables["run"]["evaluate_clients"] = "all"  # their validation samples give the score
        out.append([paper.job(row, step["method"], SEED, tables, k) for k in range(folds)])
    return out


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _trial(paper: Paper, job: Job, run: Any) -> dict[str, Any]:
    """Return the record of a trial: its settings and its score, None if it diverged."""
    lost = isinstance(run, Diverged)
    seen = [] if lost else [line["validation_accuracy"] for line in run.history if "validation_accuracy" in line]
    score = None if lost else stats.mean(seen[-paper.choices.get("last", 1) :])
    head = {name: getattr(job, name) for name in ("key", "paper", "row", "method", "seed", "fold")}
    return {**head, "settings": plain(job.tables), "commit": commit(), "trial": True, "score": score}


def _chosen(step: dict[str, Any], trials: list[list[Job]], results: Results) -> dict[str, Any]:
    """Return a step with its scores and the best value, the first of equal ones."""
    scores = [_mean([results.found[job.key]["score"] for job in folds]) for folds in trials]
    best = step["values"][max(range(len(scores)), key=lambda k: scores[k] or 0.0)]
    chosen = best if isinstance(step["set"], list) else [best]
    given = {"set": _list(step["set"]), "method": step["method"], "give": step["give"], "values": step["values"]}
    return {**given, "scores": scores, "chosen": chosen}


def _mean(scores: list[float | None]) -> float | None:
    """Return the mean; None if a fold diverged."""
    return None if None in scores else stats.mean([score for score in scores if score is not None])
