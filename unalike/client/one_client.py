"""One client's work from message to reply: what `sequential`, each worker and a real client run."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from unalike import draws
from unalike.client.job import Job
from unalike.client.plan import Plan, begin_slots, judged, leave, start_buffers
from unalike.contract import BUFFERS, Average, Batch, Call, Fields, Gradient, Me, Request, Train
from unalike.contract.requests import Measure
from unalike.errors import UnalikeError, did_you_mean, first_line
from unalike.nn.numerics import keep_memory
from unalike.nn.task import BoundModule, FunctionalModule
from unalike.training import LocalTraining, Order, augment, update


def failed(job: Job, fn: Callable[..., Any], client: int, inputs: dict[str, Any], error: Exception) -> UnalikeError:
    """Return the error of a client function with its client, function and shapes, never the insides of `vmap`."""
    if isinstance(error, UnalikeError):
        return error
    shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in inputs.items() if isinstance(v, Tensor))
    name = f"{type(job.method).__name__}.{getattr(fn, '__name__', 'function')}"
    said = f"{type(error).__name__}: {first_line(error)}"
    return UnalikeError(f"{name} failed for client {client} (given {shapes}): {said}")


def finish(job: Job, out: Any, fn: Callable[..., Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Check the end of a client function, (state, reply), and return it as tensors. (The server checks replies too.)"""
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
    # (a number is filled in, not copied from the host: that could not be captured)
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
    """One client's work, on a module of its own: what `sequential`, each worker and a real client run."""

    def __init__(self, job: Job):
        self.job = job
        if job.task.device.type == "cpu":
            keep_memory()
        self.bound: BoundModule = job.task.live()
        self._functional: FunctionalModule | None = None

    @property
    def functional(self) -> FunctionalModule:
        if self._functional is None:
            self._functional = self.job.task.pure()
        return self._functional

    # ---- one client function, from message to reply

    def run(
        self, call: Call, client: int, state: dict[str, Tensor], first: Tensor, m: Fields
    ) -> tuple[dict, dict, float]:
        """Run a call for this client: (state to keep, reply, mean training loss)."""
        job, task = self.job, self.job.task
        self.id, self.round, self.exchange = client, call.round, call.exchange
        ids = np.array([client])
        numbers = {
            k: torch.tensor(v[0], dtype=task.dtype, device=task.device) for k, v in job.numbers(ids, call.round).items()
        }
        numbers["first"], numbers["start"] = first, job.start
        numbers["_draws"] = torch.tensor(job.keys(ids, call.round, f"draws {call.exchange}")[0], device=task.device)
        self.me = me = Me(numbers, call.round, job.local, task.layout)
        s = Fields(state)
        self.state = state
        self.kept: dict[str, Tensor] = {}
        self.sent: dict[str, Tensor] = {}
        self.received = self.buffers = start_buffers(task, s, m)
        self.loss = float("nan")
        self.trained = call.trained
        fn = job.function(call.function)
        inputs: dict[str, Any] = {**{f"m.{k}": v for k, v in dict.items(m)}, **{f"s.{k}": v for k, v in dict.items(s)}}
        try:
            out = fn(me, s, m)
            while isinstance(out, Request):
                following, keep = out.following(fn.__name__), out.keep
                inputs["result"] = result = PERFORM[type(out)](self, out)
                fn = following
                out = fn(me, s, m, result, **keep)
            kept, sent = finish(job, out, fn)
        except Exception as error:
            raise failed(job, fn, client, inputs, error) from error
        self.trained -= call.trained
        kept, sent = {**kept, **self.kept}, {**sent, **self.sent}
        return kept, sent, self.loss

    # ---- the requests

    def train(self, request: Train) -> Tensor:
        job, bound = self.job, self.bound
        plan = Plan(job, job.settings(request), np.array([self.id]), self.round, self.trained)
        self.trained += 1
        local, steps, keys = plan.local, int(plan.steps[0]), plan.keys
        job.check_steps(steps)
        x, y = job.data.train.of(self.id)
        rate = request.lr if request.lr is not None else float(plan.rates[0])
        lr = torch.as_tensor(rate, dtype=bound.vector.dtype, device=bound.vector.device).reshape(1)
        bound.vector.copy_(request.at)
        bound.buffers.copy_(self.buffers)
        slots = begin_slots(job, local, bound.vector, {**self.state, **self.kept})
        total = torch.zeros((), dtype=bound.vector.dtype, device=x.device)
        if request.step is not None or request.loss is not None:
            _ = self.functional  # made here: not inside a transform
        for batches, key in self._batches(plan, keys, x, y, request.batches):
            if request.step is not None:
                self._step(request, batches, lr, key)
            else:
                total += self._descend(local, request, *batches[0], slots, lr, key)
        mean = float(total) / steps if request.step is None else float("nan")
        self.loss = float(judged(request, bound.vector, torch.tensor(mean, dtype=torch.float64, device=x.device)))
        self.me.steps, self.me.lr = self.me.steps.new_tensor(steps), lr[0]
        keep, send = leave(job, local, slots, bound.buffers, self.received, torch.clone)
        if BUFFERS in keep or BUFFERS in send:
            self.buffers = bound.buffers.clone()  # what follows in this exchange goes on from here
        self.kept |= keep
        self.sent |= send
        return bound.vector.clone()

    def _batches(
        self, plan: Plan, keys: np.ndarray, x: Tensor, y: Tensor, together: int
    ) -> Iterator[tuple[list[tuple[Tensor, Tensor]], Tensor | None]]:
        """Yield the mini-batches of every step, `together` at a time, and the key of what the step draws."""
        key, order = torch.tensor(keys[0], device=x.device), Order(plan.local, keys, plan.sizes, x.device)
        moved = None if plan.local.augment is None else augment.parse(plan.local.augment)
        block, per_epoch = order.block_steps() * together, int(plan.local.per_epoch(plan.sizes)[0])
        count = int(plan.steps[0]) * together
        for start in range(0, count, block):
            end = min(start + block, count)
            index, _ = order.block(start, end)
            for k in range(start, end, together):
                step_key = draws.fold(key, k) if self.bound.keyed or moved else None
                some = []
                for b in range(k, k + together):
                    place = (b % per_epoch) * order.width
                    rows = index[b - start, 0, : min(order.width, len(y) - place)]
                    batch = x[rows]
                    if moved and step_key is not None:
                        batch = moved(batch, draws.fold(step_key, augment.NUMBER - (b - k)))
                    some.append((batch, y[rows]))
                yield some, step_key

    def _descend(
        self, local: LocalTraining, request: Train, x: Tensor, y: Tensor, slots: dict, lr: Tensor, key: Tensor | None
    ) -> Tensor:
        """One step of the one loop: gradient, affine term, clipping, weight decay, optimizer."""
        bound, task = self.bound, self.job.task
        bound.gradient.zero_()
        output, features = bound(x, key, want_features=request.loss is not None)
        loss = data_loss = task.losses(output, y).mean()
        if request.loss is not None:
            batch = self._batch(x, y, key, output, features)
            loss = data_loss + request.loss(batch, **request.args)
        loss.backward()
        with torch.no_grad():
            update(local, bound.vector, bound.gradient, slots, lr, request.pull, request.push, request.unclipped)
        return data_loss.detach()

    def _step(self, request: Train, some: list[tuple[Tensor, Tensor]], lr: Tensor, key: Tensor | None) -> None:
        assert request.step is not None
        batches = [self._batch(x, y, key) for x, y in some]
        self.bound.vector.copy_(request.step(self.bound.vector.clone(), batches, lr[0], **request.args).detach())

    def _batch(
        self,
        x: Tensor,
        y: Tensor,
        key: Tensor | None,
        output: Tensor | None = None,
        features: Tensor | None = None,
        train: bool = True,
        weight: Tensor | None = None,
    ) -> Batch:
        if weight is None:
            weight = x.new_full((len(y),), 1 / len(y), dtype=self.job.task.dtype)

        def call(vector: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            out, feats, _ = self.functional(vector, self.bound.buffers, other, key, weight, train, want_features=True)
            return out, feats  # type: ignore[return-value]

        task = self.job.task
        return Batch(x, y, weight, task.losses, call, output, features, self._bound_vector, task.layout)

    def _bound_vector(self) -> Tensor:
        """The parameters as one vector that gradients flow through."""
        tensors = dict(self.bound.module.named_parameters())
        return torch.cat([tensors[name].reshape(-1) for name, *_ in self.job.task.layout.places])

    def average(self, request: Average) -> Any:
        """Mean over all samples of a split; several vectors one after another."""
        if request.at.dim() > 1:
            results = [self.average(dc.replace(request, at=v)) for v in request.at]
            return tree_map(lambda *parts: torch.stack(parts), *results)
        bound = self.bound
        x, y = self.job.split(request.data).of(self.id)
        if len(y) == 0:
            raise UnalikeError(f"Client {self.id} has no {request.data} samples to average over.")
        if request.over != "samples":
            rows = self._some(request.over, len(y))
            x, y = x[rows], y[rows]
        bound.vector.copy_(request.at)
        bound.buffers.copy_(self.buffers)
        total = None
        with torch.no_grad():
            for a in range(0, len(y), SLICE):
                xs, ys = x[a : a + SLICE], y[a : a + SLICE]
                output, features = bound(xs, train=False, want_features=True)
                weight = xs.new_full((len(ys),), 1 / len(y), dtype=self.job.task.dtype)
                batch = self._batch(xs, ys, None, output, features, train=False, weight=weight)
                part = tree_map(batch.mean, request.fn(batch, **request.args))
                total = part if total is None else tree_map(torch.add, total, part)
        return total

    def _some(self, over: str, n: int) -> Tensor:
        """The samples of one mini-batch, or of all mini-batches of one pass."""
        ids, sizes = np.array([self.id]), np.array([n])
        order = Order(
            self.job.local, self.job.keys(ids, self.round, f"average {self.exchange}"), sizes, self.bound.vector.device
        )
        index, real = order.block(0, 1 if over == "batch" else int(order.per_epoch[0]))
        return index[:, 0][real[:, 0]]

    def gradient(self, request: Gradient) -> Tensor:
        bound, task = self.bound, self.job.task
        x, y = self.job.split(request.data).of(self.id)
        bound.vector.copy_(request.at)
        bound.buffers.copy_(self.buffers)
        bound.gradient.zero_()
        for a in range(0, len(y), SLICE):
            output, _ = bound(x[a : a + SLICE], train=False)
            (task.losses(output, y[a : a + SLICE]).sum() / len(y)).backward()
        return bound.gradient.clone()

    def measure(self, request: Measure) -> dict[str, Tensor]:
        self.bound.vector.copy_(request.at)
        self.bound.buffers.copy_(self.buffers)
        return self.job.task.measured(self.bound, *self.job.split(request.data).of(self.id))


SLICE = 512  # samples at a time where a whole client is averaged over

PERFORM: dict[type[Request], Callable[..., Any]] = {
    Train: OneClient.train,
    Average: OneClient.average,
    Gradient: OneClient.gradient,
    Measure: OneClient.measure,
}
