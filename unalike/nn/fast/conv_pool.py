"""Convolution, bias, ReLU and 2×2 max pooling as one operation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike.nn.fast.operation import NoDoubleBackward, Operation, Stackable, kernels, whole

# among the four places of a pooling window: none wins, because the ReLU is off
NOBODY = 4


@Operation
def conv_pool(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve, add the bias, apply ReLU and pool. x [C, B, H, W, I], lines [C, K, K, I, O] (the weights), bias [C, O];
    returns the pooled pictures [C, B, H', W', O], and which of the four places won."""
    if x.is_cuda:
        return kernels().conv_pool(x, lines, bias)
    c, b, h, w, _ = x.shape
    k, o = lines.shape[1], lines.shape[4]
    full = F.conv2d(in_groups(x), _filters(lines), bias.reshape(-1), groups=c)  # [B, C O, H', W']
    top, left = (h - k + 1) // 2, (w - k + 1) // 2
    full = full[:, :, : 2 * top, : 2 * left].reshape(b, c, o, top, 2, left, 2)
    value, won = full.permute(1, 0, 3, 5, 2, 4, 6).reshape(c, b, top, left, o, 4).max(-1)
    return value.clamp(min=0), torch.where(value > 0, won, NOBODY).to(torch.int8)


@conv_pool.register_fake
def _(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    c, b, h, w, _ = x.shape
    k, o = lines.shape[1], lines.shape[4]
    shape = (c, b, (h - k + 1) // 2, (w - k + 1) // 2, o)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int8)


@Operation
def conv_pool_backward(g: Tensor, won: Tensor, x: Tensor, lines: Tensor, inward: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x (an empty tensor unless `inward`), lines and bias."""
    if x.is_cuda:
        return kernels().conv_pool_backward(g, won, x, lines, inward)
    c, b, h, w, i = x.shape
    k, o = lines.shape[1], lines.shape[4]
    top, left = g.shape[2:4]
    places = F.one_hot(won.long(), 5)[..., :4].to(g.dtype) * g[..., None]  # [C, B, H', W', O, 4]
    full = places.reshape(c, b, top, left, o, 2, 2).permute(1, 0, 4, 2, 5, 3, 6).reshape(b, c * o, 2 * top, 2 * left)
    full = F.pad(full, (0, w - k + 1 - 2 * left, 0, h - k + 1 - 2 * top))
    dx, dw, db = torch.ops.aten.convolution_backward(
        full, in_groups(x), _filters(lines), [c * o], [1, 1], [0, 0], [1, 1], False, [0, 0], c,
        [inward, True, True],
    )  # fmt: skip
    dx = dx.reshape(b, c, i, h, w).permute(1, 0, 3, 4, 2).contiguous() if inward else x.new_empty(c, 0)
    return dx, dw.reshape(c, o, i, k, k).permute(0, 3, 4, 2, 1).contiguous(), db.reshape(c, o)


@conv_pool_backward.register_fake
def _(g: Tensor, won: Tensor, x: Tensor, lines: Tensor, inward: bool) -> tuple[Tensor, Tensor, Tensor]:
    c, o = len(lines), lines.shape[4]
    dx = x.new_empty(x.shape) if inward else x.new_empty(c, 0)
    return dx, lines.new_empty(lines.shape), lines.new_empty(c, o)


def in_groups(x: Tensor) -> Tensor:
    """Reshape [C, B, H, W, I] into the input of a convolution with one group per client: [B, C I, H, W]."""
    c, b, h, w, i = x.shape
    return x.permute(1, 0, 4, 2, 3).reshape(b, c * i, h, w)


def _filters(lines: Tensor) -> Tensor:
    """Reshape [C, K, K, I, O] into the weights of such a convolution: [C O, I, K, K]."""
    return lines.permute(0, 4, 3, 1, 2).flatten(0, 1)


class _ConvPoolBackward(NoDoubleBackward):
    @staticmethod
    def forward(g: Tensor, won: Tensor, x: Tensor, lines: Tensor, inward: bool) -> tuple[Tensor, Tensor, Tensor]:
        return conv_pool_backward(g, won, x, lines, inward)


class _ConvPool(Stackable):
    @staticmethod
    def forward(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return conv_pool(x, lines, bias)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, lines, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, lines, output[1])

    @staticmethod
    def backward(ctx, g: Tensor, _: Tensor):
        x, lines, won = ctx.saved_tensors
        inward = ctx.needs_input_grad[0]
        dx, dw, db = _ConvPoolBackward.apply(g, won, x, lines, inward)
        return dx if inward else None, dw, db


@whole
def _apply_conv(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return _ConvPool.apply(x, lines, bias)


class ConvPool(nn.Conv2d):
    """A convolution that includes the ReLU and the pooling that follow it."""

    def forward(self, input: Tensor) -> Tensor:
        pad = self.padding[0]
        wider = -input.shape[1] % 4  # the kernel reads four channels at a time
        input = input.permute(0, 2, 3, 1)
        if pad or wider:
            input = F.pad(input, (0, wider, *(int(pad),) * 4))
        # turned here and not by the operation, so that a compiler does it along with a cast
        lines = self.weight.permute(2, 3, 1, 0)
        lines = F.pad(lines, (0, 0, 0, wider)) if wider else lines.contiguous()
        bias = self.bias if self.bias is not None else lines.new_zeros(lines.shape[-1])
        y, _ = _apply_conv(input[None], lines[None], bias[None])
        return y.squeeze(0).permute(0, 3, 1, 2)


def fits(conv: nn.Module, two: list[nn.Module]) -> bool:
    """Return whether a convolution and the two layers after it are what the kernel computes."""
    if type(conv) is not nn.Conv2d or {type(m) for m in two} != {nn.ReLU, nn.MaxPool2d}:
        return False
    pool = next(m for m in two if type(m) is nn.MaxPool2d)
    plain = pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)) and pool.padding in (0, (0, 0))
    plain &= pool.dilation in (1, (1, 1)) and not pool.ceil_mode and not pool.return_indices
    square = conv.kernel_size[0] == conv.kernel_size[1] and conv.stride == (1, 1) and conv.dilation == (1, 1)
    padded = isinstance(conv.padding, tuple) and conv.padding[0] == conv.padding[1] and conv.padding_mode == "zeros"
    return plain and square and padded and conv.groups == 1 and conv.out_channels in (16, 32, 64, 128)
