"""The plan of a local training, and its beginning and end: the same for one client and for a stack of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from unalike.client.job import Job
from unalike.contract import BUFFERS, OPTIMIZER, Fields, Train
from unalike.nn.task import Task
from unalike.training import LocalTraining, Slots, new_slots, slot_names


class Plan:
    """One local training of some clients as the host knows it: settings, amounts of work, rates and keys.

    number: how many trainings of the round came before it.
    """

    def __init__(self, job: Job, local: LocalTraining, ids: np.ndarray, round: int, number: int):
        self.job, self.local, self.ids, self.round, self.number = job, local, ids, round, number
        self.sizes = job.data.train.sizes[ids]

    @functools.cached_property
    def steps(self) -> np.ndarray:
        """Steps of each client, int64 [c]."""
        return self.local.counts(self.ids, self.sizes, self.round)

    @property
    def rates(self) -> np.ndarray:
        """Learning rate of each client, float64 [c]."""
        return self.local.rates(self.ids, self.round)

    @property
    def keys(self) -> np.ndarray:
        """Keys of the batch orders and of what steps draw, int64 [c]."""
        return self.job.keys(self.ids, self.round, f"train {self.number}")

    @property
    def offsets(self) -> np.ndarray:
        """Where each client's samples begin."""
        return self.job.data.train.offsets[self.ids]


def same(vectors: Tensor) -> Tensor:
    return vectors


def begin_slots(
    job: Job, local: LocalTraining, theta: Tensor, state: dict[str, Tensor], pack: Callable[[Tensor], Tensor] = same
) -> Slots:
    """Return the optimizer's state: fresh, or the client's own where it keeps one. `pack` lays out its vectors."""
    slots = new_slots(local, theta)
    for name in kept_slots(job, local):
        value = state[OPTIMIZER + name]
        slots[name].copy_(pack(value) if value.shape[-1] == job.task.layout.size else value)
    return slots


def leave(
    job: Job, local: LocalTraining, slots: Slots, buffers: Tensor, received: Tensor, unpack: Callable[[Tensor], Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what a training leaves beside its vector, (to keep, to send): the optimizer's state where it is kept, and
    BatchNorm's statistics by the task's policy, as differences."""
    keep = {OPTIMIZER + n: unpack(v) if (v := slots[n]).shape[-1] > 1 else v for n in kept_slots(job, local)}
    task = job.task
    if not task.buffer_layout.size or task.buffer_policy == "freeze":
        return keep, {}
    if task.buffer_policy == "local":
        return {**keep, BUFFERS: buffers - task.start_buffers}, {}
    return keep, {BUFFERS: buffers - received}


def kept_slots(job: Job, local: LocalTraining) -> list[str]:
    """Return the names of the optimizer's state that a client keeps between rounds."""
    return [n for n in slot_names(local) if local.keep_optimizer and OPTIMIZER + n in job.states.shapes]


def start_buffers(task: Task, s: Fields, m: Fields) -> Tensor:
    """Return the buffers that training starts from: the client's own, the server's, or those of the module as built."""
    if task.buffer_policy == "local" and BUFFERS in s:
        return task.start_buffers + s[BUFFERS]  # kept as a difference: a client that has kept nothing has zeros
    return dict.get(m, BUFFERS, task.start_buffers)


def judged(request: Train, theta: Tensor, loss: Tensor) -> Tensor:
    """Return the mean losses, infinite where a client diverged (NaN says that it did not train)."""
    bad = ~torch.isfinite(theta).all(-1)
    return torch.where(bad | loss.isnan() if request.step is None else bad, float("inf"), loss)
