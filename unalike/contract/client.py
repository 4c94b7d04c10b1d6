"""The client's side of the contract: `me`, with which a client function asks for work, and the `batch` it works on.

Legend: `me` is one client; `s` its own state and `m` the server's message (`Fields` of tensors); `at` is a model vector
[P], or several as [k, P]; a client function returns a request (`me.train(...).then(...)`) or ends with
(new state, reply), two dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Never

import torch
from torch import Tensor

from unalike import draws
from unalike.contract.requests import Average, Gradient, Request, Train, checked_args
from unalike.errors import UnalikeError, did_you_mean
from unalike.nn.layout import Layout
from unalike.training.settings import LocalTraining

Answer = Request | tuple[dict[str, Tensor | float], dict[str, Tensor | float]]  # what a client function returns
RENAMED = {"K": "steps", "K_mean": "mean_steps", "rel": "relative_size", "lr0": "first_lr"}


class Me:
    """One client, as its own function sees it. No device, no cohort, no loop over rounds.

    n: its training samples; relative_size: n over the mean n of all clients; lr, first_lr: this round's and the first
    round's learning rate; steps: the steps of local training it does this round (after a training with settings of its
    own, steps and lr are what was done); mean_steps: those of a client of mean size; first: whether it has kept no
    state yet. Numbers are 0-dimensional tensors. round: the round, from 0 (an exchange whose function reads it is never
    replayed as a captured graph); local: the run's LocalTraining; layout: the model's layout (`body`, `head`, `join`);
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

    def __init__(self, numbers: dict[str, Tensor], round: int, local: LocalTraining, layout: Layout):
        self.__dict__.update(numbers)
        self.round, self.local, self.layout = round, local, layout

    def __getattr__(self, name: str) -> Never:
        if name in RENAMED:
            raise UnalikeError(f"me.{name} is called me.{RENAMED[name]} now.")
        raise AttributeError(f"me has no {name!r}.{did_you_mean(name, Me.__annotations__)}")

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
        step: Callable[..., Tensor] | None = None,
        batches: int = 1,
        lr: Tensor | float | None = None,
        **local: object,
    ) -> Train:
        """Local training from the vector `at`; the result is the trained vector.

        The gradient becomes `gradient + pull * theta + push` (`pull` a number or a vector); names in `unclipped`
        ("pull", "push") are added after gradient clipping, like weight decay. `loss(batch, **args)` is added to the
        mini-batch loss. `step(theta, batches, lr, **args)` replaces one single step and is given so many `batches`;
        clipping, weight decay and the optimizer are then the step's own affair. `lr` and the other settings of
        `LocalTraining` given by name replace the run's. Tensors reach `loss` and `step` through `args` only.
        """
        return Train(at, pull, push, tuple(unclipped), loss, checked_args(args or {}), step, batches, lr, local)

    def average(
        self,
        fn: Callable[..., Tensor | dict[str, Tensor]],
        at: Tensor,
        data: str = "train",
        over: str = "samples",
        **args: object,
    ) -> Average:
        """The mean over all my samples of `fn(batch, **args)`, which gives one row a sample (or a dict of such).
        `at` is a vector, or several as [k, P]: then the result has a leading k. over: "samples" is all of them;
        "batch" one mini-batch of the local training's kind, "epoch" its mini-batches of one pass (without a short
        last one where those are dropped)."""
        return Average(at, fn, checked_args(args), data, over)

    def losses(self, at: Tensor, data: str = "train", over: str = "samples") -> Average:
        """The mean loss over all my samples at one vector, or at each of [k, P]."""
        return self.average(_losses, at, data, over)

    def mean_features(self, at: Tensor, over: str = "samples") -> Average:
        """The mean of the features (the head's input) over all my samples."""
        return self.average(_features, at, over=over)

    def accuracy(self, at: Tensor) -> Average:
        """The share of my samples whose largest output is the label."""
        return self.average(_correct, at)

    def gradient(self, at: Tensor) -> Gradient:
        """The gradient of my mean loss over all my samples."""
        return Gradient(at)

    # ---- draws: functions of (seed, round, client, purpose)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers."""
        return draws.normal(self._key(purpose), shape, self.n.dtype)

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers in [0, 1)."""
        return draws.uniform(self._key(purpose), shape, self.n.dtype)

    def _key(self, purpose: str) -> Tensor:
        return draws.fold(self.__dict__["_draws"], draws.key(0, purpose))


def _losses(batch: Batch) -> Tensor:
    return batch.losses


def _features(batch: Batch) -> Tensor:
    return batch.features


def _correct(batch: Batch) -> Tensor:
    return (batch.output.argmax(-1) == batch.y).to(batch.output.dtype)


class Batch:
    """A mini-batch as extra losses, replaced steps and averages see it. `weights` sum to one over the real samples
    and are zero on padding: use `batch.mean`, never `.mean()`."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        losses_of: Callable[[Tensor, Tensor], Tensor],
        call: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        output: Tensor | None = None,
        features: Tensor | None = None,
        vector: Callable[[], Tensor] | None = None,
        layout: Layout | None = None,
    ):
        self._vector, self._layout = vector, layout
        self.x, self.y, self.weights = x, y, weights
        self._losses_of, self._call = losses_of, call
        self._output, self._features = output, features

    @property
    def output(self) -> Tensor:
        """The model's output (logits) at the current vector."""
        if self._output is None:
            raise UnalikeError("batch.output is not known inside a replaced step: use batch.forward(vector).")
        return self._output

    logits = output

    @property
    def features(self) -> Tensor:
        """The head's input at the current vector, [batch, features]."""
        if self._features is None:
            raise UnalikeError("batch.features are not known inside a replaced step: use batch.forward(vector).")
        return self._features

    @property
    def losses(self) -> Tensor:
        """One loss a sample at the current vector."""
        return self._losses_of(self.output, self.y)

    @property
    def vector(self) -> Tensor:
        """The current vector itself, for penalties on weights (`batch.layout.views(batch.vector)`)."""
        if self._vector is None:
            raise UnalikeError("batch.vector is known in an extra loss only.")
        return self._vector()

    @property
    def layout(self) -> Layout:
        """Where the model's tensors lie in a vector."""
        assert self._layout is not None
        return self._layout

    def sum(self, rows: Tensor) -> Tensor:
        """The sum over the real samples of one row a sample."""
        return (rows * (self.weights > 0).to(rows.dtype).reshape(-1, *([1] * (rows.dim() - 1)))).sum(0)

    def mean(self, rows: Tensor) -> Tensor:
        """The mean over the real samples of one row a sample."""
        return (rows * self.weights.reshape(-1, *([1] * (rows.dim() - 1)))).sum(0)

    def forward(self, vector: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(output, features) of the model with another vector, perhaps on another x."""
        return self._call(vector, self.x if x is None else x)

    def loss(self, vector: Tensor) -> Tensor:
        """The mean loss of this batch as a function of the vector."""
        return self.mean(self._losses_of(self.forward(vector)[0], self.y))

    def grad(self, vector: Tensor) -> Tensor:
        """Its gradient; `torch.func.grad` of a function that calls this gives second order."""
        return torch.func.grad(self.loss)(vector)
