"""Requests: the work on its own data that a client function asks its engine for."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from torch import Tensor
from torch.utils._pytree import tree_leaves

from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Request:
    """Work at the vector `at`; `.then(fn, **keep)` names the function that goes on with the result."""

    at: Tensor
    next: Callable[..., Any] | None = dc.field(default=None, kw_only=True)
    keep: Mapping[str, Any] = dc.field(default_factory=dict, kw_only=True)

    varies: ClassVar[tuple[str, ...]] = ("at", "keep")  # the parts that may differ between clients of a stack

    @property
    def kind(self) -> str:
        """The request's name in error messages."""
        return type(self).__name__.lower()

    def then(self, fn: Callable[..., Any], **keep: object) -> Self:
        """Continue with `fn(me, s, m, result, **keep)`."""
        return dc.replace(self, next=fn, keep=keep)

    def following(self, name: str) -> Callable[..., Any]:
        """Return the function that goes on; `name` is the function that asked."""
        if self.next is None:
            raise UnalikeError(f"{name} asked for {self.kind} without .then(...): name what comes next.")
        return self.next


@dc.dataclass(frozen=True)
class Train(Request):
    """Local training; see `Me.train`."""

    pull: Tensor | float = 0.0
    push: Tensor | float = 0.0
    unclipped: tuple[str, ...] = ()
    loss: Callable[..., Tensor] | None = None
    args: Mapping[str, Any] = dc.field(default_factory=dict)
    step: Callable[..., Tensor] | None = None
    batches: int = 1
    lr: Tensor | float | None = None
    local: Mapping[str, Any] = dc.field(default_factory=dict)

    varies = ("at", "pull", "push", "args", "lr", "keep")

    def __post_init__(self) -> None:
        if set(self.unclipped) - {"pull", "push"}:
            raise UnalikeError(f"unclipped={self.unclipped!r}: only 'pull' and 'push' can be left out of clipping.")


@dc.dataclass(frozen=True)
class Average(Request):
    """A mean over samples; see `Me.average`."""

    fn: Callable[..., Any]
    args: Mapping[str, Any] = dc.field(default_factory=dict)
    data: str = "train"
    over: str = "samples"

    varies = ("at", "args", "keep")

    def __post_init__(self) -> None:
        if self.over not in ("samples", "batch", "epoch"):
            raise UnalikeError(f"over={self.over!r}: an average is over 'samples', a 'batch' or an 'epoch'.")


@dc.dataclass(frozen=True)
class Gradient(Request):
    """The gradient of the mean loss; see `Me.gradient`."""

    data: str = "train"


@dc.dataclass(frozen=True)
class Measure(Request):
    """The task's metrics that are computed from all outputs of a split; what evaluation asks for."""

    data: str = "test"


def checked_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a loss, step or average: tensors, each under its own name, and plain values."""
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


def tensor_args(args: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the arguments that are tensors: they may differ between clients."""
    return {name: value for name, value in args.items() if isinstance(value, Tensor)}


def plain_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are no tensors: they are part of a compiled step."""
    return {name: value for name, value in args.items() if not isinstance(value, Tensor)}
