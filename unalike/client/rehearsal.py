"""Rehearse a client function: find out which fields it sends, without a client.

A function may not branch on the values of tensors, so its fields follow from the method's settings, the message's
fields and perhaps the round. A server that knows them before replies come can check each reply alone and add it to its
sums at once.
"""

from __future__ import annotations

import dataclasses as dc
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unalike.client.job import Job, state_shapes
from unalike.client.one_client import OneClient
from unalike.client.sample_privacy import passes, reads_own
from unalike.client.state_in_memory import ClientStore
from unalike.contract import Call, Train
from unalike.contract.requests import PUBLIC
from unalike.data import Columns, Federation
from unalike.training.settings import LocalTraining

# samples of the stand-in: as many as every model was tried on
SAMPLES = 2


class Training(NamedTuple):
    """A training that a function asks for: its settings, the split whose samples it reads (None for none, or for chosen
    ones), how many rows it reads besides, and whether it reads any of the client's own samples."""

    local: LocalTraining
    split: str | None
    rows: int
    own: bool

    def steps(self, job: Job, ids: np.ndarray, round: int) -> np.ndarray:
        """Return the mini-batches of these clients."""
        sizes = np.zeros(len(ids), dtype=np.int64) if self.split is None else job.split(self.split).sizes[ids]
        return self.local.counts(ids, sizes + self.rows, round)


class Rehearsal(Job):
    """A job with one stand-in client, which has two samples and makes one step in place of each training."""

    def __init__(self, job: Job):
        samples = min(SAMPLES, job.largest("train"))
        x, y = (t[:1].expand(samples, *t.shape[1:]).contiguous() for t in (job.data.train.x, job.data.train.y))
        columns = Columns(x, y, np.array([0, samples]))
        further = dict.fromkeys(job.data.further, columns)
        data = Federation(
            columns, validation=columns, test=columns, splits=further, public=job.data.public, classes=job.data.classes
        )
        self.largest = job.largest  # type: ignore[method-assign]  # shapes are declared for the real clients
        states = ClientStore(state_shapes(job.method, job.task, job.local), 1, job.task.device)
        local = _one_step(job.local)
        self.whole = job.local
        super().__init__(job.method, job.task, data, local, job.seed, states, job.mean_samples)
        self.stand_in = OneClient(self)
        # trainings that were requested so far
        self.asked: list[Training] = []

    @property
    def shown(self) -> LocalTraining:
        return self.whole

    def settings(self, request: Train) -> LocalTraining:
        name, found = request.data, self.chosen(request, np.array([0]))
        whose = next((part for part in ((name,) if isinstance(name, str) else name) if part != PUBLIC), None)
        if request.only is not None and not found.samples.public:
            whose = None  # chosen rows are as many for every client
        rows = int((found.sizes - (found.own if whose else 0))[0])
        self.asked.append(Training(self.whole.replaced(**request.local), whose, rows, reads_own(request)))
        return _one_step(super().settings(request))

    def passes(self, call: Call, ids: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return how often this call uses any one of a client's own samples in a step, for clients of these sizes."""
        made = np.zeros(len(ids), dtype=np.int64)
        for training in self.trainings(call):
            if training.own:
                made += passes(training.local, ids, sizes, call.round)
        return made

    def trainings(self, call: Call) -> list[Training]:
        """Return a client's trainings in this call."""
        self.asked = []
        self.sent(call)
        return self.asked

    def sends(self, call: Call) -> frozenset[str]:
        """Return the names of the fields that this call's function sends."""
        return frozenset(self.sent(call))

    def sent(self, call: Call) -> dict[str, Tensor]:
        """Return the stand-in's answer to this call: fields with the shapes and dtypes of any client's."""
        state, first = self.states.read(np.array([0]))
        row = {name: value[0] for name, value in state.items()}
        rows = {name: t if len(t) else t.new_zeros((1, *t.shape[1:])) for name, t in call.rows.items()}
        message = dc.replace(call, rows=rows).message(0)
        _, sent, _ = self.stand_in.run(call, 0, row, torch.as_tensor(first[0]), message)
        return sent


def _one_step(local: LocalTraining) -> LocalTraining:
    return local.replaced(steps=1, batch_size=None, drop_last=False)
