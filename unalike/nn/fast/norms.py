"""BatchNorm and GroupNorm in few passes over their input, in any layout of memory.

Both take the mean and variance of some channels of some pictures, which follow from each picture's and channel's own;
and both are then linear in their input, with one factor for each channel of a picture, forwards and backwards. So the
large tensors are read by three operations, and all else is small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unalike.nn.fast.operation import NoDoubleBackward, Operation, Stackable, blank_like, kernels, whole
from unalike.nn.layers import WEIGHT, PureBatchNorm

# C clients, B pictures, I channels; x and g are [C, B, I, ...], all else is [C, B, I], or has a 1 where it is alike


@Operation
def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each picture's channels, [C, B, I]."""
    x = x.flatten(3)
    if x.is_cuda:
        return kernels().moments(x)
    var, mean = torch.var_mean(x.float() if x.dtype == torch.bfloat16 else x, 3, correction=0)
    return mean, var


@moments.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    return x.new_empty(x.shape[:3], dtype=wide), x.new_empty(x.shape[:3], dtype=wide)


@Operation
def sums(g: Tensor, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of g, and of g · (x - mean), over each picture's channels."""
    g, x = g.flatten(3), x.flatten(3)
    if x.is_cuda:
        return kernels().sums(g, x, mean)
    wide = g.to(mean.dtype)
    return wide.sum(3), (wide * (x.to(mean.dtype) - mean[..., None])).sum(3)


@sums.register_fake
def _(g: Tensor, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    return mean.new_empty(mean.shape), mean.new_empty(mean.shape)


@Operation
def scaled(x: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """Return x · b + d."""
    y = blank_like(x)
    if x.is_cuda:
        kernels().linear(x.flatten(3), b, d, y.flatten(3))
        return y
    return y.copy_(x * _spread(b, x) + _spread(d, x))


@scaled.register_fake
def _(x: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.empty_like(x)


@Operation
def scaled_back(g: Tensor, x: Tensor, a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """Return g · a + x · b + d."""
    y = blank_like(x)
    if x.is_cuda:
        kernels().linear(x.flatten(3), b, d, y.flatten(3), g.flatten(3), a)
        return y
    return y.copy_(g * _spread(a, x) + x * _spread(b, x) + _spread(d, x))


@scaled_back.register_fake
def _(g: Tensor, x: Tensor, a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.empty_like(x)


def _spread(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(*values.shape, *([1] * (x.dim() - 3)))


def _over_group(values: Tensor, groups: int) -> Tensor:
    """Return the mean over each group of channels, for every channel."""
    parts = values.unflatten(2, (groups, -1))
    return parts.mean(3, keepdim=True).expand(parts.shape).flatten(2)


def _result(x: Tensor, mean: Tensor, inverse: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Return (x - mean) · inverse · gamma + beta."""
    factor = inverse * gamma[:, None]
    rest = beta[:, None] - mean * factor
    return scaled(x, factor.expand(x.shape[:3]).contiguous(), rest.expand(x.shape[:3]).contiguous())


def _gradients(
    g: Tensor, x: Tensor, own: Tensor, mean: Tensor, inverse: Tensor, gamma: Tensor, share: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, gamma and beta. own: each picture's mean; mean, inverse: those that x was normalised
    with; share: of one number of x in them; groups: of channels, or 0 where they are taken over all pictures."""
    plain, centred = sums(g, x, own)
    centred = (centred + (own - mean) * plain) * inverse  # the sums of g times the normalised x
    dbeta, dgamma = plain.sum(1), centred.sum(1)
    first, second = plain * gamma[:, None], centred * gamma[:, None]
    if groups:
        size = first.shape[2] // groups
        first, second = _over_group(first, groups) * size, _over_group(second, groups) * size
    else:
        first, second = first.sum(1, keepdim=True), second.sum(1, keepdim=True)
    a, b = inverse * gamma[:, None], -inverse * inverse * share * second
    d = -inverse * share * first - b * mean
    a, b, d = (t.expand(x.shape[:3]).contiguous() for t in (a, b, d))
    return scaled_back(g, x, a, b, d), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)


class _NormBackward(NoDoubleBackward):
    @staticmethod
    def forward(
        g: Tensor, x: Tensor, own: Tensor, mean: Tensor, inverse: Tensor, gamma: Tensor, share: Tensor, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _gradients(g, x, own, mean, inverse, gamma, share, groups)


class _GroupNorm(Stackable):
    @staticmethod
    def forward(
        x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        own, var = moments(x)
        mean = _over_group(own, groups)
        inverse = torch.rsqrt(_over_group(var + (own - mean).square(), groups) + eps)
        return _result(x, mean, inverse, gamma, beta), own, mean, inverse

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, gamma, _, ctx.groups, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, gamma, *output[1:])

    @staticmethod
    def backward(ctx, g: Tensor, *_: Tensor):
        x, gamma, own, mean, inverse = ctx.saved_tensors
        share = torch.full_like(inverse, ctx.groups / x[0, 0].numel())
        return *_NormBackward.apply(g, x, own, mean, inverse, gamma, share, ctx.groups), None, None


class _BatchNorm(Stackable):
    @staticmethod
    def forward(
        x: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, many: Tensor, mean: Tensor, var: Tensor, eps: float
    ) -> tuple[Tensor, ...]:
        own, spread = moments(x)
        weight, many = weight[:, :, None].to(own.dtype), many[:, None]
        batch_mean = (own * weight).sum(1)
        batch_var = ((spread + (own - batch_mean[:, None]).square()) * weight).sum(1)
        used = (many * batch_mean + (1 - many) * mean)[:, None]
        inverse = torch.rsqrt(many * batch_var + (1 - many) * var + eps)[:, None]
        return _result(x, used, inverse, gamma, beta), batch_mean, batch_var, own, used, inverse

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, gamma, _, weight, many, *_ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, gamma, weight, many, *output[3:])

    @staticmethod
    def backward(ctx, g: Tensor, *_: Tensor):
        x, gamma, weight, many, own, mean, inverse = ctx.saved_tensors
        share = (weight * many[:, None])[:, :, None].to(own.dtype) / x[0, 0, 0].numel()
        return *_NormBackward.apply(g, x, own, mean, inverse, gamma, share, 0), *[None] * 5


@whole
def _apply_group_norm(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> tuple[Tensor, ...]:
    return _GroupNorm.apply(x, gamma, beta, groups, eps)


@whole
def _apply_batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, many: Tensor, mean: Tensor, var: Tensor, eps: float
) -> tuple[Tensor, ...]:
    return _BatchNorm.apply(x, gamma, beta, weight, many, mean, var, eps)


def _factors(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's weight and bias, each as a stack of one client."""
    one, zero = x.new_ones(x.shape[1]), x.new_zeros(x.shape[1])
    return (one if layer.weight is None else layer.weight)[None], (zero if layer.bias is None else layer.bias)[None]


class FastGroupNorm(nn.GroupNorm):
    """GroupNorm of pictures in any layout; PyTorch's own copies those with their channels last."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 3:
            return super().forward(x)
        y, *_ = _apply_group_norm(x[None], *_factors(self, x), self.num_groups, self.eps)
        return y[0]


class FastBatchNorm(PureBatchNorm):
    """BatchNorm with sample weights."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.dim() < 3:
            return super().forward(x)
        self._check_input_dim(x)
        weight, mean, var, positions = getattr(self, WEIGHT), self.running_mean, self.running_var, x[0, 0].numel()
        count = (weight > 0).sum() * positions
        many = (count > 1).to(var.dtype)
        y, own_mean, own_var, *_ = _apply_batch_norm(
            x[None], *_factors(self, x), weight[None], many[None], mean[None], var[None], self.eps
        )
        self.update_statistics(own_mean[0], own_var[0], count, many)
        return y[0]
