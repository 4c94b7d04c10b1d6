"""The step of a stack of clients: built once, run eagerly, compiled, or replayed from CUDA graphs."""

from __future__ import annotations

import dataclasses as dc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from unalike import draws
from unalike.client.calls import ModelCalls
from unalike.client.plan import part_mask, stepped
from unalike.client.sample_privacy import private_gradient
from unalike.client.samples import Chosen, Samples, row_values
from unalike.contract import Batch, Train, plain_args
from unalike.contract.requests import DataName
from unalike.data.pixels import read, rows_of
from unalike.engines.batched.beside import Compilation
from unalike.engines.batched.graphs import UNROLLED, StaticBuffers, at_work, prefixes, widths
from unalike.engines.batched.recorded import Recorder
from unalike.errors import UnalikeError, first_line
from unalike.nn.capture import capturing, quiet
from unalike.nn.keyed import show_compiler
from unalike.nn.task import FunctionalModule, Task, stacked_gradient
from unalike.training import LocalTraining, Order, augment, bare, update


@dc.dataclass(frozen=True)
class StepKind:
    """What a step is built from; equal settings share one compiled step.

    laid: whether the vectors are the model's, in the layout of its stack; data: the samples' name; samples: whose they
    are, "own", "public", "both", or "same" (public, and every client reads the same rows in the same order); labelled:
    whether all have labels; tensors: names of all arguments and rows.
    """

    local: LocalTraining
    loss: Callable[..., Tensor] | None
    step: Callable[..., Any] | None
    batches: int
    unclipped: tuple[str, ...]
    args: tuple[tuple[str, Any], ...]
    own: float = 1.0
    net: str = "model"
    part: str | None = None
    laid: bool = True
    data: DataName = "train"
    samples: str = "own"
    labelled: bool = True
    tensors: tuple[tuple[str, ...], ...] = ((), ())

    @classmethod
    def of(
        cls, local: LocalTraining, request: Train, laid: bool = True, samples: str = "own", labelled: bool = True
    ) -> StepKind:
        plain = plain_args({name: value for name, value in request.args.items() if not isinstance(value, Same)})
        args, tensors = tuple(sorted(plain.items())), (tuple(sorted(request.args)), tuple(sorted(request.rows)))
        kind = cls(
            bare(local), request.loss, request.step, request.batches, request.unclipped, args,
            request.own, request.net, request.part, laid, request.data, samples, labelled, tensors,
        )  # fmt: skip
        try:
            hash(kind)
        except TypeError as error:
            raise UnalikeError(f"The args of a loss or step must be tensors or plain values: {error}.") from error
        return kind


@dc.dataclass(frozen=True, eq=False)
class Same:
    """A tensor that is the same for all clients: one from the message itself."""

    value: Tensor


Common = dict[str, dict[str, Tensor]]  # tensors that are the same for all clients: "args", and "rows" of samples


@dc.dataclass(frozen=True)
class Course:
    """All steps of a stack. On the device: where each client's own samples begin, its number of steps, how many clients
    take each step (`at_work`), how many samples are its own, and which rows of the public set it reads."""

    chosen: Chosen
    order: Order
    steps: np.ndarray
    offset: Tensor
    count: Tensor
    alive: Tensor
    own: Tensor
    only: Tensor | None
    common: Common

    @property
    def data(self) -> Samples:
        return self.chosen.samples


class Step:
    """`run` takes stacked vectors through all their steps. Clients are sorted longest first, so those still at work are
    a prefix.

    Steps are run "eager", "compiled", or as a "graph" (compiled, captured and replayed on CUDA). If capturing or
    compiling fails, the next simpler way is used, and `notes` says why.
    """

    def __init__(
        self,
        task: Task,
        pure: FunctionalModule,
        kind: StepKind,
        compile: bool,
        width: int,
        early: bool = False,
        pool: Callable[[], Any] = torch.cuda.graph_pool_handle,
    ):
        """pool: gives the memory that graphs share."""
        self.task, self.pure, self.kind, self.width, self.pool = task, pure, kind, width, pool
        self.early = early
        self.compiling_seconds = 0.0  # that rounds have waited for the compiler
        self.beside: Compilation | None = None
        self.args = dict(kind.args)
        self.moved = None if kind.local.augment is None else augment.parse(kind.local.augment)
        self.notes: list[str] = []
        self.mode = "eager" if not compile else "graph" if task.device.type == "cuda" else "compiled"
        self.recorder = Recorder() if self.mode == "compiled" and not early else None
        if compile:
            with quiet():
                if not early:
                    show_compiler()
                    if "unalike.nn.fast" in sys.modules:
                        sys.modules["unalike.nn.fast"].tell_compiler()
                made = self._step, self._step_at, self._steps_at
                how: dict[str, Any] = {} if self.recorder is None else {"backend": self.recorder}
                parts: list[Any] = [part if early else torch.compile(part, dynamic=False, **how) for part in made]
                self.compiled, self.compiled_at, self.compiled_few = parts
        self.static: StaticBuffers | None = None
        self.mask = part_mask(task, kind.net, kind.part, pure.layout)
        self.asked: frozenset[str] | None = frozenset() if kind.loss is None and kind.step is None else None
        if kind.local.sample_clip is not None:
            self.asked = None  # it draws
        self.trying: set[str] | None = None

    # ---- one step of every client of a prefix, in place on `moving`

    def _step(
        self,
        moving: dict[str, Any],
        common: Common,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        keys: Tensor,
        live: Tensor | None,
        index: Tensor | None = None,
        drawn: Tensor | None = None,
    ) -> Tensor:
        """Make one step. x, y: [c, b, B, ...], without the clients if all read the same; index: the samples' numbers
        within their client's data, if they are needed; drawn: the keys of what batches draw, likewise."""
        theta, buffers, lr, args = moving["theta"], moving["buffers"], moving["lr"], moving["args"]
        if live is not None:
            lr = torch.where(live, lr, 0.0)
        known = self._known(moving, common, index, drawn)
        # one picture for all clients: the first layer of a stack is then one product, not one per client
        each = None if self.kind.samples == "same" else 0
        dims = (0, 0, each, each, 0, 0, 0, 0)
        if self.kind.step is not None:
            state, given = moving["state"], common["args"]
            new, after, loss = vmap(lambda *one: self._replaced(given, *one), in_dims=(*dims, 0, 0))(
                theta, buffers, x, y, weight, keys, args, known, lr[:, 0], state
            )
            kept = lambda after, before: after if live is None else torch.where(_like(live, after), after, before)  # noqa: E731
            theta.copy_(kept(new, theta))
            for name, value in after.items():
                state[name].copy_(kept(value, state[name]))
            return loss
        first_x, first_y = (t[0] if each is None else t[:, 0] for t in (x, y))
        if self.kind.local.sample_clip is not None:
            g = vmap(self._private, in_dims=(0, 0, each, each, 0, 0, 0))(
                theta, buffers, first_x, first_y, weight[:, 0], keys, known
            )
            pull, push = moving.get("pull", 0.0), moving.get("push", 0.0)
            update(self.kind.local, theta, g, moving["slots"], lr, pull, push, self.kind.unclipped, live, self.mask)
            return lr[:, 0] * torch.nan  # the loss would tell of samples
        objective = self._objective if self.kind.net == "model" else self._net_objective
        g, (loss, new_buffers) = stacked_gradient(lambda *one: objective(common["args"], *one), dims)(
            theta, buffers, first_x, first_y, weight[:, 0], keys, args, known
        )
        pull, push = moving.get("pull", 0.0), moving.get("push", 0.0)
        update(self.kind.local, theta, g, moving["slots"], lr, pull, push, self.kind.unclipped, live, self.mask)
        if self.kind.net != "model":  # what it gives back are the network's own statistics
            buffers = theta[:, self.task.nets[self.kind.net].weights :]
        if new_buffers.shape[-1]:
            # a client that has finished keeps its own (blended: a `where` here trips the compiler on a CPU)
            buffers.add_(new_buffers - buffers if live is None else live.to(buffers.dtype) * (new_buffers - buffers))
        return loss

    def _known(
        self, moving: dict[str, Any], common: Common, index: Tensor | None, drawn: Tensor | None
    ) -> dict[str, Any]:
        """Return what batches have beside x and y, [c, b, B, ...] each; empty if nothing of it is needed."""
        known: dict[str, Any] = {}
        if index is not None:
            own = moving["own"] if self.kind.samples == "both" else None
            given = [(value, name, False) for name, value in moving["rows"].items()]
            given += [(value, name, True) for name, value in common["rows"].items()]
            known["rows"] = {name: row_values(value, index, own, shared) for value, name, shared in given}
            known["index"] = index
            if own is not None:
                known["source"] = (index >= own[:, None, None]).to(torch.int64)
        if drawn is not None:
            known["draws"] = drawn
        return known

    def _step_at(
        self,
        moving: dict[str, Any],
        common: Common,
        data: tuple[tuple[Tensor, ...], Tensor],
        block: tuple[Tensor, ...],
        keys: Tensor,
        drawn: Tensor | None,
        total: Tensor,
    ) -> None:
        """Make a step that finds its batch by itself: `at` is its number within a block and is incremented. It is one
        piece, so that reading the batch and adding the loss cost a small model no kernels of their own."""
        (x, y), (alive, at, *found) = data, block
        rows, weight, *numbers = (t.index_select(0, at)[0, : len(keys)] for t in found)
        index = numbers[0] if numbers else None
        live = torch.arange(len(keys), device=at.device)[:, None] < alive.index_select(0, at)
        rows = self.read(rows)
        loss = self._step(moving, common, read(x, rows, self.task.dtype), y[rows], weight, keys, live, index, drawn)
        total.add_(torch.where(live[:, 0], loss, 0.0))
        at.add_(1)

    def _steps_at(self, *static: Any) -> None:
        for _ in range(UNROLLED):
            self._step_at(*static)

    def _batch(
        self,
        buffers: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor,
        known: dict[str, Any],
        which: int = 0,
        train: bool = True,
        at: dict[str, Any] | None = None,
    ) -> tuple[Batch, ModelCalls]:
        """Return a client's batch, number `which` of its step, and the calls that it makes; at: values known at the
        current vector."""
        drawn = self._asking("draws", known.get("draws"))
        calls = ModelCalls(
            self.task, lambda: self.pure, self.task.nets, buffers, weight, key, train, drawn, self.kind.net,
            self.kind.labelled,
        )  # fmt: skip
        index = self._asking("index", known["index"][which] if "index" in known else None)
        source = known["source"][which] if "source" in known else None
        if self.kind.samples in ("public", "same"):
            source = torch.ones(len(y), dtype=torch.int64, device=y.device)
        rows = {name: value[which] for name, value in known.get("rows", {}).items()}
        return Batch(x, y, weight, calls, index=index, source=source, rows=rows, **(at or {})), calls

    def _asking(self, what: str, value: Tensor | None) -> Callable[[], Tensor] | None:
        """Return a function that gives a batch this value when it asks for it; while the step is being tried, the
        request is recorded."""
        if value is None:
            return None

        def give() -> Tensor:
            if self.trying is not None:
                self.trying.add(what)
            return value

        return give

    def _objective(
        self,
        common: dict[str, Tensor],
        theta: Tensor,
        buffers: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor,
        args: dict[str, Tensor],
        known: dict[str, Any],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        extra, own = self.kind.loss, self.kind.own
        at: dict[str, Any] = {"vector": lambda: self.pure.layout.repack(theta, self.task.layout)}
        after = [buffers]

        def forward() -> tuple[Tensor, Tensor | None]:
            output, features, new = self.pure(theta, buffers, x, key, weight, want_features=extra is not None)
            after.append(new)
            return output, features

        if own:
            output, features = forward()
            loss = data_loss = (self.task.losses(output, y) * weight).sum()
            loss = loss if own == 1 else own * loss
            at |= {"output": output, "features": features}
        else:  # the model is called where the method's own loss asks for its output
            loss = data_loss = theta.new_zeros(())
            at["compute"] = forward
        if extra is not None:
            batch, _ = self._batch(buffers, x, y, weight, key, known, at=at)
            loss = loss + extra(batch, **args, **common, **self.args)
        return loss, ((data_loss if own else loss).detach(), after[-1].detach())

    def _private(
        self, theta: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, known: dict[str, Any]
    ) -> Tensor:
        """Return the gradient of one client's step that hides each sample (DP-SGD)."""
        own, packed = self.task.layout, self.pure.layout
        batch, _ = self._batch(buffers, x, y, weight, key, known)
        return own.repack(private_gradient(batch, packed.repack(theta, own), self.kind.local), packed)

    def _net_objective(
        self,
        common: dict[str, Tensor],
        theta: Tensor,
        buffers: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor,
        args: dict[str, Tensor],
        known: dict[str, Any],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the method's loss alone, for one of its further networks, with the statistics of that network."""
        assert self.kind.loss is not None
        batch, calls = self._batch(buffers, x, y, weight, key, known, train=False, at={"vector": lambda: theta})
        loss = self.kind.loss(batch, **args, **common, **self.args)
        weights = self.task.nets[self.kind.net].weights
        statistics = theta[weights:] if calls.statistics is None else calls.statistics
        return loss, (loss.detach(), statistics.detach())

    def _replaced(
        self,
        common: dict[str, Tensor],
        theta: Tensor,
        buffers: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor,
        args: dict[str, Tensor],
        known: dict[str, Any],
        lr: Tensor,
        state: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        assert self.kind.step is not None
        some = range(self.kind.batches)
        batches = [self._batch(buffers, x[b], y[b], weight[b], key, known, b)[0] for b in some]
        own, packed = self.task.layout, self.pure.layout
        vector = packed.repack(theta, own) if self.kind.laid else theta
        new, after = stepped(vector, state, self.kind.step(vector, batches, lr, **state, **args, **common, **self.args))
        return own.repack(new, packed) if self.kind.laid else new, after, lr.new_full((), float("nan"))

    def _try(self, moving: dict[str, Any], course: Course) -> None:
        """Find out, on one client, whether the loss or the step draws random numbers or asks for samples' numbers: what
        is not asked for is not computed."""
        self.trying, self.asked = set(), frozenset(("draws", "index"))
        part = tree_map(lambda t: t[:1].clone(), moving)
        with torch.no_grad():
            _, rows, weight, index = next(self._blocks(course))
            at, keys = self.read(rows[0, :1]), self.step_keys(course.order.keys[:1], 0, 0)
            x, y = self.samples(course.data, at, keys), rows_of(course.data.y, at)
            self._step(part, course.common, x, y, weight[0, :1], keys, None, index[0, :1], part["draws"])
        found, self.trying = set(self.trying), None
        if self.kind.samples == "both" or self.kind.tensors[1]:
            found.add("index")
        self.asked = frozenset(found)
        if "draws" in found and self.mode == "compiled":
            # compiled on a CPU, a draw that becomes an index reads outside of its tensor (torch 2.13)
            self.mode = "eager"
            self.notes.append("the steps were not compiled: they draw random numbers")

    # ---- all steps

    def run(self, moving: dict[str, Any], course: Course) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """Return (vectors, buffers, optimizer state, mean loss) after all steps of each client."""
        total: Tensor | None = None
        if self.asked is None:
            self._try(moving, course)
        while total is None and self.mode != "eager":
            try:
                total = self._replay(moving, course)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # nothing of `moving` has been touched yet
                if capturing(course.offset.device):  # the whole exchange could not be captured: no word on a step
                    raise
                what, self.mode = ("captured", "compiled") if self.mode == "graph" else ("compiled", "eager")
                if self.early:
                    what, self.mode = "captured", "eager"
                self.notes.append(f"the steps were not {what}: {first_line(error)}")
                self.static = None
        if total is None:
            total = self._drive(moving, course)
        return moving["theta"], moving["buffers"], moving["slots"], total / course.count

    def again(self, pure: FunctionalModule, width: int, early: bool = False) -> Step:
        """Return the same step with this copy of the model and this width, to be compiled unless it is an early one
        too."""
        step = Step(self.task, pure, self.kind, True, width, early, self.pool)
        step.asked = self.asked
        return step

    def warm(self, moving: dict[str, Any], course: Course) -> None:
        """Compile for cohorts like this one: for every width, where clients take different numbers of steps."""
        self.static = self._static(moving, course)
        ragged = int(course.steps.min()) < int(course.steps.max())
        for width in widths(self.width) if ragged else [self.width]:
            self.static.warm(width)

    def tried(self, moving: dict[str, Any], course: Course) -> Tensor:
        """Return what the first step adds to the vectors; nothing is changed."""
        self.static = self._static(moving, course)
        self.static.load(moving, course.common, course.order.keys)
        first, rows, weight, index = next(self._blocks(course))
        numbers = (index,) if self.numbered else ()
        self.static.load_block(first, (rows, weight, *numbers), course.alive[first : first + len(rows)])
        return self.static.tried(len(course.steps))

    @property
    def numbered(self) -> bool:
        """Return whether steps ask for the numbers of samples."""
        return self.asked is not None and "index" in self.asked

    def _blocks(self, course: Course) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield (first step, rows [K, c, b, B], weights, numbers within the clients' data), one block at a time."""
        b = self.kind.batches
        longest, size = int(course.steps.max()), course.order.block_steps()
        for first in range(0, longest, size):
            last = min(first + size, longest)
            index, real = course.order.block(first * b, last * b)
            rows = course.chosen.find(index, course.offset, course.own, course.only)
            weight = real.to(self.task.dtype) / real.sum(-1, keepdim=True).clamp(min=1)
            shape = (last - first, b, *rows.shape[1:])
            rows, weight, index = (t.reshape(shape).transpose(1, 2) for t in (rows, weight, index))
            yield first, rows, weight, index

    def _drive(self, moving: dict[str, Any], course: Course) -> Tensor:
        """Make all steps eagerly, one by one, for exactly the clients still at work."""
        c, alive, key, data = len(course.steps), at_work(course.steps), course.order.keys, course.data
        total = torch.zeros(c, dtype=moving["theta"].dtype, device=key.device)
        with torch.no_grad():
            for first, rows, weight, index in self._blocks(course):
                for k in range(rows.shape[0]):
                    w = int(alive[first + k])
                    part = moving if w == c else tree_map(lambda t, w=w: t[:w], moving)
                    at, keys = self.read(rows[k, :w]), self.step_keys(key[:w], first, k)
                    x = self.samples(data, at, keys)
                    asked = index[k, :w] if self.numbered else None, self.drawn_keys(part, first, k)
                    total[:w] += self._step(
                        part, course.common, x, rows_of(data.y, at), weight[k, :w], keys, None, *asked
                    )
        return total

    def drawn_keys(self, moving: dict[str, Any], first: Tensor | int, at: Tensor | int) -> Tensor | None:
        """Return each client's key for the draws of its batch in this step; None if nothing is drawn."""
        drawn = self.asked is not None and "draws" in self.asked
        return draws.fold(moving["draws"], first + at) if drawn else None

    def step_keys(self, key: Tensor, first: Tensor | int, at: Tensor | int) -> Tensor:
        """Return each client's key for the draws of a step; the keys unchanged if nothing is drawn."""
        drawn = self.pure.keyed or self.moved is not None
        return draws.fold(key, (first + at) * self.kind.batches) if drawn else key

    def read(self, rows: Tensor) -> Tensor:
        """Return the rows of samples [c, b, B] to read; [b, B] if all clients read the same."""
        return rows[0] if self.kind.samples == "same" else rows

    def samples(self, data: Samples, rows: Tensor, keys: Tensor) -> Tensor:
        """Return the samples of a step, one per row read, augmented if asked for. Never compiled: Inductor on a CPU
        reads outside of the picture when a gather's index comes from a 64-bit hash (torch 2.13)."""
        x = rows_of(data.x, rows)
        if self.moved is None:
            return x
        each = [draws.fold(keys, augment.NUMBER - b) for b in range(self.kind.batches)]
        return self.moved(x, torch.stack(each, 1))

    def _static(self, moving: dict[str, Any], course: Course) -> StaticBuffers:
        """Return static buffers for this cohort: those that are there, where it fits them."""
        longest, width = min(int(course.steps.max()), course.order.block_steps()), course.order.width
        if self.static is not None and self.static.fits(course, moving, longest, width):
            return self.static
        return StaticBuffers(self, course, moving, longest, width)

    def _replay(self, moving: dict[str, Any], course: Course) -> Tensor:
        """Make all steps compiled, from CUDA graphs if there are any; the first call of a kind makes them."""
        self.static = self._static(moving, course)
        c, static, alive = len(course.steps), self.static, at_work(course.steps)
        static.load(moving, course.common, course.order.keys)
        with torch.no_grad():
            for first, rows, weight, index in self._blocks(course):
                numbers = (index,) if self.numbered else ()
                static.load_block(first, (rows, weight, *numbers), course.alive[first : first + len(rows)])
                for part, count in prefixes(alive[first : first + len(rows)], self.width):
                    static.steps(part, count)
        static.unload(moving, c)
        return static.total[:c].clone()


def _like(live: Tensor, value: Tensor) -> Tensor:
    """Return `live` [c, 1] with as many dimensions as the value has."""
    return live.reshape(len(live), *([1] * (value.dim() - 1)))
