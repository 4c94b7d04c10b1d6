"""One client after another: the simplest engine, and exactly what a real client runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
from torch import Tensor

from unalike.client import Job, OneClient
from unalike.client.captured_steps import CapturedSteps
from unalike.contract.call import Call, Outcome
from unalike.engines.engine import Engine
from unalike.nn.numerics import one_thread

# up to so many parameters, a second thread costs more than it gains, much more on a busy machine
SMALL = 50_000


class Sequential(Engine):
    name = "sequential"

    def __init__(self, job: Job):
        super().__init__(job)
        self.one_client = OneClient(job)

    def capture(self) -> None:
        """Capture steps as CUDA graphs from now on, where they can be."""
        self.one_client.captured = CapturedSteps(self.job.task, self.one_client.bound)

    @property
    def notes(self) -> list[str]:
        """Return what could not be captured, and why: it ran all the same, slower."""
        return self.one_client.captured.notes if self.one_client.captured else []

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        task = self.job.task
        small = task.device.type == "cpu" and task.layout.size <= SMALL
        with one_thread() if small else nullcontext():
            for position, client in enumerate(ids):
                yield one(self.job, self.one_client, call, position, int(client))


def one(job: Job, one_client: OneClient, call: Call, position: int, client: int) -> Outcome:
    """Run a whole exchange with one client: its state is read and staged."""
    ids = np.array([client])
    state, first = job.states.read(ids)
    kept, sent, loss = one_client.run(call, client, _row(state), first[0], call.message(position))
    # a copy: a client's kept state must not change when the server writes into its own tensors
    job.states.stage(ids, {k: v[None].clone() for k, v in kept.items()})
    samples = job.data.train.sizes[ids]
    up = {k: v[None] for k, v in sent.items()}
    batches = np.array([one_client.batches])
    return Outcome(ids, up, samples, np.array([loss]), one_client.trained, batches=batches, passes=one_client.passes)


def _row(stacked: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[0] for name, value in stacked.items()}
