"""The batched engine: how many clients a stack has, the steps that were built, and how a cohort is processed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.client.job import Job
from unalike.contract.call import Call, Outcome
from unalike.engines.batched.beside import SOON, WORTH, Compilation, Pace
from unalike.engines.batched.captured import Exchanges
from unalike.engines.batched.graphs import compiler_switches
from unalike.engines.batched.stack import Stack
from unalike.engines.batched.step import Course, Step, StepKind
from unalike.engines.engine import Engine
from unalike.engines.options import ClientsAtOnce, Compile, Fast, Memory
from unalike.errors import EngineRefused, UnalikeError
from unalike.nn.capture import capturing
from unalike.nn.numerics import one_thread, plain_convolutions
from unalike.nn.task import FunctionalModule

REACH = 1.6  # how many times as wide as its cohort a step may be


class Batched(Engine):
    name = "batched"
    after_compiling: Callable[[float], None] | None = None  # is told at the end how long compiling took
    _limited = False  # whether this process's share of the GPU's memory is a budget's

    def __init__(
        self,
        job: Job,
        clients_at_once: ClientsAtOnce = None,
        memory: Memory = None,
        compile: Compile = None,
        fast: Fast = None,
    ):
        super().__init__(job)
        cuda = job.task.device.type == "cuda"
        self.compile = cuda if compile is None else compile
        wanted = cuda and job.task.dtype == torch.float32 if fast is None else fast
        turned = self._turned() if wanted else frozenset[str]()
        self.pure: FunctionalModule = job.task.pure(align=16 if cuda else 1, turned=turned)
        self.early = compile is None and self.begins_early()
        self.quick = self._quick(asked=bool(fast)) if wanted else self.pure
        self.clients_at_once = self._fitting(clients_at_once, None if memory is None else in_bytes(memory))
        self.capture = cuda and self.compile and fast is not False
        self.take(job)

    def begins_early(self) -> bool:
        """Return whether rounds begin before the quickest steps are made."""
        # further networks of a method have modules that two threads cannot call at once
        alone = not self.job.task.nets and not torch.are_deterministic_algorithms_enabled()
        return alone and self.job.task.device.type == "cuda"

    def take(self, job: Job) -> None:
        """Work for this job; release everything made for another."""
        self.job = job
        self.steps: dict[StepKind, list[Step]] = {}
        self.exchanges, self.pace = Exchanges(), Pace()
        self._pool: Any = None

    @property
    def steps_made(self) -> list[Step]:
        """Return all steps that were built."""
        return [step for kept in self.steps.values() for step in kept]

    @property
    def captures(self) -> bool:
        """Return whether whole exchanges may be captured now: not while it is open whether their steps will be
        compiled, nor while they are to go step by step."""
        by_steps = any(step.beside is not None and step.beside.by_steps for step in self.steps_made)
        return self.capture and (self.pace.known or not self.early) and not by_steps

    @property
    def settled(self) -> bool:
        """Return whether the steps are as fast as they will be in this run."""
        return not any(step.early and (step.beside or not self.pace.known) for step in self.steps_made)

    @property
    def waits(self) -> str:
        return "compiling the steps: the first round takes longer" if self.compile and not self.early else ""

    def compile_beside(self, step: Step, moving: dict[str, Any], course: Course) -> None:
        """Start making a quicker version of a step that has just run as it is, if the run is long enough for it to pay
        off."""
        busy = any(other.beside for other in self.steps_made)  # one at a time: they would wait for each other
        worth = SOON if step.pure.slow_to_make else WORTH
        if step.early and not busy and self.pace.left > worth and not capturing(self.job.task.device):
            kept = next(kept for kept in self.steps.values() if step in kept)
            # this cohort is to use it too, and not to find it too wide
            fitting = [other.width for other in kept if other.width <= REACH * len(course.steps)]
            step.beside = Compilation(step, moving, course, self.pace.round_seconds, max(step.width, *fitting))

    def _graph_memory(self) -> Any:
        """Return the handle of the memory that the graphs of this engine's steps share."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def _change_over(self) -> None:
        """Replace provisional steps by their compiled versions."""
        for kept in self.steps.values():
            for k, step in enumerate(kept):
                if step.beside is None or not step.beside.done:
                    continue
                made, step.beside = step.beside, None
                if made.step is not None:
                    kept[k] = made.step
                    self.exchanges = Exchanges()
                elif made.layers:
                    step.pure.slow_to_make = frozenset()
                    step.notes.append(f"layers stayed PyTorch's: {made.error}")
                else:
                    step.early = False
                    step.notes.append(f"the steps were not compiled: {made.error}")

    @property
    def compiling_seconds(self) -> float:
        """Return the seconds that rounds have waited for the compiler."""
        return sum(step.compiling_seconds for step in self.steps_made)

    def close(self) -> None:
        if self.after_compiling is not None and self.compiling_seconds:
            self.after_compiling(self.compiling_seconds)
            self.after_compiling = None
        if self._limited:
            torch.cuda.set_per_process_memory_fraction(1.0, self.job.task.device)
            self._limited = False
        for step in self.steps_made:
            if step.beside is not None:
                step.beside.cancel()

    @property
    def notes(self) -> list[str]:
        """Return what could not be compiled or captured, and why: it ran all the same, slower."""
        found = [note for step in self.steps_made for note in step.notes]
        return [*dict.fromkeys([*found, *self.exchanges.notes])]

    def _quick(self, asked: bool) -> FunctionalModule:
        """Return the model with its fast layers, or unchanged if they do not give the same gradient here."""
        try:
            align = 16 if self.job.task.device.type == "cuda" else 1
            return self.job.task.pure(align=align, fast=True, later=self.early, turned=self.pure.layout.turned)
        except (EngineRefused, ImportError):  # no Triton, or a kernel that this GPU cannot run
            if asked:
                raise
            return self.pure

    def _turned(self) -> frozenset[str]:
        """Return the weights that lie in a stack's vectors as fast layers read them."""
        from unalike.nn.fast import turned

        return turned(self.job.task)

    def _fitting(self, asked: int | None, budget: int | None) -> int:
        """Return how many clients to stack: as many as fit, or as many as were asked for if those fit."""
        task = self.job.task
        free = free_memory(task.device)
        if budget is not None and budget > free:
            raise UnalikeError(f"memory is {gigabytes(budget)} and only {gigabytes(free)} are free: give less.")
        if budget is not None and task.device.type == "cuda":
            total = torch.cuda.get_device_properties(task.device).total_memory
            held = torch.cuda.memory_reserved(task.device)
            torch.cuda.set_per_process_memory_fraction(min(1.0, (held + budget) / total), task.device)
            self._limited = True
        most = (budget or free) // (each := self._bytes_each())
        if most < 1:
            raise UnalikeError(
                f"One client needs about {gigabytes(each)}, {gigabytes(budget or free)} are available: take a smaller "
                "batch_size or model."
            )
        if asked is None:  # with room to spare where nobody gave a budget
            usual = budget or (int(0.6 * free) if task.device.type == "cuda" else min(free, 2 << 30))
            return min(4096, max(1, usual // each))
        if min(asked, len(self.job.data)) > most:
            raise UnalikeError(
                f"{asked} clients at once need about {gigabytes(asked * each)}, {gigabytes(budget or free)} are "
                f"available: use clients_at_once={most}."
            )
        return asked

    def _bytes_each(self) -> int:
        """Return the bytes that a client of a stack takes: its vectors are counted, activations measured on one
        client."""
        job, task, saved = self.job, self.job.task, 0

        def count(t: Tensor) -> Tensor:
            nonlocal saved
            saved += t.numel() * t.element_size()
            return t

        rows = int(min(job.local.batch_size or job.data.train.sizes.max(), job.data.train.sizes.max()))
        x, y = job.data.train.x[:rows], job.data.train.y[:rows]
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t), plain_convolutions(task.device):
            vector = task.layout.repack(task.start, self.pure.layout).clone().requires_grad_(True)
            weight = x.new_full((len(y),), 1 / len(y), dtype=task.dtype)
            key = torch.zeros((), dtype=torch.int64, device=task.device)
            task.losses(self.pure(vector, task.start_buffers, x, key, weight)[0], y).mean()
        return 8 * task.layout.size * task.dtype.itemsize + 3 * saved

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        self.pace.rounds = self.planned
        self.pace.begin(call.round)
        self._change_over()
        compiles = self.compile and (not self.early or any(not step.early for step in self.steps_made))
        switches = compiler_switches() if compiles else nullcontext()
        with one_thread() if self.job.task.device.type == "cpu" else nullcontext(), switches:
            yield from self._chunks(call, ids)

    def _chunks(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        a = 0
        while a < len(ids):
            b = min(a + self.clients_at_once, len(ids))
            try:
                outcome = self.exchanges.run(Stack(self, call, ids[a:b], np.arange(a, b)))
            except torch.OutOfMemoryError:
                if b - a == 1:
                    raise UnalikeError(
                        "One client alone does not fit the device's memory: use a smaller batch_size."
                    ) from None
                self.clients_at_once = (b - a) // 2  # a chunk is a pure function of its inputs: take half and go on
                torch.cuda.empty_cache()
                continue
            a = b
            yield outcome

    def step(self, kind: StepKind, width: int) -> Step:
        """Return the step for this kind of training; it is cached, because building it again would compile it again. A
        compiled step also serves narrower stacks; from the third width on, cohorts evidently vary, and a new step is
        built with room for wider ones, so that a few serve all."""
        kept = self.steps.setdefault(kind, [])
        if len(self.steps) > 64:  # a loss that is a new function every round would fill the memory
            del self.steps[next(iter(self.steps))]
        # rather a wider one that is made already than another that has yet to be
        for step in sorted(kept, key=lambda s: (s.early, bool(s.pure.slow_to_make), s.width)):
            if not self.compile or width <= step.width <= REACH * width:
                return step
        pure = self.quick if kind.step is None else self.pure  # a step of its own may differentiate twice
        room = width if len(kept) < 2 else math.ceil(1.25 * width)
        kept.append(Step(self.job.task, pure, kind, self.compile, room, self.early, self._graph_memory))
        return kept[-1]


def free_memory(device: torch.device) -> int:
    """Return the free bytes of memory: of a GPU, or of the machine."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux: assume that memory is unlimited
        return 1 << 62


UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "b": 1, "": 1}


def in_bytes(given: int | str) -> int:
    """Return 8000000000, "8 GB" or "8GiB" as a number of bytes."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", str(given).lower())
    if not found or found[2] not in UNITS or isinstance(given, bool):
        raise UnalikeError(f"memory={given!r} must be a number of bytes, or a text such as '8GB' or '500 MiB'.")
    value = int(float(found[1]) * UNITS[found[2]])
    if value < 1:
        raise UnalikeError(f"memory={given!r} must be above 0.")
    return value


def gigabytes(value: int) -> str:
    return f"{value / 1e9:.3g} GB"
