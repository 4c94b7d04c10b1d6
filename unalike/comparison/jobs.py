"""The runs of a comparison: settings completed from the data, tried before anything is written, then run or continued.

Every run is an ordinary run folder. A finished one is read, a half-finished one continues from its checkpoint; since a
resumed run is bit-identical, a comparison that was killed and started again ends with the same numbers (to rounding
where runs share a stack, and others stand beside them then).
"""

from __future__ import annotations

import dataclasses as dc
import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unalike import config, report
from unalike.comparison import stacks, tune
from unalike.config import defaults
from unalike.data import Columns, Federation
from unalike.errors import Diverged, UnalikeError
from unalike.metrics.constant import constant_scores
from unalike.metrics.lines import Line
from unalike.metrics.names import from_facts
from unalike.nn.numerics import one_thread
from unalike.results.evidence import CONSTANT, REFERENCES, SCORES, Outcome, score_of
from unalike.run import folder
from unalike.run import manifest as manifests
from unalike.run.arrivals import buffer_of
from unalike.run.callbacks import Callback
from unalike.run.evaluate import choose_clients, shares_one_model
from unalike.run.newcomers import divide
from unalike.run.sampling import sampling
from unalike.run.settings import RunSettings

# features beyond it in a tenth of the rows are not in comparable units
LARGE = 10.0
COHORT = 10  # default clients per round
# up to so many clients in a user's own data, all take part: they are hospitals rather than phones
OWN_COHORT = 50
TRIAL_SHARE = 0.5  # share of the rounds in a trial of --tune

Tables = dict[str, dict[str, Any]]


@dc.dataclass(frozen=True)
class Arm:
    """A method with its settings: a line of the comparison, run once per seed.

    name: of its folders; case: the data it is compared on, if there are several; free_rate: its learning rate was not
    set, so that --tune may; validation: number of samples of all clients that choose the round; unscaled: its features
    have different units; tested: number of samples behind the scores; has_global: it has a global model, and the data a
    test set for it; has_own: clients are evaluated on their own test samples; networks: of each client, if they differ;
    clients: how many train.
    """

    label: str
    name: str
    case: str
    tables: Tables
    free_rate: bool = False
    validation: int | None = None
    unscaled: bool = False
    tested: int | None = None
    has_global: bool = True
    has_own: bool = True
    networks: tuple[str, ...] = ()
    clients: int | None = None

    @property
    def method(self) -> str:
        table = self.tables["method"]
        return str(table["file"].rpartition(":")[2] if "file" in table else table["name"])

    @property
    def reference(self) -> bool:
        return self.method in REFERENCES

    @property
    def personal(self) -> bool:
        """Return whether clients have their own models."""
        return not shares_one_model(config.make_method(self.tables["method"]))


@dc.dataclass(frozen=True)
class Job:
    """One run: an arm with a seed, in a folder."""

    arm: Arm
    seed: int
    folder: Path
    tables: Tables

    @property
    def rounds(self) -> int:
        return int(self.tables["run"]["rounds"])


class Watch:
    """Called while runs are made; does nothing. A display overrides these methods."""

    def begin(self, jobs: Sequence[Job], what: str) -> None:
        """Called before the first of these jobs."""

    def callback(self, job: Job) -> list[Callback]:
        """Return the callbacks that watch the rounds of this run."""
        return []

    def done(self, job: Job, outcome: Outcome, fresh: bool) -> None:
        """Called after a run has finished; fresh: it was not finished before this command."""

    def note(self, text: str) -> None:
        """Called with a remark for the user."""

    def stop(self) -> None:
        """Called after the last job."""


# ---------------------------------------------------------------- preparation


def several_networks(arms: Sequence[Arm]) -> bool:
    """Return whether clients have different networks."""
    return any(len(arm.tables.get(config.MODELS_TABLE, {})) > 1 for arm in arms)


def with_seed(tables: Tables, seed: int) -> Tables:
    """Return the tables with this seed for the run, and for the split unless [data] sets its own."""
    data = dict(tables["data"])
    if "seed" in config.data_settings(data):
        data.setdefault("seed", seed)
    return {**tables, "data": data, "run": {**tables["run"], "seed": seed}}


def settle(arms: Sequence[Arm], seed: int, watch: Watch, validation: bool = False, by: str = "") -> list[Arm]:
    """Complete the settings from the data: test and validation shares, clients per round, the centralized reference's
    passes. Then try every method on a few samples, so that a method that cannot run is reported before anything is run.
    validation: require validation data; by: what methods are compared by ("clients", "test", or "" for whichever
    exists)."""
    if any(config.data_parts(arm.tables["data"]) for arm in arms):
        raise UnalikeError("Methods are compared on data of one shape: with [data.NAME] tables, `unalike run` each.")
    settled, data, said = [], {}, False
    for arm in arms:
        if arm.case not in data:
            table, fed, notes = defaults.held_out(with_seed(arm.tables, seed)["data"], "test", "validation")
            if "seed" not in arm.tables["data"]:
                table.pop("seed", None)
            _check_labels(fed)
            if validation and fed.validation is None:
                raise UnalikeError("--tune chooses on validation data, and there are none: give --validation 0.1.")
            if not said and defaults.own(arm.tables):
                said = True
                for line in [*notes, *_float_classes(arm.tables["data"], fed)]:
                    watch.note(line)
            data[arm.case] = table, fed
        table, fed = data[arm.case]
        run = dict(arm.tables["run"])
        training = _training(fed, run, seed)
        few = OWN_COHORT if defaults.own(arm.tables) else COHORT
        run.setdefault("clients_per_round", COHORT if len(training) > few else 1.0)
        tables = {**arm.tables, "data": table, "run": run}
        if defaults.own(tables):
            tables = defaults.suited(tables, fed)
        if arm.method == "centralized":
            tables["local"] = pooled_work(tables["local"], run["clients_per_round"], len(training))
        chosen_on = None if fed.validation is None else len(training.splits["validation"].y)
        own = 0 if fed.test is None else len(training.splits["test"].y)
        has_own = own > 0 and run.get("evaluate_clients") != "none"
        tested = own if fed.global_test is None or (by == "clients" and has_own) else len(fed.global_test[1])
        arm = dc.replace(arm, tables=tables, validation=chosen_on, tested=tested, unscaled=_unscaled(fed))
        tried = _try(arm, fed, seed)
        has_global = tried is None or any(key.startswith("test_") for key in tried)
        names = config.network_names(tables, len(training)) if several_networks([arm]) else []
        arm = dc.replace(arm, has_global=has_global, networks=tuple(names), clients=len(training))
        settled.append(dc.replace(arm, has_own=has_own))
    return settled


def _training(fed: Federation, run: dict[str, Any], seed: int) -> Federation:
    """Return the data of the clients that train: all but the newcomers."""
    new = run.get("new_clients", 0)
    return divide(fed, RunSettings(rounds=0, new_clients=new, seed=seed))[0] if new else fed


def _unscaled(fed: Federation) -> bool:
    """Return whether some feature has much larger values than models can learn from."""
    x = fed.train.x
    return x.dim() == 2 and x.is_floating_point() and bool((x.abs() > LARGE).any(1).double().mean() > 0.1)


def _check_labels(fed: Federation) -> None:
    y = fed.train.y.cpu().numpy()
    if len(y) and (y == y[0]).all():
        what = "the same" if fed.classes is None else y[0]  # a number to predict may be in other units here
        raise UnalikeError(f"The label is {what} in every sample: nothing to learn.")
    if fed.classes is not None and len(np.unique(y)) == len(y) > 2:
        raise UnalikeError(
            f"The data have {len(y)} different labels in {len(y)} samples: labels must be classes that "
            "repeat; give floats for regression."
        )


def _float_classes(table: dict[str, Any], fed: Federation) -> list[str]:
    """Return a remark if files hold labels that look like classes but are taken as numbers to predict; a table says
    which they are."""
    y = fed.train.y
    if "folder" not in table or fed.classes is not None or not bool((y == y.round()).all()):
        return []
    return ["y is float: taken as regression; save it as integers for classes."]


def pooled_work(local: dict[str, Any], clients_per_round: Any, population: int) -> dict[str, Any]:
    """Return as many passes over all data as a round's clients make together, so that no method trains longer."""
    cohort = sampling(config.make_sampling(clients_per_round)).size(population)
    out = _alike(local)
    if "steps" in out:
        return out | {"steps": out["steps"] * cohort}
    return out | {"epochs": out.get("epochs", 1) * cohort / population}


def _alike(local: dict[str, Any]) -> dict[str, Any]:
    """Return [local] with lists of work per client replaced by their means."""
    lists = {k: local[k] for k in ("lr", "epochs", "steps") if isinstance(local.get(k), list)}
    means = {k: sum(values) / len(values) for k, values in lists.items()}
    return local | means | ({"steps": max(1, round(means["steps"]))} if "steps" in means else {})


def _try(arm: Arm, fed: Federation, seed: int) -> Line | None:
    """Set a run up on all data, and return the line of one round on a few samples of three clients (and a newcomer, if
    there are any); None if it diverged. Nothing is written."""
    tables = with_seed(arm.tables, seed)
    run = {k: v for k, v in tables["run"].items() if k not in ("folder", "resume")}
    few = {**_alike(tables["local"]), "drop_last": False}
    try:
        config.run({**tables, "run": {**run, "rounds": 0}}, federation=fed)
        one = {**run, "rounds": 1, "clients_per_round": 1.0, "evaluate_clients": "all", "engine": "sequential"}
        one |= {"new_clients": 1} if run.get("new_clients") else {}
        names = [*tables.get(config.MODELS_TABLE, {})]
        method = config.make_method(tables["method"])
        # each cluster needs a client, and so does each arrival that the server waits for
        needed = getattr(method, "clusters", 1), getattr(method, "buffer", 1), buffer_of(run.get("asynchronous"))
        clients = max(3, len(names), *needed) + one.get("new_clients", 0)
        tasted = taste(fed.at(1), clients)  # drifting data are declared for all clients
        # each network needs one of the few clients
        if len(names) > 1:
            one["architecture"] = [names[k % len(names)] for k in range(len(tasted))]
        return config.run({**tables, "local": few, "run": one}, federation=tasted).history[-1]
    except Diverged:
        return None  # on a few samples that means nothing
    except UnalikeError as error:
        raise UnalikeError(f"{arm.label} cannot run here: {error}") from error


def taste(fed: Federation, clients: int = 3, samples: int = 8) -> Federation:
    """Return the first samples of the first clients."""

    def cut(columns: Columns) -> Columns:
        few = range(min(clients, len(columns)))
        sizes = np.minimum(columns.sizes[: len(few)], samples)
        rows = [columns.offsets[k] + np.arange(sizes[k]) for k in few]
        return columns.take(np.concatenate(rows).astype(np.int64), sizes)

    test = None if fed.global_test is None else (fed.global_test[0][:samples], fed.global_test[1][:samples])
    planted = {name: values[:clients] for name, values in fed.planted.items()}
    return fed.map(cut, global_test=test, names=fed.names and fed.names[:clients], planted=planted)


def plan(arms: Sequence[Arm], seeds: Sequence[int], folder: Path) -> list[Job]:
    """Return the jobs for every arm and every seed; seed by seed, so that all methods can soon be compared."""
    jobs = []
    for case in dict.fromkeys(arm.case for arm in arms):
        for seed in seeds:
            for arm in (a for a in arms if a.case == case):
                where = folder / f"{arm.name}-seed{seed}"
                tables = with_seed(arm.tables, seed)
                jobs.append(Job(arm, seed, where, {**tables, "run": {**tables["run"], "folder": str(where)}}))
    return jobs


def check_folders(jobs: Sequence[Job]) -> None:
    """Check that existing runs have these settings."""
    for job in jobs:
        there = _written(job.folder)
        if there is None:
            if job.folder.exists() and any(f.name != ".config.toml.new" for f in job.folder.iterdir()):
                raise UnalikeError(f"{job.folder} is not empty and holds no run: choose another --folder.")
            continue
        here = tomllib.loads(folder.dump_toml(config.absolute(job.tables)))
        for table in (*config.TABLES, config.MODELS_TABLE):
            mine, yours = here.get(table, {}), there.get(table, {})
            for name in sorted(set(mine) | set(yours)):
                if f"{table}.{name}" not in folder.FREE and mine.get(name) != yours.get(name):
                    raise UnalikeError(
                        f"{job.folder} holds another run: there {table}.{name} is {yours.get(name)!r}, here "
                        f"{mine.get(name)!r}. Choose another --folder."
                    )
        if there["run"]["rounds"] > job.rounds:
            raise UnalikeError(
                f"{job.folder} holds a run of {there['run']['rounds']} rounds and {job.rounds} are asked for: choose "
                "another --folder."
            )


def _written(folder: Path) -> dict[str, Any] | None:
    file = folder / "config.toml"
    if not file.exists():
        return None
    tree = config.load_toml(file)
    if config.FACTS not in tree:
        raise UnalikeError(f"{folder} was written by a Python program: choose another --folder.")
    return tree


# ---------------------------------------------------------------- the runs


def make(jobs: Sequence[Job], watch: Watch, guess: bool = True) -> dict[tuple[str, int], Outcome]:
    """Run every job and return its outcome, by the arm's name and the seed; with `guess` also the constant guess's, by
    `guess_of` its case."""
    out: dict[tuple[str, int], Outcome] = {}
    left, data = [*jobs], stacks.Kept()
    while left:
        job = left.pop(0)
        done = finished(job, data.of(job.tables))
        group = [job] if done else [job, *_beside(job, left, data)]
        outcomes = (
            [done] if done else stacks.together([functools.partial(_run, j, data, watch) for j in group], job.tables)
        )
        for one, outcome in zip(group, outcomes, strict=True):
            out[one.arm.name, one.seed] = outcome
            key = guess_of(one.arm.case), one.seed
            if guess and key not in out and (found := _guess(one, data.of(one.tables), outcome.metrics)):
                out[key] = found
            watch.done(one, outcome, fresh=done is None)
        left = [other for other in left if other not in group]
    return out


def _beside(job: Job, others: Sequence[Job], data: stacks.Kept) -> list[Job]:
    """Return the unfinished runs among these that go into one stack with this one."""
    alike = [other for other in others if stacks.kind(other.tables) == stacks.kind(job.tables)]
    if not alike or not stacks.fits(job.tables, data.of(job.tables)):
        return []
    return [other for other in alike[: data.most - 1] if not finished(other, data.of(other.tables))]


def guess_of(case: str) -> str:
    """Return the name for the outcome of the constant guess on this data."""
    return f"{case} {CONSTANT}"


def _guess(job: Job, fed: Federation, metrics: dict[str, bool]) -> Outcome | None:
    """Return the outcome of one answer for all samples: the most common class, or the mean. None if a user's own loss
    or metric does not accept such outputs."""
    given = config.make_loss(job.tables["model"])
    unit = None if fed.preparation is None else fed.preparation.target
    fed = _training(fed, job.tables["run"], job.seed)
    clients = choose_clients(job.tables["run"].get("evaluate_clients", "auto"), len(fed), job.seed)
    try:
        now = fed.at(job.tables["run"]["rounds"])  # for drifting data, the samples of the last round
        line = constant_scores(now, given.get("metrics"), given.get("loss"), unit=unit, clients=clients)
    except UnalikeError:
        return None
    return Outcome(job.seed, [{"round": 0, **line}], metrics=metrics)


def finished(job: Job, fed: Federation) -> Outcome | None:
    """Return the outcome of a finished run; None if it is not finished. Raise if the data have changed."""
    there = _written(job.folder)
    if there is None:
        return None
    if there[config.FACTS]["data"]["fingerprint"] != fed.fingerprint():
        raise UnalikeError(f"{job.folder} was run on other data than these: choose another --folder.")
    lines = folder.read_rounds(job.folder / "rounds.jsonl")
    done = _checkpoint(job.folder)
    whole = done is not None and done >= job.rounds and len(lines) == done
    return Outcome(job.seed, lines, metrics=from_facts(there[config.FACTS])) if whole else None


def _checkpoint(folder: Path) -> int | None:
    """Return the round of the last checkpoint; if it cannot be read, resuming the run reports that."""
    try:
        manifest, _ = manifests.last(folder / "checkpoint", whole=False)
    except (OSError, UnalikeError):
        return None
    return None if manifest is None else int(manifest["round"])


def _run(job: Job, data: stacks.Kept, watch: Watch, member: Any = None) -> Outcome:
    fed, options = data.of(job.tables), {"member": member} if member else {}
    callbacks = [report.Record(), *watch.callback(job)]
    try:
        # the same numbers on every machine, and the pooled reference is much faster on a busy one
        with one_thread():
            run = config.run(job.tables, callbacks=callbacks, resume=True, federation=fed, **options)
    except Diverged as error:
        there = _written(job.folder)
        known = {} if there is None else from_facts(there[config.FACTS])
        return Outcome(job.seed, folder.read_rounds(job.folder / "rounds.jsonl"), error.round, known)
    return Outcome(job.seed, run.history, metrics=run.higher)


# ---------------------------------------------------------------- tuning


@dc.dataclass(frozen=True)
class Tuned:
    """The result of tuning an arm: the changes of each trial, their validation scores, and the chosen trial."""

    trials: list[Tables]
    scores: list[float | None]
    chosen: int


def tuned(
    arms: Sequence[Arm], count: int, rounds: int, seed: int, folder: Path, watch: Watch
) -> tuple[list[Arm], dict[str, Tuned]]:
    """Return the arms with the settings that validation data chose among `count` trials each, and a record of the
    trials."""
    changes = {arm.name: tune.trials(arm.tables["method"], arm.free_rate, count, seed) for arm in arms}
    jobs, cases = [], [arm.case for arm in arms]
    for arm in sorted(arms, key=lambda arm: cases.index(arm.case)):
        for k, change in enumerate(changes[arm.name]):
            where = folder / "tune" / f"{arm.name}-{k:03d}"
            tables = with_seed(_changed(arm.tables, change), seed)
            # a drawn value that is invalid is reported before anything runs
            method = config.make_method(tables["method"])
            if not _fits(method, arm.clients):
                change["method"] = {}
                tables = with_seed(_changed(arm.tables, change), seed)
            run = {**tables["run"], "rounds": rounds, "folder": str(where)}
            jobs.append(Job(dc.replace(arm, name=f"{arm.name} {k}"), seed, where, {**tables, "run": run}))
    check_folders(jobs)
    watch.begin(jobs, "trials")
    outcomes = make(jobs, watch, guess=False)
    out, found = [], {}
    for arm in arms:
        mine = [outcomes[f"{arm.name} {k}", seed] for k in range(len(changes[arm.name]))]
        chosen, scores = tune.best(mine, score_of(mine) or SCORES[0])
        found[arm.name] = Tuned(changes[arm.name], scores, chosen)
        out.append(dc.replace(arm, tables=_changed(arm.tables, changes[arm.name][chosen])))
    return out, found


def _fits(method: Any, clients: int | None) -> bool:
    """Return whether a method is possible with this number of clients: six clusters of five clients are not tried."""
    try:
        method.check_clients(1 << 40 if clients is None else clients)
    except UnalikeError:
        return False
    return True


def _changed(tables: Tables, change: Tables) -> Tables:
    return {**tables, "method": tables["method"] | change["method"], "local": tables["local"] | change["local"]}
