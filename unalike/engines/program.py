"""The step of a stack of clients: built once, run eagerly, compiled, or replayed from CUDA graphs."""

from __future__ import annotations

import dataclasses as dc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from unalike import augment, random
from unalike.contract import Batch, Work
from unalike.data.columns import Columns
from unalike.errors import UnalikeError, first_line
from unalike.local import LocalTraining, Order, update
from unalike.model import Model, Pure

SEVERAL = (32, 16, 8, 4, 2, 1)  # steps in a captured graph; it is made when so many follow one another
UNROLLED, MANY = 4, 1000  # steps in one compiled call on a CPU, where so many follow one another


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
class Setting:
    """What a step is built from; equal settings share one compiled step."""

    local: LocalTraining
    loss: Callable[..., Tensor] | None
    step: Callable[..., Tensor] | None
    batches: int
    unclipped: tuple[str, ...]
    args: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, local: LocalTraining, work: Work, args: dict[str, Any]) -> Setting:
        setting = cls(
            _bare(local),
            work.loss,
            work.step,
            work.batches,
            work.unclipped,
            tuple(sorted(args.items())),
        )
        try:
            hash(setting)
        except TypeError as error:
            raise UnalikeError(f"The args of a loss or step must be tensors or plain values: {error}.") from error
        return setting


class Program:
    """`run` takes stacked vectors through all their steps. Clients are longest first: those at work are a prefix.

    How it drives the steps: "eager", "compiled", or "graph" (compiled, captured and replayed on CUDA). What cannot be
    captured or compiled falls back by one, and `notes` says why.
    """

    def __init__(self, model: Model, pure: Pure, setting: Setting, compile: bool, width: int):
        self.model, self.pure, self.setting, self.width = model, pure, setting, width
        self.args = dict(setting.args)
        self.moved = None if setting.local.augment is None else augment.parse(setting.local.augment)
        self.notes: list[str] = []
        self.mode = "eager" if not compile else "graph" if model.device.type == "cuda" else "compiled"
        if compile:
            limit = getattr(torch._dynamo.config, "recompile_limit", 8)
            torch._dynamo.config.recompile_limit = max(64, limit)
            torch._dynamo.config.allow_rnn = True  # the LSTM of `fast` is one operation a layer
            with quiet():
                self._compiled = torch.compile(self._step, dynamic=False)
                self._compiled_place = torch.compile(self._step_at, dynamic=False)
                self._compiled_few = torch.compile(self._steps_at, dynamic=False)
        self._places: Places | None = None

    # ---- one step of every client of a prefix, in place on `moving`

    def _step(
        self, moving: dict[str, Any], x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, live: Tensor | None
    ) -> Tensor:
        theta, buffers, lr, args = moving["theta"], moving["buffers"], moving["lr"], moving["args"]
        if live is not None:
            lr = torch.where(live, lr, 0.0)
        if self.setting.step is not None:
            new, loss = vmap(self._replaced)(theta, buffers, x, y, weight, keys, lr[:, 0], args)
            theta.copy_(new if live is None else torch.where(live, new, theta))
            return loss
        g, (loss, new_buffers) = vmap(grad(self._objective, has_aux=True))(
            theta, buffers, x[:, 0], y[:, 0], weight[:, 0], keys, args
        )
        update(
            self.setting.local,
            theta,
            g,
            moving["slots"],
            lr,
            moving.get("pull", 0.0),
            moving.get("push", 0.0),
            self.setting.unclipped,
            live,
        )
        if self.model.buffer_layout.size:
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

    def _steps_at(self, *places: Any) -> None:
        for _ in range(UNROLLED):
            self._step_at(*places)

    def _batch(self, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, **known: Any) -> Batch:
        def call(vector: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            vector = self.model.layout.repack(vector, self.pure.layout)
            out, features, _ = self.pure(vector, buffers, other, key, weight, want_features=True)
            return out, features  # type: ignore[return-value]

        return Batch(x, y, weight, self.model.losses, call, layout=self.model.layout, **known)

    def _objective(
        self, theta: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, args: dict
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        extra = self.setting.loss
        output, features, new_buffers = self.pure(theta, buffers, x, key, weight, want_features=extra is not None)
        data_loss = (self.model.losses(output, y) * weight).sum()
        loss = data_loss
        if extra is not None:
            vector = lambda: self.pure.layout.repack(theta, self.model.layout)  # noqa: E731
            batch = self._batch(buffers, x, y, weight, key, output=output, features=features, vector=vector)
            loss = data_loss + extra(batch, **args, **self.args)
        return loss, (data_loss.detach(), new_buffers.detach())

    def _replaced(
        self,
        theta: Tensor,
        buffers: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor,
        lr: Tensor,
        args: dict,
    ) -> tuple[Tensor, Tensor]:
        assert self.setting.step is not None
        batches = [self._batch(buffers, x[b], y[b], weight[b], key) for b in range(self.setting.batches)]
        own, packed = self.model.layout, self.pure.layout
        new = self.setting.step(packed.repack(theta, own), batches, lr, **args, **self.args)
        return own.repack(new, packed), lr.new_full((), float("nan"))

    # ---- all steps

    def run(
        self,
        data: Columns,
        moving: dict[str, Any],
        plan: Order,
        steps: np.ndarray,
        there: tuple[Tensor, Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """(vectors, buffers, optimizer state, mean loss) after `steps[k]` steps of each client. `there`, on the device:
        where each client's samples begin, its steps, and how many clients take each step (`at_work`)."""
        offset, count, alive = there
        offset, key = offset[:, None], plan.keys
        total: Tensor | None = None
        while total is None and self.mode != "eager":
            try:
                total = self._replay(data, moving, plan, offset, steps, key, alive)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # nothing of `moving` has been touched yet
                if capturing(key.device):  # the whole exchange could not be captured: that says nothing of a step
                    raise
                what, self.mode = ("captured", "compiled") if self.mode == "graph" else ("compiled", "eager")
                self.notes.append(f"the steps were not {what}: {first_line(error)}")
                self._places = None
        if total is None:
            total = self._drive(data, moving, plan, offset, steps, key)
        return moving["theta"], moving["buffers"], moving["slots"], total / count

    def _blocks(self, plan: Order, steps: np.ndarray, offset: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(first step, rows [K, c, b, B], weights) a block at a time."""
        b = self.setting.batches
        longest, size = int(steps.max()), plan.block_steps()
        for first in range(0, longest, size):
            last = min(first + size, longest)
            index, real = plan.block(first * b, last * b)
            rows = index + offset
            weight = real.to(self.model.dtype) / real.sum(-1, keepdim=True).clamp(min=1)
            shape = (last - first, b, *rows.shape[1:])
            yield first, rows.reshape(shape).transpose(1, 2), weight.reshape(shape).transpose(1, 2)

    def _drive(
        self, data: Columns, moving: dict[str, Any], plan: Order, offset: Tensor, steps: np.ndarray, key: Tensor
    ) -> Tensor:
        """Eagerly, step by step: exactly the clients still at work."""
        c, alive = len(steps), at_work(steps)
        total = torch.zeros(c, dtype=moving["theta"].dtype, device=key.device)
        with torch.no_grad():
            for first, rows, weight in self._blocks(plan, steps, offset):
                for k in range(rows.shape[0]):
                    w = int(alive[first + k])
                    part = moving if w == c else tree_map(lambda t, w=w: t[:w], moving)
                    at, keys = rows[k, :w], self._step_keys(key[:w], first, k)
                    x = self._samples(data, at, keys)
                    total[:w] += self._step(part, x, taken(data.y, at), weight[k, :w], keys, None)
        return total

    def _step_keys(self, key: Tensor, first: Tensor | int, at: Tensor | int) -> Tensor:
        """Each client's key for what a step draws; the keys as they are where nothing is drawn."""
        drawn = self.pure.keyed or self.moved is not None
        return random.fold(key, (first + at) * self.setting.batches) if drawn else key

    def _samples(self, data: Columns, rows: Tensor, keys: Tensor) -> Tensor:
        """The samples of a step [c, b, B, ...], augmented where asked. Never compiled: Inductor on a CPU reads outside
        of the picture when a gather's index comes from a 64-bit hash (torch 2.13)."""
        x = taken(data.x, rows)
        if self.moved is None:
            return x
        each = [random.fold(keys, augment.NUMBER - b) for b in range(self.setting.batches)]
        return self.moved(x, torch.stack(each, 1))

    def _replay(
        self,
        data: Columns,
        moving: dict[str, Any],
        plan: Order,
        offset: Tensor,
        steps: np.ndarray,
        key: Tensor,
        alive_there: Tensor,
    ) -> Tensor:
        """All steps compiled, from CUDA graphs where there are any; the first call of a kind makes them."""
        longest = min(int(steps.max()), plan.block_steps())
        if self._places is None or not self._places.fits(data, moving, longest, plan.width):
            self._places = Places(self, data, moving, longest, plan.width)
        c, places, alive = len(steps), self._places, at_work(steps)
        places.load(moving, key)
        with torch.no_grad():
            for first, rows, weight in self._blocks(plan, steps, offset):
                places.load_block(first, rows, weight, alive_there[first : first + len(rows)])
                for width, count in prefixes(alive[first : first + len(rows)], self.width):
                    places.steps(width, count)
        places.unload(moving, c)
        return places.total[:c].clone()


class Places:
    """Fixed places in memory for everything a compiled step reads and writes: cohorts and blocks that vary in size meet
    the same shapes, and nothing is compiled twice. On CUDA, a captured graph per width of the stack.

    A step finds its own batch: it reads its number from the device and counts it up, so that a round is a series of
    replays without a copy or a wait between them.
    """

    def __init__(self, program: Program, data: Columns, moving: dict[str, Any], steps: int, batch: int):
        self.program, self.data = program, data
        c, b, device = program.width, program.setting.batches, moving["theta"].device
        self.capacity, self.batch = 1 << max(0, steps - 1).bit_length(), batch
        self.moving = tree_map(lambda t: t.new_zeros(c, *t.shape[1:]), moving)
        leaves, self.spec = tree_flatten(moving)
        self.shapes = [t.shape[1:] for t in leaves]
        self.key = torch.zeros(c, dtype=torch.int64, device=device)
        self.rows = torch.zeros(self.capacity, c, b, batch, dtype=torch.int64, device=device)
        self.weight = torch.zeros(self.capacity, c, b, batch, dtype=program.model.dtype, device=device)
        self.alive = torch.zeros(self.capacity, dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)  # the step within the block
        self.first = torch.zeros(1, dtype=torch.int64, device=device)  # the block's first step
        self.total = torch.zeros(c, dtype=program.model.dtype, device=device)
        self._parts: dict[int, tuple[Any, ...]] = {}
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if program.mode == "graph" else None
        if self._pool is None:  # so that the next data set of a queue, or a longer round, needs no new step
            for t in (data.x, data.y, self.rows, self.weight, self.alive):
                torch._dynamo.maybe_mark_dynamic(t, 0)

    def fits(self, data: Columns, moving: dict[str, Any], steps: int, batch: int) -> bool:
        same = data is self.data and batch == self.batch and steps <= self.capacity
        leaves, spec = tree_flatten(moving)
        return same and spec == self.spec and [t.shape[1:] for t in leaves] == self.shapes

    def load(self, moving: dict[str, Any], key: Tensor) -> None:
        for mine, given in zip(tree_leaves(self.moving), tree_leaves(moving), strict=True):
            mine[: len(given)].copy_(given)
        self.key[: len(key)].copy_(key)
        self.total.zero_()

    def load_block(self, first: int, rows: Tensor, weight: Tensor, alive: Tensor) -> None:
        k, c = rows.shape[:2]
        self.rows[:k, :c].copy_(rows)
        self.weight[:k, :c].copy_(weight)
        self.weight[:k, c:].zero_()
        self.alive[:k].copy_(alive)
        self.at.zero_()
        self.first.fill_(first)

    def unload(self, moving: dict[str, Any], c: int) -> None:
        for name in ("theta", "buffers", "slots"):
            tree_map(lambda given, mine: given.copy_(mine[:c]), moving[name], self.moving[name])

    def _part(self, width: int) -> tuple[Any, ...]:
        """The first `width` rows of all places; kept, because slicing them costs a tiny model as much as its step."""
        if width not in self._parts:
            self._parts[width] = tree_map(lambda t: t[:width], (self.moving, self.key, self.total))
        return self._parts[width]

    def _body(self, width: int, several: int = 1) -> None:
        """One step of the first `width` clients, wherever the device's own counter stands; or several."""
        program, (moving, key, total) = self.program, self._part(width)
        keys = program._step_keys(key, self.first, self.at)
        block = (self.rows, self.weight, self.alive, self.at)
        if program.moved is None:
            step = program._compiled_place if several == 1 else program._compiled_few
            step(moving, (self.data.x, self.data.y), block, keys, total)
            return
        rows, weight = (t.index_select(0, self.at)[0, :width] for t in (self.rows, self.weight))
        live = torch.arange(width, device=rows.device)[:, None] < self.alive.index_select(0, self.at)
        x, y = program._samples(self.data, rows, keys), taken(self.data.y, rows)
        loss = program._compiled(moving, x, y, weight, keys, live)
        total += torch.where(live[:, 0], loss, 0.0)
        self.at += 1

    def steps(self, width: int, count: int) -> None:
        """So many steps: on CUDA several to a replay, which costs a small model less than starting each."""
        if self._pool is None:
            plain = self.program.moved is None and not self.program.pure.keyed
            with quiet():
                for several in (UNROLLED, 1) if plain and count >= MANY else (1,):
                    for _ in range(count // several):
                        self._body(width, several)
                    count %= several
            return
        if capturing(self.at.device):  # of a whole exchange: a graph cannot be replayed into another
            with quiet():
                for _ in range(count):
                    self._body(width)
            return
        for several in SEVERAL:
            while count >= several:
                if (width, several) not in self._graphs:
                    self._capture(width, several)
                self._graphs[width, several].replay()
                count -= several

    def _capture(self, width: int, several: int) -> None:
        """Warm up (this is where compiling happens) and capture, leaving every value as it was."""
        places = (self.moving, self.at, self.total)
        before = tree_map(torch.clone, places)

        def warm() -> None:
            for _ in range(2):
                self.at.zero_()
                self._body(width)

        def work() -> None:
            for _ in range(several):
                self._body(width)

        graph, _ = graphed(work, self.at.device, warm, self._pool)
        tree_map(lambda place, value: place.copy_(value), places, before)
        self._graphs[width, several] = graph


def taken(values: Tensor, rows: Tensor) -> Tensor:
    """values[rows]: on a CPU this way copies whole samples, and not number by number."""
    return values.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *values.shape[1:])


def capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def graphed(
    work: Callable[[], Any], device: torch.device, warm: Callable[[], Any] | None = None, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """(a CUDA graph of this work, where its results lie), warmed up first: nothing is compiled within a graph."""
    ours, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(ours)
    with torch.cuda.stream(side), quiet():
        (warm or work)()
    ours.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, stream=side), quiet():
            out = work()
    finally:
        torch.cuda.set_stream(ours)  # a capture that fails leaves its own behind
    return graph, out


@contextmanager
def quiet() -> Iterator[None]:
    """The compiler's advice about settings that `precision` has already decided is not the user's business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def at_work(steps: np.ndarray) -> np.ndarray:
    """How many clients (a prefix, longest first) take each step."""
    return (steps[None, :] > np.arange(int(steps.max()))[:, None]).sum(1)


def prefixes(alive: np.ndarray, c: int) -> Iterator[tuple[int, int]]:
    """Of steps that fewer and fewer clients take: (width, how many steps), where a width is the smallest of a few that
    holds everybody at work. Each width is compiled once."""
    widths = sorted({c, -(-c // 2), -(-c // 4)}, reverse=True)
    for width, narrower in zip(widths, [*widths[1:], 0], strict=True):
        if count := int(((narrower < alive) & (alive <= width)).sum()):
            yield width, count
