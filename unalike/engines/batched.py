"""A stack of clients at once: `vmap` over their vectors, for GPUs and for tiny models on a CPU.

Clients are sorted longest first, so that those still at work are a prefix of the stack. Steps are eager, or compiled
and (on CUDA) captured in one graph per width, in which even the reading of the batch order happens on the device.
"""

from __future__ import annotations

import dataclasses as dc
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from unalike.contract import Batch, Fields, Me, Work
from unalike.engines.base import (
    OPTIMIZER,
    Call,
    Engine,
    Job,
    Later,
    Outcome,
    Solo,
    finish,
    kept_slots,
    local_settings,
    one_thread,
    start_buffers,
    trained_buffers,
)
from unalike.engines.captured import Exchanges
from unalike.engines.program import Program, Setting, at_work, capturing, taken
from unalike.errors import EngineRefused, UnalikeError
from unalike.local import LocalTraining, Order, carried, new_slots
from unalike.model import Pure


class Batched(Engine):
    name = "batched"

    def __init__(
        self,
        job: Job,
        clients_at_once: int | None = None,
        memory: int | str | None = None,
        compile: bool | None = None,
        fast: bool | None = None,
    ):
        super().__init__(job)
        cuda = job.model.device.type == "cuda"
        self.compile = cuda if compile is None else compile
        self.pure: Pure = job.model.pure(align=16 if cuda else 1)
        wanted = cuda and job.model.dtype == torch.float32 if fast is None else fast
        self.quick = self._quick(asked=bool(fast)) if wanted else self.pure
        self.clients_at_once = self._fitting(clients_at_once, None if memory is None else in_bytes(memory))
        self.capture = cuda and self.compile and fast is not False
        self.take(job)

    def take(self, job: Job) -> None:
        """Work for this job; what was made for another is let go."""
        self.job = job
        self._programs: dict[Setting, list[Program]] = {}
        self._exchanges = Exchanges()

    @property
    def notes(self) -> list[str]:
        """What could not be compiled or captured, and why: it ran all the same, slower."""
        found = [note for kept in self._programs.values() for program in kept for note in program.notes]
        return [*dict.fromkeys([*found, *self._exchanges.notes])]

    def _quick(self, asked: bool) -> Pure:
        """The model with its fast layers, or as it is where they do not give the same gradient here."""
        try:
            return self.job.model.pure(align=16 if self.job.model.device.type == "cuda" else 1, fast=True)
        except (EngineRefused, ImportError):  # no Triton, or a kernel that this GPU cannot run
            if asked:
                raise
            return self.pure

    def _fitting(self, asked: int | None, budget: int | None) -> int:
        """How many clients to stack: as many as fit, or as many as were asked for if those fit."""
        model = self.job.model
        free = free_memory(model.device)
        if budget is not None and budget > free:
            raise UnalikeError(f"memory is {gigabytes(budget)} and only {gigabytes(free)} are free: give less.")
        if budget is not None and model.device.type == "cuda":
            total = torch.cuda.get_device_properties(model.device).total_memory
            held = torch.cuda.memory_reserved(model.device)
            torch.cuda.set_per_process_memory_fraction(min(1.0, (held + budget) / total), model.device)
        most = (budget or free) // (each := self._bytes_each())
        if most < 1:
            raise UnalikeError(
                f"One client needs about {gigabytes(each)}, {gigabytes(budget or free)} are available: take a smaller "
                "batch_size or model."
            )
        if asked is None:  # with room to spare where nobody gave a budget
            usual = budget or (int(0.6 * free) if model.device.type == "cuda" else min(free, 2 << 30))
            return min(4096, max(1, usual // each))
        if min(asked, len(self.job.data)) > most:
            raise UnalikeError(
                f"{asked} clients at once need about {gigabytes(asked * each)}, {gigabytes(budget or free)} are "
                f"available: use clients_at_once={most}."
            )
        return asked

    def _bytes_each(self) -> int:
        """What a client of a stack takes: its vectors are counted, activations measured on one client."""
        job, model, saved = self.job, self.job.model, 0

        def count(t: Tensor) -> Tensor:
            nonlocal saved
            saved += t.numel() * t.element_size()
            return t

        rows = int(min(job.local.batch_size or job.data.train.sizes.max(), job.data.train.sizes.max()))
        x, y = job.data.train.x[:rows], job.data.train.y[:rows]
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            vector = model.layout.repack(model.start, self.pure.layout).clone().requires_grad_(True)
            weight = x.new_full((len(y),), 1 / len(y), dtype=model.dtype)
            key = torch.zeros((), dtype=torch.int64, device=model.device)
            model.losses(self.pure(vector, model.start_buffers, x, key, weight)[0], y).mean()
        return 8 * model.layout.size * model.dtype.itemsize + 3 * saved

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        with one_thread() if self.job.model.device.type == "cpu" else nullcontext():
            yield from self._chunks(call, ids)

    def _chunks(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        a = 0
        while a < len(ids):
            b = min(a + self.clients_at_once, len(ids))
            try:
                outcome = self._exchanges.run(Stack(self, call, ids[a:b], np.arange(a, b)))
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

    def program(self, setting: Setting, width: int) -> Program:
        """The step for this kind of training; kept, because building it again would compile it again. A compiled one
        also serves narrower stacks; from the third width on the cohorts must vary, and a new one is built with room
        for wider ones, so that a few serve all."""
        kept = self._programs.setdefault(setting, [])
        if len(self._programs) > 64:  # a loss that is a new function every round would fill the memory
            del self._programs[next(iter(self._programs))]
        for program in sorted(kept, key=lambda p: p.width):
            if not self.compile or width <= program.width <= 1.6 * width:
                return program
        pure = self.quick if setting.step is None else self.pure  # a step of its own may differentiate twice
        room = width if len(kept) < 2 else math.ceil(1.25 * width)
        kept.append(Program(self.job.model, pure, setting, self.compile, room))
        return kept[-1]


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had: on a GPU, or of the machine's memory."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux: what is there is there
        return 1 << 62


UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "b": 1, "": 1}


def in_bytes(given: int | str) -> int:
    """8000000000, "8 GB" or "8GiB" as a number of bytes."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", str(given).lower())
    if not found or found[2] not in UNITS or isinstance(given, bool):
        raise UnalikeError(f"memory={given!r} must be a number of bytes, or a text such as '8GB' or '500 MiB'.")
    value = int(float(found[1]) * UNITS[found[2]])
    if value < 1:
        raise UnalikeError(f"memory={given!r} must be above 0.")
    return value


def gigabytes(value: int) -> str:
    return f"{value / 1e9:.3g} GB"


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
        self.device, self.dtype = self.job.model.device, self.job.model.dtype
        sizes = self.job.data.train.sizes
        self.longest = np.argsort(-self.job.local.counts(ids, sizes[ids], call.round), kind="stable")
        self.places = np.argsort(self.longest, kind="stable")
        self.ids, self.positions = ids[self.longest], positions
        self.sizes = sizes[self.ids]
        self.trained = call.trained
        self.asked: list[Work] = []  # the requests made so far
        self.used: list[Any] = []  # what they used and did not make
        self.clock = Clock(call.round)
        device = self.device  # not `self`: a stack that holds itself would wait for the garbage collector
        self.carry = lambda arrays: carried(device, *arrays)

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

    def amounts(self, local: LocalTraining, like: Amounts | None = None) -> Amounts:
        """What these settings ask of each client; `like` itself where they ask for the same."""
        did = steps = local.counts(self.ids, self.sizes, self.call.round)
        if like is not None and np.array_equal(did, like.did):
            return like
        sizes, order, moves = self.sizes, None, ()  # type: np.ndarray, np.ndarray | None, tuple[np.ndarray, ...]
        if (np.diff(steps) > 0).any():
            order = np.argsort(-steps, kind="stable")
            moves = order, np.argsort(order, kind="stable")
            sizes, steps = sizes[order], steps[order]
        return Amounts(did, order, steps, sizes, (did, local.passes(sizes), steps, at_work(steps), *moves))

    def course(self, local: LocalTraining, number: int, amounts: Amounts) -> tuple[np.ndarray, ...]:
        """Of the number-th training of the round, what differs between cohorts and rounds of equal amounts: rates, keys
        of the batch orders, and where each client's samples begin."""
        ids, round = self.ids, self.call.round
        rates, keys = local.rates(ids, round), self.job.keys(ids, round, f"train {number}")
        offsets = self.job.data.train.offsets[ids]
        if amounts.order is not None:
            keys, offsets = keys[amounts.order], offsets[amounts.order]
        return rates, keys, offsets

    def outcome(self, kept: dict[str, Tensor], sent: dict[str, Tensor], ends: Tensor) -> Outcome:
        """Back on the host: state staged, everybody in the cohort's order."""
        back, ids = self.places, self.ids[self.places]
        self.job.states.stage(ids, kept)
        return Later(ids, sent, self.sizes[back], self.trained - self.call.trained, ends)

    # ---- the device's side

    def load(self, there: Sequence[Tensor], state: dict[str, Tensor], first: Tensor) -> None:
        index, self.back, draws, stacked = there
        self.state, self.first = state, first
        self.rows = {name: t[index] for name, t in self.call.rows.items()}
        self.numbers = dict(zip(self._names, stacked.to(self.dtype).unbind(), strict=True))
        self.numbers["first"], self.numbers["_draws"] = first, draws
        buffers = start_buffers(self.job.model, Fields(state), Fields({**self.call.shared, **self.rows}))
        self.received = self.buffers = buffers.expand(len(self.ids), -1)
        self.loss = torch.full((len(self.ids),), float("nan"), dtype=self.dtype, device=self.device)
        self.kept: dict[str, Tensor] = {}
        self.sent: dict[str, Tensor] = {}

    def work(self) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """(state to keep, replies, losses and whether all that is sent is finite [2, c]), in the cohort's order."""
        fn, result, keep = self.call.fn, (), {}  # type: tuple[Any, tuple[Any, ...], dict[str, Any]]
        try:
            while isinstance(out := self._stage(fn, result, keep), Work):
                if out.next is None:
                    raise UnalikeError(f"{fn.__name__} asked for {out.kind} without .then(...): name what comes next.")
                self.asked.append(out)
                fn, result, keep = out.next, (self._perform(out),), out.keep
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
            me = Stacked(self.job, numbers, self.clock)
            m = Fields({**call.shared, **rows})
            out = fn(me, Fields(state), m, *given, **tree_unflatten(leaves, keep_spec))
            if isinstance(out, Work):
                parts: Any = {name: getattr(out, name) for name in _MOVING}
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
        return dc.replace(seen["out"], **whole) if isinstance(seen["out"], Work) else whole

    def _explain(self, fn: Callable[..., Any], error: Exception) -> UnalikeError:
        """Run the call again client by client: one fails too, with a better message, or only stacking does."""
        if isinstance(error, UnalikeError):
            return error
        solo = Solo(self.job)
        for k, client in enumerate(self.ids[:64]):
            state = {name: v[k] for name, v in self.state.items()}
            message = Fields({**self.call.shared, **{name: v[k] for name, v in self.rows.items()}})
            try:
                solo.run(self.call, int(client), state, self.first[k], message)
            except UnalikeError as single:
                return single
        looks = any(word in str(error) for word in (".item()", "control flow"))
        why = "it looks at the value of a tensor (if, .item(), float())" if looks else type(error).__name__
        return EngineRefused(
            f"{type(self.job.method).__name__}.{fn.__name__} works for one client but not for a stack of clients: "
            f"{why}. Use engine='workers' or 'sequential', or torch.where instead of a branch."
        )

    # ---- the requests

    def _perform(self, work: Work) -> Any:
        return {"train": self._train, "average": self._average, "gradient": self._gradient}[work.kind](work)

    def _train(self, work: Work) -> Tensor:
        job, model, pure = self.job, self.job.model, self.engine.pure
        local = local_settings(job, work)
        amounts = self.amounts(local)
        course = self.course(local, self.trained, amounts)
        rates, keys, offset, did, passes, count, alive, *moves = self.carry((*course, *amounts.arrays))
        self.trained += 1
        c = len(self.ids)
        rate = rates if work.lr is None else work.lr
        rate = rate if isinstance(rate, Tensor) else torch.full((), float(rate), dtype=self.dtype, device=self.device)
        lr = rate.to(self.device, self.dtype).reshape(-1, 1).expand(c, 1).contiguous()
        pack = lambda v: model.layout.repack(v, pure.layout)  # noqa: E731
        theta = pack(work.at).clone(memory_format=torch.contiguous_format)
        slots = new_slots(local, theta)
        for name in kept_slots(job, local):
            kept = self.kept.get(OPTIMIZER + name, self.state[OPTIMIZER + name])
            slots[name].copy_(pack(kept) if kept.shape[-1] == model.layout.size else kept)
        moving = {
            "theta": theta,
            "buffers": self.buffers.clone(memory_format=torch.contiguous_format),
            "slots": slots,
            "lr": lr,
            "args": _tensors(work.args),
        }
        for name in ("pull", "push"):
            if (value := self._affine(getattr(work, name), pack)) is not None:
                moving[name] = value
        if moves:
            moving = tree_map(lambda t: t[moves[0]], moving)
        setting = Setting.of(local, work, _plain(work.args))
        program = self.engine.program(setting, c)
        plan = Order(local, course[1], amounts.sizes, self.device, (keys, passes))
        done = program.run(job.data.train, moving, plan, amounts.steps, (offset, count, alive))
        theta, buffers, slots, loss = tree_map(lambda t: t[moves[1]], done) if moves else done
        self.used += plan, program._places
        diverged = ~torch.isfinite(theta).all(-1) | (loss.isnan() if work.step is None else False)
        self.loss = torch.where(diverged, float("inf"), loss)
        self.numbers = {**self.numbers, "K": did.to(lr), "lr": lr[:, 0]}
        for name in kept_slots(job, local):
            value = slots[name]
            self.kept[OPTIMIZER + name] = pure.layout.repack(value, model.layout) if value.shape[-1] > 1 else value
        to_keep, to_send = trained_buffers(model, buffers, self.received)
        if to_keep or to_send:
            self.buffers = buffers  # what follows in this exchange goes on from here
        self.kept |= to_keep
        self.sent |= to_send
        return pure.layout.repack(theta, model.layout)

    def _affine(self, value: Tensor | float, pack: Callable[[Tensor], Tensor]) -> Tensor | None:
        """pull or push as [c, 1] or [c, P]; None for a plain zero. Numbers are inputs too: one that changes with the
        round must not make a new step of it."""
        if not isinstance(value, Tensor):
            return torch.full((len(self.ids), 1), value, dtype=self.dtype, device=self.device) if value else None
        if value.dim() == 1:
            return value.to(self.dtype)[:, None]
        return pack(value)

    def _average(self, work: Work) -> Any:
        assert work.fn is not None
        if work.at.dim() > 2:
            parts = [self._average(dc.replace(work, at=work.at[:, j])) for j in range(work.at.shape[1])]
            return tree_map(lambda *p: torch.stack(p, 1), *parts)
        fn, model = work.fn, self.job.model
        plain = _plain(work.args)

        def one(vector: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, args: dict) -> Any:
            pure = self.engine.pure
            output, features, _ = pure(vector, buffers, x, train=False, want_features=True)

            def call(other: Tensor, ox: Tensor) -> tuple[Tensor, Tensor]:
                other = model.layout.repack(other, pure.layout)
                out, feats, _ = pure(other, buffers, ox, train=False, want_features=True)
                return out, feats  # type: ignore[return-value]

            batch = Batch(x, y, weight, model.losses, call, output, features)
            return tree_map(batch.mean, fn(batch, **args, **plain))

        return self._over_samples(work, vmap(one), _tensors(work.args))

    def _gradient(self, work: Work) -> Tensor:
        model, pure = self.job.model, self.engine.pure

        def one(vector: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, args: dict) -> Tensor:
            return (model.losses(pure(vector, buffers, x, train=False)[0], y) * weight).sum()

        flat = self._over_samples(work, vmap(grad(one)), {})
        return pure.layout.repack(flat, model.layout)

    def _over_samples(self, work: Work, one: Callable[..., Any], args: dict[str, Tensor]) -> Any:
        """The sum over slices of all samples of `one`, which weights each sample by one over its client's count."""
        columns = self.job.split(work.data)
        sizes, offsets = columns.sizes[self.ids], columns.offsets[self.ids]
        if (sizes == 0).any():
            client = int(self.ids[sizes == 0][0])
            raise UnalikeError(f"Client {client} has no {work.data} samples to average over.")
        picked = None if work.over == "samples" else self._some(work.over, sizes)
        counts = sizes if picked is None else picked[1]
        # longest first, so that a slice reads only the clients that reach so far
        order = np.argsort(-counts, kind="stable")
        index = torch.from_numpy(order).to(self.device)
        n = torch.from_numpy(counts[order]).to(self.device)[:, None]
        offset = torch.from_numpy(offsets[order]).to(self.device)[:, None]
        inputs = (self.job.model.layout.repack(work.at, self.engine.pure.layout), self.buffers, args)
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


class Stacked(Me):
    """One client of a stack. Functions made from it may be kept for long: it must not hold the stack."""

    def __init__(self, job: Job, numbers: dict[str, Tensor], clock: Clock):
        self.__dict__.update(numbers, local=job.local, layout=job.model.layout, _clock=clock)

    def __getattr__(self, name: str) -> Any:
        if name != "round":
            raise AttributeError(name)
        self._clock.asked = True
        return self._clock.round


_MOVING = ("at", "pull", "push", "args", "lr", "keep")  # parts of a request that may differ between clients
_STACKED = object()  # marks where a stacked tensor belongs


def _tensors(args: dict[str, Any]) -> dict[str, Tensor]:
    return {k: v for k, v in args.items() if isinstance(v, Tensor)}


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in args.items() if not isinstance(v, Tensor)}
