"""Recurrent layers that step through time for all clients at once, each as one operation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike.nn.fast.operation import NoDoubleBackward, Operation, Stackable, blank, blank_like, kernels, whole
from unalike.nn.recurrent import PureGRU, PureLSTM, PureRNN, Unrolled

# ---------------------------------------------------------------- LSTM


@Operation
def lstm(gates: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM from a zero state. gates [C, T, B, 4H] (from input and biases), weight [C, 4H, H]; returns the hidden
    states [C, T, B, H], the cells, and the gates after their sigmoids and tanh."""
    c, steps, b, wide = gates.shape
    turned = weight.transpose(1, 2)
    hidden, cells = (blank(gates, steps, c, b, wide // 4) for _ in range(2))
    inner = blank(gates, steps, c, b, wide)
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
    out = blank_like(inner)
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


@whole
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
        hidden = hidden.squeeze(0)
        return hidden, (hidden[-1], cells[0, -1].detach())


# ---------------------------------------------------------------- GRU


@Operation
def gru(gates: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Run a GRU from a zero state. gates [C, T, B, 3H] (from the input), weight [C, 3H, H], bias [C, 3H] of the hidden
    state's part; returns the hidden states [C, T, B, H], and [C, T, B, 4H]: the reset and update gates, the new values,
    and the hidden state's part of these."""
    c, steps, b, wide = gates.shape
    turned, beside = weight.transpose(1, 2), bias[:, None]
    hidden, inner = blank(gates, steps, c, b, wide // 3), blank(gates, steps, c, b, wide // 3 * 4)
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
    out, own = (blank(inner, steps, c, b, 3 * width) for _ in range(2))
    earlier = F.pad(hidden[:-1], (0, 0, 0, 0, 0, 0, 1, 0))
    to_hidden, passed = g[-1], blank_like(g[0])
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


@whole
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
        hidden = hidden.squeeze(0)
        return hidden, (hidden[-1],)


# ---------------------------------------------------------------- plain RNN


@Operation
def rnn(gates: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor]:
    """Run a plain RNN from a zero state. gates [C, T, B, H] (from input and biases), weight [C, H, H]; returns the
    hidden states."""
    c, steps, b, width = gates.shape
    turned, hidden = weight.transpose(1, 2), blank(gates, steps, c, b, width)
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
    out = blank_like(g)
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


@whole
def _apply_rnn(gates: Tensor, weight: Tensor, relu: bool) -> tuple[Tensor]:
    return _RNN.apply(gates, weight, relu)


class FastRNN(PureRNN):
    """A plain RNN with one operation per layer."""

    def scan(self, x: Tensor, suffix: str, start: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        if start is not None:
            return super().scan(x, suffix, start)
        gates, _ = self.gates(x, suffix)
        (hidden,) = _apply_rnn(gates[None], getattr(self, "weight_hh" + suffix)[None], self.mode == "RNN_RELU")
        hidden = hidden.squeeze(0)
        return hidden, (hidden[-1],)


FAST: dict[type[Unrolled], type[Unrolled]] = {PureLSTM: FastLSTM, PureGRU: FastGRU, PureRNN: FastRNN}
