"""The plan of a local training, and its beginning and end; the same for one client and for a stack of clients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from unalike.client.job import Job
from unalike.client.samples import Chosen
from unalike.contract import BUFFERS, OPTIMIZER, Average, Batch, Fields, Train
from unalike.contract.requests import DataName
from unalike.errors import UnalikeError, unknown
from unalike.nn.layout import Layout
from unalike.nn.numerics import finite_rows
from unalike.nn.task import Task
from unalike.training import LocalTraining, Slots, new_slots, slot_names


class Plan:
    """One local training of some clients, as known on the host: settings, amounts of work, rates and keys.

    number: how many trainings of the round came before; chosen: the samples it uses (by default the clients' training
    samples).
    """

    def __init__(
        self, job: Job, local: LocalTraining, ids: np.ndarray, round: int, number: int, chosen: Chosen | None = None
    ):
        self.job, self.local, self.ids, self.round, self.number = job, local, ids, round, number
        self.chosen = chosen or Chosen(job.samples("train"), ids)
        self.sizes = self.chosen.sizes

    @functools.cached_property
    def steps(self) -> np.ndarray:
        """Return the steps of each client, int64 [c]."""
        return self.local.counts(self.ids, self.sizes, self.round)

    @property
    def rates(self) -> np.ndarray:
        """Return the learning rate of each client, float64 [c]."""
        return self.local.rates(self.ids, self.round)

    @property
    def keys(self) -> np.ndarray:
        """Return the keys of the batch orders and of the model's dropout, int64 [c]. On the public set alone all
        clients have the same order: they see the same batches."""
        if self.chosen.samples.own is None:
            return self.job.keys(np.zeros_like(self.ids), self.round, f"public {self.number}")
        return self.job.keys(self.ids, self.round, f"train {self.number}")

    @property
    def offsets(self) -> np.ndarray:
        """Return where each client's own samples begin."""
        return self.chosen.offsets


# identifies the order of a training's batches: its number, data and batch size
Ordered = tuple[int, DataName, int | None]


def order_number(request: Train, local: LocalTraining, trained: int, before: Ordered | None) -> int:
    """Return the number from which a training's order of mini-batches is drawn: its own, or that of the previous
    training in the same function. trained: number of trainings in the round so far."""
    if not request.same_batches:
        return trained
    if before is None:
        raise UnalikeError("same_batches=True: there was no training in this function whose batches to take.")
    if (request.data, local.batch_size) != before[1:]:
        raise UnalikeError("same_batches=True: the training before was on other data, or in batches of another size.")
    return before[0]


def same(vectors: Tensor) -> Tensor:
    return vectors


def begin_slots(
    job: Job,
    local: LocalTraining,
    theta: Tensor,
    state: dict[str, Tensor],
    pack: Callable[[Tensor], Tensor] = same,
    given: Tensor | None = None,
) -> Slots:
    """Return the optimizer's state: fresh, the client's own if it keeps one, or the one `given` by the request ([2 P +
    1], see `flat_slots`). `pack` lays out its vectors."""
    slots = new_slots(local, theta)
    if given is not None:
        size, at = (given.shape[-1] - 1) // 2, 0
        if pack(given[..., :size]).shape[-1] != theta.shape[-1] or given.shape[-1] != 2 * size + 1:
            raise UnalikeError(
                f"slots= has {given.shape[-1]} numbers: an optimizer's state for this vector is Field('optimizer'), "
                "for one of a further network Field('optimizer NAME')."
            )
        for name, shape in slot_names(local).items():
            if shape == "model":
                slots[name].copy_(pack(given.narrow(-1, at, size)))
                at += size
            else:
                slots[name].copy_(given.narrow(-1, 2 * size, 1))
        return slots
    for name in kept_slots(job, local):
        value = state[OPTIMIZER + name]
        slots[name].copy_(pack(value) if value.shape[-1] == job.task.layout.size else value)
    return slots


def flat_slots(local: LocalTraining, slots: Slots, like: Tensor, unpack: Callable[[Tensor], Tensor] = same) -> Tensor:
    """Return the optimizer's state as one vector [..., 2 P + 1]: up to two vectors, and a count. like: [..., P]."""
    vectors = [unpack(slots[name]) for name, shape in slot_names(local).items() if shape == "model"]
    vectors += [torch.zeros_like(like)] * (2 - len(vectors))
    counts = [slots[name] for name, shape in slot_names(local).items() if shape != "model"]
    return torch.cat([*vectors, *(counts or [torch.zeros_like(like[..., :1])])], -1)


def leave(
    job: Job, local: LocalTraining, slots: Slots, buffers: Tensor, received: Tensor, unpack: Callable[[Tensor], Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what a training leaves beside its vector, as (to keep, to send): the optimizer's state if it is kept, and
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
    """Return the buffers with which training starts: the client's own, the server's, or those of the module as
    built."""
    if task.buffer_policy == "local" and BUFFERS in s:
        # kept as a difference, so that zeros stand for a client that has kept nothing
        return task.start_buffers + s[BUFFERS]
    return dict.get(m, BUFFERS, task.start_buffers)


def judged(request: Train, theta: Tensor, loss: Tensor, silent: bool = False) -> Tensor:
    """Return the mean losses, infinite for a client that diverged (NaN means that it did not train). silent: the
    training gives no loss."""
    # theta may be several vectors per client
    bad = ~finite_rows(theta.reshape(loss.numel(), -1)).reshape(loss.shape)
    return torch.where(bad | loss.isnan() if request.step is None and not silent else bad, float("inf"), loss)


def part_mask(task: Task, net: str, part: str | None, layout: Layout | None = None) -> Tensor | None:
    """Return which numbers of the vector a training changes, None for all; layout: of the vector."""
    if net != "model":
        if net not in task.nets:
            raise unknown("network", net, task.nets)
        size, weights = task.nets[net].size, task.nets[net].weights
        return torch.arange(size, device=task.device) < weights if weights < size else None
    return None if part is None else (layout or task.layout).mask(part).to(task.device)


def check_rows(request: Train | Average, chosen: Chosen, values: Mapping[str, Tensor]) -> None:
    """Raise if a request wants a loss on samples without labels, or passes tensors with fewer rows than there are
    samples. values: those tensors, for one client."""
    samples = chosen.samples
    if isinstance(request, Train) and request.own and request.step is None and not samples.labelled:
        raise UnalikeError("The public set has no labels: train on it with own=0.0 and a loss of the method's own.")
    want = int((chosen.sizes - chosen.own).max()) if samples.public else int(chosen.sizes.max())
    for name, value in values.items():
        if value.dim() < 1 or len(value) < want:
            raise UnalikeError(
                f"rows[{name!r}] has shape {list(value.shape)}: it needs a row for each of {want} samples."
            )


def stepped(vector: Tensor, state: Mapping[str, Tensor], out: object) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the result of a method's own step, for this vector and state, as (vector, state)."""
    theta, after = out if isinstance(out, tuple) and len(out) == 2 else (out, {})
    if not isinstance(theta, Tensor) or theta.shape != vector.shape or not isinstance(after, dict):
        raise UnalikeError(
            f"A step must return the new vector, {list(vector.shape)}, or (vector, state) where it was given state=."
        )
    if after.keys() != state.keys():
        given, got = ", ".join(state) or "none", ", ".join(after) or "none"
        raise UnalikeError(f"A step was given the state {given} and returned {got}: return all of it, as a dict.")
    for name, value in after.items():
        before = state[name]
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != (before.shape, before.dtype):
            want = f"{before.dtype} {list(before.shape)}".removeprefix("torch.")
            raise UnalikeError(f"A step was given the state {name!r} as {want}, and must return it as such.")
    return theta, after


def checked_output(batch: Batch, rows: object) -> Tensor:
    """Return the rows from a function of `outputs`; raise unless there is one per sample of the batch."""
    if not isinstance(rows, Tensor) or rows.dim() < 1 or len(rows) != len(batch.y):
        got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise UnalikeError(f"A function of outputs must give one row per sample, {len(batch.y)} here; it gave {got}.")
    return rows


def padded(rows: Tensor, count: int) -> Tensor:
    """Return the rows padded with zeros to `count`."""
    missing = count - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
