"""Local training: its settings, the order of samples, and the update of a vector by a gradient.

The update works on `[..., P]` in place: one client's vector or a stack of them go through the same lines.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import augment, random
from unalike.errors import UnalikeError, unknown

Amount = float | Sequence[float] | Callable[[int, int], float]


@dc.dataclass(frozen=True)
class LocalTraining:
    """What a client does between two messages.

    epochs, steps: passes over its data, or mini-batch steps (give one of them; steps begin a new pass when one ends).
    epochs, steps and lr are each a value, a list with one per client, or a function of (client, round).
    batch_size: None is the full batch. shuffle=False keeps the stored order. drop_last leaves a short last batch out.
    lr_decay: the rate of round t (from 0) is lr * lr_decay**t.
    optimizer: "sgd", "rmsprop" or "adam", as torch.optim defines them; keep_optimizer: its state is the client's and
      lives through the run instead of starting anew each round.
    clip_norm: the gradient's total norm is cut to this, before weight decay is added.
    augment: pictures are mirrored and shifted at random while training, such as "flip,crop:4".
    """

    epochs: Amount | None = None
    steps: Amount | None = None
    batch_size: int | None = 32
    lr: Amount = 0.1
    lr_decay: float = 1.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    smoothing: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = None
    shuffle: bool = True
    drop_last: bool = False
    keep_optimizer: bool = False
    augment: str | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise UnalikeError(f"Give epochs or steps, not both; got epochs={self.epochs}, steps={self.steps}.")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        for name in ("epochs", "steps", "lr"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "lr"):
                count = len(value) if _listed(value) else 1
                _amount(name, value, np.arange(count), 0)
        if not isinstance(self.optimizer, str) or self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.batch_size is not None:
            if not isinstance(self.batch_size, int | np.integer) or self.batch_size < 1 or self.batch_size is True:
                raise UnalikeError(f"batch_size must be a whole number above 0, or None; got {self.batch_size!r}.")
            object.__setattr__(self, "batch_size", int(self.batch_size))
        for name in ("momentum", "weight_decay", "eps"):
            if not _number(getattr(self, name)) or getattr(self, name) < 0:
                raise UnalikeError(f"{name} must be a number of at least 0; got {getattr(self, name)!r}.")
        if not _number(self.lr_decay) or self.lr_decay <= 0:
            raise UnalikeError(f"lr_decay must be a number above 0; got {self.lr_decay!r}.")
        if not _number(self.smoothing) or not 0 <= self.smoothing <= 1:
            raise UnalikeError(f"smoothing must lie between 0 and 1; got {self.smoothing!r}.")
        if self.clip_norm is not None and (not _number(self.clip_norm) or self.clip_norm <= 0):
            raise UnalikeError(f"clip_norm must be a number above 0, or None; got {self.clip_norm!r}.")
        pair = _listed(self.betas) and len(self.betas) == 2
        if not pair or not all(_number(b) and 0 <= b < 1 for b in self.betas):
            raise UnalikeError(f"betas must be two numbers from 0 up to, not with, 1; got {self.betas!r}.")
        object.__setattr__(self, "betas", tuple(float(b) for b in self.betas))  # a config file gives a list
        for name in ("nesterov", "shuffle", "drop_last", "keep_optimizer"):
            if not isinstance(getattr(self, name), bool):
                raise UnalikeError(f"{name} must be True or False; got {getattr(self, name)!r}.")
        if self.nesterov and not (self.optimizer == "sgd" and self.momentum > 0):
            raise UnalikeError("nesterov=True needs optimizer='sgd' and a momentum above 0.")
        if self.momentum and self.optimizer == "adam":
            raise UnalikeError(f"adam takes betas and no momentum; got momentum={self.momentum!r}.")
        if self.augment is not None:
            augment.parse(self.augment)

    def replaced(self, **changes: Any) -> LocalTraining:
        """These settings with a few others; giving steps takes epochs away, and the other way round."""
        known = {f.name for f in dc.fields(self)}
        for name in changes:
            if name not in known:
                raise unknown("setting of LocalTraining", name, known)
        if "steps" in changes:
            changes.setdefault("epochs", None)
        if "epochs" in changes and changes["epochs"] is not None:
            changes.setdefault("steps", None)
        return dc.replace(self, **changes)

    def rates(self, ids: np.ndarray, round: int) -> np.ndarray:
        """float64 [c]: the learning rate of each client in this round; before round 0 it is that of round 0."""
        round = max(round, 0)
        return _amount("lr", self.lr, ids, round) * self.lr_decay**round

    def per_epoch(self, sizes: np.ndarray) -> np.ndarray:
        """Mini-batches in one pass over so many samples."""
        if self.batch_size is None:
            return np.ones_like(sizes)
        return sizes // self.batch_size if self.drop_last else -(-sizes // self.batch_size)

    def passes(self, sizes: np.ndarray) -> np.ndarray:
        """int64 [2, c]: samples and mini-batches of one pass."""
        return np.stack([sizes, self.per_epoch(sizes)])

    def counts(self, ids: np.ndarray, sizes: np.ndarray, round: int) -> np.ndarray:
        """int64 [c]: the steps each client takes in this round."""
        per = self.per_epoch(sizes)
        if (per < 1).any():
            k = int(np.flatnonzero(per < 1)[0])
            raise UnalikeError(
                f"Client {int(ids[k])} has {int(sizes[k])} samples, fewer than batch_size={self.batch_size}, and "
                "drop_last=True leaves it no batch: take a smaller batch_size or drop_last=False."
            )
        if self.steps is not None:
            return _amount("steps", self.steps, ids, max(round, 0)).astype(np.int64)
        assert self.epochs is not None
        if type(self.epochs) is int and self.epochs > 0:  # as good as always, and asked for several times a round
            return per.astype(np.int64) * self.epochs
        steps = _amount("epochs", self.epochs, ids, max(round, 0)) * per
        return np.ceil(np.round(steps, 6)).astype(np.int64).clip(min=1)  # 0.07 * 100 is 7.000000000000001


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _listed(value: object) -> bool:
    return value.ndim == 1 if isinstance(value, np.ndarray) else isinstance(value, list | tuple)


def _amount(name: str, value: Any, ids: np.ndarray, round: int) -> np.ndarray:
    """float64 [c]: one number per client from a value, a list per client or a function of (client, round)."""
    if type(value) in (int, float) and value > 0 and (name != "steps" or value == int(value)) and value < math.inf:
        return np.full(len(ids), float(value))  # likewise
    each = callable(value) or _listed(value)
    if callable(value):
        given = [value(int(k), round) for k in ids]
    elif _listed(value):
        if len(ids) and int(ids.max()) >= len(value):
            raise UnalikeError(
                f"{name} has {len(value)} entries, and there is a client {int(ids.max())}: give one each."
            )
        given = [value[k] for k in ids]
    else:
        given = [value]
    whole = name == "steps"
    for client, number in zip(ids, given, strict=False):
        if not _number(number) or number <= 0 or (whole and number != int(number)):
            kind, who = "whole" if whole else "finite", f" for client {int(client)}" if each else ""
            raise UnalikeError(f"{name} must be a {kind} number above 0; got {number!r}{who}.")
    return np.broadcast_to(np.array(given, dtype=np.float64), len(ids))


def carried(device: torch.device | str, *arrays: np.ndarray) -> list[Tensor]:
    """Arrays of 8-byte numbers on a device, all in one copy: a GPU's host waits for each copy that is not pinned."""
    if torch.device(device).type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    whole = torch.from_numpy(packed(arrays)).pin_memory().to(device, non_blocking=True)
    return unpacked(whole, [(a.shape, a.dtype) for a in arrays])


def packed(arrays: Sequence[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
    """Arrays of 8-byte numbers end to end, as int64."""
    return np.concatenate([np.ascontiguousarray(a).view(np.int64).reshape(-1) for a in arrays], out=out)


def unpacked(whole: Tensor, kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[Tensor]:
    """Views of what was packed, by shape and type."""
    parts = whole.split([math.prod(shape) for shape, _ in kinds])
    return [
        (part.view(torch.float64) if dtype == np.float64 else part).view(shape)
        for part, (shape, dtype) in zip(parts, kinds, strict=True)
    ]


class Order:
    """Which samples each step of each client reads: `block(first, last)` gives numbers [steps, c, batch] into the
    client's own samples and which of them are real. A function of the clients' keys; padding sits at the end."""

    def __init__(
        self,
        local: LocalTraining,
        keys: np.ndarray,
        sizes: np.ndarray,
        device: torch.device | str = "cpu",
        there: Sequence[Tensor] | None = None,
    ):
        self.width = int(sizes.max()) if local.batch_size is None else local.batch_size
        self.shuffle = local.shuffle and local.batch_size is not None  # the full batch needs no order
        self._counts = local.passes(sizes)  # here and on the device: nobody waits for a size
        self.keys, counts = carried(device, keys, self._counts) if there is None else there
        self.sizes, self.per_epoch = counts
        self.used: list[Any] = []  # tensors that others may let go of: a captured graph must not

    def block_steps(self, limit: int = 1 << 22) -> int:
        """How many steps a block may have to stay small."""
        return max(1, limit // (len(self.sizes) * self.width))

    def block(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        device = self.sizes.device
        if (self._counts == self._counts[:, :1]).all():
            return self._even(first, last)
        step = torch.arange(first, last, device=device)[:, None]  # [K, 1]
        epoch, batch = step // self.per_epoch, step % self.per_epoch  # [K, c]
        place = batch[..., None] * self.width + torch.arange(self.width, device=device)  # [K, c, B]
        real = place < self.sizes[:, None]
        place = torch.where(real, place, 0)
        if not self.shuffle:
            return place, real
        # One run of samples per client and pass, laid end to end, so that a small client costs what it holds.
        sizes, per_epoch = self._counts
        host = (last - 1) // per_epoch - first // per_epoch + 1  # clients of different sizes are in different passes
        passes = epoch[-1] - epoch[0] + 1  # [c], the same
        numbers = torch.arange(len(sizes), device=device)
        client = numbers.repeat_interleave(passes, output_size=int(host.sum()))  # [runs]
        size, runs = self.sizes[client], torch.arange(int(host.sum()), device=device)
        run = runs.repeat_interleave(size, output_size=int((host * sizes).sum()))  # [samples]
        start, first_run = size.cumsum(0) - size, passes.cumsum(0) - passes
        number = torch.arange(len(run), device=device) - start[run]
        counter = (epoch[0][client] + runs - first_run[client]) * (1 << 32)
        draw = random.bits(self.keys[client][run], counter[run] + number)
        # by run, and within a run by its draws: one sort of both together, the draw's highest 40 bits behind the run
        order = ((run << 40) + (draw >> 24) + (1 << 39)).argsort(stable=True)
        return number[order][start[first_run + epoch - epoch[0]][..., None] + place], real

    def _even(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The same for clients of one size: a fraction of the operations, all but the draws known beforehand."""
        n, per_epoch = (int(value) for value in self._counts[:, 0])
        used = _passes(n, per_epoch, self.width, first, last, self.shuffle, self.sizes.device)
        self.used.append(used)
        counter, take, real = used
        real = real[:, None].expand(-1, len(self.keys), -1)
        if not self.shuffle:
            return take[:, None].expand_as(real), real
        draw = random.bits(self.keys[:, None], counter) >> 24
        order = draw.view(len(draw), -1, n).argsort(dim=-1, stable=True)
        return order.flatten(1)[:, take].transpose(0, 1), real


@functools.lru_cache(maxsize=8)
def _passes(
    n: int, per_epoch: int, width: int, first: int, last: int, shuffle: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a client with `n` samples: the counters of all draws of the passes that these steps lie in, where in those
    passes each step finds its samples [K, B], and which of them are real."""
    step = np.arange(first, last)
    place = (step % per_epoch)[:, None] * width + np.arange(width)
    real = place < n
    take = np.where(real, place, 0)
    epochs = np.arange(first // per_epoch, (last - 1) // per_epoch + 1)
    if shuffle:
        take = take + (step // per_epoch - epochs[0])[:, None] * n
    counter = ((epochs << 32)[:, None] + np.arange(n)).reshape(-1)
    return tuple(torch.from_numpy(a).to(device) for a in (counter, take, real))  # type: ignore[return-value]


# ---------------------------------------------------------------- optimizers, in place on [..., P]

Slots = dict[str, Tensor]


def _sgd(local: LocalTraining, theta: Tensor, g: Tensor, slots: Slots, lr: Tensor) -> None:
    if local.momentum:
        buffer = slots["momentum"].mul_(local.momentum).add_(g)
        g = g.add_(buffer, alpha=local.momentum) if local.nesterov else buffer
    theta.addcmul_(g, lr, value=-1)


def _rmsprop(local: LocalTraining, theta: Tensor, g: Tensor, slots: Slots, lr: Tensor) -> None:
    square = slots["square"].mul_(local.smoothing).addcmul_(g, g, value=1 - local.smoothing)
    g = g / (square.sqrt() + local.eps)
    if local.momentum:
        g = slots["momentum"].mul_(local.momentum).add_(g)
    theta.addcmul_(g, lr, value=-1)


def _adam(local: LocalTraining, theta: Tensor, g: Tensor, slots: Slots, lr: Tensor) -> None:
    b1, b2 = local.betas
    t = slots["count"].add_(1)
    mean = slots["mean"].mul_(b1).add_(g, alpha=1 - b1)
    square = slots["square"].mul_(b2).addcmul_(g, g, value=1 - b2)
    scale = (square / (1 - b2**t)).sqrt_().add_(local.eps)
    theta.addcmul_(mean / scale, lr / (1 - b1**t), value=-1)


OPTIMIZERS: dict[str, Callable[..., None]] = {"sgd": _sgd, "rmsprop": _rmsprop, "adam": _adam}


def slot_names(local: LocalTraining) -> dict[str, str]:
    """The optimizer's state: its names, each of the model's shape or one number ("one")."""
    names: dict[str, str] = {}
    if local.optimizer == "adam":
        names |= {"mean": "model", "square": "model", "count": "one"}
    if local.optimizer == "rmsprop":
        names["square"] = "model"
    if local.momentum and local.optimizer != "adam":
        names["momentum"] = "model"
    return names


def new_slots(local: LocalTraining, theta: Tensor) -> Slots:
    """Fresh optimizer state for a vector or a stack of vectors."""
    return {
        name: torch.zeros_like(theta) if shape == "model" else theta.new_zeros(*theta.shape[:-1], 1)
        for name, shape in slot_names(local).items()
    }


def update(
    local: LocalTraining,
    theta: Tensor,
    g: Tensor,
    slots: Slots,
    lr: Tensor,
    pull: Tensor | float = 0.0,
    push: Tensor | float = 0.0,
    unclipped: tuple[str, ...] = (),
    live: Tensor | None = None,
) -> None:
    """One step in place: affine term, clipping, weight decay, optimizer. `lr` is [..., 1]; `live` [..., 1] says whose
    optimizer state moves (a client that has finished comes along with lr 0)."""

    def affine(late: bool) -> None:
        if ("pull" in unclipped) == late and (isinstance(pull, Tensor) or pull):
            if isinstance(pull, Tensor):
                g.addcmul_(theta, pull)
            else:
                g.add_(theta, alpha=pull)
        if ("push" in unclipped) == late and (isinstance(push, Tensor) or push):
            g.add_(push)

    affine(late=False)
    if local.clip_norm is not None:
        norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        g.mul_((local.clip_norm / (norm + 1e-6)).clamp(max=1.0))
    if local.weight_decay:
        g.add_(theta, alpha=local.weight_decay)
    affine(late=True)
    before = {k: v.clone() for k, v in slots.items()} if live is not None else {}
    OPTIMIZERS[local.optimizer](local, theta, g, slots, lr)
    for name, old in before.items():
        slots[name].copy_(torch.where(live, slots[name], old))  # type: ignore[arg-type]
