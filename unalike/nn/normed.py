"""Weight normalisation, torch's new one and its old one, in plain operations: its own has no rule for stacks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm


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


def _normed(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """Return v with the length g along all dimensions but one; -1: along all."""
    along = [k for k in range(v.dim()) if k != dim]
    return v * (g / torch.linalg.vector_norm(v, dim=along, keepdim=dim != -1))
