"""Weight normalisation, torch's new one and its old one, in plain operations: its own has no rule for stacks. And new
weights for layers whose weights are computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from unalike.errors import UnalikeError, first_line


class PureWeightNorm(_WeightNorm):
    """`nn.utils.parametrizations.weight_norm`."""

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return _normed(weight_v, weight_g, self.dim)


class PureOldWeightNorm(WeightNorm):
    """`nn.utils.weight_norm`, a hook of the layer."""

    def compute_weight(self, module: nn.Module) -> Tensor:
        return _normed(getattr(module, self.name + "_v"), getattr(module, self.name + "_g"), self.dim)


def make_plain(layer: nn.Module) -> None:
    """Change a layer's weight normalisation, or a weight normalisation, to that of this file."""
    for hook in layer._forward_pre_hooks.values():
        if type(hook) is WeightNorm:
            hook.__class__ = PureOldWeightNorm
    if type(layer) is _WeightNorm:
        layer.__class__ = PureWeightNorm


def redraw(layer: nn.Module, reset: Callable[[], None]) -> None:
    """Reset a layer's weights, and what these are computed from."""
    with parametrize.cached():  # so that what is reset is kept until it is read
        names = list(layer.parametrizations) if parametrize.is_parametrized(layer) else []  # type: ignore[arg-type]
        weights = {name: getattr(layer, name) for name in names}
        reset()
    for name, weight in weights.items():
        try:
            setattr(layer, name, weight.detach())
        except (RuntimeError, ValueError) as error:
            raise UnalikeError(
                f"New weights cannot be drawn for {type(layer).__name__}, whose {name!r} is parametrized: "
                f"{first_line(error)}"
            ) from error
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            weight = getattr(layer, hook.name)
            with torch.no_grad():
                getattr(layer, hook.name + "_g").copy_(torch.norm_except_dim(weight, 2, hook.dim))
                getattr(layer, hook.name + "_v").copy_(weight)


def _normed(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """Return v with the length g along all dimensions but one; -1: along all."""
    if dim == -1:
        return v * (g / torch.linalg.vector_norm(v))
    along = [k for k in range(v.dim()) if k != dim % v.dim()]
    return v * (g / (torch.linalg.vector_norm(v, dim=along, keepdim=True) if along else v.abs()))
