"""The client's side of the contract: `me`, with which a client function asks for work, and the `batch` it works on.

Legend: `me` is one client; `s` its own state and `m` the server's message (`Fields` of tensors); `at` is a model vector
[P], or several as [k, P]; a client function returns a request (`me.train(...).then(...)`) or ends with
(new state, reply), two dicts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Never, Protocol

import torch
from torch import Tensor

from unalike.contract.requests import (
    PUBLIC,
    Average,
    DataName,
    Gradient,
    Outputs,
    Request,
    Train,
    checked_args,
    checked_rows,
)
from unalike.draws import Draws, KeyedDraws
from unalike.errors import UnalikeError, did_you_mean
from unalike.nn.layout import Layout
from unalike.training.settings import LocalTraining

Answer = Request | tuple[dict[str, Tensor | float], dict[str, Tensor | float]]  # what a client function returns
RENAMED = {"K": "steps", "K_mean": "mean_steps", "rel": "relative_size", "lr0": "first_lr"}


class Me:
    """One client, as its own function sees it. No device, no cohort, no loop over rounds.

    n: its training samples; relative_size: n over the mean n of all clients (of all with its network, where there are
    several); lr, first_lr: this round's and the first round's learning rate; steps: the steps of local training it does
    this round (after a training with settings of its own, steps and lr are what was done); mean_steps: those of a
    client of mean size; first: whether it has kept no state yet. Numbers are 0-dimensional tensors. round: the round,
    from 0 (an exchange whose function reads it is never replayed as a captured graph); local: the run's LocalTraining;
    layout: the model's layout (`body`, `head`, `join`);
    start: the run's first vector, a function of the seed that every client has without a message.
    """

    n: Tensor
    relative_size: Tensor
    lr: Tensor
    first_lr: Tensor
    steps: Tensor
    mean_steps: Tensor
    first: Tensor
    round: int
    local: LocalTraining
    layout: Layout
    start: Tensor

    def __init__(
        self,
        numbers: dict[str, Any],
        round: int,
        local: LocalTraining,
        layout: Layout,
        start_of: Callable[[str], Tensor] | None = None,
    ):
        self.__dict__.update(numbers, _start_of=start_of)
        self.round, self.local, self.layout = round, local, layout

    def __getattr__(self, name: str) -> Never:
        if name in RENAMED:
            raise UnalikeError(f"me.{name} is called me.{RENAMED[name]} now.")
        raise AttributeError(f"me has no {name!r}.{did_you_mean(name, Me.__annotations__)}")

    @property
    def numbers(self) -> dict[str, Tensor]:
        """Return all numbers about this client, by name."""
        return {name: value for name, value in self.__dict__.items() if isinstance(value, Tensor)}

    def own(self, kept: Tensor, otherwise: Tensor | None = None) -> Tensor:
        """Return the kept value (`me.own(s.theta)`), or `otherwise` if this client has kept nothing yet; by default the
        run's start vector."""
        return torch.where(self.first, self.start if otherwise is None else otherwise, kept)

    def start_of(self, net: str) -> Tensor:
        """Return the start vector of one of the method's `nets`, a function of the seed that every client has without a
        message."""
        return self.__dict__["_start_of"](net)

    # ---- requests

    def train(
        self,
        at: Tensor,
        *,
        pull: Tensor | float = 0.0,
        push: Tensor | float = 0.0,
        unclipped: tuple[str, ...] = (),
        loss: Callable[..., Tensor] | None = None,
        args: Mapping[str, object] | None = None,
        step: Callable[..., Tensor | tuple[Tensor, dict[str, Tensor]]] | None = None,
        batches: int = 1,
        lr: Tensor | float | None = None,
        data: DataName = "train",
        only: Tensor | None = None,
        rows: Mapping[str, Tensor] | None = None,
        own: float = 1.0,
        net: str = "model",
        part: str | None = None,
        state: Mapping[str, Tensor] | None = None,
        slots: Tensor | None = None,
        same_batches: bool = False,
        **local: object,
    ) -> Train:
        """Local training from the vector `at`; the result is the trained vector.

        The gradient becomes `gradient + pull * theta + push` (`pull` a number or a vector); names in `unclipped`
        ("pull", "push") are added after gradient clipping, like weight decay. `loss(batch, **args)` is added to the
        mini-batch loss, which `own` weighs. `lr` and the other settings of `LocalTraining` given by name replace the
        run's. Tensors reach `loss` and `step` through `args` only.

        data: a split of mine, "public", or ("train", "public"); only: of the public set these rows, or, where there is
          no public set in it, of my own samples, which may come several times (-1 at the end: I have fewer); rows:
          tensors with a row for each of these samples (of a union, for each public one), in a batch `batch.rows.name`.
        part: only this part of the vector moves ("head", "all but norm": `Layout.chosen`); net: the vector is one of
          the method's `nets`, trained by `loss` alone.
        slots: the optimizer goes on from this state (`Field("optimizer")`, zeros: fresh); the function that follows
          gets the new one as `slots`.
        same_batches: the mini-batches of the training before this one.
        step: `step(theta, batches, lr, **args)` replaces one single step and is given so many `batches`; clipping,
          weight decay and the optimizer are then the step's own affair. `at` may be several vectors, [k, P]. With
          `state`, `step(theta, batches, lr, **state, **args)` returns (theta, state), and the function that follows
          gets the state by name.
        """
        given = (
            checked_args(args or {}),
            step,
            batches,
            lr,
            local,
            data,
            only,
            checked_rows(rows),
            float(own),
            net,
            part,
        )
        more = checked_rows(state), slots, same_batches
        return Train(at, pull, push, tuple(unclipped), loss, *given, *more)

    def average(
        self,
        fn: Callable[..., Tensor | dict[str, Tensor]],
        at: Tensor,
        data: DataName = "train",
        over: str = "samples",
        only: Tensor | None = None,
        rows: Mapping[str, Tensor] | None = None,
        at_once: int | None = None,
        **args: object,
    ) -> Average:
        """Return the mean over all my samples of `fn(batch, **args)`, which gives one row per sample (or a dict of
        such). `at` is a vector, or several as [k, P]: then the result has a leading k. data, only, rows: as in `train`.
        over: "samples" for all of them; "batch" for one mini-batch as in local training; "epoch" for the mini-batches
        of one pass (without a short last one if those are dropped). at_once: `fn` sees at most this many samples at a
        time (if its rows are large, such as gradients)."""
        return Average(at, fn, checked_args(args), data, over, only, checked_rows(rows), at_once=at_once)

    def sum(self, fn: Callable[..., Tensor | dict[str, Tensor]], data: DataName = "train", **args: object) -> Average:
        """Return the sum over all my samples of `fn(batch, **args)`, which gives one row per sample (or a dict of
        such). There is no model in it: the batch has x, y, onehot and index."""
        return Average(None, fn, checked_args(args), data, total=True)

    def outputs(
        self,
        at: Tensor | None,
        data: str = PUBLIC,
        only: Tensor | None = None,
        fn: Callable[..., Tensor] | None = None,
        **args: object,
    ) -> Outputs:
        """Return the model's output for every sample, one row each, or the rows that `fn(batch, **args)` gives. `at` is
        a vector, or several as [k, P]: then the result has a leading k; None: `fn` needs no model. only: as in `train`.
        For my own samples there are as many rows as the largest client has, zeros after mine."""
        return Outputs(at, fn, checked_args(args), data, only)

    def losses(self, at: Tensor, data: DataName = "train", over: str = "samples") -> Average:
        """Return the mean loss over all my samples at one vector, or at each of [k, P]."""
        return self.average(_losses, at, data, over)

    def mean_features(self, at: Tensor, over: str = "samples") -> Average:
        """Return the mean of the features (the head's input) over all my samples."""
        return self.average(_features, at, over=over)

    def accuracy(self, at: Tensor) -> Average:
        """Return the share of my samples whose largest output is the label."""
        return self.average(_correct, at)

    def gradient(self, at: Tensor, data: DataName = "train", only: Tensor | None = None) -> Gradient:
        """Return the gradient of the mean loss over all my samples, or those that `data` and `only` name."""
        return Gradient(at, data, only)

    # ---- draws: in a simulation functions of (seed, round, exchange, client, purpose); at a real client secret, and
    # different at every call: so draw once per purpose

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        return self._source.normal(purpose, shape)

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return uniform numbers in [0, 1)."""
        return self._source.uniform(purpose, shape)

    @property
    def _source(self) -> Draws:
        found = self.__dict__["_draws"]
        return KeyedDraws(found, self.n.dtype) if isinstance(found, Tensor) else found


def _losses(batch: Batch) -> Tensor:
    return batch.losses


def _features(batch: Batch) -> Tensor:
    return batch.features


def _correct(batch: Batch) -> Tensor:
    return (batch.output.argmax(-1) == batch.y).to(batch.output.dtype)


class Calls(Protocol):
    """The calls that a batch makes to its engine (`unalike.client.calls.ModelCalls`)."""

    layout: Layout
    classes: int
    has_statistics: bool

    def losses(self, output: Tensor, y: Tensor) -> Tensor: ...
    def forward(self, vector: Tensor, x: Tensor) -> tuple[Tensor, Tensor]: ...
    def head(self, vector: Tensor, features: Tensor) -> Tensor: ...
    def net(self, name: str, vector: Tensor, inputs: tuple[Tensor, ...], train: bool) -> Tensor: ...
    def draws(self) -> Draws: ...


class Rows:
    """Tensors with one row per sample, as attributes."""

    def __init__(self, values: dict[str, Tensor]):
        self._values = values

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(
                f"batch.rows has no {name!r}: the request's rows= has {', '.join(self._values) or 'none'}."
            )
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values


class Batch:
    """A mini-batch as extra losses, replaced steps and averages see it. `weights` sum to one over the real samples
    and are zero on padding: use `batch.mean`, never `.mean()`.

    `rows` has the tensors that a request gave with one row per sample, each cut to this batch (`batch.rows.target`).
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        calls: Calls,
        *,
        output: Tensor | None = None,
        features: Tensor | None = None,
        compute: Callable[[], tuple[Tensor, Tensor | None]] | None = None,
        vector: Callable[[], Tensor] | None = None,
        index: Callable[[], Tensor] | None = None,
        source: Tensor | None = None,
        rows: dict[str, Tensor] | None = None,
    ):
        self.x, self.y, self.weights = x, y, weights
        self.rows = Rows(rows or {})
        self._calls, self._output, self._features, self._vector = calls, output, features, vector
        self._index, self._source, self._compute = index, source, compute

    # ---- at the current vector

    @property
    def output(self) -> Tensor:
        """Return the model's output (logits) at the current vector."""
        self._at_vector()
        if self._output is None:
            raise UnalikeError("batch.output is not known here: use batch.forward(vector).")
        return self._output

    logits = output

    @property
    def features(self) -> Tensor:
        """Return the head's input at the current vector, [batch, features]."""
        self._at_vector()
        if self._features is None:
            raise UnalikeError("batch.features are not known here: use batch.forward(vector).")
        return self._features

    @property
    def losses(self) -> Tensor:
        """Return one loss per sample at the current vector."""
        return self._calls.losses(self.output, self.y)

    @property
    def vector(self) -> Tensor:
        """Return the current vector itself, for penalties on weights (`batch.layout.views(batch.vector)`)."""
        if self._vector is None:
            raise UnalikeError("batch.vector is not known here: a step is given its vector.")
        return self._vector()

    def _at_vector(self) -> None:
        """Call the model now, if the call was postponed until its output is needed."""
        if self._output is None and self._compute is not None:
            self._output, self._features = self._compute()

    def learn_statistics(self) -> None:
        """Let BatchNorm learn its statistics from these samples at the current vector, if the model has any: for a loss
        that replaces the run's (`own=0.0`) and calls the model only on other inputs."""
        if self._calls.has_statistics:
            self._at_vector()

    def with_output(self, output: Tensor) -> Batch:
        """Return this batch with another output."""
        batch = copy.copy(self)
        batch._output = output
        return batch

    # ---- the samples

    @property
    def layout(self) -> Layout:
        """Return where the model's tensors lie in a vector."""
        return self._calls.layout

    @property
    def index(self) -> Tensor:
        """Return the samples' numbers within the requested data, int64 [batch]; padding has 0."""
        if self._index is None:
            raise UnalikeError("batch.index is not known here: there are no samples.")
        return self._index()

    @property
    def source(self) -> Tensor:
        """Return where each sample comes from: 0 for my own data, 1 for the public set."""
        own = torch.zeros(len(self.y), dtype=torch.int64, device=self.y.device)
        return own if self._source is None else self._source

    @property
    def onehot(self) -> Tensor:
        """Return the labels as rows, [batch, classes]: 1 for the class, else 0; all 0 if there is no label."""
        classes = torch.arange(self._calls.classes, device=self.y.device)
        return (self.y[:, None] == classes).to(self.weights.dtype)

    def sum(self, rows: Tensor) -> Tensor:
        """Return the sum over the real samples, given one row per sample."""
        return (rows * (self.weights > 0).to(rows.dtype).reshape(-1, *([1] * (rows.dim() - 1)))).sum(0)

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean over the real samples, given one row per sample."""
        return (rows * self.weights.reshape(-1, *([1] * (rows.dim() - 1)))).sum(0)

    def put(self, values: Tensor, new: Tensor) -> Tensor:
        """Return `values`, which have one row per sample of mine, with this batch's rows replaced by `new`."""
        real = (self.weights > 0).to(values.dtype).reshape(-1, *([1] * (new.dim() - 1)))
        index = self.index
        return values.index_add(0, index, real * (new - values[index]))

    # ---- other vectors, other networks

    def forward(self, vector: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (output, features) of the model with another vector, optionally on another x."""
        return self._calls.forward(vector, self.x if x is None else x)

    def head(self, vector: Tensor, features: Tensor) -> Tensor:
        """Return the head's output for these features; `vector` is the model's, or only the head's numbers."""
        return self._calls.head(vector, features)

    def call(self, net: str, vector: Tensor, *inputs: Tensor, train: bool = False) -> Tensor:
        """Return the output of one of the method's `nets` with this vector. train: in training mode; if this network is
        the one being trained, its BatchNorm statistics are updated."""
        return self._calls.net(net, vector, inputs, train)

    def loss(self, vector: Tensor) -> Tensor:
        """Return the mean loss of this batch as a function of the vector."""
        return self.mean(self._calls.losses(self.forward(vector)[0], self.y))

    def grad(self, vector: Tensor) -> Tensor:
        """Return the gradient of `loss`; `torch.func.grad` of a function that calls this gives second order."""
        return torch.func.grad(self.loss)(vector)

    def gradients(self, vector: Tensor) -> Tensor:
        """Return the gradient of each sample's own loss, [batch, P]."""

        def one(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self._calls.losses(self._calls.forward(theta, x[None])[0], y[None])[0]

        return torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(vector, self.x, self.y)

    # ---- draws: functions of (seed, round, client, training, step, purpose); at a real client secret

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return uniform numbers in [0, 1), new in every step."""
        return self._calls.draws().uniform(purpose, shape)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers, new in every step."""
        return self._calls.draws().normal(purpose, shape)

    def integers(self, purpose: str, shape: tuple[int, ...], high: int) -> Tensor:
        """Return whole numbers from 0 to high - 1, new in every step."""
        return self._calls.draws().integers(purpose, shape, high)
