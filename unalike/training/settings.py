"""Define `LocalTraining`: what a client does between two messages, and how much of it."""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unalike.errors import UnalikeError, unknown
from unalike.settings.knobs import check_fields, knob
from unalike.settings.typed import hints, words
from unalike.training import augment
from unalike.training.optimizers import OPTIMIZERS

Amount = float | Sequence[float] | Callable[[int, int], float]


@dc.dataclass(frozen=True)
class LocalTraining:
    """What a client does between two messages.

    epochs, steps and lr are each a value, a list with one per client, or a function of (client, round). Give either
    epochs or steps; steps begin a new pass over the samples when one ends. The optimizers are as torch.optim defines
    them.
    """

    epochs: Amount | None = knob(None, "passes over a client's data per round (or give steps); a list: one each")
    steps: Amount | None = knob(None, "mini-batch steps per round; a list: one per client")
    # None is the full batch
    batch_size: int | None = knob(32, 'samples per step, or "full"', above=0, written=int | str)
    lr: Amount = knob(0.1, "learning rate; a list: one per client")
    lr_decay: float = knob(1.0, "the rate of round t (from 0) is lr * lr_decay**t", above=0)
    optimizer: str = knob("sgd", "how a gradient becomes a step", choices=OPTIMIZERS, noun="optimizer")
    momentum: float = knob(0.0, "of sgd and rmsprop", least=0)
    nesterov: bool = knob(False, "Nesterov's momentum")
    betas: tuple[float, float] = knob((0.9, 0.999), "of adam")
    smoothing: float = knob(0.99, "of rmsprop", least=0, most=1)
    eps: float = knob(1e-8, "of adam and rmsprop", least=0)
    weight_decay: float = knob(0.0, "added to the gradient, after clipping", least=0)
    clip_norm: float | None = knob(None, "the gradient's norm is cut to this", above=0)
    sample_clip: float | None = knob(None, "each sample's gradient is cut to this norm (DP-SGD)", above=0)
    sample_noise: float = knob(0.0, "noise on a batch's gradients, relative to sample_clip (DP-SGD)", least=0)
    shuffle: bool = knob(True, "a new order of the samples every pass")
    drop_last: bool = knob(False, "leave a short last batch out")
    keep_optimizer: bool = knob(False, "a client's optimizer lives through the run")
    augment: str | None = knob(None, "pictures mirrored and shifted while training: flip, crop:4, flip,crop:4:0.5")

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise UnalikeError(f"Give epochs or steps, not both; got epochs={self.epochs}, steps={self.steps}.")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        for name in ("epochs", "steps", "lr"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "lr"):
                count = len(value) if _listed(value) else 1
                amount(name, value, np.arange(count), 0)
        check_fields(self, "", KINDS)
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", int(self.batch_size))
        pair = _listed(self.betas) and len(self.betas) == 2
        if not pair or not all(_number(b) and 0 <= b < 1 for b in self.betas):
            raise UnalikeError(f"betas must be two numbers in [0, 1); got {self.betas!r}.")
        object.__setattr__(self, "betas", tuple(float(b) for b in self.betas))  # a config file gives a list
        if self.nesterov and not (self.optimizer == "sgd" and self.momentum > 0):
            raise UnalikeError("nesterov=True needs optimizer='sgd' and a momentum above 0.")
        if self.sample_noise and self.sample_clip is None:
            raise UnalikeError("sample_noise needs sample_clip: noise hides a sample whose gradient is bounded.")
        if self.momentum and self.optimizer == "adam":
            raise UnalikeError(f"adam takes betas and no momentum; got momentum={self.momentum!r}.")
        if self.augment is not None:
            augment.parse(self.augment)

    def check_alike(self) -> None:
        """Refuse a list that gives clients different amounts of work, or rates: where replies are hidden in sums, a
        server could leave all but one client nothing to do, and read that one's reply from the sum."""
        for name in ("epochs", "steps", "lr"):
            value = getattr(self, name)
            if _listed(value) and len({*value}) > 1:
                raise UnalikeError(
                    f"{name} is not the same for all clients: where replies are hidden in sums, it must be, since the "
                    "sum would tell the reply of a client that works alone."
                )

    def replaced(self, **changes: Any) -> LocalTraining:
        """Return these settings with some changed; giving steps removes epochs, and the other way round."""
        known = {f.name for f in dc.fields(self)}
        for name in changes:
            if name not in known:
                raise unknown("setting of LocalTraining", name, known)
        # another optimizer: the old one's settings do not fit
        if changes.get("optimizer", self.optimizer) != self.optimizer:
            for name in ("momentum", "nesterov", "betas", "smoothing", "eps"):
                changes.setdefault(name, next(f.default for f in dc.fields(self) if f.name == name))
        if "steps" in changes:
            changes.setdefault("epochs", None)
        if "epochs" in changes and changes["epochs"] is not None:
            changes.setdefault("steps", None)
        return dc.replace(self, **changes)

    def rates(self, ids: np.ndarray, round: int) -> np.ndarray:
        """Return the learning rate of each client in this round, float64 [c]; before round 0 it is that of round 0."""
        round = max(round, 0)
        return amount("lr", self.lr, ids, round) * self.lr_decay**round

    def per_epoch(self, sizes: np.ndarray) -> np.ndarray:
        """Return the number of mini-batches in one pass over `sizes` samples."""
        if self.batch_size is None:
            return np.ones_like(sizes)
        return sizes // self.batch_size if self.drop_last else -(-sizes // self.batch_size)

    def passes(self, sizes: np.ndarray) -> np.ndarray:
        """Return the samples and mini-batches of one pass, int64 [2, c]."""
        return np.stack([sizes, self.per_epoch(sizes)])

    def counts(self, ids: np.ndarray, sizes: np.ndarray, round: int) -> np.ndarray:
        """Return the steps that each client takes in this round, int64 [c]."""
        per = self.per_epoch(sizes)
        if (per < 1).any():
            k = int(np.flatnonzero(per < 1)[0])
            raise UnalikeError(
                f"Client {int(ids[k])} has {int(sizes[k])} samples, fewer than batch_size={self.batch_size}, and "
                "drop_last=True leaves it no batch: take a smaller batch_size or drop_last=False."
            )
        if self.steps is not None:
            return amount("steps", self.steps, ids, max(round, 0)).astype(np.int64)
        assert self.epochs is not None
        if type(self.epochs) is int and self.epochs > 0:  # the usual case, computed several times per round
            return per.astype(np.int64) * self.epochs
        steps = amount("epochs", self.epochs, ids, max(round, 0)) * per
        # rounded first, because 0.07 * 100 is 7.000000000000001
        return np.ceil(np.round(steps, 6)).astype(np.int64).clip(min=1)


@dc.dataclass(frozen=True)
class ShortenedTraining(LocalTraining):
    """Local training in which clients that would be late make fewer steps. part: of each of these, the steps that fit
    and the steps that are asked of it; the run's clock changes it before every exchange."""

    part: dict[int, tuple[int, int]] = dc.field(default_factory=dict, compare=False, repr=False)

    def counts(self, ids: np.ndarray, sizes: np.ndarray, round: int) -> np.ndarray:
        whole = super().counts(ids, sizes, round)
        if not self.part:
            return whole
        fit, asked = np.array([self.part.get(client, (1, 1)) for client in ids.tolist()], dtype=np.int64).T
        return np.maximum(1, whole * fit // asked)


KINDS = {name: words(hint) for name, (hint, *_) in hints(LocalTraining).items()} | {"batch_size": "a whole number"}


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _listed(value: object) -> bool:
    return value.ndim == 1 if isinstance(value, np.ndarray) else isinstance(value, list | tuple)


def amount(name: str, value: Any, ids: np.ndarray, round: int) -> np.ndarray:
    """Return one number per client, float64 [c], from a value, a list per client or a function of (client, round)."""
    if type(value) in (int, float) and value > 0 and (name != "steps" or value == int(value)) and value < math.inf:
        return np.full(len(ids), float(value))  # the usual case
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


_bared: dict[int, tuple[LocalTraining, LocalTraining]] = {}


def bare(local: LocalTraining) -> LocalTraining:
    """Return these settings without amounts of work and rates, which are inputs of a step and not part of it. The last
    few are cached: they are the same in every round, and checking them anew is not free."""
    if id(local) not in _bared or _bared[id(local)][0] is not local:
        if len(_bared) > 16:
            _bared.clear()
        _bared[id(local)] = local, dc.replace(local, epochs=1, steps=None, lr=1.0, lr_decay=1.0)
    return _bared[id(local)][1]
