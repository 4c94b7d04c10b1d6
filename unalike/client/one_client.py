"""One client's work from message to reply: run by `sequential`, by each worker and by a real client."""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from unalike import draws
from unalike.client.calls import ModelCalls
from unalike.client.captured_steps import CapturedSteps
from unalike.client.job import Job
from unalike.client.plan import (
    Ordered,
    Plan,
    begin_slots,
    check_rows,
    checked_output,
    flat_slots,
    judged,
    leave,
    order_number,
    padded,
    part_mask,
    start_buffers,
    stepped,
)
from unalike.client.sample_privacy import passes, private_gradient
from unalike.client.samples import Chosen, row_values
from unalike.contract import BUFFERS, Average, Batch, Call, Fields, Gradient, Me, Outputs, Request, Train
from unalike.contract.requests import PUBLIC, Measure
from unalike.data.pixels import rows_of
from unalike.errors import EngineRefused, UnalikeError, did_you_mean, first_line
from unalike.nn.task import BoundModule, FunctionalModule
from unalike.training import LocalTraining, Order, Slots, augment, plain_step, plain_update, to_device, update


def failed(job: Job, fn: Callable[..., Any], client: int, inputs: dict[str, Any], error: Exception) -> UnalikeError:
    """Return the error of a client function with its client, function and shapes, without the internals of `vmap`."""
    if isinstance(error, UnalikeError):
        return error
    shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in inputs.items() if isinstance(v, Tensor))
    name = f"{type(job.method).__name__}.{getattr(fn, '__name__', 'function')}"
    said = f"{type(error).__name__}: {first_line(error)}"
    return UnalikeError(f"{name} failed for {job.who(client)} (given {shapes}): {said}")


def finish(job: Job, out: Any, fn: Callable[..., Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Check the result of a client function, (state, reply), and return it as tensors. (Replies are also checked where
    they leave, and where they arrive.)"""
    name = f"{type(job.method).__name__}.{fn.__name__}"
    if not (isinstance(out, tuple) and len(out) == 2 and all(isinstance(part, dict) for part in out)):
        raise UnalikeError(
            f"{name} must end with (state, reply), two dicts, or a request such as me.train(...).then(...); it "
            f"returned {type(out).__name__}."
        )
    for key, value in (item for part in out for item in part.items()):
        if not isinstance(value, Tensor | int | float):
            raise UnalikeError(f"{name} ends with {key!r}, a {type(value).__name__}: it must be a tensor or a number.")
    device = job.task.device
    # (a number is filled in on the device, since a copy from the host could not be captured)
    kept, sent = (
        {k: v.detach().to(device) if isinstance(v, Tensor) else torch.full((), v, device=device) for k, v in p.items()}
        for p in out
    )
    for key, value in kept.items():
        if key not in job.states.shapes:
            raise UnalikeError(
                f"{name} keeps {key!r}, which `keeps` does not declare.{did_you_mean(key, job.states.shapes)}"
            )
        want = job.states.shapes[key][0]
        if tuple(value.shape) != want:
            raise UnalikeError(f"{name} keeps {key!r} with shape {list(value.shape)}; `keeps` declares {list(want)}.")
    return kept, sent


class OneClient:
    """One client's work, on its own module: run by `sequential`, by each worker and by a real client.

    schedule: how the learning rate of a training changes, "constant" or "cosine" to 0. span: the start of this training
    within a longer one and that one's length, in steps; None if it is the whole.
    """

    schedule = "constant"
    span: tuple[int, int] | None = None

    def __init__(self, job: Job):
        self.job = job
        self.bound: BoundModule = job.task.live()
        self._functional: FunctionalModule | None = None
        self._refused = False
        self.captured: CapturedSteps | None = None  # set by the engine that wants steps captured
        self.nets = {name: net.copy() for name, net in job.task.nets.items()}

    @property
    def functional(self) -> FunctionalModule:
        if self._functional is None:
            self._functional = self.job.task.pure()
        return self._functional

    def _make_functional(self) -> None:
        """Make the functional copy now, not inside a transform; a model without one is used as it is."""
        if self._functional is None and not self._refused:
            try:
                _ = self.functional
            except EngineRefused:
                self._refused = True

    # ---- one client function, from message to reply

    def run(
        self, call: Call, client: int, state: dict[str, Tensor], first: Tensor, m: Fields
    ) -> tuple[dict, dict, float]:
        """Run a call for this client; return the state to keep, the reply and the mean training loss."""
        job, task = self.job, self.job.task
        self.id, self.round, self.exchange = client, call.round, call.exchange
        ids = np.array([client])
        numbers: dict[str, Any] = {
            k: torch.tensor(v[0], dtype=task.dtype, device=task.device) for k, v in job.numbers(ids, call.round).items()
        }
        numbers["first"], numbers["start"] = first, job.start
        self.drawn = numbers["_draws"] = job.draws(client, call.round, f"draws {call.exchange}")
        self.me = me = Me(numbers, call.round, job.shown, task.layout, job.start_of)
        s = Fields(state)
        self.state = state
        self.kept: dict[str, Tensor] = {}
        self.sent: dict[str, Tensor] = {}
        self.received = self.buffers = start_buffers(task, s, m)
        self.loss = float("nan")
        self.trained, self.batches = call.trained, 0
        # how often any one of its own samples was in a noised step (DP-SGD)
        self.passes = 0
        self.ordered: Ordered | None = None
        fn = job.function(call.function)
        inputs: dict[str, Any] = {**{f"m.{k}": v for k, v in dict.items(m)}, **{f"s.{k}": v for k, v in dict.items(s)}}
        try:
            out = fn(me, s, m)
            while isinstance(out, Request):
                following, keep = out.following(fn.__name__), out.keep
                job.allow(out, call)
                result = PERFORM[type(out)](self, out)
                if isinstance(result, Trained):
                    keep, result = {**keep, **result.more}, result.vector
                inputs["result"], fn = result, following
                out = fn(me, s, m, result, **keep)
            kept, sent = finish(job, out, fn)
        except Exception as error:
            raise failed(job, fn, client, inputs, error) from error
        self.trained -= call.trained
        kept, sent = {**kept, **self.kept}, {**sent, **self.sent}
        return kept, sent, self.loss

    # ---- the requests

    def train(self, request: Train) -> Trained:
        """Train locally; return the vector, and further values for the next function by name."""
        job, bound, local = self.job, self.bound, self.job.settings(request)
        course = _Course(self, request, local)
        steps, lr = int(course.plan.steps[0]), course.lr
        if job.limits is not None:
            job.limits.check_training(local, course.plan.chosen, course.plan.ids, self.round, request.only)
        bound.buffers.copy_(self.buffers)
        plain = request.step is None and request.net == "model"
        theta = bound.vector.copy_(request.at) if plain else request.at.clone()
        if not plain or request.loss is not None or local.sample_clip is not None:
            self._make_functional()
        slots = begin_slots(job, local, theta, {**self.state, **self.kept}, given=request.slots)
        state, total = dict(request.state), torch.zeros((), dtype=theta.dtype, device=theta.device)
        begin, whole = self.span or (0, steps)
        captured = self.captured and self.captured.begin(request, local, slots, lr, course.mask)
        if captured:
            slots = captured.slots
        for k, parts in enumerate(course.batches()):
            rate = lr if self.schedule == "constant" else lr * (0.5 * (1 + math.cos(math.pi * (begin + k) / whole)))
            if captured and captured.step(parts[0].x, parts[0].y, parts[0].key, rate):
                continue
            if request.step is not None:
                theta, state = self._step(course, theta, state, parts, rate)
            elif local.sample_clip is not None:
                self._descend_privately(course, parts[0], slots, rate)
                total += torch.nan  # the loss would reveal samples
            elif plain:
                total += self._descend(course, parts[0], slots, rate)
            else:
                total += self._descend_net(course, theta, parts[0], slots, rate)
        self.trained += 1
        self.batches += steps * request.batches
        if local.sample_clip is not None:
            self.passes += int(passes(local, course.plan.ids, course.plan.sizes, self.round)[0])
        if captured:
            total += captured.total
        mean = float(total) / steps if request.step is None else float("nan")
        found = torch.tensor(mean, dtype=torch.float64, device=theta.device)
        self.loss = float(judged(request, theta, found, local.sample_clip is not None))
        self.me.steps, self.me.lr = self.me.steps.new_tensor(steps), lr[0]
        if request.net == "model":
            keep, send = leave(job, local, slots, bound.buffers, self.received, torch.clone)
            if BUFFERS in keep or BUFFERS in send:
                # later requests of this exchange continue from here
                self.buffers = bound.buffers.clone()
            self.kept |= keep
            self.sent |= send
        more = {} if request.slots is None else {"slots": flat_slots(local, slots, theta)}
        return Trained(theta.clone(), {**state, **more})

    def _descend(self, course: _Course, part: _Part, slots: Slots, lr: Tensor) -> Tensor:
        """Make one training step: gradient, affine term, clipping, weight decay, optimizer."""
        bound, task, request, x, key = self.bound, self.job.task, course.request, part.x, part.key
        at: dict[str, Any] = {"vector": self._bound_vector}
        if request.own:
            output, features = bound(x, key, want_features=request.loss is not None)
            loss = data_loss = task.losses(output, part.y).mean()
            loss = loss if request.own == 1 else request.own * loss
            at |= {"output": output, "features": features}
        # the model is called only if the method's own loss asks for its output
        else:
            loss = data_loss = x.new_zeros((), dtype=bound.vector.dtype)
            at["compute"] = lambda: bound(x, key, want_features=True)
        if request.loss is not None:
            loss = loss + request.loss(course.batch(part, at=at), **request.args)
        if course.plain:
            plain_update(bound.values, bound.gradients(loss), lr)
        else:
            affine = request.pull, request.push, request.unclipped
            update(course.local, bound.vector, bound.gradient(loss), slots, lr, *affine, mask=course.mask)
        return data_loss.detach() if request.own else loss.detach()

    def _descend_privately(self, course: _Course, part: _Part, slots: Slots, lr: Tensor) -> None:
        """Make one step with a gradient that hides each sample (DP-SGD)."""
        request, bound = course.request, self.bound
        with torch.no_grad():
            g = private_gradient(course.batch(part), bound.vector, course.local)
            affine = request.pull, request.push, request.unclipped
            update(course.local, bound.vector, g, slots, lr, *affine, mask=course.mask)

    def _descend_net(self, course: _Course, theta: Tensor, part: _Part, slots: Slots, lr: Tensor) -> Tensor:
        """Make one step of one of the method's further networks: by the method's loss alone, on its own vector."""
        request, weights = course.request, self.job.task.nets[course.request.net].weights

        def objective(vector: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            batch = course.batch(part, train=False, at={"vector": lambda: vector})
            assert request.loss is not None
            loss = request.loss(batch, **request.args)
            statistics = course.calls.statistics
            return loss, (loss.detach(), vector[weights:].detach() if statistics is None else statistics)

        with torch.no_grad():
            g, (loss, statistics) = torch.func.grad(objective, has_aux=True)(theta)
            update(course.local, theta, g, slots, lr, request.pull, request.push, request.unclipped, mask=course.mask)
            theta[weights:] = statistics
        return loss

    def _step(
        self, course: _Course, theta: Tensor, state: dict[str, Tensor], parts: list[_Part], lr: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        request = course.request
        assert request.step is not None
        batches = [course.batch(part) for part in parts]
        theta, state = stepped(theta, state, request.step(theta.clone(), batches, lr[0], **state, **request.args))
        return theta.detach(), {name: value.detach() for name, value in state.items()}

    def _bound_vector(self) -> Tensor:
        """Return the parameters as one vector that gradients flow through."""
        return torch.cat([weight.reshape(-1) for weight in self.bound.weights])

    def _slices(self, request: Average | Outputs | Gradient, rows: Mapping[str, Tensor]) -> Iterator[Batch]:
        """Yield the samples that a request names, in slices, with the model's output at `at` if it is given."""
        chosen, device = self.job.chosen(request, np.array([self.id])), self.bound.vector.device
        n, over = int(chosen.sizes[0]), getattr(request, "over", "samples")
        picked = torch.arange(n, device=device) if over == "samples" else self._some(over, n)
        place = _Place(chosen, request.only, device)
        size = min(SLICE, getattr(request, "at_once", None) or SLICE)
        for a in range(0, len(picked), size):
            index = picked[a : a + size]
            rows_there = place.find(index[None])[0]
            x, y = rows_of(chosen.samples.x, rows_there), chosen.samples.y[rows_there]
            output = features = None
            if request.at is not None:
                output, features = self.bound(x, train=False, want_features=True)
            weight = torch.full((len(y),), 1 / len(picked), dtype=self.job.task.dtype, device=device)
            calls = ModelCalls(
                self.job.task, lambda: self.functional, self.nets, self.bound.buffers, weight, train=False,
                labelled=chosen.samples.labelled,
            )  # fmt: skip
            known: dict[str, Any] = {"output": output, "features": features, "index": lambda i=index: i}
            if request.at is not None:
                known["vector"] = lambda at=request.at: at
            yield Batch(x, y, weight, calls, source=place.source(index), rows=place.rows(rows, index), **known)

    def _at(self, vector: Tensor | None) -> None:
        """Set the model to this vector, in evaluation mode, if there is one."""
        if vector is not None:
            self.bound.vector.copy_(vector)
        self.bound.buffers.copy_(self.buffers)

    def average(self, request: Average) -> Any:
        """Return the mean (or sum) over all samples that a request names; several vectors are handled one after
        another."""
        if request.at is not None and request.at.dim() > 1:
            results = [self.average(dc.replace(request, at=v)) for v in request.at]
            return tree_map(lambda *parts: torch.stack(parts), *results)
        self._at(request.at)
        self._make_functional()
        total = None
        with torch.no_grad():
            for batch in self._slices(request, request.rows):
                part = tree_map(batch.sum if request.total else batch.mean, request.fn(batch, **request.args))
                total = part if total is None else tree_map(torch.add, total, part)
        return total

    def outputs(self, request: Outputs) -> Any:
        """Return one row per sample; several vectors are handled one after another."""
        if request.at is not None and request.at.dim() > 1:
            return torch.stack([self.outputs(dc.replace(request, at=v)) for v in request.at])
        self._at(request.at)
        self._make_functional()
        with torch.no_grad():
            fn = request.fn or (lambda batch: batch.output)
            found = torch.cat([checked_output(batch, fn(batch, **request.args)) for batch in self._slices(request, {})])
        return found if request.data == PUBLIC else padded(found, self.job.largest(str(request.data)))

    def _some(self, over: str, n: int) -> Tensor:
        """Return the numbers of the samples of one mini-batch, or of all mini-batches of one pass."""
        ids, sizes = np.array([self.id]), np.array([n])
        order = Order(
            self.job.local, self.job.keys(ids, self.round, f"average {self.exchange}"), sizes, self.bound.vector.device
        )
        index, real = order.block(0, 1 if over == "batch" else int(order.per_epoch[0]))
        return index[:, 0][real[:, 0]]

    def gradient(self, request: Gradient) -> Tensor:
        bound, task = self.bound, self.job.task
        self._at(request.at)
        total = torch.zeros_like(bound.vector)
        n = int(self.job.chosen(request, np.array([self.id])).sizes[0])
        for batch in self._slices(request, {}):
            total += bound.gradient(task.losses(batch.output, batch.y).sum() / n)
        return total

    def measure(self, request: Measure) -> dict[str, Tensor]:
        task, (x, y) = self.job.task, self.job.split(request.data).of(self.id)
        if request.outputs is not None:
            return task.measured(request.outputs[: len(y)], y)
        self._at(request.at)
        return task.measured(task.outputs_of(self.bound, x, y), y)


class Trained(NamedTuple):
    """The result of a training: the vector, and further values for the next function by name."""

    vector: Tensor
    more: dict[str, Tensor]


class _Place:
    """Where one client's samples lie, for one request."""

    def __init__(self, chosen: Chosen, only: Tensor | None, device: torch.device):
        self.chosen, self.only = chosen, only
        self.offset, self.own = to_device(device, chosen.offsets, chosen.own)
        samples = chosen.samples
        self.union = samples.own is not None and samples.public > 0

    def find(self, index: Tensor) -> Tensor:
        """Return the rows of samples; index [..., 1, B]: their numbers within the requested data."""
        return self.chosen.find(index, self.offset, self.own, self.only)

    def source(self, index: Tensor) -> Tensor | None:
        """Return 0 for own samples and 1 for public ones; None if all are own."""
        if not self.chosen.samples.public:
            return None
        return (index >= self.own).to(torch.int64)

    def rows(self, given: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
        """Return these samples' rows of the tensors that a request passed."""
        own = self.own if self.union else None
        return {name: row_values(value, index[None], own, shared=True)[0] for name, value in given.items()}


class _Part(NamedTuple):
    """A mini-batch of a step: its samples and their numbers, the key of the model's dropout, the number of the step."""

    x: Tensor
    y: Tensor
    picked: Tensor
    key: Tensor | None
    number: int


class _Course:
    """One training of one client: its plan, its mini-batches and the values that a batch has."""

    def __init__(self, one: OneClient, request: Train, local: LocalTraining):
        self.one, self.request, self.local = one, request, local
        job, ids = one.job, np.array([one.id])
        number = order_number(request, local, one.trained, one.ordered)
        one.ordered = number, request.data, local.batch_size
        chosen = job.chosen(request, ids)
        check_rows(request, chosen, request.rows)
        self.plan = Plan(job, local, ids, one.round, number, chosen)
        bound = one.bound
        rate = request.lr if request.lr is not None else float(self.plan.rates[0])
        self.lr = torch.as_tensor(rate, dtype=bound.vector.dtype, device=bound.vector.device).reshape(1)
        self.mask = part_mask(job.task, request.net, request.part)
        self.plain = self.mask is None and plain_step(local, request.pull, request.push)
        self.place = _Place(chosen, request.only, bound.vector.device)
        self.drawn = one.drawn.at(one.trained)
        self.calls: ModelCalls

    def batches(self) -> Iterator[list[_Part]]:
        """Yield the mini-batches of every step."""
        plan, together, device = self.plan, self.request.batches, self.one.bound.vector.device
        n, keys, samples = int(plan.sizes[0]), plan.keys, plan.chosen.samples
        key, order = torch.tensor(keys[0], device=device), Order(plan.local, keys, plan.sizes, device)
        moved = None if plan.local.augment is None else augment.parse(plan.local.augment)
        block, per_epoch = order.block_steps() * together, int(plan.local.per_epoch(plan.sizes)[0])
        count = int(plan.steps[0]) * together
        for start in range(0, count, block):
            end = min(start + block, count)
            index, _ = order.block(start, end)
            cut = _cut(index, self.place.find(index))
            for k in range(start, end, together):
                step_key = draws.fold(key, k) if self.one.bound.keyed or moved else None
                some = []
                for b in range(k, k + together):
                    batch, at = next(cut)
                    real = n - (b % per_epoch) * order.width
                    if real < order.width:  # the last batch of a pass
                        batch, at = batch[:real], at[:real]
                    x = rows_of(samples.x, at)
                    if moved and step_key is not None:
                        x = moved(x, draws.fold(step_key, augment.NUMBER - (b - k)))
                    some.append(_Part(x, samples.y.index_select(0, at), batch, step_key, k // together))
                yield some

    def batch(self, part: _Part, train: bool = True, at: dict[str, Any] | None = None) -> Batch:
        """Return a mini-batch as a loss or a step sees it; at: values that are known at the current vector."""
        one, task = self.one, self.one.job.task
        x, y, index, key, number = part
        weight = torch.full((len(y),), 1 / max(1, len(y)), dtype=task.dtype, device=y.device)
        drawn = lambda: self.drawn.at(number)  # noqa: E731
        self.calls = ModelCalls(
            task, lambda: one.functional, one.nets, one.bound.buffers, weight, key, train, drawn, self.request.net,
            self.plan.chosen.samples.labelled,
        )  # fmt: skip
        rows = self.place.rows(self.request.rows, index)
        return Batch(
            x, y, weight, self.calls, index=lambda: index, source=self.place.source(index), rows=rows, **(at or {})
        )


def _cut(index: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each step's samples and their rows, both [steps, 1, batch]: one cut for many steps, which is quicker than
    one for each, and not for all, whose views would fill the memory."""
    for a in range(0, len(index), PIECE):
        yield from zip(*(both[a : a + PIECE, 0].unbind() for both in (index, rows)), strict=True)


# samples per slice when averaging over a whole client
SLICE = 512
PIECE = 256  # steps whose batches are told apart at once

PERFORM: dict[type[Request], Callable[..., Any]] = {
    Train: OneClient.train,
    Average: OneClient.average,
    Outputs: OneClient.outputs,
    Gradient: OneClient.gradient,
    Measure: OneClient.measure,
}
