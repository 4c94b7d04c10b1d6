"""Layers of a stack of clients as single operations, for GPUs: convolution + bias + ReLU + pooling in one kernel, and
recurrent layers that step through time for all clients at once.

Each operation takes a leading dimension of clients; a layer calls it with one, and `vmap` adds the others. So every
method, loss and engine option works as before, and a layer that fits no kernel stays PyTorch's. On a CPU the same
operations run as plain PyTorch: slowly, as a reference for the tests of the kernels.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike.errors import EngineRefused
from unalike.nn.recurrent import PureGRU, PureLSTM, PureRNN, Unrolled

# among the four places of a pooling window: none wins, because the ReLU is off
NOBODY = 4
# whether convolutions alone (no ReLU and pooling behind them) are operations of their own: in bf16, and in tf32
PLAIN = False
TF32 = False
# (window, stride) -> the fewest input channels, and the fewest and most filters, for which they are
WORTH = {
    (1, 1): (16, 16, 512), (1, 2): (16, 16, 512), (3, 1): (1, 16, 512), (3, 2): (16, 16, 512), (5, 1): (1, 16, 512),
    (5, 2): (16, 16, 512),
}  # fmt: skip


def kernels() -> Any:
    """Return the module of kernels; it is imported only with a GPU, because it needs Triton."""
    return importlib.import_module("unalike.nn.kernels")


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


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note a function for `tell_compiler`: dynamo's own treatment of an autograd.Function loses its rule for vmap."""
    WHOLE.append(function)
    return function


def tell_compiler() -> None:
    """Tell the compiler which functions it must not look into; to be called before anything is compiled."""
    while WHOLE:
        torch.compiler.allow_in_graph(WHOLE.pop())


# ---------------------------------------------------------------- convolution, bias, ReLU, 2×2 max pooling


@Operation
def conv_pool(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve, add the bias, apply ReLU and pool. x [C, B, H, W, I], lines [C, K, K, I, O] (the weights), bias [C, O];
    returns the pooled pictures [C, B, H', W', O], and which of the four places won."""
    if x.is_cuda:
        return kernels().conv_pool(x, lines, bias)
    c, b, h, w, _ = x.shape
    k, o = lines.shape[1], lines.shape[4]
    full = F.conv2d(_channels(x), _filters(lines), bias.reshape(-1), groups=c)  # [B, C O, H', W']
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
        full, _channels(x), _filters(lines), [c * o], [1, 1], [0, 0], [1, 1], False, [0, 0], c,
        [inward, True, True],
    )  # fmt: skip
    dx = dx.reshape(b, c, i, h, w).permute(1, 0, 3, 4, 2).contiguous() if inward else x.new_empty(c, 0)
    return dx, dw.reshape(c, o, i, k, k).permute(0, 3, 4, 2, 1).contiguous(), db.reshape(c, o)


@conv_pool_backward.register_fake
def _(g: Tensor, won: Tensor, x: Tensor, lines: Tensor, inward: bool) -> tuple[Tensor, Tensor, Tensor]:
    c, o = len(lines), lines.shape[4]
    dx = x.new_empty(x.shape) if inward else x.new_empty(c, 0)
    return dx, lines.new_empty(lines.shape), lines.new_empty(c, o)


def _channels(x: Tensor) -> Tensor:
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


@_whole
def _apply_conv(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return _ConvPool.apply(x, lines, bias)


class ConvPool(nn.Conv2d):
    """A convolution that includes the ReLU and the pooling that follow it."""

    def forward(self, x: Tensor) -> Tensor:
        pad = self.padding[0]
        wider = -x.shape[1] % 4  # the kernel reads four channels at a time
        x = x.permute(0, 2, 3, 1)
        if pad or wider:
            x = F.pad(x, (0, wider, *(int(pad),) * 4))
        # turned here and not by the operation, so that a compiler does it along with a cast
        lines = self.weight.permute(2, 3, 1, 0)
        lines = F.pad(lines, (0, 0, 0, wider)) if wider else lines.contiguous()
        bias = self.bias if self.bias is not None else lines.new_zeros(lines.shape[-1])
        y, _ = _apply_conv(x[None], lines[None], bias[None])
        return y[0].permute(0, 3, 1, 2)


def _fits(conv: nn.Module, two: list[nn.Module]) -> bool:
    """Return whether a convolution and the two layers after it are what the kernel computes."""
    if type(conv) is not nn.Conv2d or {type(m) for m in two} != {nn.ReLU, nn.MaxPool2d}:
        return False
    pool = next(m for m in two if type(m) is nn.MaxPool2d)
    plain = pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)) and pool.padding in (0, (0, 0))
    plain &= pool.dilation in (1, (1, 1)) and not pool.ceil_mode and not pool.return_indices
    square = conv.kernel_size[0] == conv.kernel_size[1] and conv.stride == (1, 1) and conv.dilation == (1, 1)
    padded = isinstance(conv.padding, tuple) and conv.padding[0] == conv.padding[1] and conv.padding_mode == "zeros"
    return plain and square and padded and conv.groups == 1 and conv.out_channels in (16, 32, 64, 128)


# ---------------------------------------------------------------- convolution alone


@Operation
def conv(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
    """Convolve. x [C, B, H, W, I], lines [C, O, K, K, I] (the weights); returns [C, B, H', W', O]."""
    if x.is_cuda:
        return (kernels().conv(x, lines, stride, padding),)
    c, o = lines.shape[:2]
    full = F.conv2d(_channels(x), _own_filters(lines), None, stride, padding, groups=c)  # [B, C O, H', W']
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
        _channels(g), _channels(x), _own_filters(lines), None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], c,
        [inward, True, False],
    )  # fmt: skip
    dx = dx.reshape(b, c, i, h, w).permute(1, 0, 3, 4, 2).contiguous() if inward else x.new_empty(c, 0)
    return dx, dw.reshape(c, o, i, k, k).permute(0, 1, 3, 4, 2).contiguous()


@conv_backward.register_fake
def _(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape) if inward else x.new_empty(len(x), 0), lines.new_empty(lines.shape)


def _own_filters(lines: Tensor) -> Tensor:
    """Reshape [C, O, K, K, I] into the weights of a convolution with one group per client: [C O, I, K, K]."""
    return lines.permute(0, 1, 4, 2, 3).flatten(0, 1)


class _ConvBackward(NoDoubleBackward):
    @staticmethod
    def forward(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool) -> tuple[Tensor, Tensor]:
        return conv_backward(g, x, lines, stride, padding, inward)


class _Conv(Stackable):
    @staticmethod
    def forward(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
        return conv(x, lines, stride, padding)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.places = inputs[2:]
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, g: Tensor):
        x, lines = ctx.saved_tensors
        inward = ctx.needs_input_grad[0]
        dx, dw = _ConvBackward.apply(g, x, lines, *ctx.places, inward)
        return dx if inward else None, dw, None, None


@_whole
def _apply_plain(x: Tensor, lines: Tensor, stride: int, padding: int) -> tuple[Tensor]:
    return _Conv.apply(x, lines, stride, padding)


class Conv(nn.Conv2d):
    """A convolution of a stack. Its result has the shape that PyTorch gives it and lies with its channels last, which
    the layers behind it keep: the next convolution turns nothing."""

    def forward(self, x: Tensor) -> Tensor:
        wider = -x.shape[1] % 8  # the kernel reads eight channels at a time
        x, lines = x.permute(0, 2, 3, 1), self.weight.permute(0, 2, 3, 1)
        if wider:
            x, lines = F.pad(x, (0, wider)), F.pad(lines, (0, wider))
        # in order here and not by the operation, so that a compiler does it along with a cast
        (y,) = _apply_plain(x.contiguous()[None], lines.contiguous()[None], self.stride[0], _padding(self))
        # the bias is no part of the operation: it and its gradient belong to the loops of the layers behind
        return (y[0] if self.bias is None else y[0] + self.bias).permute(0, 3, 1, 2)


class MeanPool(nn.AdaptiveAvgPool2d):
    """The mean over each picture. PyTorch's own sets the strides of its result where channels lie last, which `vmap`
    would do client by client."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1), keepdim=True)


class FreeGroupNorm(nn.GroupNorm):
    """GroupNorm in any layout of memory: PyTorch's own puts its input in the usual order first, which in a stack is a
    copy on a GPU and not possible on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype == torch.bfloat16 else x
        groups = wide.unflatten(1, (self.num_groups, -1))
        var, mean = torch.var_mean(groups, tuple(range(2, groups.dim())), correction=0, keepdim=True)
        y = ((groups - mean) * torch.rsqrt(var + self.eps)).flatten(1, 2)
        if self.affine:
            shape = [1, -1] + [1] * (x.dim() - 2)
            y = y * self.weight.reshape(shape) + self.bias.reshape(shape)
        return y.to(x.dtype)


def _padding(conv: nn.Conv2d) -> int:
    """Return the zeros on each side; `_fits_alone` has seen that the sides are alike."""
    words = {"valid": 0, "same": conv.kernel_size[0] // 2}
    return words[conv.padding] if isinstance(conv.padding, str) else int(conv.padding[0])


def _fits_alone(conv: nn.Module) -> bool:
    """Return whether a layer is a convolution that the kernel computes, and is worth it."""
    if type(conv) is not nn.Conv2d or conv.groups != 1 or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
        return False
    window, stride = conv.kernel_size, conv.stride
    if window[0] != window[1] or stride[0] != stride[1] or (window[0], stride[0]) not in WORTH:
        return False
    even = isinstance(conv.padding, str) or (conv.padding[0] == conv.padding[1] and conv.padding[0] <= window[0] // 2)
    channels, fewest, most = WORTH[window[0], stride[0]]
    return even and conv.in_channels >= channels and conv.out_channels % 8 == 0 and fewest <= conv.out_channels <= most


# ---------------------------------------------------------------- LSTM


@Operation
def lstm(gates: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM from a zero state. gates [C, T, B, 4H] (from input and biases), weight [C, 4H, H]; returns the hidden
    states [C, T, B, H], the cells, and the gates after their sigmoids and tanh."""
    c, steps, b, wide = gates.shape
    turned = weight.transpose(1, 2)
    hidden, cells = (gates.new_empty(steps, c, b, wide // 4) for _ in range(2))
    inner = gates.new_empty(steps, c, b, wide)
    h = cell = torch.zeros_like(hidden[0])
    for t in range(steps):
        whole = torch.baddbmm(gates[:, t], h, turned)
        if gates.is_cuda:
            kernels().lstm_cell(whole, cell, hidden[t], cells[t], inner[t])
        else:
            i, f, g, o = whole.chunk(4, -1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            inner[t] = torch.cat([i, f, g, o], -1)
            cells[t] = f * cell + i * g
            hidden[t] = o * cells[t].tanh()
        h, cell = hidden[t], cells[t]
    return tuple(t.transpose(0, 1).contiguous() for t in (hidden, cells, inner))  # type: ignore[return-value]


@lstm.register_fake
def _(gates: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    c, steps, b, wide = gates.shape
    shape = (c, steps, b, wide // 4)
    return gates.new_empty(shape), gates.new_empty(shape), gates.new_empty(gates.shape)


@Operation
def lstm_backward(g: Tensor, hidden: Tensor, cells: Tensor, inner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates and of the weight; the weight's is one product over all times at the end."""
    c, steps, b, width = g.shape
    g, hidden, cells, inner = (t.transpose(0, 1).contiguous() for t in (g, hidden, cells, inner))
    out = torch.empty_like(inner)
    to_hidden, to_cell = g[-1], torch.zeros_like(g[0], dtype=torch.float32 if g.is_cuda else g.dtype)
    for t in reversed(range(steps)):
        before = cells[t - 1] if t else torch.zeros_like(cells[0])
        if g.is_cuda:
            kernels().lstm_cell_backward(to_hidden, to_cell, before, cells[t], inner[t], out[t])
        else:
            i, f, n, o = inner[t].chunk(4, -1)
            bent = cells[t].tanh()
            to_cell = to_cell + to_hidden * o * (1 - bent * bent)
            parts = (to_cell * n * i * (1 - i), to_cell * before * f * (1 - f), to_cell * i * (1 - n * n))
            out[t] = torch.cat([*parts, to_hidden * bent * o * (1 - o)], -1)
            to_cell = to_cell * f
        if t:
            to_hidden = torch.baddbmm(g[t - 1], out[t], weight)
    out = out.transpose(0, 1).contiguous()
    earlier = F.pad(hidden[:-1], (0, 0, 0, 0, 0, 0, 1, 0)).transpose(0, 1).reshape(c, steps * b, width)
    return out, torch.bmm(out.reshape(c, steps * b, 4 * width).transpose(1, 2), earlier)


@lstm_backward.register_fake
def _(g: Tensor, hidden: Tensor, cells: Tensor, inner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return inner.new_empty(inner.shape), weight.new_empty(weight.shape)


class _LSTMBackward(NoDoubleBackward):
    @staticmethod
    def forward(g: Tensor, hidden: Tensor, cells: Tensor, inner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_backward(g, hidden, cells, inner, weight)


class _LSTM(Stackable):
    @staticmethod
    def forward(gates: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return lstm(gates, weight)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    def backward(ctx, g: Tensor, *_: Tensor):
        weight, hidden, cells, inner = ctx.saved_tensors
        return _LSTMBackward.apply(g, hidden, cells, inner, weight)


@_whole
def _apply_lstm(gates: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _LSTM.apply(gates, weight)


class FastLSTM(PureLSTM):
    """An LSTM with one operation per layer instead of a graph of every time step. With a given start state it is
    unrolled."""

    def scan(self, x: Tensor, suffix: str, start: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        if start is not None:
            return super().scan(x, suffix, start)
        gates, _ = self.gates(x, suffix)
        hidden, cells, _ = _apply_lstm(gates[None], getattr(self, "weight_hh" + suffix)[None])
        return hidden[0], (hidden[0, -1], cells[0, -1].detach())


# ---------------------------------------------------------------- GRU


@Operation
def gru(gates: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Run a GRU from a zero state. gates [C, T, B, 3H] (from the input), weight [C, 3H, H], bias [C, 3H] of the hidden
    state's part; returns the hidden states [C, T, B, H], and [C, T, B, 4H]: the reset and update gates, the new values,
    and the hidden state's part of these."""
    c, steps, b, wide = gates.shape
    turned, beside = weight.transpose(1, 2), bias[:, None]
    hidden, inner = gates.new_empty(steps, c, b, wide // 3), gates.new_empty(steps, c, b, wide // 3 * 4)
    h = torch.zeros_like(hidden[0])
    gates = gates.transpose(0, 1).contiguous()
    for t in range(steps):
        own = torch.baddbmm(beside, h, turned)
        if gates.is_cuda:
            kernels().gru_cell(gates[t], own, h, hidden[t], inner[t])
        else:
            (r, z, n), (own_r, own_z, own_n) = gates[t].chunk(3, -1), own.chunk(3, -1)
            r, z = (r + own_r).sigmoid(), (z + own_z).sigmoid()
            n = (n + r * own_n).tanh()
            inner[t] = torch.cat([r, z, n, own_n], -1)
            hidden[t] = n + z * (h - n)
        h = hidden[t]
    return hidden.transpose(0, 1).contiguous(), inner.transpose(0, 1).contiguous()


@gru.register_fake
def _(gates: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    c, steps, b, wide = gates.shape
    return gates.new_empty(c, steps, b, wide // 3), gates.new_empty(c, steps, b, wide // 3 * 4)


@Operation
def gru_backward(g: Tensor, hidden: Tensor, inner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates, the weight and the bias."""
    c, steps, b, width = g.shape
    g, hidden, inner = (t.transpose(0, 1).contiguous() for t in (g, hidden, inner))
    # for the gates, and for the hidden state's part
    out, own = (inner.new_empty(steps, c, b, 3 * width) for _ in range(2))
    earlier = F.pad(hidden[:-1], (0, 0, 0, 0, 0, 0, 1, 0))
    to_hidden, passed = g[-1], torch.empty_like(g[0])
    for t in reversed(range(steps)):
        if g.is_cuda:
            kernels().gru_cell_backward(to_hidden, earlier[t], inner[t], out[t], own[t], passed)
        else:
            r, z, n, own_n = inner[t].chunk(4, -1)
            to_n = to_hidden * (1 - z) * (1 - n * n)
            to_r, to_z = to_n * own_n * r * (1 - r), to_hidden * (earlier[t] - n) * z * (1 - z)
            out[t] = torch.cat([to_r, to_z, to_n], -1)
            own[t] = torch.cat([to_r, to_z, to_n * r], -1)
            passed = to_hidden * z
        if t:
            to_hidden = torch.baddbmm(passed, own[t], weight).add_(g[t - 1])
    own = own.transpose(0, 1).reshape(c, steps * b, 3 * width)
    earlier = earlier.transpose(0, 1).reshape(c, steps * b, width)
    return out.transpose(0, 1).contiguous(), torch.bmm(own.transpose(1, 2), earlier), own.sum(1)


@gru_backward.register_fake
def _(g: Tensor, hidden: Tensor, inner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    c, steps, b, width = g.shape
    return g.new_empty(c, steps, b, 3 * width), weight.new_empty(weight.shape), weight.new_empty(c, 3 * width)


class _GRUBackward(NoDoubleBackward):
    @staticmethod
    def forward(g: Tensor, hidden: Tensor, inner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gru_backward(g, hidden, inner, weight)


class _GRU(Stackable):
    @staticmethod
    def forward(gates: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return gru(gates, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    def backward(ctx, g: Tensor, _: Tensor):
        weight, hidden, inner = ctx.saved_tensors
        return _GRUBackward.apply(g, hidden, inner, weight)


@_whole
def _apply_gru(gates: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return _GRU.apply(gates, weight, bias)


class FastGRU(PureGRU):
    """A GRU with one operation per layer."""

    def scan(self, x: Tensor, suffix: str, start: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        if start is not None:
            return super().scan(x, suffix, start)
        weight, (gates, bias) = getattr(self, "weight_hh" + suffix), self.gates(x, suffix)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        hidden, _ = _apply_gru(gates[None], weight[None], bias[None])
        return hidden[0], (hidden[0, -1],)


# ---------------------------------------------------------------- plain RNN


@Operation
def rnn(gates: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor]:
    """Run a plain RNN from a zero state. gates [C, T, B, H] (from input and biases), weight [C, H, H]; returns the
    hidden states."""
    c, steps, b, width = gates.shape
    turned, hidden = weight.transpose(1, 2), gates.new_empty(steps, c, b, width)
    h = torch.zeros_like(hidden[0])
    for t in range(steps):
        whole = torch.baddbmm(gates[:, t], h, turned)
        h = torch.clamp(whole, min=0, out=hidden[t]) if relu else torch.tanh(whole, out=hidden[t])
    return (hidden.transpose(0, 1).contiguous(),)


@rnn.register_fake
def _(gates: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor]:
    return (gates.new_empty(gates.shape),)


@Operation
def rnn_backward(g: Tensor, hidden: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates and of the weight."""
    c, steps, b, width = g.shape
    g, hidden = (t.transpose(0, 1).contiguous() for t in (g, hidden))
    out = torch.empty_like(g)
    slope = (hidden > 0).to(g.dtype) if relu else 1 - hidden * hidden
    to_hidden = g[-1]
    for t in reversed(range(steps)):
        torch.mul(to_hidden, slope[t], out=out[t])
        if t:
            to_hidden = torch.baddbmm(g[t - 1], out[t], weight)
    earlier = F.pad(hidden[:-1], (0, 0, 0, 0, 0, 0, 1, 0)).transpose(0, 1).reshape(c, steps * b, width)
    out = out.transpose(0, 1).contiguous()
    return out, torch.bmm(out.reshape(c, steps * b, width).transpose(1, 2), earlier)


@rnn_backward.register_fake
def _(g: Tensor, hidden: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    return g.new_empty(g.shape), weight.new_empty(weight.shape)


class _RNNBackward(NoDoubleBackward):
    @staticmethod
    def forward(g: Tensor, hidden: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
        return rnn_backward(g, hidden, weight, relu)


class _RNN(Stackable):
    @staticmethod
    def forward(gates: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor]:
        return rnn(gates, weight, relu)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.relu = inputs[2]
        ctx.save_for_backward(inputs[1], output[0])

    @staticmethod
    def backward(ctx, g: Tensor):
        weight, hidden = ctx.saved_tensors
        return *_RNNBackward.apply(g, hidden, weight, ctx.relu), None


@_whole
def _apply_rnn(gates: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor]:
    return _RNN.apply(gates, weight, relu)


class FastRNN(PureRNN):
    """A plain RNN with one operation per layer."""

    def scan(self, x: Tensor, suffix: str, start: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        if start is not None:
            return super().scan(x, suffix, start)
        gates, _ = self.gates(x, suffix)
        (hidden,) = _apply_rnn(gates[None], getattr(self, "weight_hh" + suffix)[None], self.mode == "RNN_RELU")
        return hidden[0], (hidden[0, -1],)


FAST: dict[type[Unrolled], type[Unrolled]] = {PureLSTM: FastLSTM, PureGRU: FastGRU, PureRNN: FastRNN}


# ---------------------------------------------------------------- a module's layers


def plain_too(precision: str, device: torch.device) -> bool:
    """Return whether convolutions alone may be replaced; in strict float32 on a GPU never, because the kernels would
    be slow."""
    return PLAIN if precision == "bf16" or device.type == "cpu" else TF32 and precision == "tf32"


def quicken(module: nn.Module, convolutions: bool, plain: bool = False) -> list[str]:
    """Replace the layers of a prepared module that have an operation here; return the names of those replaced.
    convolutions: with ReLU and pooling; plain: alone."""
    changed = []
    for name, layer in module.named_modules():
        if type(layer) in FAST:
            layer.__class__ = FAST[type(layer)]
            changed.append(name)
        if isinstance(layer, nn.Sequential) and convolutions:
            children = [(n, m) for n, m in layer._modules.items() if m is not None]  # a layer may occur twice
            for k, (child, conv) in enumerate(children[:-2]):
                two = [m for _, m in children[k + 1 : k + 3]]
                if _fits(conv, two):
                    conv.__class__ = ConvPool
                    for used, _ in children[k + 1 : k + 3]:
                        setattr(layer, used, nn.Identity())
                    changed.append(f"{name}.{child}" if name else child)
    for name, layer in module.named_modules() if plain else ():
        if _fits_alone(layer):
            layer.__class__ = Conv
            changed.append(name)
    # the layers behind them must take what lies with its channels last
    for layer in module.modules() if plain and any(isinstance(m, Conv) for m in module.modules()) else ():
        if type(layer) is nn.GroupNorm:
            layer.__class__ = FreeGroupNorm
        if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
            layer.__class__ = MeanPool
    return changed
