"""One client after another: the plainest engine, and exactly what a real client runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
from torch import Tensor

from unalike.engines.base import Call, Engine, Job, Outcome, Solo, one_thread

SMALL = 50_000  # parameters up to which a second thread costs more than it gives, much more on a busy machine


class Sequential(Engine):
    name = "sequential"

    def __init__(self, job: Job):
        super().__init__(job)
        self.solo = Solo(job)

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        model = self.job.model
        small = model.device.type == "cpu" and model.layout.size <= SMALL
        with one_thread() if small else nullcontext():
            for position, client in enumerate(ids):
                yield one(self.job, self.solo, call, position, int(client))


def one(job: Job, solo: Solo, call: Call, position: int, client: int) -> Outcome:
    """The whole exchange with one client, its state read and staged."""
    ids = np.array([client])
    state, first = job.states.read(ids)
    kept, sent, loss = solo.run(call, client, _row(state), first[0], call.message(position))
    # a copy: what a client keeps must not change when the server writes into its own tensors
    job.states.stage(ids, {k: v[None].clone() for k, v in kept.items()})
    samples = job.data.train.sizes[ids]
    return Outcome(ids, {k: v[None] for k, v in sent.items()}, samples, np.array([loss]), solo.trained)


def _row(stacked: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[0] for name, value in stacked.items()}
