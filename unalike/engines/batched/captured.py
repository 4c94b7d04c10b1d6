"""A whole exchange of a stack of clients as one CUDA graph: message in, replies out.

Where a model is tiny, a round's steps take less time than the hundred small operations around them take to start. The
second time that an exchange of one kind comes by, all its operations are captured; from then on the host computes what
only it knows (who takes part, their keys and amounts of work), copies that in one piece and replays.

A graph repeats what Python decided when it was captured. So it serves only where nothing that Python sees can have
changed: a frozen method's own function, which never asked which round it is, training of the same amounts on as many
samples, messages of the same shapes. Everything else goes the ordinary way.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Method, Outcome, Train
from unalike.errors import first_line
from unalike.nn.capture import graphed
from unalike.training import LocalTraining, pack, to_device, unpack

if TYPE_CHECKING:
    from unalike.engines.batched.stack import Stack

Arrays = tuple[np.ndarray, ...]
STEPS = 256  # beyond, a round's steps outweigh what is around them
NUMBERS = 1 << 22  # in the stack's vectors, likewise
KINDS = 8  # of exchanges that are captured: more, and the cohorts vary too much for it


class Exchanges:
    """The captured exchanges of one engine."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Captured | int] = {}  # or how often it came by; VAIN: it is not to be captured
        self.notes: list[str] = []

    def run(self, stack: Stack) -> Outcome:
        if (kind := _kind(stack)) is None:
            return stack.run()
        known = self.known.get(kind, 0)
        if isinstance(known, Captured) and (courses := known.courses(stack)):
            return known.replay(stack, courses)
        outcome = stack.run()
        if known == 0 and len(self.known) < KINDS:
            self.known[kind] = 1 if _may(stack) else VAIN
        elif known == 1 and _may(stack):
            try:
                self.known[kind] = Captured(stack)
            except Exception as error:  # whatever cannot be captured runs as before
                self.known[kind] = VAIN
                self.notes.append(f"the exchange was not captured: {first_line(error)}")
        elif known:
            self.known[kind] = VAIN
        return outcome


VAIN = -1


def _kind(stack: Stack) -> Hashable:
    """Return a key that distinguishes kinds of exchanges; None if this one must not be captured."""
    call, method = stack.call, stack.job.method
    if not stack.engine.captures or not isinstance(call.function, str) or not _constant(method):
        return None
    if len(stack.ids) * stack.job.task.layout.size > NUMBERS:
        return None
    shapes = ((name, t.shape, t.dtype) for part in (call.shared, call.rows) for name, t in part.items())
    return call.function, call.exchange, call.trained, len(stack.ids), len(call.shared), *shapes


def _constant(method: Method) -> bool:
    """Return whether nothing on a method can change: it has only fields of a frozen dataclass, all of them hashable.
    (Class attributes are assumed not to change.)"""
    if not dc.is_dataclass(method):
        return not vars(method)
    frozen = type(method).__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not frozen or not vars(method).keys() <= {field.name for field in dc.fields(method)}:
        return False  # a subclass that is no dataclass itself may put more there
    try:
        hash(method)
    except TypeError:  # a list
        return False
    return True


def _may(stack: Stack) -> bool:
    """Return whether everything that this stack has just done would be the same again, except for the content of
    tensors."""
    usual = [isinstance(request, Train) and _usual(request) for request in stack.asked]
    if stack.clock.asked or not usual or not all(usual):
        return False
    return sum(int(stack.plan(local, 0).steps.max()) for local in _settings(stack)) <= STEPS


def _usual(request: Train) -> bool:
    """Return whether a training uses the clients' training samples, in an order of its own."""
    return request.data == "train" and not request.same_batches


def _settings(stack: Stack) -> list[LocalTraining]:
    return [stack.job.settings(request) for request in stack.asked if isinstance(request, Train)]


class Captured:
    """One exchange, captured from a stack that has just run: fixed buffers for its inputs and outputs."""

    def __init__(self, stack: Stack):
        self.settings, self.trained, self.sizes = _settings(stack), stack.trained, stack.sizes
        self.batches = stack.batches
        self.amounts = [stack.amounts(stack.plan(local, 0)) for local in self.settings]
        self.fixed = [to_device(stack.device, *amounts.arrays) for amounts in self.amounts]
        courses = self._courses(stack)
        arrays = [stack.opening(), *courses]
        self.shapes = [[(a.shape, a.dtype) for a in some] for some in arrays]
        host = torch.empty(sum(a.size for some in arrays for a in some), dtype=torch.int64)
        cuda = stack.device.type == "cuda"
        self.host = host.pin_memory() if cuda else host
        self.read: torch.cuda.Event | None = torch.cuda.Event() if cuda else None
        self.there = torch.empty_like(host, device=stack.device)
        self.inputs = [{name: t.clone() for name, t in part.items()} for part in _given(stack)]
        self._load(stack, courses)
        self.used: list[Any] = []  # a graph knows addresses: what lies there must stay
        self.again, self.out = record(lambda: self._work(stack), stack.device)

    def courses(self, stack: Stack) -> list[Arrays] | None:
        """Return the host's inputs of all trainings, if these clients have, one by one, as many samples and steps as
        those it was captured from; else None."""
        if not np.array_equal(stack.sizes, self.sizes):
            return None
        both = zip(self.settings, self.amounts, strict=True)
        same = all(stack.amounts(stack.plan(local, 0), amounts) is amounts for local, amounts in both)
        return self._courses(stack) if same else None

    def _courses(self, stack: Stack) -> list[Arrays]:
        each = enumerate(zip(self.settings, self.amounts, strict=True), stack.call.trained)
        return [stack.course(stack.plan(local, number), amounts) for number, (local, amounts) in each]

    def replay(self, stack: Stack, courses: list[Arrays]) -> Outcome:
        self._load(stack, courses)
        self.again()
        stack.trained, stack.batches = self.trained, self.batches
        kept, sent, ends = self.out
        kept, sent = ({k: v.clone() for k, v in part.items()} for part in (kept, sent))  # the next replay writes there
        return stack.outcome(kept, sent, ends.clone())

    def _load(self, stack: Stack, courses: list[Arrays]) -> None:
        arrays = (*stack.opening(), *(a for course in courses for a in course))
        if self.read is not None:
            self.read.synchronize()  # the copy of an earlier chunk may be under way
        pack(arrays, self.host.numpy())
        self.there.copy_(self.host, non_blocking=True)
        if self.read is not None:
            self.read.record(torch.cuda.current_stream(stack.device))
        for mine, given in zip(self.inputs, _given(stack), strict=True):
            for name, place in mine.items():
                place.copy_(given[name])

    def _work(self, like: Stack) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Do the device's work of an exchange like this one, on the fixed buffers alone."""
        state, first, shared, rows = self.inputs
        call = dc.replace(like.call, shared=shared, rows=rows)
        kinds = [kind for some in self.shapes for kind in some]
        views = iter(unpack(self.there, kinds))
        told = [[next(views) for _ in some] for some in self.shapes]
        places = iter([told[0], *([*ours, *fixed] for ours, fixed in zip(told[1:], self.fixed, strict=True))])
        stack = type(like)(like.engine, call, like.ids[like.places], like.positions)
        # return the preallocated device tensors in the order in which the stack asks for them
        stack.carry = lambda arrays: next(places)
        stack.load(stack.carry(stack.opening()), state, first["first"])
        out = stack.work()
        self.used = stack.used
        return out


def _given(stack: Stack) -> tuple[dict[str, Tensor], ...]:
    """Return the tensors with which an exchange begins."""
    state, first = stack.job.states.read(stack.ids)
    return state, {"first": first}, stack.call.shared, stack.call.rows


def record(work: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """Capture the work; return a function that repeats it, and its results."""
    graph, out = graphed(work, device)
    return graph.replay, out
