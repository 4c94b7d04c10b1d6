"""The job: everything needed to run a client's function."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.channel import Channel
from unalike.channel.stage import Draw
from unalike.channel.stages import Summed
from unalike.client.evaluation import evaluation
from unalike.client.limits import Limits
from unalike.client.sample_privacy import check_request, reads_own
from unalike.client.samples import Chosen, Samples
from unalike.client.state_in_memory import Shapes
from unalike.contract import (
    BUFFERS,
    OPTIMIZER,
    Average,
    Call,
    Evaluate,
    Field,
    Gradient,
    Method,
    Outputs,
    Request,
    Train,
)  # fmt: skip
from unalike.contract.requests import PUBLIC, DataName, Measure
from unalike.data import SPLITS, Columns, Federation
from unalike.errors import UnalikeError, unknown
from unalike.messages.check import reply_fields
from unalike.nn.task import Task
from unalike.training import LocalTraining, augment, slot_names


class States(Protocol):
    """A store of client state: rows in memory, or files as on a real client."""

    shapes: Shapes

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]: ...
    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None: ...


@dc.dataclass
class Job:
    """Everything needed to run a client's function. `data` lies on the task's device, in its dtype."""

    method: Method
    task: Task
    data: Federation
    local: LocalTraining
    seed: int
    states: States
    mean_samples: float
    # at a real client: the owner's limits on work with its samples
    limits: Limits | None = None
    # whether the samples of `data` are changed in place from round to round
    drifts: bool = False
    # the channel that replies pass through, if there is one
    channel: Channel | None = None
    _samples: dict[DataName, Samples] = dc.field(default_factory=dict, init=False, repr=False)
    _evaluations: dict[Evaluate, Callable[..., Any]] = dc.field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.local.augment is not None:
            augment.check(self.data.train.x)

    @property
    def start(self) -> Tensor:
        """Return the run's start vector (`me.start`)."""
        return self.task.start

    @property
    def shown(self) -> LocalTraining:
        """Return the run's settings as a client function sees them (`me.local`)."""
        return self.local

    def start_of(self, net: str) -> Tensor:
        """Return the start vector of one of the method's further networks (`me.start_of`)."""
        if net not in self.task.nets:
            raise unknown("network", net, self.task.nets)
        return self.task.nets[net].start

    def split(self, name: str) -> Columns:
        columns = self.data.splits.get(name)
        if columns is None:
            made = f"split_clients({name}=0.2)" if name in SPLITS else f"named_splits({name}=0.5)"
            raise UnalikeError(f"The federation has no per-client {name} data: make them with {made}.")
        return columns

    def samples(self, data: DataName) -> Samples:
        """Return the samples that a request names; the same object each time."""
        if data not in self._samples:
            own = data if isinstance(data, str) else data[0]
            if own != PUBLIC:
                self.split(own)
            self._samples[data] = Samples.of(data, self.data.splits, self.data.public)
        return self._samples[data]

    def renew(self) -> None:
        """Called after the clients' samples were changed in place: copies of them are updated."""
        for samples in self._samples.values():
            samples.renew()

    def allow(self, request: Request, call: Call) -> None:
        """Refuse a request that would reveal single samples where they are protected; call: the call it is part of."""
        if self.local.sample_clip is not None:
            check_request(request, type(self.method).__name__, judging=isinstance(call.function, Evaluate))
        if self.limits is not None and not isinstance(request, Train) and reads_own(request):
            self._check_few(request, self.limits)

    def _check_few(self, request: Request, limits: Limits) -> None:
        """Refuse work on fewer of a real client's samples than its owner allows; `data` holds that client's samples
        alone."""
        client = np.flatnonzero(self.data.train.sizes)[:1]
        if isinstance(request, Measure):
            rows = int(self.split(request.data).sizes[client][0])
        else:
            assert isinstance(request, Average | Outputs | Gradient)
            rows = limits.own_rows(self.chosen(request, client), request.only)
        if isinstance(request, Average) and request.over == "batch":
            rows = min(rows, self.local.batch_size or rows)
        limits.check_rows(rows, "the gradient of" if isinstance(request, Gradient) else "numbers over")

    def chosen(self, request: Train | Average | Outputs | Gradient, ids: np.ndarray) -> Chosen:
        """Return the samples of a request for these clients; raise if a client has none."""
        chosen = Chosen(self.samples(request.data), ids, request.only)
        if isinstance(request, Gradient) and not chosen.samples.labelled:
            raise UnalikeError("The public set has no labels, and the gradient of its samples' loss was asked for.")
        if (chosen.sizes == 0).any():
            client = int(ids[chosen.sizes == 0][0])
            raise UnalikeError(f"Client {client} has no {request.data} samples to {request.verb}.")
        return chosen

    def who(self, client: int) -> str:
        """Return a client's name for error messages."""
        return f"client {client}"

    def largest(self, name: str) -> int:
        """Return the largest number of samples that any client has in a split."""
        return int(self.split(name).sizes.max())

    def numbers(self, ids: np.ndarray, round: int) -> dict[str, np.ndarray]:
        """Return the numbers that `Me` has about each client, as float64 arrays [c]."""
        n = self.data.train.sizes[ids]
        typical = max(self.mean_samples, self.local.batch_size or 1)  # at least one batch, if short batches are dropped
        return {
            "n": n.astype(np.float64),
            "relative_size": n / self.mean_samples,
            "lr": self.local.rates(ids, round),
            "first_lr": self.local.rates(ids, 0),
            "steps": self.local.counts(ids, n, round).astype(np.float64),
            "mean_steps": self.local.counts(ids, np.full(len(ids), typical), round).astype(np.float64),
        }

    def keys(self, ids: np.ndarray, round: int, purpose: str) -> np.ndarray:
        """Return the random keys of these clients, int64 [c]."""
        return draws.client_keys(self.seed, round, purpose, ids)

    def draws(self, who: int | np.ndarray, round: int, purpose: str) -> draws.Draws:
        """Return the source of random numbers of one client, or of a stack of clients [c]; a real client's are
        secret."""
        keys = torch.from_numpy(self.keys(np.atleast_1d(who), round, purpose)).to(self.task.device)
        return draws.KeyedDraws(keys[0] if np.ndim(who) == 0 else keys, self.task.dtype)

    def channel_draws(self, ids: np.ndarray, round: int, exchange: int) -> Draw:
        """Return the random numbers of the channel's stages for these clients, as a stack."""
        return self.draws(ids, round, f"channel {exchange}")

    @property
    def hidden(self) -> bool:
        """Return whether a reply tells nothing about its client beside its fields: no loss, no amount of work. This is
        so if the channel protects; both ends know it from the channel."""
        return self.channel is not None and self.channel.hidden

    @property
    def summed_fields(self) -> dict[str, Field]:
        """Return the fields of replies with their weights; under noise on sums all clients weigh the same, because a
        number of samples is not bounded."""
        fields = reply_fields(self.method, self.task)
        if self.channel is None or not self.channel.central:
            return fields
        return {name: dc.replace(field, weight="one") for name, field in fields.items()}

    @property
    def secure_stage(self) -> Summed:
        """Return the stage of the channel that leaves the server only sums."""
        assert self.channel is not None
        return self.channel.hiding

    def settings(self, request: Train) -> LocalTraining:
        """Return the settings of a requested training: the run's, overridden by the request's own. A training with its
        own optimizer does not use the optimizer state that the client keeps."""
        if not self.task.layout.size and request.net == "model":
            raise UnalikeError(f"{type(self.method).__name__} trains, and there is no model: needs_model is False.")
        local = self.local.replaced(**request.local) if request.local else self.local
        if local.augment and PUBLIC in request.data and "augment" not in request.local:
            # no augmentation: targets for public samples were made from the samples as they are
            local = dc.replace(local, augment=None)
        if local.sample_clip is not None and not reads_own(request):
            local = dc.replace(local, sample_clip=None, sample_noise=0.0)  # the public set needs no protection
        apart = request.net != "model" or request.slots is not None
        return dc.replace(local, keep_optimizer=False) if apart and local.keep_optimizer else local

    def function(self, function: str | Evaluate) -> Callable[..., Any]:
        """Return the client function of a call."""
        if isinstance(function, str):
            return getattr(self.method, function)
        # cached, because an engine finds what it compiled by the function
        if function not in self._evaluations:
            metrics = self.task.metrics_for(self.split(function.split).y)
            self._evaluations[function] = evaluation(self.method, self.task, metrics, function.split, function.steps)
        return self._evaluations[function]


def state_shapes(method: Method, task: Task, local: LocalTraining) -> Shapes:
    """Return the shapes of everything a client keeps: the method's fields, a kept optimizer, its own buffers."""
    kinds = {"real": task.dtype, "double": torch.float64, "whole": torch.int64, "byte": torch.uint8}
    shapes: Shapes = {n: (f.resolve(task.sizes, method), kinds[f.numbers], f.life) for n, f in method.keeps.items()}
    if local.keep_optimizer:
        for name, shape in slot_names(local).items():
            shapes[OPTIMIZER + name] = ((task.layout.size,) if shape == "model" else (1,), task.dtype, "run")
    if task.buffer_layout.size and task.buffer_policy == "local":
        shapes[BUFFERS] = ((task.buffer_layout.size,), task.dtype, "run")
    return shapes


def data_sizes(data: Federation) -> dict[str, int]:
    """Return the sizes of the data that shapes of fields may name."""
    public = {} if data.public is None else {PUBLIC: len(data.public[0])}
    return {"samples": int(data.train.sizes.max()), **public}
