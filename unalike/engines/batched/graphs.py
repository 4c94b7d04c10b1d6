"""Static buffers of compiled steps, and CUDA graphs over them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from unalike.data.pixels import held_by, rows_of
from unalike.nn.capture import capturing, graphed, quiet

if TYPE_CHECKING:
    from unalike.engines.batched.step import Common, Course, Step

SEVERAL = (32, 16, 8, 4, 2, 1)  # steps in a captured graph; it is made when so many follow one another
UNROLLED, MANY = 4, 1000  # steps in one compiled call on a CPU, where so many follow one another


class StaticBuffers:
    """Fixed buffers for everything a compiled step reads and writes: cohorts and blocks of different sizes use the same
    shapes, so that nothing is compiled twice. On CUDA, one captured graph per width of the stack.

    A step finds its own batch: it reads its number from the device and increments it, so that a round is a series of
    replays without a copy or a wait between them.
    """

    def __init__(self, step: Step, course: Course, moving: dict[str, Any], steps: int, batch: int):
        self.step, self.data = step, course.data
        data = self.data
        self._data = held_by(data.x), data.y
        c, b, device = step.width, step.kind.batches, moving["theta"].device
        self.capacity, self.batch = 1 << max(0, steps - 1).bit_length(), batch
        self.moving = tree_map(lambda t: t.new_zeros(c, *t.shape[1:]), moving)
        self.common = tree_map(torch.clone, course.common)
        self.shapes = _shapes(moving, course.common)
        self.key = torch.zeros(c, dtype=torch.int64, device=device)
        kinds = (torch.int64, step.task.dtype, *([torch.int64] if step.numbered else []))
        # rows, weights, and where they are asked for, numbers of the samples
        self.block = tuple(torch.zeros(self.capacity, c, b, batch, dtype=kind, device=device) for kind in kinds)
        self.alive = torch.zeros(self.capacity, dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)  # the step within the block
        self.first = torch.zeros(1, dtype=torch.int64, device=device)  # the block's first step
        self.total = torch.zeros(c, dtype=step.task.dtype, device=device)
        self._parts: dict[int, tuple[Any, ...]] = {}
        # on a CPU: what makes a step, by width and number of steps in a call
        self._again: dict[tuple[int, int], Callable[[], Any]] = {}
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        # one memory for the graphs of all steps: they run one after another, and leave their results in fixed buffers
        self._pool = step.pool() if step.mode == "graph" else None
        if self._pool is None:  # so that the next data set of a queue, or a longer round, needs no new step
            for t in (self._data[0][0], data.y, *self.block, self.alive):
                torch._dynamo.maybe_mark_dynamic(t, 0)

    def fits(self, course: Course, moving: dict[str, Any], steps: int, batch: int) -> bool:
        same = course.data is self.data and batch == self.batch and steps <= self.capacity
        return same and _shapes(moving, course.common) == self.shapes

    def load(self, moving: dict[str, Any], common: Common, key: Tensor) -> None:
        for mine, given in zip(tree_leaves(self.moving), tree_leaves(moving), strict=True):
            mine[: len(given)].copy_(given)
        tree_map(lambda mine, given: mine.copy_(given), self.common, common)
        self.key[: len(key)].copy_(key)
        self.total.zero_()

    def load_block(self, first: int, block: tuple[Tensor, ...], alive: Tensor) -> None:
        k, c = block[0].shape[:2]
        for mine, given in zip(self.block, block, strict=True):
            mine[:k, :c].copy_(given)
        self.block[1][:k, c:].zero_()
        self.alive[:k].copy_(alive)
        self.at.zero_()
        self.first.fill_(first)

    def unload(self, moving: dict[str, Any], c: int) -> None:
        for name in ("theta", "buffers", "slots", "state"):
            tree_map(lambda given, mine: given.copy_(mine[:c]), moving[name], self.moving[name])

    def _part(self, width: int) -> tuple[Any, ...]:
        """Return the first `width` rows of all static buffers; cached, because slicing them costs a tiny model as much
        as its step."""
        if width not in self._parts:
            self._parts[width] = tree_map(lambda t: t[:width], (self.moving, self.key, self.total))
        return self._parts[width]

    def _body(self, width: int, several: int = 1) -> None:
        """Make one step, or several, of the first `width` clients, at the device's own step counter."""
        step, (moving, key, total) = self.step, self._part(width)
        keys, drawn = step.step_keys(key, self.first, self.at), step.drawn_keys(moving, self.first, self.at)
        if step.moved is None:
            run = step.compiled_at if several == 1 else step.compiled_few
            block = (self.alive, self.at, *self.block)
            run(moving, self.common, self._data, block, keys, drawn, total)
            return
        rows, weight, *numbers = (t.index_select(0, self.at)[0, :width] for t in self.block)
        live = torch.arange(width, device=rows.device)[:, None] < self.alive.index_select(0, self.at)
        x, y = step.samples(self.data, rows, keys), rows_of(self.data.y, rows)
        index = numbers[0] if numbers else None
        loss = step.compiled(moving, self.common, x, y, weight, keys, live, index, drawn)
        total += torch.where(live[:, 0], loss, 0.0)
        self.at += 1

    def _timed_body(self, width: int, several: int) -> None:
        """Make one step, or several; the first of a kind is compiled, and its time is noted."""
        if (width, several) not in self._again:
            began, body = time.perf_counter(), functools.partial(self._body, width, several)
            self._again[width, several] = self._recorded(body) or body
            self.step.compiling_seconds += 0.0 if self.step.early else time.perf_counter() - began
        self._again[width, several]()

    def _recorded(self, body: Callable[[], None]) -> Callable[[], Any] | None:
        """Return the compiled code of a step with its arguments, which are the same every time; None if there is more
        to a step than that. Values are left as they were."""
        step = self.step
        drawn = step.pure.keyed or "draws" in (step.asked or ())  # by keys that are computed anew for every step
        if step.recorder is None or step.moved is not None or drawn:
            return None
        static = (self.moving, self.at, self.total)
        with self._unchanged():
            code = step.recorder.record(body)
            wanted = tree_map(torch.clone, static)
        if code is None:
            return None
        with self._unchanged():
            code()
            same = all(map(torch.equal, tree_leaves(static), tree_leaves(wanted)))
        return code if same else None

    def steps(self, width: int, count: int) -> None:
        """Make `count` steps; on CUDA several per replay, which costs a small model less than starting each."""
        if self._pool is None:
            plain = self.step.moved is None and not self.step.pure.keyed and not self.step.asked
            with quiet():
                for several in (UNROLLED, 1) if plain and count >= MANY else (1,):
                    for _ in range(count // several):
                        self._timed_body(width, several)
                    count %= several
            return
        if capturing(self.at.device):  # of a whole exchange: a graph cannot be replayed into another
            with quiet():
                for _ in range(count):
                    self._body(width)
            return
        # what is soon replaced need not be captured in several forms
        for several in SEVERAL[-1:] if self.step.early else SEVERAL:
            while count >= several:
                if (width, several) not in self._graphs:
                    self._capture(width, several)
                self._graphs[width, several].replay()
                if self.step.beside is not None and self.step.beside.by_steps:
                    torch.cuda.current_stream(self.at.device).synchronize()
                count -= several

    def warm(self, width: int) -> None:
        """Take two steps, for which the compiler makes what is not there yet, and leave every value as it was."""
        with self._unchanged(), quiet():
            self._two(width)

    def tried(self, width: int) -> Tensor:
        """Return what a step adds to the vectors, and leave every value as it was."""
        with self._unchanged(), quiet():
            before = self.moving["theta"][:width].clone()
            self._body(width)
            return self.moving["theta"][:width] - before  # type: ignore[no-any-return]

    def _two(self, width: int) -> None:
        for _ in range(2):
            self.at.zero_()
            self._body(width)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        static = (self.moving, self.at, self.total)
        before = tree_map(torch.clone, static)
        yield
        tree_map(lambda place, value: place.copy_(value), static, before)

    def _capture(self, width: int, several: int) -> None:
        """Warm up (this is where compiling happens) and capture, leaving every value unchanged."""

        def work() -> None:
            for _ in range(several):
                self._body(width)

        with self._unchanged():
            if self.step.early and self.step.pure.fast:
                from unalike.nn.fast import compile_ahead

                with self._unchanged():
                    compile_ahead(lambda: self._body(width), self.at.device)
            warm = (lambda: self._body(width)) if self.step.early else (lambda: self._two(width))
            graph, _ = graphed(work, self.at.device, warm, self._pool)
        self._graphs[width, several] = graph


def _shapes(moving: dict[str, Any], common: Common) -> Any:
    """Return what two cohorts must have in common to share static buffers."""
    leaves, spec = tree_flatten(moving)
    shared, shared_spec = tree_flatten(common)
    return spec, [(t.shape[1:], t.dtype) for t in leaves], shared_spec, [(t.shape, t.dtype) for t in shared]


def compiler_switches() -> AbstractContextManager[Any]:
    """Return the context in which steps are compiled: dynamo's switches as they need them, then put back."""
    config = torch._dynamo.config
    limit = max(64, getattr(config, "recompile_limit", 8))
    # the recurrent layers of `fast` are one operation each
    return config.patch(recompile_limit=limit, allow_rnn=True)  # type: ignore[no-any-return]


def at_work(steps: np.ndarray) -> np.ndarray:
    """Return how many clients (a prefix, longest first) take each step."""
    return (steps[None, :] > np.arange(int(steps.max()))[:, None]).sum(1)


def widths(c: int) -> list[int]:
    """Return the few widths for which a step of so many clients is compiled, the widest first."""
    return sorted({c, -(-c // 2), -(-c // 4)}, reverse=True)


def prefixes(alive: np.ndarray, c: int) -> Iterator[tuple[int, int]]:
    """Divide steps that fewer and fewer clients take into (width, number of steps); a width is the smallest of a few
    that holds all clients at work. Each width is compiled once."""
    some = widths(c)
    for width, narrower in zip(some, [*some[1:], 0], strict=True):
        if count := int(((narrower < alive) & (alive <= width)).sum()):
            yield width, count
