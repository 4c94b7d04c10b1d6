"""A stack of clients on its way through a client function: `vmap` over their vectors.

Clients are sorted longest first, so that those still at work are a prefix of the stack. Legend of shapes: c clients, P
numbers in a vector, K steps, b batches in a step, B samples in a batch.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from unalike import draws
from unalike.client import Job, OneClient, Plan, begin_slots, finish, judged, leave, start_buffers
from unalike.client.calls import ModelCalls
from unalike.client.one_client import Trained
from unalike.client.plan import Ordered, check_rows, checked_output, flat_slots, order_number, same
from unalike.client.samples import Chosen, Samples, row_values
from unalike.contract import (
    BUFFERS,
    Average,
    Batch,
    Call,
    Fields,
    Gradient,
    LazyOutcome,
    Me,
    Outcome,
    Outputs,
    Request,
    Train,
)
from unalike.contract.requests import Measure, plain_args, tensor_args
from unalike.data.pixels import rows_of
from unalike.engines.batched.graphs import at_work
from unalike.engines.batched.step import Common, Course, Same, StepKind
from unalike.errors import EngineRefused, UnalikeError, first_line
from unalike.nn.capture import capturing
from unalike.nn.numerics import finite_rows
from unalike.training import LocalTraining, Order, to_device

if TYPE_CHECKING:
    from unalike.engines.batched.engine import Batched


@dc.dataclass
class Amounts:
    """How much each client of a stack does in one local training, longest first; `arrays` is the device's copy of it.
    The last two put the clients into this order and back, if a request with its own amount of work has changed which is
    longest. A function of `did` and the clients' sizes alone."""

    did: np.ndarray  # steps, in the stack's order
    order: np.ndarray | None
    steps: np.ndarray
    sizes: np.ndarray
    arrays: tuple[np.ndarray, ...]


class Stack:
    """One chunk of a cohort on its way through a client function.

    The host's part is computed separately from the device's (`opening`, `course`; `load`, `work`), so that a captured
    exchange can do the first alone (captured.py).
    """

    def __init__(self, engine: Batched, call: Call, ids: np.ndarray, positions: np.ndarray):
        self.engine, self.job, self.call = engine, engine.job, call
        self.device, self.dtype = self.job.task.device, self.job.task.dtype
        sizes = self.job.data.train.sizes
        self.longest = np.argsort(-self.job.local.counts(ids, sizes[ids], call.round), kind="stable")
        self.places = np.argsort(self.longest, kind="stable")
        self.ids, self.positions = ids[self.longest], positions
        self.sizes = sizes[self.ids]
        self.trained = call.trained
        self.batches = np.zeros(len(ids), dtype=np.int64)  # read in training so far, in the order of `ids`
        self.ordered: Ordered | None = None
        self.asked: list[Request] = []  # the requests made so far
        self.used: list[Any] = []  # what they used and did not make
        self.clock = Clock(call.round)
        device = self.device  # not `self`: a stack that holds itself would wait for the garbage collector
        self.carry = lambda arrays: to_device(device, *arrays)

    def run(self) -> Outcome:
        state, first = self.job.states.read(self.ids)
        self.load(self.carry(self.opening()), state, first)
        return self.outcome(*self.work())

    # ---- the host's side

    def opening(self) -> tuple[np.ndarray, ...]:
        """Return the first arrays that the device is sent."""
        numbers = self.job.numbers(self.ids, self.call.round)
        keys = self.job.keys(self.ids, self.call.round, f"draws {self.call.exchange}")
        self._names = tuple(numbers)
        return self.positions[self.longest], self.places, keys, np.stack(list(numbers.values()))

    def plan(self, local: LocalTraining, number: int, chosen: Chosen | None = None) -> Plan:
        """Return the plan of the number-th training of the round, on the training samples unless others are chosen."""
        return Plan(self.job, local, self.ids, self.call.round, number, chosen)

    def amounts(self, plan: Plan, like: Amounts | None = None) -> Amounts:
        """Return the amounts that a plan asks of each client; `like` itself if they are the same."""
        did = steps = plan.steps
        if like is not None and np.array_equal(did, like.did):
            return like
        sizes, order, moves = plan.sizes, None, ()  # type: np.ndarray, np.ndarray | None, tuple[np.ndarray, ...]
        if (np.diff(steps) > 0).any():
            order = np.argsort(-steps, kind="stable")
            moves = order, np.argsort(order, kind="stable")
            sizes, steps = sizes[order], steps[order]
        return Amounts(did, order, steps, sizes, (did, plan.local.passes(sizes), steps, at_work(steps), *moves))

    def course(self, plan: Plan, amounts: Amounts) -> tuple[np.ndarray, ...]:
        """Return what differs between cohorts and rounds of equal amounts: rates, keys of the batch orders, where each
        client's samples begin, and how many are its own."""
        keys, offsets, own = plan.keys, plan.offsets, plan.chosen.own
        if amounts.order is not None:
            keys, offsets, own = (values[amounts.order] for values in (keys, offsets, own))
        return plan.rates, keys, offsets, own

    def outcome(self, kept: dict[str, Tensor], sent: dict[str, Tensor], ends: Tensor) -> Outcome:
        """Stage the new state, and return the outcome with clients in the cohort's order, on the host."""
        back, ids = self.places, self.ids[self.places]
        self.job.states.stage(ids, kept)
        trained = self.trained - self.call.trained
        return LazyOutcome(ids, sent, self.sizes[back], trained, ends, self.batches[back])

    # ---- the device's side

    def load(self, there: Sequence[Tensor], state: dict[str, Tensor], first: Tensor) -> None:
        index, self.back, draws, stacked = there
        self.state, self.first = state, first
        self.rows = {name: t[index] for name, t in self.call.rows.items()}
        self.numbers = dict(zip(self._names, stacked.to(self.dtype).unbind(), strict=True))
        self.numbers["first"], self.numbers["_draws"] = first, draws
        buffers = start_buffers(self.job.task, Fields(state), Fields({**self.call.shared, **self.rows}))
        self.received = self.buffers = buffers.expand(len(self.ids), -1)
        self.loss = torch.full((len(self.ids),), float("nan"), dtype=self.dtype, device=self.device)
        self.kept: dict[str, Tensor] = {}
        self.sent: dict[str, Tensor] = {}

    def work(self) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Return the state to keep, the replies, and [2, c] with the losses and whether everything sent is finite, in
        the cohort's order."""
        fn, result, keep = self.job.function(self.call.function), (), {}  # type: tuple[Any, tuple[Any, ...], dict[str, Any]]
        try:
            while isinstance(out := self._stage(fn, result, keep), Request):
                following = out.following(fn.__name__)
                self.job.allow(out, self.call)
                self.asked.append(out)
                done = self._perform(out)
                fn, keep = following, dict(out.keep)
                if isinstance(done, Trained):
                    keep, done = {**keep, **done.more}, done.vector
                result = (done,)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if capturing(self.device):
                raise
            raise self._explain(fn, error) from error
        order = lambda values: {k: v.detach()[self.back] for k, v in values.items()}  # noqa: E731
        kept, sent = order({**out[0], **self.kept}), order({**out[1], **self.sent})
        finite = self.loss.new_ones(len(self.loss), dtype=torch.bool)
        for value in sent.values():
            if value.is_floating_point():
                finite = finite & finite_rows(value)
        return kept, sent, torch.stack([self.loss.double()[self.back], finite.double()])

    # ---- the pieces between requests

    def _stage(self, fn: Callable[..., Any], result: tuple, keep: dict[str, Any]) -> Any:
        """Run `fn` for every client of the stack; return a request with stacked tensors, or (state, reply)."""
        call = self.call
        keep_leaves, keep_spec = tree_flatten(keep)
        moving = [k for k, leaf in enumerate(keep_leaves) if isinstance(leaf, Tensor)]
        result_leaves, result_spec = tree_flatten(result)
        seen: dict[str, Any] = {}
        shared = {id(t) for t in call.shared.values()}

        def one(*flat: Tensor) -> tuple[Tensor, ...]:
            left = iter(flat)
            numbers, state, rows = ({k: next(left) for k in part} for part in (self.numbers, self.state, self.rows))
            given = tree_unflatten([next(left) for _ in result_leaves], result_spec)
            leaves = list(keep_leaves)
            for k in moving:
                leaves[k] = next(left)
            me = StackedMe(self.job, numbers, self.clock)
            m = Fields({**call.shared, **rows})
            out = fn(me, Fields(state), m, *given, **tree_unflatten(leaves, keep_spec))
            if isinstance(out, Request):
                parts: Any = {name: getattr(out, name) for name in out.varies}
                for name in COMMON & parts.keys():
                    parts[name] = tree_map(lambda t: Same(t) if id(t) in shared else t, parts[name])
            else:
                parts = list(finish(self.job, out, fn))
            back, spec = tree_flatten(parts)
            seen.update(out=out, spec=spec, flat=[_STACKED if isinstance(v, Tensor) else v for v in back])
            return (numbers["n"], *(v for v in back if isinstance(v, Tensor)))

        # flat tensors: `vmap` takes nested ones too, but takes them apart in Python, several times
        parts = (*self.numbers.values(), *self.state.values(), *self.rows.values())
        inputs = (*parts, *result_leaves, *(keep_leaves[k] for k in moving))
        _, *stacked = vmap(one, randomness="different")(*inputs)
        values = iter(stacked)
        flat = [next(values) if v is _STACKED else v for v in seen["flat"]]
        whole = tree_unflatten(flat, seen["spec"])
        return dc.replace(seen["out"], **whole) if isinstance(seen["out"], Request) else whole

    def _explain(self, fn: Callable[..., Any], error: Exception) -> UnalikeError:
        """Run the call again client by client: either a client fails too, with a better message, or only stacking
        does."""
        if isinstance(error, UnalikeError):
            return error
        one_client = OneClient(self.job)
        for k, client in enumerate(self.ids[:64]):
            state = {name: v[k] for name, v in self.state.items()}
            message = Fields({**self.call.shared, **{name: v[k] for name, v in self.rows.items()}})
            try:
                one_client.run(self.call, int(client), state, self.first[k], message)
            except UnalikeError as single:
                return single
        looks = any(word in str(error) for word in (".item()", "control flow"))
        why = "it looks at the value of a tensor (if, .item(), float())"
        if not looks:
            why = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        advice = ", or torch.where instead of a branch" if looks else ""
        return EngineRefused(
            f"{type(self.job.method).__name__}.{fn.__name__} works for one client but not for a stack of clients: "
            f"{why}. Use engine='workers' or 'sequential'{advice}."
        )

    # ---- the requests

    def _perform(self, request: Request) -> Any:
        return PERFORM[type(request)](self, request)

    def _train(self, request: Train) -> Trained:
        job = self.job
        number = order_number(request, settings := job.settings(request), self.trained, self.ordered)
        self.ordered = number, request.data, settings.batch_size
        only = _one_or_each(request.only)
        chosen = job.chosen(dc.replace(request, only=only), self.ids)
        plan = self.plan(settings, number, chosen)
        local, amounts = plan.local, self.amounts(plan)
        course = self.course(plan, amounts)
        rates, keys, offset, own, did, passes, count, alive, *moves = self.carry((*course, *amounts.arrays))
        rate = rates if request.lr is None else request.lr
        rate = rate if isinstance(rate, Tensor) else torch.full((), float(rate), dtype=self.dtype, device=self.device)
        lr = rate.to(self.device, self.dtype).reshape(-1, 1).expand(len(self.ids), 1).contiguous()
        model = request.net == "model"
        laid = model and request.at.shape[-1] == job.task.layout.size
        pack, unpack = (self._pack, self._unpack) if laid else (same, same)
        theta = pack(request.at).clone(memory_format=torch.contiguous_format)
        args, rows, common = _own(request.args), _own(request.rows), _common(request)
        check_rows(request, chosen, {**{name: value[0] for name, value in rows.items()}, **common["rows"]})
        moving = {
            "theta": theta,
            "buffers": self.buffers.clone(memory_format=torch.contiguous_format),
            "slots": begin_slots(job, local, theta, {**self.state, **self.kept}, pack, request.slots),
            "lr": lr,
            "args": tensor_args(args),
            "rows": rows,
            "state": {name: value.contiguous().clone() for name, value in request.state.items()},
        }
        if request.loss is not None or request.step is not None or local.sample_clip is not None:
            moving["draws"] = draws.fold(self.numbers["_draws"], self.trained)
        there = chosen.samples
        samples = "public" if there.own is None else "both" if there.public else "own"
        if samples == "public" and (only is None or only.dim() == 1) and local.augment is None:
            samples = "same"  # the order is one for all too (Plan.keys)
        for name in ("pull", "push"):
            if (value := self._affine(getattr(request, name), pack)) is not None:
                moving[name] = value
        if moves:
            moving = tree_map(lambda t: t[moves[0]], moving)
            only = only if only is None or only.dim() == 1 else only[moves[0]]
        if samples == "both":
            moving["own"] = own
        step = self.engine.step(StepKind.of(local, request, laid, samples, there.labelled), len(self.ids))
        read = amounts.steps * request.batches, count * request.batches
        order = Order(local, course[1], amounts.sizes, self.device, (keys, passes), read)
        self.trained += 1
        self.batches = self.batches + amounts.did * request.batches
        whole = Course(chosen, order, amounts.steps, offset, count, alive, own, only, common)
        done = step.run(moving, whole)
        self.engine.compile_beside(step, moving, whole)
        ends: Any = (*done, moving["state"])
        theta, buffers, slots, loss, state = tree_map(lambda t: t[moves[1]], ends) if moves else ends
        self.used += order, step.static
        self.loss = judged(request, theta, loss, local.sample_clip is not None)
        self.numbers = {**self.numbers, "steps": did.to(lr), "lr": lr[:, 0]}
        if model:
            keep, send = leave(job, local, slots, buffers, self.received, self._unpack)
            if BUFFERS in keep or BUFFERS in send:
                self.buffers = buffers  # what follows in this exchange goes on from here
            self.kept |= keep
            self.sent |= send
        vector = unpack(theta)
        more = {} if request.slots is None else {"slots": flat_slots(local, slots, vector, unpack)}
        return Trained(vector, {**state, **more})

    def _pack(self, vectors: Tensor) -> Tensor:
        """Return vectors in the layout of the stack's model."""
        return self.job.task.layout.repack(vectors, self.engine.pure.layout)

    def _model(self, vectors: Tensor | None) -> Tensor:
        """Return the model's vectors of the stack, [c, 0] if there is no model."""
        return self.buffers.new_zeros(len(self.ids), 0) if vectors is None else self._pack(vectors)

    def _unpack(self, vectors: Tensor) -> Tensor:
        return self.engine.pure.layout.repack(vectors, self.job.task.layout)

    def _affine(self, value: Tensor | float, pack: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return pull or push as [c, 1] or [c, P]; None for a plain zero. Numbers are inputs too: one that changes with
        the round must not create a new step."""
        if not isinstance(value, Tensor):
            return torch.full((len(self.ids), 1), value, dtype=self.dtype, device=self.device) if value else None
        if value.dim() == 1:
            return value.to(self.dtype)[:, None]
        return pack(value)

    def _batch(
        self, labelled: bool, at: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, known: dict[str, Any]
    ) -> Batch:
        """Return one client's samples with the model's output at a vector ([0]: without a model), in evaluation
        mode."""
        task, pure = self.job.task, self.engine.pure
        calls = ModelCalls(task, lambda: pure, task.nets, buffers, weight, train=False, labelled=labelled)
        output = features = None
        more: dict[str, Any] = {**known, "index": lambda: known["index"]}
        if at.shape[-1]:
            output, features, _ = pure(at, buffers, x, train=False, want_features=True)
            more["vector"] = lambda: self._unpack(at)
        return Batch(x, y, weight, calls, output=output, features=features, **more)

    def _average(self, request: Average) -> Any:
        if request.at is not None and request.at.dim() > 2:
            parts = [self._average(dc.replace(request, at=request.at[:, j])) for j in range(request.at.shape[1])]
            return tree_map(lambda *p: torch.stack(p, 1), *parts)
        plain, same = plain_args(_own(request.args)), _common(request)["args"]
        labelled = self.job.samples(request.data).labelled

        def one(*given: Any) -> Any:
            *parts, args = given
            batch = self._batch(labelled, *parts)
            rows = request.fn(batch, **args, **same, **plain)
            return tree_map(batch.sum if request.total else batch.mean, rows)

        return self._over_samples(request, vmap(one))

    def _gradient(self, request: Gradient) -> Tensor:
        task, pure = self.job.task, self.engine.pure

        def one(
            vector: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, known: dict, args: dict
        ) -> Tensor:
            return (task.losses(pure(vector, buffers, x, train=False)[0], y) * weight).sum()

        return self._unpack(self._over_samples(request, vmap(grad(one))))

    def _measure(self, request: Measure) -> dict[str, Tensor]:
        """Compute metrics of all outputs client after client, because they cannot be stacked."""
        columns, task, rows = self.job.split(request.data), self.job.task, []
        bound = task.live()
        for k, client in enumerate(self.ids):
            x, y = columns.of(int(client))
            if request.at is not None:
                bound.vector.copy_(request.at[k])
                bound.buffers.copy_(self.buffers[k])
                outputs = task.outputs_of(bound, x, y)
            elif request.outputs is not None:
                outputs = request.outputs[k, : len(y)]
            rows.append(task.measured(outputs, y))
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _outputs(self, request: Outputs) -> Tensor:
        """Return one row per sample, [c, n, ...]."""
        if request.at is not None and request.at.dim() > 2:
            return torch.stack([self._outputs(dc.replace(request, at=v)) for v in request.at.unbind(1)], 1)
        only, fn = _one_or_each(request.only), request.fn
        chosen = self.job.chosen(dc.replace(request, only=only), self.ids)
        samples, n = chosen.samples, to_device(self.device, chosen.sizes)[0][:, None]
        plain, same = plain_args(_own(request.args)), _common(request)["args"]

        def one(at: Tensor, buffers: Tensor, args: dict, x: Tensor, y: Tensor, weight: Tensor, known: dict) -> Tensor:
            batch = self._batch(samples.labelled, at, buffers, x, y, weight, known)
            return checked_output(batch, batch.output if fn is None else fn(batch, **args, **same, **plain))

        at, args = self._model(request.at), tensor_args(_own(request.args))
        alike = samples.own is None and (only is None or only.dim() == 1)  # all clients read the same rows
        offset, own = to_device(self.device, chosen.offsets, chosen.own)
        if alike:
            n, offset, own = n[:1], offset[:1], own[:1]
        count = int(chosen.sizes.max()) if samples.own is None else self.job.largest(str(request.data))
        most = self._at_once
        if request.at is None:  # without a model, longer slices do not take more memory than the samples themselves
            most = max(most, NUMBERS // max(1, math.prod(samples.x.shape[1:])))
        size, parts = max(1, most // len(self.ids)), []
        for a in range(0, count, size):
            place = torch.arange(a, min(count, a + size), device=self.device)
            real = place < n
            index = torch.where(real, place, 0)
            rows = chosen.find(index, offset, own, only)
            weight = real.to(self.dtype) / n
            x, y = rows_of(samples.x, rows), rows_of(samples.y, rows)
            given: Any = [x, y, weight, _known(samples, index, own, {}, {})]
            if alike:
                given = tree_map(lambda t: t[0], given)
            dims = (0, 0, 0, *([None if alike else 0] * 4))
            found = vmap(one, in_dims=dims)(at, self.buffers, args, *given)
            parts.append(found * real.reshape(*real.shape, *([1] * (found.dim() - 2))).to(found.dtype))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    @property
    def _at_once(self) -> int:
        """Return how many samples of all clients are handled together."""
        return 16384 if self.device.type == "cuda" else 4096

    def _over_samples(self, request: Average | Gradient, one: Callable[..., Any]) -> Any:
        """Return the sum over slices of all samples of `one`, which weights each sample by one over its client's
        count."""
        only = _one_or_each(request.only)
        chosen = self.job.chosen(dc.replace(request, only=only), self.ids)
        sizes, samples = chosen.sizes, chosen.samples
        over = request.over if isinstance(request, Average) else "samples"
        picked = None if over == "samples" else self._some(over, sizes)
        counts = sizes if picked is None else picked[1]
        # longest first, so that a slice reads only the clients that reach so far
        order = np.argsort(-counts, kind="stable")
        index, n, offset, own = to_device(self.device, order, counts[order], chosen.offsets[order], chosen.own[order])
        n = n[:, None]
        average = request if isinstance(request, Average) else None
        rows, same = ({}, {}) if average is None else (_own(average.rows), _common(average)["rows"])
        if average is not None:
            check_rows(average, chosen, {**{name: value[0] for name, value in rows.items()}, **same})
        args = {} if average is None else tensor_args(_own(average.args))
        at = self._model(request.at)
        inputs: Any = (at, self.buffers, args, rows, only if only is not None and only.dim() > 1 else {})
        if not bool((order == np.arange(len(order))).all()):
            inputs = tree_map(lambda t: t[index], inputs)
        at_once = min(self._at_once, (average and average.at_once) or self._at_once)
        a, longest, total = 0, int(counts.max()), None
        while a < longest:
            reach = int((counts > a).sum())
            b = min(longest, a + max(1, at_once // reach))
            place = torch.arange(a, b, device=self.device)
            real = place < n[:reach]
            mine = torch.where(real, place, 0) if picked is None else picked[0][index[:reach], a:b]
            vector, buffers, some, given, each = tree_map(lambda t, r=reach: t[:r], inputs)
            there = chosen.find(mine, offset[:reach], own[:reach], each if isinstance(each, Tensor) else only)
            x, y, weight = rows_of(samples.x, there), rows_of(samples.y, there), real.to(self.dtype) / n[:reach]
            known = _known(samples, mine, own[:reach], given, same)
            part = one(vector, buffers, x, y, weight, known, some)
            if total is None:
                total = part
            else:
                tree_map(lambda whole, more, r=reach: whole[:r].add_(more), total, part)
            a = b
        if (order == np.arange(len(order))).all():
            return total
        back = torch.from_numpy(np.argsort(order, kind="stable")).to(self.device)
        return tree_map(lambda t: t[back], total)

    def _some(self, over: str, sizes: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Return the indices [c, n] of the samples of one mini-batch, or of one pass, real ones first, and how many are
        real."""
        keys = self.job.keys(self.ids, self.call.round, f"average {self.call.exchange}")
        order = Order(self.job.local, keys, sizes, self.device)
        steps = 1 if over == "batch" else int(order.per_epoch.max())
        index, real = order.block(0, steps)
        real = real & (torch.arange(steps, device=self.device)[:, None, None] < order.per_epoch[:, None])
        index, real = index.transpose(0, 1).flatten(1), real.transpose(0, 1).flatten(1)
        return index, real.sum(1).cpu().numpy()  # within a pass only its last batch is short: real ones come first


@dc.dataclass
class Clock:
    """The round, and whether it was read: an exchange that reads it is never replayed."""

    round: int
    asked: bool = False


class StackedMe(Me):
    """One client of a stack. Functions made from it may be kept for long, so it must not hold the stack."""

    def __init__(self, job: Job, numbers: dict[str, Tensor], clock: Clock):
        self.__dict__.update(
            numbers, local=job.local, layout=job.task.layout, _clock=clock, _job=job, _start_of=job.start_of
        )

    def __getattr__(self, name: str) -> Any:
        if name == "start":
            return self._job.start
        if name != "round":
            return super().__getattr__(name)
        self._clock.asked = True
        return self._clock.round


_STACKED = object()  # marks where a stacked tensor belongs

# the parts of a request in which a tensor of the message may stay one for all clients, instead of a copy for each
COMMON = {"args", "rows", "only"}
# of samples that are handled together without a model
NUMBERS = 1 << 23


def _own(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ between clients, and plain values."""
    return {name: value for name, value in values.items() if not isinstance(value, Same)}


def _common(request: Train | Average | Outputs) -> Common:
    """Return the tensors of a request that are the same for all clients."""
    parts = {"args": request.args, "rows": getattr(request, "rows", {})}
    return {part: {n: v.value for n, v in given.items() if isinstance(v, Same)} for part, given in parts.items()}


def _one_or_each(only: Any) -> Tensor | None:
    """Return the chosen rows: [r] for all, or [c, r]."""
    return only.value if isinstance(only, Same) else only


def _known(
    samples: Samples, index: Tensor, own: Tensor, rows: dict[str, Tensor], same: dict[str, Tensor]
) -> dict[str, Any]:
    """Return what a batch of an average has beside x and y."""
    ahead = own if samples.own is not None and samples.public else None
    given = {name: row_values(value, index, ahead, shared=False) for name, value in rows.items()}
    given |= {name: row_values(value, index, ahead, shared=True) for name, value in same.items()}
    source = {"source": (index >= own[:, None]).to(torch.int64)} if samples.public else {}
    return {"index": index, "rows": given, **source}


PERFORM: dict[type[Request], Callable[..., Any]] = {
    Train: Stack._train,
    Average: Stack._average,
    Outputs: Stack._outputs,
    Gradient: Stack._gradient,
    Measure: Stack._measure,
}
