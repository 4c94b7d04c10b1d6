"""What all operations of the fast layers have in common: the compiler takes each as one piece, `vmap` adds clients, and
no gradient is silently wrong."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from unalike.errors import EngineRefused


def kernels() -> Any:
    """Return the module of kernels; it is imported only with a GPU, because it needs Triton."""
    return importlib.import_module("unalike.nn.kernels")


# while kernels of a stream are compiled ahead: its number -> what is being compiled
AHEAD: dict[int, list[Any]] = {}


def blank(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory for the result of a kernel: zeros while kernels are compiled ahead, as none writes there then, and
    what follows may not bear any numbers."""
    return (like.new_zeros if AHEAD else like.new_empty)(*shape, dtype=dtype)


def blank_like(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return memory for a result with another tensor's shape and order."""
    return (torch.zeros_like if AHEAD else torch.empty_like)(like, dtype=dtype)


def compile_ahead(work: Callable[[], Any], device: torch.device) -> None:
    """Compile the kernels that this work calls, side by side; what it computes is meaningless. On a CPU do nothing."""
    if device.type == "cuda":
        # it only saves time: what cannot be compiled is said when it is called, and other numbers may be no error
        with suppress(Exception), kernels().compiled_ahead():
            work()


class Operation:
    """A function that the compiler takes as one piece. Until the compiler has been imported it is called as it is:
    PyTorch's way would import it, seconds before the first round."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.registered = torch.library.custom_op(f"unalike::{function.__name__}", function, mutates_args=())
        self.register_fake = self.registered.register_fake

    def __call__(self, *args: Any) -> Any:
        return (self.registered if "torch._dynamo" in sys.modules else self.function)(*args)


class Stackable(torch.autograd.Function):
    """A function whose tensors have the clients first; `vmap` puts its own dimension before them."""

    def __init_subclass__(cls) -> None:
        cls.vmap = staticmethod(functools.partial(_stacked, cls))  # type: ignore[method-assign]


def _stacked(function: type[Stackable], info: Any, dims: tuple[int | None, ...], *args: Any) -> Any:
    """Apply a function to clients of clients: both dimensions become one, and two again."""
    flat, lead = [], 1
    for arg, dim in zip(args, dims, strict=True):
        if isinstance(arg, Tensor):
            arg = arg.movedim(dim, 0) if dim is not None else arg.expand(info.batch_size, *arg.shape)
            lead = arg.shape[1]
            arg = arg.reshape(info.batch_size * lead, *arg.shape[2:])
        flat.append(arg)
    results = function.apply(*flat)
    return tuple(r.reshape(info.batch_size, lead, *r.shape[1:]) for r in results), (0,) * len(results)


class NoDoubleBackward(Stackable):
    """A gradient that cannot be differentiated again: it raises instead of being silently wrong."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *_):
        raise EngineRefused("a gradient is differentiated again, which the fast layers cannot do: use fast=False")


WHOLE: list[Callable[..., Any]] = []  # functions that the compiler must not look into


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note a function for `tell_compiler`: dynamo's own treatment of an autograd.Function loses its rule for vmap."""
    WHOLE.append(function)
    return function


def tell_compiler() -> None:
    """Tell the compiler which functions it must not look into; to be called before anything is compiled."""
    while WHOLE:
        torch.compiler.allow_in_graph(WHOLE.pop())
