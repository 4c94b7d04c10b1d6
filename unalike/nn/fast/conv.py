"""A convolution alone as one operation, with padding and stride."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike.nn.fast.conv_pool import in_groups
from unalike.nn.fast.operation import NoDoubleBackward, Operation, Stackable, kernels, whole

# (window, stride) -> the fewest input channels, and the fewest and most filters, with which it is worth it
WORTH = {
    (1, 1): (16, 16, 512), (1, 2): (16, 16, 512), (3, 1): (1, 16, 512), (3, 2): (16, 16, 512), (5, 1): (1, 16, 512),
    (5, 2): (16, 16, 512),
}  # fmt: skip


@Operation
def conv(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
    """Convolve. x [C, B, H, W, I], lines [C, O, K, K, I] (the weights); returns [C, B, H', W', O]."""
    if x.is_cuda:
        return (kernels().conv(x, lines, stride, padding),)
    c, o = lines.shape[:2]
    full = F.conv2d(in_groups(x), own_filters(lines), None, stride, padding, groups=c)  # [B, C O, H', W']
    return (full.unflatten(1, (c, o)).permute(1, 0, 3, 4, 2).contiguous(),)


@conv.register_fake
def _(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
    (c, b, h, w, _), (_, o, k, _, _) = x.shape, lines.shape
    return (x.new_empty(c, b, (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1, o),)


@Operation
def conv_backward(
    g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (an empty tensor unless `inward`) and lines."""
    if x.is_cuda:
        return kernels().conv_backward(g, x, lines, stride, padding, inward)
    (c, b, h, w, i), (_, o, k, _, _) = x.shape, lines.shape
    dx, dw, _ = torch.ops.aten.convolution_backward(
        in_groups(g), in_groups(x), own_filters(lines), None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], c,
        [inward, True, False],
    )  # fmt: skip
    dx = dx.reshape(b, c, i, h, w).permute(1, 0, 3, 4, 2).contiguous() if inward else x.new_empty(c, 0)
    return dx, dw.reshape(c, o, i, k, k).permute(0, 1, 3, 4, 2).contiguous()


@conv_backward.register_fake
def _(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape) if inward else x.new_empty(len(x), 0), lines.new_empty(lines.shape)


def own_filters(lines: Tensor) -> Tensor:
    """Reshape [C, O, K, K, I] into the weights of a convolution with one group per client: [C O, I, K, K]."""
    return lines.permute(0, 1, 4, 2, 3).flatten(0, 1)


def differentiable(forward: Callable[..., tuple[Tensor]], backward: Callable[..., tuple[Tensor, Tensor]]):
    """Return a function of (x, lines, stride, padding) for stacks, from the operation and the one of its gradients."""

    class Backward(NoDoubleBackward):
        @staticmethod
        def forward(
            g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool
        ) -> tuple[Tensor, Tensor]:
            return backward(g, x, lines, stride, padding, inward)

    class Forward(Stackable):
        @staticmethod
        def forward(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
            return forward(x, lines, stride, padding)

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            ctx.places = inputs[2:]
            ctx.save_for_backward(*inputs[:2])

        @staticmethod
        def backward(ctx, g: Tensor):
            x, lines = ctx.saved_tensors
            inward = ctx.needs_input_grad[0]
            dx, dw = Backward.apply(g, x, lines, *ctx.places, inward)
            return dx if inward else None, dw, None, None

    def apply(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
        return Forward.apply(x, lines, stride, padding)

    return whole(apply)


_apply = differentiable(conv, conv_backward)


class Conv(nn.Conv2d):
    """A convolution of a stack. Its result has the shape that PyTorch gives it and lies with its channels last, which
    the layers behind it keep: the next convolution turns nothing."""

    def forward(self, input: Tensor) -> Tensor:
        wider = -input.shape[1] % 8  # the kernel reads eight channels at a time
        input, lines = input.permute(0, 2, 3, 1), self.weight.permute(0, 2, 3, 1)
        if wider:
            input, lines = F.pad(input, (0, wider)), F.pad(lines, (0, wider))
        # in order here and not by the operation, so that a compiler does it along with a cast; the weights lie in order
        # already (`turned`), clients apart
        (y,) = _apply(input.contiguous()[None], lines[None], self.stride[0], zeros_around(self))
        # the bias is no part of the operation: it and its gradient belong to the loops of the layers behind
        y = y.squeeze(0)  # (the gradient of `y[0]` would be written once more)
        return (y if self.bias is None else y + self.bias).permute(0, 3, 1, 2)


class MeanPool(nn.AdaptiveAvgPool2d):
    """The mean over each picture. PyTorch's own sets the strides of its result where channels lie last, which `vmap`
    would do client by client."""

    def forward(self, input: Tensor) -> Tensor:
        return input.mean((-2, -1), keepdim=True)


def zeros_around(conv: nn.Conv2d) -> int:
    """Return the zeros on each side; `fits_alone` has seen that the sides are alike."""
    words = {"valid": 0, "same": conv.kernel_size[0] // 2}
    return words[conv.padding] if isinstance(conv.padding, str) else int(conv.padding[0])


def even_zeros(conv: nn.Conv2d) -> bool:
    """Return whether a convolution has a square window and stride, and as many zeros on every side, not more than half
    a window."""
    window, stride, padding = conv.kernel_size, conv.stride, conv.padding
    plain = (
        conv.dilation == (1, 1) and conv.padding_mode == "zeros" and window[0] == window[1] and stride[0] == stride[1]
    )
    if isinstance(padding, str):
        return plain and (padding == "valid" or window[0] % 2 == 1)
    return plain and padding[0] == padding[1] and padding[0] <= window[0] // 2


def fits_alone(conv: nn.Module) -> bool:
    """Return whether a layer is a convolution that the kernel computes, and is worth it."""
    if type(conv) is not nn.Conv2d or conv.groups != 1 or not even_zeros(conv):
        return False
    channels, fewest, most = WORTH.get((conv.kernel_size[0], conv.stride[0]), (math.inf, 0, 0))
    return conv.in_channels >= channels and conv.out_channels % 8 == 0 and fewest <= conv.out_channels <= most
