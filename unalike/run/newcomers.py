"""Clients that take no part in training and are only evaluated: how well does the model serve clients that come later?

A newcomer starts with the model that the method has for it (`Method.arrival`, usually the global model), makes some
steps of ordinary training on its own training samples, and is evaluated on its own test samples before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike import draws
from unalike.client import ClientStore, Job, state_shapes
from unalike.client.evaluation import predicts
from unalike.contract import EVALUATION, Call, Evaluate, PerClient
from unalike.data import Federation
from unalike.engines import choose_engine
from unalike.engines.engine import Engine
from unalike.errors import EngineRefused, UnalikeError
from unalike.messages.request import message_parts
from unalike.metrics.evaluation import Scores, newcomers_line
from unalike.run.evaluate import Answers, published
from unalike.run.sampling import Listed, sampling
from unalike.run.settings import RunSettings

if TYPE_CHECKING:
    from unalike.run.run import Run


def divide(federation: Federation, settings: RunSettings) -> tuple[Federation, Federation | None]:
    """Return the federation of the clients that train, and that of the newcomers; the choice depends on the run's seed
    alone."""
    asked, population = settings.new_clients, len(federation)
    if not asked:
        return federation, None
    count = max(1, round(asked * population)) if asked < 1 else int(asked)
    odd = isinstance(asked, bool) or (isinstance(asked, float) and asked == 1) or (asked > 1 and asked != count)
    if odd or count >= population:
        raise UnalikeError(
            f"new_clients={asked!r}: give a share below 1, or a whole number below the {population} clients there are."
        )
    if federation.remote or getattr(federation, "parts", None):
        raise UnalikeError("new_clients: in a real federation, and in joined ones, all clients take part.")
    if isinstance(sampling(settings.clients_per_round), Listed):
        raise UnalikeError(
            "new_clients: the lists of clients_per_round name clients by their numbers, and those that train are "
            "numbered anew: give a share or a count, or take the clients out before (fed.only)."
        )
    if federation.test is None:
        raise UnalikeError("new_clients are judged on test samples of their own, and there are none: hold some out.")
    new = np.sort(draws.generator(settings.seed, "new clients").choice(population, count, replace=False))
    return federation.only(np.setdiff1d(np.arange(population), new)), federation.only(new)


class Newcomers:
    """The newcomers of a run, with their data and their own engine."""

    def __init__(self, run: Run, data: Federation):
        task, local = run.task, run.local
        for name in ("lr", "epochs", "steps"):
            if isinstance(getattr(local, name), Sequence | np.ndarray):
                raise UnalikeError(f"new_clients: {name} is a list with one value per client; give one for all.")
        self.run, self.data = run, data.to(task.device, task.dtype)
        self.states = ClientStore(state_shapes(run.method, task, local), len(data), task.device)
        mean = float(run.data.train.sizes.mean())
        job = Job(run.method, task, self.data, local, run.seed, self.states, mean)
        self.engine = _engine(run.engine.name, job)
        test = self.data.splits["test"]
        self.ids = np.flatnonzero((test.sizes > 0) & (self.data.train.sizes > 0))

    def line(self, t: int) -> dict[str, Any]:
        """Return the newcomers' numbers after round t; empty if a method's models are not vectors."""
        run = self.run
        if predicts(run.method) or not len(self.ids):
            return {}
        return newcomers_line(self._scores(t, 0), self._scores(t, run.settings.new_steps), run.higher)

    def _scores(self, t: int, steps: int) -> Scores:
        run = self.run
        common = {name: value for name, value in published(run).items() if not isinstance(value, PerClient)}
        shared, _ = message_parts(common, len(self.ids), run.server.values, run.task)
        found = Answers(run.task, self.data.splits["test"])
        for outcome in self.engine.call(Call(Evaluate("test", steps), shared, {}, t, EVALUATION), self.ids):
            found.add(outcome)
        self.states.discard()
        return found.scores()[1]

    def close(self) -> None:
        self.engine.close()


def _engine(name: str, job: Job) -> Engine:
    """Return an engine for the newcomers: batched if the run's engine is, else sequential."""
    try:
        return choose_engine("batched" if name == "batched" else "sequential", job, len(job.data), {})[0]
    except EngineRefused:
        return choose_engine("sequential", job, len(job.data), {})[0]
