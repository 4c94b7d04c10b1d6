"""A convolution of each channel by itself as one operation. PyTorch's own, stacked, has a group for each channel of
each client, and takes longer than all other layers together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike.nn.fast.conv import differentiable, even_zeros, zeros_around
from unalike.nn.fast.conv_pool import in_groups
from unalike.nn.fast.operation import Operation, kernels


@Operation
def depthwise(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
    """Convolve each channel. x [C, B, H, W, I], lines [C, K, K, I] (the weights); returns [C, B, H', W', I]."""
    if x.is_cuda:
        return (kernels().depthwise(x, lines, stride, padding),)
    c, i = len(x), x.shape[-1]
    full = F.conv2d(in_groups(x), _windows(lines), None, stride, padding, groups=c * i)  # [B, C I, H', W']
    return (full.unflatten(1, (c, i)).permute(1, 0, 3, 4, 2).contiguous(),)


@depthwise.register_fake
def _(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
    (c, b, h, w, i), k = x.shape, lines.shape[1]
    return (x.new_empty(c, b, (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1, i),)


@Operation
def depthwise_backward(
    g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (an empty tensor unless `inward`) and lines."""
    if x.is_cuda:
        return kernels().depthwise_backward(g, x, lines, stride, padding, inward)
    (c, b, h, w, i), k = x.shape, lines.shape[1]
    dx, dw, _ = torch.ops.aten.convolution_backward(
        in_groups(g), in_groups(x), _windows(lines), None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], c * i,
        [inward, True, False],
    )  # fmt: skip
    dx = dx.reshape(b, c, i, h, w).permute(1, 0, 3, 4, 2).contiguous() if inward else x.new_empty(c, 0)
    return dx, dw.reshape(c, i, k, k).permute(0, 2, 3, 1).contiguous()


@depthwise_backward.register_fake
def _(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape) if inward else x.new_empty(len(x), 0), lines.new_empty(lines.shape)


def _windows(lines: Tensor) -> Tensor:
    """Reshape [C, K, K, I] into the weights of a convolution with one group per channel: [C I, 1, K, K]."""
    return lines.permute(0, 3, 1, 2).flatten(0, 1)[:, None]


_apply = differentiable(depthwise, depthwise_backward)


class DepthwiseConv(nn.Conv2d):
    """A convolution of each channel by itself. Its result lies with its channels last, which the layers behind it
    keep."""

    def forward(self, input: Tensor) -> Tensor:
        input, lines = input.permute(0, 2, 3, 1).contiguous(), self.weight[:, 0].permute(1, 2, 0).contiguous()
        (y,) = _apply(input[None], lines[None], self.stride[0], zeros_around(self))
        y = y.squeeze(0)  # (the gradient of `y[0]` would be written once more)
        return (y if self.bias is None else y + self.bias).permute(0, 3, 1, 2)


def fits_depthwise(conv: nn.Module) -> bool:
    """Return whether a layer is a convolution of each channel by itself that the kernel computes."""
    if type(conv) is not nn.Conv2d or not 1 < conv.groups == conv.in_channels == conv.out_channels:
        return False
    return even_zeros(conv) and conv.kernel_size[0] <= 7 and conv.stride[0] <= 2
