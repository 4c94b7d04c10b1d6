"""Layers of a stack of clients as single operations, for GPUs: convolution + bias + ReLU + pooling in one kernel,
convolutions alone and channel by channel, normalisation in few passes, and recurrent layers that step through time for
all clients at once.

Each operation takes a leading dimension of clients; a layer calls it with one, and `vmap` adds the others. So every
method, loss and engine option works as before, and a layer that fits no kernel stays PyTorch's. On a CPU the same
operations run as plain PyTorch: slowly, as a reference for the tests of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from unalike.nn.fast.conv import Conv, MeanPool, fits_alone
from unalike.nn.fast.conv_pool import ConvPool, fits
from unalike.nn.fast.depthwise import DepthwiseConv, fits_depthwise
from unalike.nn.fast.norms import FastBatchNorm, FastGroupNorm
from unalike.nn.fast.operation import compile_ahead, tell_compiler
from unalike.nn.fast.recurrent import FAST
from unalike.nn.layers import PureBatchNorm

if TYPE_CHECKING:
    from unalike.nn.task import Task

__all__ = ["KINDS", "compile_ahead", "fitting", "kinds", "quicken", "tell_compiler", "turned"]

# Which layers are replaced on a GPU, by how a run multiplies: "pooled" convolutions with ReLU and pooling, convolutions
# "alone" and of each channel by itself ("depthwise"), "norms". Recurrent layers always are. The first of each pair are
# replaced at once. The kernels of the others take seconds to make: a run that lasts a while changes over to them.
KINDS = {
    "bf16": (frozenset({"pooled"}), frozenset[str]()),
    "tf32": (frozenset[str](), frozenset({"alone", "depthwise", "norms"})),
    # in strict float32 cuDNN multiplies as fast as we could
    "highest": (frozenset[str](), frozenset[str]()),
}
# on a CPU nothing of it is faster; tests replace what they like
ON_CPU = (frozenset({"pooled"}), frozenset[str]())


def kinds(precision: str, device: torch.device, dtype: torch.dtype) -> tuple[frozenset[str], frozenset[str]]:
    """Return which layers of a run are replaced at once, and which as soon as their kernels are made."""
    if device.type == "cpu":
        return ON_CPU
    # the kernels add in float32
    return KINDS[precision] if dtype == torch.float32 else (frozenset(), frozenset())


def quicken(module: nn.Module, kinds: frozenset[str]) -> list[str]:
    """Replace the layers of a prepared module that have an operation here and are of these kinds; return the names of
    those replaced."""
    changed = []
    for name, layer in module.named_modules():
        if type(layer) in FAST:
            layer.__class__ = FAST[type(layer)]
            changed.append(name)
        if isinstance(layer, nn.Sequential) and "pooled" in kinds:
            children = [(n, m) for n, m in layer._modules.items() if m is not None]  # a layer may occur twice
            for k, (child, conv) in enumerate(children[:-2]):
                two = [m for _, m in children[k + 1 : k + 3]]
                if fits(conv, two):
                    conv.__class__ = ConvPool
                    for used, _ in children[k + 1 : k + 3]:
                        setattr(layer, used, nn.Identity())
                    changed.append(f"{name}.{child}" if name else child)
    for name, layer in module.named_modules():
        if new := _new_kind(layer, kinds):
            layer.__class__ = new
            changed.append(name)
    # the layers behind convolutions must take what lies with its channels last
    last = any(isinstance(m, Conv | DepthwiseConv) for m in module.modules())
    for layer in module.modules() if last else ():
        if type(layer) is nn.GroupNorm:
            layer.__class__ = FastGroupNorm
        if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
            layer.__class__ = MeanPool
    return changed


def turned(task: Task) -> frozenset[str]:
    """Return the weights that this model's fast layers, present or later, read with their input channels last."""
    at_once, later = kinds(task.precision, task.device, task.dtype)
    found = task.module.named_modules() if "alone" in at_once | later else ()
    trained = {name for name, *_ in task.layout.places}  # not frozen ones, nor a tensor's second name
    return frozenset(f"{name}.weight" for name, layer in found if fits_alone(layer)) & trained


def fitting(module: nn.Module, kinds: frozenset[str]) -> bool:
    """Return whether a module has layers that are replaced one by one, of these kinds."""
    return any(_new_kind(layer, kinds) for layer in module.modules())


def _new_kind(layer: nn.Module, kinds: frozenset[str]) -> type[nn.Module] | None:
    return next((new for kind, fit, new in ALONE if kind in kinds and fit(layer)), None)


ALONE: list[tuple[str, Callable[[nn.Module], bool], type[nn.Module]]] = [
    ("alone", fits_alone, Conv),
    ("depthwise", fits_depthwise, DepthwiseConv),
    ("norms", lambda layer: type(layer) is nn.GroupNorm, FastGroupNorm),
    ("norms", lambda layer: type(layer) is PureBatchNorm, FastBatchNorm),
]
