"""The step of a stack of clients: built once, run eagerly, compiled, or replayed from CUDA graphs."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from unalike import draws
from unalike.contract import Batch, Train, plain_args
from unalike.data.columns import Columns
from unalike.engines.batched.graphs import UNROLLED, StaticBuffers, at_work, capturing, prefixes, quiet, taken
from unalike.errors import UnalikeError, first_line
from unalike.nn.task import FunctionalModule, Task
from unalike.training import LocalTraining, Order, augment, update

_bared: dict[int, tuple[LocalTraining, LocalTraining]] = {}


def _bare(local: LocalTraining) -> LocalTraining:
    """These settings without amounts of work and rates, which are inputs of a step and not part of it. The last few are
    kept: they are the same in every round, and checking them anew is not free."""
    if id(local) not in _bared or _bared[id(local)][0] is not local:
        if len(_bared) > 16:
            _bared.clear()
        _bared[id(local)] = local, dc.replace(local, epochs=1, steps=None, lr=1.0, lr_decay=1.0)
    return _bared[id(local)][1]


@dc.dataclass(frozen=True)
class StepKind:
    """What a step is built from; equal settings share one compiled step."""

    local: LocalTraining
    loss: Callable[..., Tensor] | None
    step: Callable[..., Tensor] | None
    batches: int
    unclipped: tuple[str, ...]
    args: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, local: LocalTraining, request: Train) -> StepKind:
        args = tuple(sorted(plain_args(request.args).items()))
        kind = cls(_bare(local), request.loss, request.step, request.batches, request.unclipped, args)
        try:
            hash(kind)
        except TypeError as error:
            raise UnalikeError(f"The args of a loss or step must be tensors or plain values: {error}.") from error
        return kind


@dc.dataclass(frozen=True)
class Course:
    """All steps of a stack. On the device: where each client's samples begin, its steps, and how many clients take each
    step (`at_work`)."""

    data: Columns
    order: Order
    steps: np.ndarray
    offset: Tensor
    count: Tensor
    alive: Tensor


class Step:
    """`run` takes stacked vectors through all their steps. Clients are longest first: those at work are a prefix.

    How it drives the steps: "eager", "compiled", or "graph" (compiled, captured and replayed on CUDA). What cannot be
    captured or compiled falls back by one, and `notes` says why.
    """

    def __init__(self, task: Task, pure: FunctionalModule, kind: StepKind, compile: bool, width: int):
        self.task, self.pure, self.kind, self.width = task, pure, kind, width
        self.args = dict(kind.args)
        self.moved = None if kind.local.augment is None else augment.parse(kind.local.augment)
        self.notes: list[str] = []
        self.mode = "eager" if not compile else "graph" if task.device.type == "cuda" else "compiled"
        if compile:
            limit = getattr(torch._dynamo.config, "recompile_limit", 8)
            torch._dynamo.config.recompile_limit = max(64, limit)
            torch._dynamo.config.allow_rnn = True  # the LSTM of `fast` is one operation a layer
            with quiet():
                self.compiled = torch.compile(self._step, dynamic=False)
                self.compiled_at = torch.compile(self._step_at, dynamic=False)
                self.compiled_few = torch.compile(self._steps_at, dynamic=False)
        self.static: StaticBuffers | None = None

    # ---- one step of every client of a prefix, in place on `moving`

    def _step(
        self, moving: dict[str, Any], x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, live: Tensor | None
    ) -> Tensor:
        theta, buffers, lr, args = moving["theta"], moving["buffers"], moving["lr"], moving["args"]
        if live is not None:
            lr = torch.where(live, lr, 0.0)
        if self.kind.step is not None:
            new, loss = vmap(self._replaced)(theta, buffers, x, y, weight, keys, lr[:, 0], args)
            theta.copy_(new if live is None else torch.where(live, new, theta))
            return loss
        g, (loss, new_buffers) = vmap(grad(self._objective, has_aux=True))(
            theta, buffers, x[:, 0], y[:, 0], weight[:, 0], keys, args
        )
        pull, push = moving.get("pull", 0.0), moving.get("push", 0.0)
        update(self.kind.local, theta, g, moving["slots"], lr, pull, push, self.kind.unclipped, live)
        if self.task.buffer_layout.size:
            # a client that has finished keeps its own (blended: a `where` here trips the compiler on a CPU)
            buffers.add_(new_buffers - buffers if live is None else live.to(buffers.dtype) * (new_buffers - buffers))
        return loss

    def _step_at(
        self,
        moving: dict[str, Any],
        data: tuple[Tensor, Tensor],
        block: tuple[Tensor, ...],
        keys: Tensor,
        total: Tensor,
    ) -> None:
        """A step that finds its batch by itself: `at` is its number within a block and is counted up. One piece, so
        that reading the batch and adding up the loss cost a small model no kernels of their own."""
        (x, y), (rows, weight, alive, at) = data, block
        rows, weight = (t.index_select(0, at)[0, : len(keys)] for t in (rows, weight))
        live = torch.arange(len(keys), device=at.device)[:, None] < alive.index_select(0, at)
        loss = self._step(moving, x[rows], y[rows], weight, keys, live)
        total.add_(torch.where(live[:, 0], loss, 0.0))
        at.add_(1)

    def _steps_at(self, *static: Any) -> None:
        for _ in range(UNROLLED):
            self._step_at(*static)

    def _batch(self, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, **known: Any) -> Batch:
        def call(vector: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            vector = self.task.layout.repack(vector, self.pure.layout)
            out, features, _ = self.pure(vector, buffers, other, key, weight, want_features=True)
            return out, features  # type: ignore[return-value]

        return Batch(x, y, weight, self.task.losses, call, layout=self.task.layout, **known)

    def _objective(
        self, theta: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, args: dict
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        extra = self.kind.loss
        output, features, new_buffers = self.pure(theta, buffers, x, key, weight, want_features=extra is not None)
        data_loss = (self.task.losses(output, y) * weight).sum()
        loss = data_loss
        if extra is not None:
            vector = lambda: self.pure.layout.repack(theta, self.task.layout)  # noqa: E731
            batch = self._batch(buffers, x, y, weight, key, output=output, features=features, vector=vector)
            loss = data_loss + extra(batch, **args, **self.args)
        return loss, (data_loss.detach(), new_buffers.detach())

    def _replaced(
        self, theta: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, lr: Tensor, args: dict
    ) -> tuple[Tensor, Tensor]:
        assert self.kind.step is not None
        batches = [self._batch(buffers, x[b], y[b], weight[b], key) for b in range(self.kind.batches)]
        own, packed = self.task.layout, self.pure.layout
        new = self.kind.step(packed.repack(theta, own), batches, lr, **args, **self.args)
        return own.repack(new, packed), lr.new_full((), float("nan"))

    # ---- all steps

    def run(self, moving: dict[str, Any], course: Course) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """Return (vectors, buffers, optimizer state, mean loss) after all steps of each client."""
        total: Tensor | None = None
        while total is None and self.mode != "eager":
            try:
                total = self._replay(moving, course)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # nothing of `moving` has been touched yet
                if capturing(course.offset.device):  # the whole exchange could not be captured: no word on a step
                    raise
                what, self.mode = ("captured", "compiled") if self.mode == "graph" else ("compiled", "eager")
                self.notes.append(f"the steps were not {what}: {first_line(error)}")
                self.static = None
        if total is None:
            total = self._drive(moving, course)
        return moving["theta"], moving["buffers"], moving["slots"], total / course.count

    def _blocks(self, course: Course) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (first step, rows [K, c, b, B], weights), a block at a time."""
        b = self.kind.batches
        longest, size = int(course.steps.max()), course.order.block_steps()
        for first in range(0, longest, size):
            last = min(first + size, longest)
            index, real = course.order.block(first * b, last * b)
            rows = index + course.offset[:, None]
            weight = real.to(self.task.dtype) / real.sum(-1, keepdim=True).clamp(min=1)
            shape = (last - first, b, *rows.shape[1:])
            yield first, rows.reshape(shape).transpose(1, 2), weight.reshape(shape).transpose(1, 2)

    def _drive(self, moving: dict[str, Any], course: Course) -> Tensor:
        """Take all steps eagerly, one by one, of exactly the clients still at work."""
        c, alive, key, data = len(course.steps), at_work(course.steps), course.order.keys, course.data
        total = torch.zeros(c, dtype=moving["theta"].dtype, device=key.device)
        with torch.no_grad():
            for first, rows, weight in self._blocks(course):
                for k in range(rows.shape[0]):
                    w = int(alive[first + k])
                    part = moving if w == c else tree_map(lambda t, w=w: t[:w], moving)
                    at, keys = rows[k, :w], self.step_keys(key[:w], first, k)
                    x = self.samples(data, at, keys)
                    total[:w] += self._step(part, x, taken(data.y, at), weight[k, :w], keys, None)
        return total

    def step_keys(self, key: Tensor, first: Tensor | int, at: Tensor | int) -> Tensor:
        """Each client's key for what a step draws; the keys as they are where nothing is drawn."""
        drawn = self.pure.keyed or self.moved is not None
        return draws.fold(key, (first + at) * self.kind.batches) if drawn else key

    def samples(self, data: Columns, rows: Tensor, keys: Tensor) -> Tensor:
        """The samples of a step [c, b, B, ...], augmented where asked. Never compiled: Inductor on a CPU reads outside
        of the picture when a gather's index comes from a 64-bit hash (torch 2.13)."""
        x = taken(data.x, rows)
        if self.moved is None:
            return x
        each = [draws.fold(keys, augment.NUMBER - b) for b in range(self.kind.batches)]
        return self.moved(x, torch.stack(each, 1))

    def _replay(self, moving: dict[str, Any], course: Course) -> Tensor:
        """Take all steps compiled, from CUDA graphs where there are any; the first call of a kind makes them."""
        longest, width = min(int(course.steps.max()), course.order.block_steps()), course.order.width
        if self.static is None or not self.static.fits(course.data, moving, longest, width):
            self.static = StaticBuffers(self, course.data, moving, longest, width)
        c, static, alive = len(course.steps), self.static, at_work(course.steps)
        static.load(moving, course.order.keys)
        with torch.no_grad():
            for first, rows, weight in self._blocks(course):
                static.load_block(first, rows, weight, course.alive[first : first + len(rows)])
                for part, count in prefixes(alive[first : first + len(rows)], self.width):
                    static.steps(part, count)
        static.unload(moving, c)
        return static.total[:c].clone()
