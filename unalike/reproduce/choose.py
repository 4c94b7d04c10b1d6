"""Settings chosen by cross-validation inside the federation: every client holds a fold of its own samples out.

A paper's [choose] has folds, rounds, and steps. A step tries the `values` of a setting with one method, the settings
of `off` added, and gives the value with the best mean validation accuracy over the folds to all methods of `give`.
Steps follow one another, so that a regulariser is chosen at the rate that an earlier step found; regularisers are
chosen one at a time, the others off. The seed is not one of those reported.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from unalike import draws
from unalike.data.federation import Federation
from unalike.errors import Diverged
from unalike.reproduce.define import Job, Paper, Row, Tables, plain
from unalike.reproduce.jobs import Queue
from unalike.reproduce.results import Results
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

    # further splits would have samples that are held out now
    return fed.replace(train=part(~held), validation=part(held), test=None, global_test=None, splits={})


def identity(paper: Paper, row: Row) -> str:
    """Stands for what the choice depends on."""
    methods = {step["method"]: plain(paper.settings(row, step["method"])) for step in paper.choices["steps"]}
    for tables in methods.values():
        tables["run"].pop("rounds")  # those of the choice are its own
    return hashlib.sha256(json.dumps([paper.choices, methods], sort_keys=True).encode()).hexdigest()[:12]


def known(paper: Paper, row: Row, results: Results) -> dict[str, Any] | None:
    """What was chosen for this row before."""
    return results.found.get(identity(paper, row))


def settings(paper: Paper, row: Row, method: str, choice: dict[str, Any] | None) -> Tables:
    """A row's settings with what was chosen for the method."""
    tables = {name: dict(table) for name, table in paper.settings(row, method).items()}
    for step in (choice or {"steps": []})["steps"]:
        if method in step["give"]:
            _put(tables, step["set"], step["chosen"])
    return tables


def _put(tables: Tables, places: list[str], values: list[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        table, setting = place.split(".")
        tables[table][setting] = value


def choose(paper: Paper, row: Row, queue: Queue) -> dict[str, Any]:
    """What cross-validation prefers for this row; found once, and kept among the results."""
    if (there := known(paper, row, queue.results)) is not None:
        return there
    folds, rounds = paper.choices["folds"], paper.choices["rounds"]
    choice: dict[str, Any] = {"key": identity(paper, row), "paper": paper.id, "choice": row.id, "steps": []}
    parts: dict[int, Federation] = {}

    def data(job: Job) -> Federation:
        assert job.fold is not None
        if job.fold not in parts:
            parts[job.fold] = fold(queue.data(job), job.fold, folds, SEED)
        return parts[job.fold]

    for step in paper.choices["steps"]:
        places = step["set"] if isinstance(step["set"], list) else [step["set"]]
        tried: list[list[Job]] = []
        for given in step["values"]:
            values = given if isinstance(step["set"], list) else [given]
            tables = settings(paper, row, step["method"], choice)
            for table, off in step.get("off", {}).items():
                tables[table] |= off
            _put(tables, places, values)
            tables["run"] |= {"rounds": rounds, "evaluate_every": rounds, "checkpoint_every": rounds}
            tables["run"]["evaluate_clients"] = "all"  # it is their validation samples that count
            tried.append([paper.job(row, step["method"], SEED, tables, k) for k in range(folds)])
        queue.data(tried[0][0])  # before anything is run: without data there is no choice
        jobs = [job for same in tried for job in same]
        found = queue.runs(jobs, data, lambda job: f"choosing for {row.id}: {job.method}", _score)
        scores = [_mean([found[job.key] for job in same]) for same in tried]
        best = max(range(len(scores)), key=lambda k: scores[k] or 0.0)  # the first of equals
        chosen = step["values"][best] if isinstance(step["set"], list) else [step["values"][best]]
        trial = {"set": places, "give": step["give"], "values": step["values"], "scores": scores, "chosen": chosen}
        choice["steps"].append(trial)
    queue.results.add(f"choice-{row.id}-{choice['key']}", choice)
    return choice


def _score(job: Job, run: Any) -> float | None:
    return None if isinstance(run, Diverged) else run.history[-1]["validation_accuracy"]


def _mean(scores: list[float | None]) -> float | None:
    """None where a fold diverged."""
    return None if None in scores else stats.mean([score for score in scores if score is not None])
