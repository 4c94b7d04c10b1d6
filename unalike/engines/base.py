"""What all engines share: the job they are given, what they hand back, and the work of one single client."""

from __future__ import annotations

import ctypes
import dataclasses as dc
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from unalike import augment, random
from unalike.contract import Batch, Fields, Me, Method, Work
from unalike.data.federation import Columns, Federation
from unalike.errors import UnalikeError, did_you_mean, first_line
from unalike.local import LocalTraining, Order, new_slots, slot_names, update
from unalike.model import Live, Model, Pure
from unalike.store import Shapes

BUFFERS = "buffers"  # the reserved field in which BatchNorm's statistics travel
OPTIMIZER = "optimizer."  # prefix of the client state that a kept optimizer lives in


class States(Protocol):
    """Where client state is kept: rows in memory, or files as on a real client."""

    shapes: Shapes

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]: ...
    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None: ...


@dc.dataclass
class Job:
    """All that running a client's function takes. `data` already lies on the model's device, in its dtype."""

    method: Method
    model: Model
    data: Federation
    local: LocalTraining
    seed: int
    states: States
    mean_samples: float
    max_steps: int | None = None  # a real client's own rule for what it is asked to train

    def __post_init__(self) -> None:
        if self.local.augment is not None:
            augment.check(self.data.train.x)

    def split(self, name: str) -> Columns:
        columns = getattr(self.data, name, None)
        if columns is None:
            raise UnalikeError(
                f"The federation has no per-client {name} data: make them with split_clients({name}=0.2)."
            )
        return columns

    def numbers(self, ids: np.ndarray, round: int) -> dict[str, np.ndarray]:
        """What `Me` knows of each client, as float64 arrays [c]."""
        n = self.data.train.sizes[ids]
        typical = max(self.mean_samples, self.local.batch_size or 1)  # at least a batch, where short ones are dropped
        return {
            "n": n.astype(np.float64),
            "rel": n / self.mean_samples,
            "lr": self.local.rates(ids, round),
            "lr0": self.local.rates(ids, 0),
            "K": self.local.counts(ids, n, round).astype(np.float64),
            "K_mean": self.local.counts(ids, np.full(len(ids), typical), round).astype(np.float64),
        }

    def check_steps(self, steps: int) -> None:
        """Refuse a training of more steps than this client does."""
        if self.max_steps is not None and steps > self.max_steps:
            raise UnalikeError(
                f"The run wants {steps} steps a round of this client, which does {self.max_steps} at most "
                "(--max-steps)."
            )

    def keys(self, ids: np.ndarray, round: int, purpose: str) -> np.ndarray:
        return random.client_keys(self.seed, round, purpose, ids)


@dc.dataclass
class Outcome:
    """The replies of some clients: stacked fields, and the mean training loss of each (NaN where none trained)."""

    ids: np.ndarray
    up: dict[str, Tensor]
    samples: np.ndarray
    loss: np.ndarray
    trained: int = 0  # how many times these clients trained in this exchange
    finite: np.ndarray | None = None  # whether all that a client sent is finite, where an engine already knows


class Later(Outcome):
    """An outcome that the device may still be at work on: `ends` [2, c] has the losses and whether what is sent is
    finite, and the host waits for it when somebody asks."""

    def __init__(self, ids: np.ndarray, up: dict[str, Tensor], samples: np.ndarray, trained: int, ends: Tensor):
        self.ids, self.up, self.samples, self.trained, self._ends = ids, up, samples, trained, ends

    @functools.cached_property
    def loss(self) -> np.ndarray:  # type: ignore[override]
        return self._read[0]

    @functools.cached_property
    def finite(self) -> np.ndarray:  # type: ignore[override]
        return self._read[1] > 0

    @functools.cached_property
    def _read(self) -> np.ndarray:
        return self._ends.cpu().numpy()


@dc.dataclass(frozen=True)
class Call:
    """One exchange: a client function, the message to all, the rows that differ, and when."""

    fn: Callable[..., Any]
    shared: dict[str, Tensor]
    rows: dict[str, Tensor]
    round: int
    exchange: int
    trained: int = 0  # trainings in earlier exchanges of the round: part of what batch orders are drawn from

    def message(self, k: int) -> Fields:
        return Fields({**self.shared, **{name: t[k] for name, t in self.rows.items()}})


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold PyTorch to one thread: on small operations its threads cost more than they give, and on a busy machine they
    wait for each other (measured: up to 60 times slower). It also makes results independent of the machine's cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@functools.cache
def keep_memory() -> None:
    """Tell glibc to keep what is freed instead of giving it back: a step frees and asks for the same blocks again, and
    fresh pages cost more than the arithmetic of a small recurrent step (measured: 14 ms to 10 on a CPU)."""
    if sys.platform != "linux":
        return
    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, 1 << 29)  # M_TRIM_THRESHOLD


class Engine:
    """Runs a client function on some clients and stages the state they return."""

    name = "engine"
    watch: Callable[[Outcome], None] | None = (
        None  # shown every reply of a round: what a simulation measures on the way
    )
    others_seconds = 0.0  # spent in calls so far for other runs of the same stack (together.py)

    def __init__(self, job: Job):
        self.job = job

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        raise NotImplementedError

    @property
    def notes(self) -> list[str]:
        """What a user may want to know of how it ran."""
        return []

    def evaluator(self) -> Engine:
        """The engine that evaluates personal models: this one, where it can call any function."""
        return self

    def close(self) -> None:
        """Give back threads and files."""


def failed(job: Job, fn: Callable[..., Any], client: int, inputs: dict[str, Any], error: Exception) -> UnalikeError:
    """The error of a client function, named: client, function, shapes; never the insides of `vmap`."""
    if isinstance(error, UnalikeError):
        return error
    shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in inputs.items() if isinstance(v, Tensor))
    name = f"{type(job.method).__name__}.{getattr(fn, '__name__', 'function')}"
    said = f"{type(error).__name__}: {first_line(error)}"
    return UnalikeError(f"{name} failed for client {client} (given {shapes}): {said}")


def local_settings(job: Job, work: Work) -> LocalTraining:
    return job.local.replaced(**work.local) if work.local else job.local


def kept_slots(job: Job, local: LocalTraining) -> list[str]:
    """Names of the optimizer's state that the client keeps between rounds."""
    return [n for n in slot_names(local) if local.keep_optimizer and OPTIMIZER + n in job.states.shapes]


def finish(job: Job, out: Any, fn: Callable[..., Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The end of a client function: (state, reply), checked and as tensors. (Replies are checked by the server too.)"""
    name = f"{type(job.method).__name__}.{fn.__name__}"
    if not (isinstance(out, tuple) and len(out) == 2 and all(isinstance(part, dict) for part in out)):
        raise UnalikeError(
            f"{name} must end with (state, reply), two dicts, or a request such as me.train(...).then(...); it "
            f"returned {type(out).__name__}."
        )
    for key, value in (item for part in out for item in part.items()):
        if not isinstance(value, Tensor | int | float):
            raise UnalikeError(f"{name} ends with {key!r}, a {type(value).__name__}: it must be a tensor or a number.")
    device = job.model.device
    # (a number is filled in, not copied from the host: that could not be captured)
    whole = lambda v: v.detach().to(device) if isinstance(v, Tensor) else torch.full((), v, device=device)  # noqa: E731
    kept, sent = ({k: whole(v) for k, v in part.items()} for part in out)
    for key, value in kept.items():
        if key not in job.states.shapes:
            raise UnalikeError(
                f"{name} keeps {key!r}, which `keeps` does not declare.{did_you_mean(key, job.states.shapes)}"
            )
        want = job.states.shapes[key][0]
        if tuple(value.shape) != want:
            raise UnalikeError(f"{name} keeps {key!r} with shape {list(value.shape)}; `keeps` declares {list(want)}.")
    return kept, sent


def start_buffers(model: Model, s: Fields, m: Fields) -> Tensor:
    """The buffers training starts from: the client's own, the server's, or those of the model as built."""
    if model.buffer_policy == "local" and BUFFERS in s:
        return model.start_buffers + s[BUFFERS]  # kept as a difference: a client that has kept nothing has zeros
    return dict.get(m, BUFFERS, model.start_buffers)


def trained_buffers(model: Model, new: Tensor, received: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What training leaves of the buffers: (to keep, to send), each a difference, by the model's policy."""
    if not model.buffer_layout.size or model.buffer_policy == "freeze":
        return {}, {}
    if model.buffer_policy == "local":
        return {BUFFERS: new - model.start_buffers}, {}
    return {}, {BUFFERS: new - received}


class Solo:
    """One client's work, on a module of its own: what `sequential`, each worker and a real client run."""

    def __init__(self, job: Job):
        self.job = job
        if job.model.device.type == "cpu":
            keep_memory()
        self.live: Live = job.model.live()
        self._pure: Pure | None = None

    @property
    def pure(self) -> Pure:
        if self._pure is None:
            self._pure = self.job.model.pure()
        return self._pure

    # ---- one client function, from message to reply

    def run(
        self, call: Call, client: int, state: dict[str, Tensor], first: Tensor, m: Fields
    ) -> tuple[dict, dict, float]:
        """(state to keep, reply, mean training loss)."""
        job, model = self.job, self.job.model
        self.id, self.round, self.exchange = client, call.round, call.exchange
        ids = np.array([client])
        numbers = {
            k: torch.tensor(v[0], dtype=model.dtype, device=model.device)
            for k, v in job.numbers(ids, call.round).items()
        }
        numbers["first"] = first
        numbers["_draws"] = torch.tensor(job.keys(ids, call.round, f"draws {call.exchange}")[0], device=model.device)
        self.me = me = Me(numbers, call.round, job.local, model.layout)
        s = Fields(state)
        self.state = state
        self.kept: dict[str, Tensor] = {}
        self.sent: dict[str, Tensor] = {}
        self.received = self.buffers = start_buffers(model, s, m)
        self.loss = float("nan")
        self.trained = call.trained
        fn = call.fn
        inputs: dict[str, Any] = {
            **{f"m.{k}": v for k, v in dict.items(m)},
            **{f"s.{k}": v for k, v in dict.items(s)},
        }
        try:
            out = fn(me, s, m)
            while isinstance(out, Work):
                if out.next is None:
                    raise UnalikeError(f"{fn.__name__} asked for {out.kind} without .then(...): name what comes next.")
                result = PERFORM[out.kind](self, out)
                fn, inputs["result"] = out.next, result
                out = fn(me, s, m, result, **out.keep)
            kept, sent = finish(job, out, fn)
        except Exception as error:
            raise failed(job, fn, client, inputs, error) from error
        self.trained -= call.trained
        kept, sent = {**kept, **self.kept}, {**sent, **self.sent}
        return kept, sent, self.loss

    # ---- the requests

    def train(self, work: Work) -> Tensor:
        job, live = self.job, self.live
        local = local_settings(job, work)
        x, y = job.data.train.of(self.id)
        ids, sizes = np.array([self.id]), np.array([len(y)])
        steps = int(local.counts(ids, sizes, self.round)[0])
        job.check_steps(steps)
        rate = work.lr if work.lr is not None else float(local.rates(ids, self.round)[0])
        lr = torch.as_tensor(rate, dtype=live.vector.dtype, device=live.vector.device).reshape(1)
        purpose = f"train {self.trained}"
        keys = job.keys(ids, self.round, purpose)
        key = torch.tensor(keys[0], device=x.device)
        self.trained += 1
        live.vector.copy_(work.at)
        live.buffers.copy_(self.buffers)
        slots = new_slots(local, live.vector)
        for name in kept_slots(job, local):
            slots[name].copy_(self.kept.get(OPTIMIZER + name, self.state[OPTIMIZER + name]))
        order = Order(local, keys, sizes, x.device)
        total = torch.zeros((), dtype=live.vector.dtype, device=x.device)
        block, per_epoch, batches = order.block_steps(), int(local.per_epoch(sizes)[0]), work.batches
        if work.step is not None or work.loss is not None:
            _ = self.pure  # made here: not inside a transform
        moved = None if local.augment is None else augment.parse(local.augment)
        for start in range(0, steps * batches, block * batches):
            end = min(start + block * batches, steps * batches)
            index, _ = order.block(start, end)
            for k in range(start, end, batches):
                step_key = random.fold(key, k) if live.keyed or moved else None
                some = []
                for b in range(k, k + batches):
                    place = (b % per_epoch) * order.width
                    rows = index[b - start, 0, : min(order.width, len(y) - place)]
                    batch = x[rows]
                    if moved and step_key is not None:
                        batch = moved(batch, random.fold(step_key, augment.NUMBER - (b - k)))
                    some.append((batch, y[rows]))
                if work.step is not None:
                    self._step(work, some, lr, step_key)
                else:
                    total += self._descend(local, work, *some[0], slots, lr, step_key)
        self.loss = float("nan") if work.step is not None else float(total) / steps
        if not torch.isfinite(live.vector).all() or (work.step is None and self.loss != self.loss):
            self.loss = float("inf")  # NaN says that nobody trained; this says that it diverged
        self.me.K, self.me.lr = self.me.K.new_tensor(steps), lr[0]
        for name in kept_slots(job, local):
            self.kept[OPTIMIZER + name] = slots[name].clone()
        kept, sent = trained_buffers(job.model, live.buffers, self.received)
        if kept or sent:
            self.buffers = live.buffers.clone()  # what follows in this exchange goes on from here
        self.kept |= kept
        self.sent |= sent
        return live.vector.clone()

    def _descend(
        self,
        local: LocalTraining,
        work: Work,
        x: Tensor,
        y: Tensor,
        slots: dict,
        lr: Tensor,
        key: Tensor | None,
    ) -> Tensor:
        """One step of the one loop: gradient, affine term, clipping, weight decay, optimizer."""
        live, model = self.live, self.job.model
        live.gradient.zero_()
        output, features = live(x, key, want_features=work.loss is not None)
        loss = data_loss = model.losses(output, y).mean()
        if work.loss is not None:
            batch = self._batch(x, y, key, output, features)
            loss = data_loss + work.loss(batch, **work.args)
        loss.backward()
        with torch.no_grad():
            update(local, live.vector, live.gradient, slots, lr, work.pull, work.push, work.unclipped)
        return data_loss.detach()

    def _step(self, work: Work, some: list[tuple[Tensor, Tensor]], lr: Tensor, key: Tensor | None) -> None:
        assert work.step is not None
        batches = [self._batch(x, y, key) for x, y in some]
        self.live.vector.copy_(work.step(self.live.vector.clone(), batches, lr[0], **work.args).detach())

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
            weight = x.new_full((len(y),), 1 / len(y), dtype=self.job.model.dtype)

        def call(vector: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            out, feats, _ = self.pure(vector, self.live.buffers, other, key, weight, train, want_features=True)
            return out, feats  # type: ignore[return-value]

        layout = self.job.model.layout
        return Batch(x, y, weight, self.job.model.losses, call, output, features, self._live_vector, layout)

    def _live_vector(self) -> Tensor:
        """The parameters as one vector that gradients flow through."""
        tensors = dict(self.live.module.named_parameters())
        return torch.cat([tensors[name].reshape(-1) for name, *_ in self.job.model.layout.places])

    def average(self, work: Work) -> Any:
        """Mean over all samples of a split; several vectors one after another."""
        assert work.fn is not None
        if work.at.dim() > 1:
            results = [self.average(dc.replace(work, at=v)) for v in work.at]
            return tree_map(lambda *parts: torch.stack(parts), *results)
        live = self.live
        x, y = self.job.split(work.data).of(self.id)
        if len(y) == 0:
            raise UnalikeError(f"Client {self.id} has no {work.data} samples to average over.")
        if work.over != "samples":
            rows = self._some(work.over, len(y))
            x, y = x[rows], y[rows]
        live.vector.copy_(work.at)
        live.buffers.copy_(self.buffers)
        total = None
        with torch.no_grad():
            for a in range(0, len(y), SLICE):
                xs, ys = x[a : a + SLICE], y[a : a + SLICE]
                output, features = live(xs, train=False, want_features=True)
                weight = xs.new_full((len(ys),), 1 / len(y), dtype=self.job.model.dtype)
                batch = self._batch(xs, ys, None, output, features, train=False, weight=weight)
                part = tree_map(batch.mean, work.fn(batch, **work.args))
                total = part if total is None else tree_map(torch.add, total, part)
        return total

    def _some(self, over: str, n: int) -> Tensor:
        """The samples of one mini-batch, or of all mini-batches of one pass."""
        ids, sizes = np.array([self.id]), np.array([n])
        order = Order(
            self.job.local, self.job.keys(ids, self.round, f"average {self.exchange}"), sizes, self.live.vector.device
        )
        index, real = order.block(0, 1 if over == "batch" else int(order.per_epoch[0]))
        return index[:, 0][real[:, 0]]

    def gradient(self, work: Work) -> Tensor:
        live, model = self.live, self.job.model
        x, y = self.job.data.train.of(self.id)
        live.vector.copy_(work.at)
        live.buffers.copy_(self.buffers)
        live.gradient.zero_()
        for a in range(0, len(y), SLICE):
            output, _ = live(x[a : a + SLICE], train=False)
            (model.losses(output, y[a : a + SLICE]).sum() / len(y)).backward()
        return live.gradient.clone()


SLICE = 512  # samples at a time where a whole client is averaged over

PERFORM: dict[str, Callable[[Solo, Work], Any]] = {
    "train": Solo.train,
    "average": Solo.average,
    "gradient": Solo.gradient,
}
