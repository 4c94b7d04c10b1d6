"""A stack of clients on its way through a client function: `vmap` over their vectors.

Clients are sorted longest first, so that those still at work are a prefix of the stack. Legend of shapes: c clients, P
numbers in a vector, K steps, b batches in a step, B samples in a batch.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from unalike.client import Job, OneClient, Plan, begin_slots, finish, judged, leave, start_buffers
from unalike.contract import BUFFERS, Average, Batch, Call, Fields, Gradient, LazyOutcome, Me, Outcome, Request, Train
from unalike.contract.requests import Measure, plain_args, tensor_args
from unalike.engines.batched.graphs import at_work, capturing, taken
from unalike.engines.batched.step import Course, StepKind
from unalike.errors import EngineRefused, UnalikeError
from unalike.training import LocalTraining, Order, to_device

if TYPE_CHECKING:
    from unalike.engines.batched.engine import Batched


@dc.dataclass
class Amounts:
    """How much each client of a stack does in one local training, longest first; `arrays` is what a device is told of
    it. The last two put the clients in this order and back, where a request with its own amount of work has changed who
    is longest. A function of `did` and the clients' sizes alone."""

    did: np.ndarray  # steps, in the stack's order
    order: np.ndarray | None
    steps: np.ndarray
    sizes: np.ndarray
    arrays: tuple[np.ndarray, ...]


class Stack:
    """One chunk of a cohort on its way through a client function.

    What the host knows is computed apart from what a device does with it (`opening`, `course`; `load`, `work`), so that
    a captured exchange can do the first alone (captured.py)."""

    def __init__(self, engine: Batched, call: Call, ids: np.ndarray, positions: np.ndarray):
        self.engine, self.job, self.call = engine, engine.job, call
        self.device, self.dtype = self.job.task.device, self.job.task.dtype
        sizes = self.job.data.train.sizes
        self.longest = np.argsort(-self.job.local.counts(ids, sizes[ids], call.round), kind="stable")
        self.places = np.argsort(self.longest, kind="stable")
        self.ids, self.positions = ids[self.longest], positions
        self.sizes = sizes[self.ids]
        self.trained = call.trained
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
        """What a device is told before anything else."""
        numbers = self.job.numbers(self.ids, self.call.round)
        keys = self.job.keys(self.ids, self.call.round, f"draws {self.call.exchange}")
        self._names = tuple(numbers)
        return self.positions[self.longest], self.places, keys, np.stack(list(numbers.values()))

    def plan(self, local: LocalTraining, number: int) -> Plan:
        """Return the plan of the number-th training of the round."""
        return Plan(self.job, local, self.ids, self.call.round, number)

    def amounts(self, plan: Plan, like: Amounts | None = None) -> Amounts:
        """Return what a plan asks of each client; `like` itself where it asks for the same."""
        did = steps = plan.steps
        if like is not None and np.array_equal(did, like.did):
            return like
        sizes, order, moves = self.sizes, None, ()  # type: np.ndarray, np.ndarray | None, tuple[np.ndarray, ...]
        if (np.diff(steps) > 0).any():
            order = np.argsort(-steps, kind="stable")
            moves = order, np.argsort(order, kind="stable")
            sizes, steps = sizes[order], steps[order]
        return Amounts(did, order, steps, sizes, (did, plan.local.passes(sizes), steps, at_work(steps), *moves))

    def course(self, plan: Plan, amounts: Amounts) -> tuple[np.ndarray, ...]:
        """Return what differs between cohorts and rounds of equal amounts: rates, keys of the batch orders, and where
        each client's samples begin."""
        keys, offsets = plan.keys, plan.offsets
        if amounts.order is not None:
            keys, offsets = keys[amounts.order], offsets[amounts.order]
        return plan.rates, keys, offsets

    def outcome(self, kept: dict[str, Tensor], sent: dict[str, Tensor], ends: Tensor) -> Outcome:
        """Back on the host: state staged, everybody in the cohort's order."""
        back, ids = self.places, self.ids[self.places]
        self.job.states.stage(ids, kept)
        return LazyOutcome(ids, sent, self.sizes[back], self.trained - self.call.trained, ends)

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
        """(state to keep, replies, losses and whether all that is sent is finite [2, c]), in the cohort's order."""
        fn, result, keep = self.job.function(self.call.function), (), {}  # type: tuple[Any, tuple[Any, ...], dict[str, Any]]
        try:
            while isinstance(out := self._stage(fn, result, keep), Request):
                following = out.following(fn.__name__)
                self.asked.append(out)
                fn, result, keep = following, (self._perform(out),), dict(out.keep)
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
                finite = finite & torch.isfinite(value).reshape(len(value), -1).all(1)
        return kept, sent, torch.stack([self.loss.double()[self.back], finite.double()])

    # ---- the pieces between requests

    def _stage(self, fn: Callable[..., Any], result: tuple, keep: dict[str, Any]) -> Any:
        """`fn` for every client of the stack: a request with stacked tensors, or (state, reply)."""
        call = self.call
        keep_leaves, keep_spec = tree_flatten(keep)
        moving = [k for k, leaf in enumerate(keep_leaves) if isinstance(leaf, Tensor)]
        result_leaves, result_spec = tree_flatten(result)
        seen: dict[str, Any] = {}

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
        """Run the call again client by client: one fails too, with a better message, or only stacking does."""
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
        why = "it looks at the value of a tensor (if, .item(), float())" if looks else type(error).__name__
        return EngineRefused(
            f"{type(self.job.method).__name__}.{fn.__name__} works for one client but not for a stack of clients: "
            f"{why}. Use engine='workers' or 'sequential', or torch.where instead of a branch."
        )

    # ---- the requests

    def _perform(self, request: Request) -> Any:
        return PERFORM[type(request)](self, request)

    def _train(self, request: Train) -> Tensor:
        job = self.job
        plan = self.plan(job.settings(request), self.trained)
        local, amounts = plan.local, self.amounts(plan)
        course = self.course(plan, amounts)
        rates, keys, offset, did, passes, count, alive, *moves = self.carry((*course, *amounts.arrays))
        self.trained += 1
        rate = rates if request.lr is None else request.lr
        rate = rate if isinstance(rate, Tensor) else torch.full((), float(rate), dtype=self.dtype, device=self.device)
        lr = rate.to(self.device, self.dtype).reshape(-1, 1).expand(len(self.ids), 1).contiguous()
        theta = self._pack(request.at).clone(memory_format=torch.contiguous_format)
        moving = {
            "theta": theta,
            "buffers": self.buffers.clone(memory_format=torch.contiguous_format),
            "slots": begin_slots(job, local, theta, {**self.state, **self.kept}, self._pack),
            "lr": lr,
            "args": tensor_args(request.args),
        }
        for name in ("pull", "push"):
            if (value := self._affine(getattr(request, name))) is not None:
                moving[name] = value
        if moves:
            moving = tree_map(lambda t: t[moves[0]], moving)
        step = self.engine.step(StepKind.of(local, request), len(self.ids))
        order = Order(local, course[1], amounts.sizes, self.device, (keys, passes))
        done = step.run(moving, Course(job.data.train, order, amounts.steps, offset, count, alive))
        theta, buffers, slots, loss = tree_map(lambda t: t[moves[1]], done) if moves else done
        self.used += order, step.static
        self.loss = judged(request, theta, loss)
        self.numbers = {**self.numbers, "steps": did.to(lr), "lr": lr[:, 0]}
        keep, send = leave(job, local, slots, buffers, self.received, self._unpack)
        if BUFFERS in keep or BUFFERS in send:
            self.buffers = buffers  # what follows in this exchange goes on from here
        self.kept |= keep
        self.sent |= send
        return self._unpack(theta)

    def _pack(self, vectors: Tensor) -> Tensor:
        """Lay out vectors as the stack's model wants them."""
        return self.job.task.layout.repack(vectors, self.engine.pure.layout)

    def _unpack(self, vectors: Tensor) -> Tensor:
        return self.engine.pure.layout.repack(vectors, self.job.task.layout)

    def _affine(self, value: Tensor | float) -> Tensor | None:
        """Return pull or push as [c, 1] or [c, P]; None for a plain zero. Numbers are inputs too: one that changes with
        the round must not make a new step of it."""
        if not isinstance(value, Tensor):
            return torch.full((len(self.ids), 1), value, dtype=self.dtype, device=self.device) if value else None
        if value.dim() == 1:
            return value.to(self.dtype)[:, None]
        return self._pack(value)

    def _average(self, request: Average) -> Any:
        if request.at.dim() > 2:
            parts = [self._average(dc.replace(request, at=request.at[:, j])) for j in range(request.at.shape[1])]
            return tree_map(lambda *p: torch.stack(p, 1), *parts)
        fn, task = request.fn, self.job.task
        plain = plain_args(request.args)

        def one(vector: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, args: dict) -> Any:
            pure = self.engine.pure
            output, features, _ = pure(vector, buffers, x, train=False, want_features=True)

            def call(other: Tensor, ox: Tensor) -> tuple[Tensor, Tensor]:
                other = task.layout.repack(other, pure.layout)
                out, feats, _ = pure(other, buffers, ox, train=False, want_features=True)
                return out, feats  # type: ignore[return-value]

            batch = Batch(x, y, weight, task.losses, call, output, features, layout=task.layout)
            return tree_map(batch.mean, fn(batch, **args, **plain))

        return self._over_samples(request, vmap(one), tensor_args(request.args))

    def _gradient(self, request: Gradient) -> Tensor:
        task, pure = self.job.task, self.engine.pure

        def one(vector: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, args: dict) -> Tensor:
            return (task.losses(pure(vector, buffers, x, train=False)[0], y) * weight).sum()

        return self._unpack(self._over_samples(request, vmap(grad(one)), {}))

    def _measure(self, request: Measure) -> dict[str, Tensor]:
        """Client after client: metrics of all outputs cannot be stacked."""
        columns, bound, rows = self.job.split(request.data), self.job.task.live(), []
        for k, client in enumerate(self.ids):
            bound.vector.copy_(request.at[k])
            bound.buffers.copy_(self.buffers[k])
            rows.append(self.job.task.measured(bound, *columns.of(int(client))))
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _over_samples(self, request: Average | Gradient, one: Callable[..., Any], args: dict[str, Tensor]) -> Any:
        """The sum over slices of all samples of `one`, which weights each sample by one over its client's count."""
        columns = self.job.split(request.data)
        sizes, offsets = columns.sizes[self.ids], columns.offsets[self.ids]
        if (sizes == 0).any():
            client = int(self.ids[sizes == 0][0])
            raise UnalikeError(f"Client {client} has no {request.data} samples to average over.")
        over = request.over if isinstance(request, Average) else "samples"
        picked = None if over == "samples" else self._some(over, sizes)
        counts = sizes if picked is None else picked[1]
        # longest first, so that a slice reads only the clients that reach so far
        order = np.argsort(-counts, kind="stable")
        index = torch.from_numpy(order).to(self.device)
        n = torch.from_numpy(counts[order]).to(self.device)[:, None]
        offset = torch.from_numpy(offsets[order]).to(self.device)[:, None]
        inputs = (self._pack(request.at), self.buffers, args)
        ordered = bool((order == np.arange(len(order))).all())
        if not ordered:
            inputs = tree_map(lambda t: t[index], inputs)
        a, longest, total = 0, int(counts.max()), None
        while a < longest:
            reach = int((counts > a).sum())
            b = min(longest, a + max(1, (16384 if self.device.type == "cuda" else 4096) // reach))
            place = torch.arange(a, b, device=self.device)
            real = place < n[:reach]
            own = torch.where(real, place, 0) if picked is None else picked[0][index[:reach], a:b]
            rows = offset[:reach] + own
            vector, buffers, some = tree_map(lambda t, r=reach: t[:r], inputs)
            x, y, weight = taken(columns.x, rows), taken(columns.y, rows), real.to(self.dtype) / n[:reach]
            part = one(vector, buffers, x, y, weight, some)
            if total is None:
                total = part
            else:
                tree_map(lambda whole, more, r=reach: whole[:r].add_(more), total, part)
            a = b
        back = torch.from_numpy(np.argsort(order, kind="stable")).to(self.device)
        return total if ordered else tree_map(lambda t: t[back], total)

    def _some(self, over: str, sizes: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """[c, n] numbers of the samples of one mini-batch, or of one pass, real ones first, and how many are real."""
        keys = self.job.keys(self.ids, self.call.round, f"average {self.call.exchange}")
        order = Order(self.job.local, keys, sizes, self.device)
        steps = 1 if over == "batch" else int(order.per_epoch.max())
        index, real = order.block(0, steps)
        real = real & (torch.arange(steps, device=self.device)[:, None, None] < order.per_epoch[:, None])
        index, real = index.transpose(0, 1).flatten(1), real.transpose(0, 1).flatten(1)
        return index, real.sum(1).cpu().numpy()  # within a pass only its last batch is short: real ones come first


@dc.dataclass
class Clock:
    """The round, and whether anybody asked for it: such an exchange is never replayed."""

    round: int
    asked: bool = False


class StackedMe(Me):
    """One client of a stack. Functions made from it may be kept for long: it must not hold the stack."""

    def __init__(self, job: Job, numbers: dict[str, Tensor], clock: Clock):
        self.__dict__.update(numbers, local=job.local, layout=job.task.layout, _clock=clock, _job=job)

    def __getattr__(self, name: str) -> Any:
        if name == "start":
            return self._job.start
        if name != "round":
            return super().__getattr__(name)
        self._clock.asked = True
        return self._clock.round


_STACKED = object()  # marks where a stacked tensor belongs

PERFORM: dict[type[Request], Callable[..., Any]] = {
    Train: Stack._train,
    Average: Stack._average,
    Gradient: Stack._gradient,
    Measure: Stack._measure,
}
