"""Requests: the work on its own data that a client function asks its engine for."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from torch import Tensor
from torch.utils._pytree import tree_leaves

from unalike.errors import UnalikeError

# the name of the set that the server and all clients have
PUBLIC = "public"
DataName = str | tuple[str, ...]  # a split, "public", or ("train", "public")


@dc.dataclass(frozen=True)
class Request:
    """Work at the vector `at`; `.then(fn, **keep)` names the function that continues with the result."""

    at: Tensor | None
    next: Callable[..., Any] | None = dc.field(default=None, kw_only=True)
    keep: Mapping[str, Any] = dc.field(default_factory=dict, kw_only=True)

    varies: ClassVar[tuple[str, ...]] = ("at", "keep")  # the parts that may differ between clients of a stack
    verb: ClassVar[str] = "average over"  # what is done with samples, for error messages

    @property
    def kind(self) -> str:
        """Return the request's name for error messages."""
        return type(self).__name__.lower()

    def then(self, fn: Callable[..., Any], **keep: object) -> Self:
        """Continue with `fn(me, s, m, result, **keep)`."""
        return dc.replace(self, next=fn, keep=keep)

    def following(self, name: str) -> Callable[..., Any]:
        """Return the function that continues; name: the function that made the request, for errors."""
        if self.next is None:
            raise UnalikeError(f"{name} asked for {self.kind} without .then(...): name what comes next.")
        return self.next


@dc.dataclass(frozen=True)
class Train(Request):
    """Local training; see `Me.train`."""

    at: Tensor
    pull: Tensor | float = 0.0
    push: Tensor | float = 0.0
    unclipped: tuple[str, ...] = ()
    loss: Callable[..., Tensor] | None = None
    args: Mapping[str, Any] = dc.field(default_factory=dict)
    step: Callable[..., Any] | None = None
    batches: int = 1
    lr: Tensor | float | None = None
    local: Mapping[str, Any] = dc.field(default_factory=dict)
    data: DataName = "train"
    only: Tensor | None = None
    rows: Mapping[str, Tensor] = dc.field(default_factory=dict)
    own: float = 1.0
    net: str = "model"
    part: str | None = None
    state: Mapping[str, Tensor] = dc.field(default_factory=dict)
    slots: Tensor | None = None
    same_batches: bool = False

    varies = ("at", "pull", "push", "args", "lr", "keep", "only", "rows", "state", "slots")
    verb = "train on"

    def __post_init__(self) -> None:
        if set(self.unclipped) - {"pull", "push"}:
            raise UnalikeError(f"unclipped={self.unclipped!r}: only 'pull' and 'push' can be left out of clipping.")
        check_data(self.data)
        _no_test(self.data)
        if self.own == 0 and self.loss is None and self.step is None:
            raise UnalikeError("own=0.0 leaves nothing to train on: give a loss of the method's own.")
        if self.net != "model" and (self.own != 0 or self.part is not None):
            raise UnalikeError(f"net={self.net!r} is no model of the task: train it with own=0.0, a loss, and no part.")
        if self.step is None and self.state:
            raise UnalikeError("state= belongs to a replaced step: give step=..., which returns (vector, state).")
        if self.step is not None and (self.part is not None or self.slots is not None):
            raise UnalikeError("part= and slots= are for the run's optimizer: a replaced step does without it.")
        plain = (
            isinstance(self.pull, float | int) and isinstance(self.push, float | int) and not (self.pull or self.push)
        )
        if self.step is not None and (self.loss is not None or self.own != 1 or not plain):
            raise UnalikeError(
                "pull=, push=, loss= and own= are for the run's steps: a replaced step does all by itself."
            )
        if "keep_optimizer" in self.local:
            raise UnalikeError("keep_optimizer is a setting of the run: a method keeps an optimizer's state by slots=.")
        for name in ("sample_clip", "sample_noise"):
            if name in self.local:
                raise UnalikeError(
                    f"{name} is a setting of the run, by which privacy is counted: no training changes it."
                )


@dc.dataclass(frozen=True)
class Average(Request):
    """A mean over samples, or (`total`) their sum; see `Me.average` and `Me.sum`."""

    fn: Callable[..., Any]
    args: Mapping[str, Any] = dc.field(default_factory=dict)
    data: DataName = "train"
    over: str = "samples"
    only: Tensor | None = None
    rows: Mapping[str, Tensor] = dc.field(default_factory=dict)
    total: bool = False
    at_once: int | None = None

    varies = ("at", "args", "keep", "only", "rows")

    def __post_init__(self) -> None:
        if self.over not in ("samples", "batch", "epoch"):
            raise UnalikeError(f"over={self.over!r}: an average is over 'samples', a 'batch' or an 'epoch'.")
        if self.at_once is not None and self.at_once < 1:
            raise UnalikeError(f"at_once={self.at_once}: an average reads one sample at a time, or more.")
        check_data(self.data)


@dc.dataclass(frozen=True)
class Outputs(Request):
    """One row per sample; see `Me.outputs`. Without a vector there is no model in it, and `fn` is required."""

    fn: Callable[..., Tensor] | None = None
    args: Mapping[str, Any] = dc.field(default_factory=dict)
    data: DataName = PUBLIC
    only: Tensor | None = None

    varies = ("at", "args", "keep", "only")
    verb = "give outputs for"

    def __post_init__(self) -> None:
        check_data(self.data)
        if not isinstance(self.data, str):
            raise UnalikeError(f"outputs(data={self.data!r}): name one set of samples.")


@dc.dataclass(frozen=True)
class Gradient(Request):
    """The gradient of the mean loss; see `Me.gradient`."""

    at: Tensor
    data: DataName = "train"
    only: Tensor | None = None

    varies = ("at", "keep", "only")

    def __post_init__(self) -> None:
        check_data(self.data)
        _no_test(self.data)


@dc.dataclass(frozen=True)
class Measure(Request):
    """The task's metrics that need all outputs of a split, at a vector or from given outputs (one row per sample,
    possibly padded); used by evaluation."""

    data: str = "test"
    outputs: Tensor | None = None

    varies = ("at", "keep", "outputs")


def check_data(data: object) -> None:
    """Raise unless `data` names a split, "public", or a split and "public"."""
    if isinstance(data, str):
        return
    two = isinstance(data, tuple) and len(data) == 2 and all(isinstance(name, str) for name in data)
    if not two or data[0] == PUBLIC or data[1] != PUBLIC:  # type: ignore[index]
        raise UnalikeError(f"data={data!r}: name a split such as 'train', 'public', or both: ('train', 'public').")


def _no_test(data: DataName) -> None:
    if "test" in ((data,) if isinstance(data, str) else data):
        raise UnalikeError("data='test': test samples are for judging a model, not for making it.")


def checked_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked arguments of a loss, step or average: tensors, each under its own name, and plain values."""
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


def checked_rows(rows: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the checked `rows` or `state` of a request: tensors by name."""
    for name, value in (rows or {}).items():
        if not isinstance(value, Tensor):
            raise UnalikeError(f"{name!r} is a {type(value).__name__}: rows and state hold tensors by name.")
    return dict(rows or {})


def tensor_args(args: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the arguments that are tensors: they may differ between clients."""
    return {name: value for name, value in args.items() if isinstance(value, Tensor)}


def plain_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not tensors: they are part of a compiled step."""
    return {name: value for name, value in args.items() if not isinstance(value, Tensor)}
