"""Training steps of one client as CUDA graphs, for models that cannot be stacked: a GPU then need not wait for Python.

A graph knows addresses and nothing of Python. So it serves where a step reads fixed buffers alone: the run's own loss,
with or without an affine term. A model that looks at the value of a tensor cannot be captured and runs as before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unalike.contract import Train
from unalike.errors import first_line
from unalike.nn.capture import graphed
from unalike.nn.task import BoundModule, Task
from unalike.training import LocalTraining, Slots, bare, update

KINDS = 16  # of steps that are kept: more, and they vary too much for it


class CapturedSteps:
    """The captured steps of one client's module, a graph for each kind of training and shape of batch."""

    def __init__(self, task: Task, bound: BoundModule):
        self.task, self.bound = task, bound
        self.known: dict[Hashable, Captured] = {}
        self.notes: list[str] = []

    def begin(
        self, request: Train, local: LocalTraining, slots: Slots, lr: Tensor, mask: Tensor | None
    ) -> Captured | None:
        """Return the captured steps for this training, with its values loaded; None if it must go the ordinary way."""
        usual = request.loss is None and request.step is None and request.net == "model" and request.own == 1
        if self.notes or not usual or local.sample_clip is not None or mask is not None:
            return None
        given = {"lr": lr, "pull": request.pull, "push": request.push}
        plain = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)} | slots
        shapes = tuple((name, t.shape, t.dtype) for name, t in tensors.items())
        kind = (bare(local), request.unclipped, tuple(plain.items()), shapes)
        if kind not in self.known:
            if len(self.known) >= KINDS:
                return None
            self.known[kind] = Captured(self, local, request.unclipped, plain, tensors, tuple(slots))
        return self.known[kind].load(tensors)


class Captured:
    """Steps of one kind: fixed buffers for what a step reads beside the module, and a graph for each shape of batch."""

    def __init__(
        self,
        steps: CapturedSteps,
        local: LocalTraining,
        unclipped: tuple[str, ...],
        plain: dict[str, Any],
        tensors: dict[str, Tensor],
        slots: tuple[str, ...],
    ):
        self.steps, self.local, self.unclipped, self.plain = steps, local, unclipped, plain
        self.fixed = {name: t.detach().clone() for name, t in tensors.items()}
        self.slots = {name: self.fixed[name] for name in slots}
        self.total = torch.zeros((), dtype=steps.bound.vector.dtype, device=steps.bound.vector.device)
        self.graphs: dict[Hashable, tuple[list[Tensor], Any]] = {}

    def load(self, tensors: dict[str, Tensor]) -> Captured:
        """Take over the values with which a training begins."""
        for name, value in tensors.items():
            self.fixed[name].copy_(value)
        self.total.zero_()
        return self

    def step(self, x: Tensor, y: Tensor, key: Tensor | None, lr: Tensor) -> bool:
        """Make one step on this batch; return whether that was possible."""
        given = [t for t in (x, y, key) if t is not None]
        kind = tuple((t.shape, t.dtype) for t in given)
        self.fixed["lr"].copy_(lr)
        if kind not in self.graphs and (self.steps.notes or not self._capture(kind, given, key is not None)):
            return False
        places, graph = self.graphs[kind]
        for place, value in zip(places, given, strict=True):
            place.copy_(value)
        graph.replay()
        return True

    def _capture(self, kind: Hashable, given: list[Tensor], keyed: bool) -> bool:
        places = [t.clone() for t in given]
        x, y = places[:2]
        key = places[2] if keyed else None
        try:
            with self._unchanged():
                graph, _ = graphed(lambda: self._body(x, y, key), x.device)
        except Exception as error:
            self.steps.notes.append(f"the steps were not captured: {first_line(error)}")
            return False
        self.graphs[kind] = places, graph
        return True

    def _body(self, x: Tensor, y: Tensor, key: Tensor | None) -> None:
        bound, given = self.steps.bound, {**self.plain, **self.fixed}
        with torch.enable_grad():
            loss = self.steps.task.losses(bound(x, key)[0], y).mean()
            gradient = bound.gradient(loss)
        affine = given["pull"], given["push"], self.unclipped
        with torch.no_grad():
            update(self.local, bound.vector, gradient, self.slots, given["lr"], *affine)
            self.total += loss.detach()
            _ = bound.buffers  # what a layer has replaced is copied to its place

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put back all values that a trial step changes."""
        bound = self.steps.bound
        places = [bound.vector, bound.buffers, self.total, *self.slots.values()]
        before = [t.clone() for t in places]
        try:
            yield
        finally:
            _ = bound.buffers
            for place, value in zip(places, before, strict=True):
                place.copy_(value)
