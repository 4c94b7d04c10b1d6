"""BatchNorm and GroupNorm in few passes over their input, in any layout of memory.

A GroupNorm is one operation, and its gradient another, since all that a group needs lies in one picture. A BatchNorm
takes each picture's moments, joins them over the pictures, and is then linear in its input, with one factor for each
channel of a picture, forwards and backwards: so the large tensors are read by three operations, and all else is small.
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
    var, mean = torch.var_mean(_wide(x), 3, correction=0)
    return mean, var


@moments.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = _wide(x)
    return wide.new_empty(x.shape[:3]), wide.new_empty(x.shape[:3])


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


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
    y = _like(x)
    if x.is_cuda:
        kernels().linear(x.flatten(3), b, d, y.flatten(3))
        return y
    return y.copy_(x * _spread(b, x) + _spread(d, x))


@scaled.register_fake
def _(x: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return _like(x)


@Operation
def scaled_back(g: Tensor, x: Tensor, a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """Return g · a + x · b + d."""
    y = _like(x)
    if x.is_cuda:
        kernels().linear(x.flatten(3), b, d, y.flatten(3), g.flatten(3), a)
        return y
    return y.copy_(g * _spread(a, x) + x * _spread(b, x) + _spread(d, x))


@scaled_back.register_fake
def _(g: Tensor, x: Tensor, a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return _like(x)


def _like(x: Tensor) -> Tensor:
    """Return memory like that of x, but with each channel's pixels in order: so a kernel can write them as one line."""
    return blank_like(x.flatten(3)).view(x.shape)


def _spread(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(*values.shape, *([1] * (x.dim() - 3)))


@Operation
def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise groups of channels; gamma and beta are [C, I]. Return the result, and each group's mean and inverse
    deviation in each picture, [C, B, groups]."""
    if x.is_cuda:
        y = _like(x)
        return y, *kernels().group_norm(x.flatten(3), gamma, beta, groups, eps, y.flatten(3))
    parts = _parts(_wide(x), groups)
    var, mean = torch.var_mean(parts, (3, 4), correction=0)
    inverse = torch.rsqrt(var + eps)
    normal = _whole((parts - mean[..., None, None]) * inverse[..., None, None], x)
    return _like(x).copy_(normal * _spread(gamma[:, None], x) + _spread(beta[:, None], x)), mean, inverse


@group_norm.register_fake
def _(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    wide, each = _wide(x), (*x.shape[:2], groups)
    return _like(x), wide.new_empty(each), wide.new_empty(each)


@Operation
def group_norm_backward(
    g: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, gamma and beta."""
    if x.is_cuda:
        dx = _like(x)
        return dx, *kernels().group_norm_backward(g.flatten(3), x.flatten(3), gamma, mean, inverse, dx.flatten(3))
    groups = mean.shape[2]
    normal = (_parts(_wide(x), groups) - mean[..., None, None]) * inverse[..., None, None]
    own = _parts(_wide(g), groups)
    dbeta, dgamma = (t.sum((1, -1)).flatten(1) for t in (own, own * normal))
    own = own * gamma.unflatten(1, (groups, -1))[:, None, ..., None]
    first, second = (t.mean((3, 4), keepdim=True) for t in (own, own * normal))
    dx = _whole((own - first - normal * second) * inverse[..., None, None], x)
    return _like(x).copy_(dx), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)


@group_norm_backward.register_fake
def _(g: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _like(x), torch.empty_like(gamma), torch.empty_like(gamma)


def _parts(x: Tensor, groups: int) -> Tensor:
    """Return x as [C, B, groups, channels, pixels]."""
    return x.flatten(3).unflatten(2, (groups, -1))


def _whole(parts: Tensor, x: Tensor) -> Tensor:
    return parts.flatten(2, 3).reshape(x.shape)


class _GroupNormBackward(NoDoubleBackward):
    @staticmethod
    def forward(g: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return group_norm_backward(g, x, gamma, mean, inverse)


class _GroupNorm(Stackable):
    @staticmethod
    def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return group_norm(x, gamma, beta, groups, eps)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:2], *output[1:])

    @staticmethod
    def backward(ctx, g: Tensor, *_: Tensor):
        return *_GroupNormBackward.apply(g, *ctx.saved_tensors), None, None


class _BatchNormBackward(NoDoubleBackward):
    """own: each picture's mean; mean, inverse: those that x was normalised with; share: of one number of x in them."""

    @staticmethod
    def forward(
        g: Tensor, x: Tensor, own: Tensor, mean: Tensor, inverse: Tensor, gamma: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        plain, centred = sums(g, x, own)
        centred = (centred + (own - mean) * plain) * inverse  # the sums of g times the normalised x
        dbeta, dgamma = plain.sum(1), centred.sum(1)
        factor = inverse * gamma[:, None]
        b = -inverse * factor * share * dgamma[:, None]
        d = -factor * share * dbeta[:, None] - b * mean
        a, b, d = (t.expand(x.shape[:3]).contiguous() for t in (factor, b, d))
        return scaled_back(g, x, a, b, d), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)


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
        factor = inverse * gamma[:, None]
        factor, rest = (t.expand(x.shape[:3]).contiguous() for t in (factor, beta[:, None] - used * factor))
        return scaled(x, factor, rest), batch_mean, batch_var, own, used, inverse

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, gamma, _, weight, many, *_ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, gamma, weight, many, *output[3:])

    @staticmethod
    def backward(ctx, g: Tensor, *_: Tensor):
        x, gamma, weight, many, own, mean, inverse = ctx.saved_tensors
        share = (weight * many[:, None])[:, :, None].to(own.dtype) / x[0, 0, 0].numel()
        return *_BatchNormBackward.apply(g, x, own, mean, inverse, gamma, share), *[None] * 5


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

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() < 3:
            return super().forward(input)
        y, *_ = _apply_group_norm(input[None], *_factors(self, input), self.num_groups, self.eps)
        return y.squeeze(0)


class FastBatchNorm(PureBatchNorm):
    """BatchNorm with sample weights."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or input.dim() < 3:
            return super().forward(input)
        self._check_input_dim(input)
        weight, mean, var, positions = getattr(self, WEIGHT), self.running_mean, self.running_var, input[0, 0].numel()
        count = (weight > 0).sum() * positions
        many = (count > 1).to(var.dtype)
        y, own_mean, own_var, *_ = _apply_batch_norm(
            input[None], *_factors(self, input), weight[None], many[None], mean[None], var[None], self.eps
        )
        self.update_statistics(own_mean[0], own_var[0], count, many)
        return y.squeeze(0)
