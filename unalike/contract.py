"""The contract between a method and the engines.

A method has two halves. The client half is written for ONE client: a function of `me` (numbers about the client and a
way to ask for work on its data), `s` (its own state) and `m` (the message from the server). It either asks the engine
for work (`return me.train(m.w).then(self.done)`) or ends with `(new state, reply)`. The pieces between requests are
pure functions of tensors: the engine calls them with one client's vectors, or under `vmap` with a whole cohort's.
The server half, `round(server, cohort)`, calls client functions on a cohort and reads what their replies declare.
"""

from __future__ import annotations

import dataclasses as dc
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from unalike import random
from unalike.errors import UnalikeError, did_you_mean
from unalike.layout import Layout
from unalike.local import LocalTraining

READS = ("sum", "each", "peers")


@dc.dataclass(frozen=True)
class Field:
    """One declared part of a reply, of a client's state or of a server table.

    shape: "model", "body" (all but the head), "head", "features", "pairs" (the upper triangle of features × features),
      "classes", "scalar", or a tuple of numbers and names
      (a name that is none of these is an attribute of the method: `("clusters", "model")`).
    read: "sum" (the server needs only the weighted sum), "each" (it reads every client's own value) or "peers" (other
      clients see it too). What is not declared "each" or "peers" cannot be read client by client.
    weight: "samples" or "one": what the value is weighted by in sums and means; fixed before anything is sent.
    life: for client state: "run", or "round" for what is only carried from one exchange to the next.
    """

    shape: str | tuple[int | str, ...] = "model"
    read: str = "sum"
    weight: str = "samples"
    life: str = "run"

    def __post_init__(self) -> None:
        for value, options, what in (
            (self.read, READS, "read"),
            (self.weight, ("samples", "one"), "weight"),
            (self.life, ("run", "round"), "life"),
        ):
            if value not in options:
                raise UnalikeError(f"Field({what}={value!r}): must be one of {', '.join(options)}.")

    def resolve(self, sizes: dict[str, int], method: object) -> tuple[int, ...]:
        """The shape in numbers."""
        if self.shape == "scalar":
            return ()
        names = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        out = []
        for name in names:
            if isinstance(name, int):
                out.append(name)
            elif name in sizes:
                out.append(sizes[name])
            elif isinstance(getattr(method, name, None), int):
                out.append(getattr(method, name))
            else:
                raise UnalikeError(
                    f"{type(method).__name__} declares the shape {self.shape!r}, and {name!r} is neither a size of "
                    f"the model nor an attribute of the method.{did_you_mean(name, ['scalar', *sizes])}"
                )
        return tuple(out)


class Fields(dict[str, Any]):
    """A message or a state: `m.w` is `m["w"]`; a name that is not there says what is. A field may be called anything,
    also `update` or `items`: as attributes, fields come before a dict's own methods."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and dict.__contains__(self, name):
            return dict.__getitem__(self, name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnalikeError(f"There is no field {name!r} here.{did_you_mean(name, dict.keys(self))}")


class PerClient:
    """A part of a message that differs between clients: one row each, in the order of the cohort."""

    def __init__(self, rows: Tensor):
        self.rows = rows


@dc.dataclass(frozen=True)
class Work:
    """A request to the engine, made with `me.train(...)` and its kin; `.then(fn, **keep)` names what comes next:
    `fn(me, s, m, result, **keep)`."""

    kind: str
    at: Tensor
    pull: Tensor | float = 0.0
    push: Tensor | float = 0.0
    unclipped: tuple[str, ...] = ()
    loss: Callable[..., Tensor] | None = None
    args: dict[str, Any] = dc.field(default_factory=dict)
    step: Callable[..., Tensor] | None = None
    batches: int = 1
    lr: Tensor | float | None = None
    local: dict[str, Any] = dc.field(default_factory=dict)
    fn: Callable[..., Any] | None = None
    data: str = "train"
    over: str = "samples"
    next: Callable[..., Any] | None = None
    keep: dict[str, Any] = dc.field(default_factory=dict)

    def then(self, fn: Callable[..., Any], **keep: Any) -> Work:
        """Continue with `fn(me, s, m, result, **keep)`."""
        return dc.replace(self, next=fn, keep=keep)


class Me:
    """One client, as its own function sees it. No device, no cohort, no loop over rounds.

    n: its training samples; rel: n over the mean n of all clients; lr, lr0: this round's and the first round's
    learning rate; K: the steps of local training it does this round (after a training with settings of its own, K and
    lr are what was done); K_mean: those of a client of mean size; first: whether it has kept no state yet. Numbers are
    0-dimensional tensors. round: the round, from 0; local: the run's LocalTraining; layout: the model's layout (`body`,
    `head`, `join`).
    """

    n: Tensor
    rel: Tensor
    lr: Tensor
    lr0: Tensor
    K: Tensor
    K_mean: Tensor
    first: Tensor
    round: int
    local: LocalTraining
    layout: Layout

    def __init__(self, numbers: dict[str, Tensor], round: int, local: LocalTraining, layout: Layout):
        self.__dict__.update(numbers)
        self.round, self.local, self.layout = round, local, layout

    # ---- requests

    def train(
        self,
        at: Tensor,
        *,
        pull: Tensor | float = 0.0,
        push: Tensor | float = 0.0,
        unclipped: tuple[str, ...] = (),
        loss: Callable[..., Tensor] | None = None,
        args: dict[str, Any] | None = None,
        step: Callable[..., Tensor] | None = None,
        batches: int = 1,
        lr: Tensor | float | None = None,
        **local: Any,
    ) -> Work:
        """Local training from the vector `at`; the result is the trained vector.

        The gradient becomes `gradient + pull * theta + push` (`pull` a number or a vector); names in `unclipped`
        ("pull", "push") are added after gradient clipping, like weight decay. `loss(batch, **args)` is added to the
        mini-batch loss. `step(theta, batches, lr, **args)` replaces one single step and is given so many `batches`;
        clipping, weight decay and the optimizer are then the step's own affair. `lr` and the other settings of
        `LocalTraining` given by name replace the run's. Tensors reach `loss` and `step` through `args` only.
        """
        args = _checked(args or {})
        wrong = set(unclipped) - {"pull", "push"}
        if wrong:
            raise UnalikeError(f"unclipped={unclipped!r}: only 'pull' and 'push' can be left out of clipping.")
        return Work("train", at, pull, push, tuple(unclipped), loss, args, step, batches, lr, dict(local))

    def average(
        self, fn: Callable[..., Any], at: Tensor, data: str = "train", over: str = "samples", **args: Any
    ) -> Work:
        """The mean over all my samples of `fn(batch, **args)`, which gives one row a sample (or a dict of such).
        `at` is a vector, or several as [k, P]: then the result has a leading k. over: "samples" is all of them;
        "batch" one mini-batch of the local training's kind, "epoch" its mini-batches of one pass (without a short
        last one where those are dropped)."""
        if over not in ("samples", "batch", "epoch"):
            raise UnalikeError(f"over={over!r}: an average is over 'samples', a 'batch' or an 'epoch'.")
        return Work("average", at, fn=fn, args=_checked(args), data=data, over=over)

    def losses(self, at: Tensor, data: str = "train", over: str = "samples") -> Work:
        """The mean loss over all my samples at one vector, or at each of [k, P]."""
        return self.average(_losses, at, data, over)

    def mean_features(self, at: Tensor, over: str = "samples") -> Work:
        """The mean of the features (the head's input) over all my samples."""
        return self.average(_features, at, over=over)

    def accuracy(self, at: Tensor) -> Work:
        """The share of my samples whose largest output is the label."""
        return self.average(_correct, at)

    def gradient(self, at: Tensor) -> Work:
        """The gradient of my mean loss over all my samples."""
        return Work("gradient", at)

    # ---- draws: functions of (seed, round, client, purpose)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers."""
        return random.normal(self._key(purpose), shape, self.n.dtype)

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers in [0, 1)."""
        return random.uniform(self._key(purpose), shape, self.n.dtype)

    def _key(self, purpose: str) -> Tensor:
        return random.fold(self.__dict__["_draws"], random.key(0, purpose))


def _checked(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a loss, step or average: tensors, each under a name of its own, and plain values."""
    for name, value in args.items():
        if isinstance(value, Tensor):
            continue
        try:
            hash(value)
            nested = any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
        except TypeError:
            nested = True
        if nested:
            raise UnalikeError(f"args[{name!r}] must be a tensor or a plain value; give each tensor a name of its own.")
    return dict(args)


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
        self._vector = vector
        self.layout: Any = layout
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


class Method:
    """FedAvg's shape; a method overrides what differs. Hyper-parameters are the fields of a frozen dataclass."""

    keeps: ClassVar[dict[str, Field]] = {}
    sends: ClassVar[dict[str, Field]] = {"delta": Field()}
    tables: ClassVar[dict[str, Field]] = {}
    pooled: ClassVar[bool] = False  # trains on everybody's data as one client: the centralized reference

    def setup(self, server: Any, everyone: Any) -> None:
        """Before round 1: the server's own state; may also exchange messages with `everyone.call(...)`."""

    def client(self, me: Me, s: Fields, m: Fields) -> Any:
        """The client's part of a round."""
        return me.train(m.w).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Any:
        """What the client keeps, and what it sends."""
        return {}, {"delta": theta - m.w}

    def round(self, server: Any, cohort: Any) -> None:
        """The server's part of a round."""
        server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")

    def published(self, server: Any) -> dict[str, Any]:
        """The message with which a client finds its own model (see `personal`)."""
        return {"w": server.w}

    def personal(self, me: Me, s: Fields, m: Fields) -> Any:
        """The vector (or a request that ends in one) that is evaluated on this client's own data."""
        return m.w

    def models(self, server: Any) -> dict[str, Any]:
        """The vectors evaluated on the global test set by name: the first is the one that is reported (`test_*`), the
        others are logged as `test_<name>_*`. With pairs (vector, weight) the reported numbers are the weighted mean of
        the models' numbers, and every model is logged under its name. Empty: there is no global model."""
        return {"global": server.w}


def settings(method: Method) -> dict[str, Any]:
    """A method's name and hyper-parameters, as written into a run's config."""
    values: dict[str, Any] = dc.asdict(method) if dc.is_dataclass(method) else {}
    return {"name": type(method).__name__, **values}


def fingerprint(method: Method) -> str:
    """A short hash of a method's name and hyper-parameters: both ends of a federation must agree on it."""
    return hashlib.sha256(json.dumps(settings(method), sort_keys=True, default=str).encode()).hexdigest()[:12]


def client_functions(method: Method) -> Iterator[str]:
    """Names a server may call: the method's own public functions, less the server's half."""
    server = ("setup", "round", "published", "models")
    for name in dir(type(method)):
        if not name.startswith("_") and name not in server and callable(getattr(type(method), name)):
            yield name
