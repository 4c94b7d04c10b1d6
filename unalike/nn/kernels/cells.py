"""One step of a recurrent layer, all clients."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from unalike.nn.kernels.tuned import Launched

# ---------------------------------------------------------------- one step of an LSTM, all clients


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@Launched
@triton.jit
def _cell(whole, cell, hidden, cells, inner, N, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = n < N
    at = n // WIDTH * (4 * WIDTH) + n % WIDTH
    i = tl.sigmoid(tl.load(whole + at, real, other=0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(whole + at + WIDTH, real, other=0.0).to(tl.float32))
    g = _tanh(tl.load(whole + at + 2 * WIDTH, real, other=0.0).to(tl.float32))
    o = tl.sigmoid(tl.load(whole + at + 3 * WIDTH, real, other=0.0).to(tl.float32))
    c = f * tl.load(cell + n, real, other=0.0).to(tl.float32) + i * g
    kind = inner.dtype.element_ty
    tl.store(inner + at, i.to(kind), real)
    tl.store(inner + at + WIDTH, f.to(kind), real)
    tl.store(inner + at + 2 * WIDTH, g.to(kind), real)
    tl.store(inner + at + 3 * WIDTH, o.to(kind), real)
    tl.store(cells + n, c.to(kind), real)
    tl.store(hidden + n, (o * _tanh(c)).to(kind), real)


@Launched
@triton.jit
def _cell_backward(to_hidden, to_cell, before, cells, inner, out, N, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the gradient of the gates; the gradient of the earlier cell is left in `to_cell`."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = n < N
    at = n // WIDTH * (4 * WIDTH) + n % WIDTH
    i = tl.load(inner + at, real, other=0.0).to(tl.float32)
    f = tl.load(inner + at + WIDTH, real, other=0.0).to(tl.float32)
    g = tl.load(inner + at + 2 * WIDTH, real, other=0.0).to(tl.float32)
    o = tl.load(inner + at + 3 * WIDTH, real, other=0.0).to(tl.float32)
    bent = _tanh(tl.load(cells + n, real, other=0.0).to(tl.float32))
    dh = tl.load(to_hidden + n, real, other=0.0).to(tl.float32)
    dc = tl.load(to_cell + n, real, other=0.0) + dh * o * (1 - bent * bent)
    kind = out.dtype.element_ty
    tl.store(out + at, (dc * g * i * (1 - i)).to(kind), real)
    tl.store(out + at + WIDTH, (dc * tl.load(before + n, real, other=0.0).to(tl.float32) * f * (1 - f)).to(kind), real)
    tl.store(out + at + 2 * WIDTH, (dc * i * (1 - g * g)).to(kind), real)
    tl.store(out + at + 3 * WIDTH, (dh * bent * o * (1 - o)).to(kind), real)
    tl.store(to_cell + n, dc * f, real)


def lstm_cell(whole: Tensor, cell: Tensor, hidden: Tensor, cells: Tensor, inner: Tensor) -> None:
    """Compute one step: whole [C, B, 4H] and the earlier cell into hidden, cells [C, B, H] and inner [C, B, 4H]; all
    contiguous."""
    _cell[(triton.cdiv(cell.numel(), 512),)](whole, cell, hidden, cells, inner, cell.numel(), cell.shape[-1], 512)


def lstm_cell_backward(
    to_hidden: Tensor, to_cell: Tensor, before: Tensor, cells: Tensor, inner: Tensor, out: Tensor
) -> None:
    """Write the gates' gradient to `out`; `to_cell`, float32, becomes the gradient of the earlier cell."""
    n = to_cell.numel()
    _cell_backward[(triton.cdiv(n, 512),)](to_hidden, to_cell, before, cells, inner, out, n, to_cell.shape[-1], 512)


# ---------------------------------------------------------------- one step of a GRU, all clients


@Launched
@triton.jit
def _gru(gates, own, h, hidden, inner, N, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = n < N
    row, column = n // WIDTH, n % WIDTH
    at, to = row * (3 * WIDTH) + column, row * (4 * WIDTH) + column
    r = tl.load(gates + at, real, other=0.0).to(tl.float32) + tl.load(own + at, real, other=0.0).to(tl.float32)
    z = tl.load(gates + at + WIDTH, real, other=0.0).to(tl.float32)
    z += tl.load(own + at + WIDTH, real, other=0.0).to(tl.float32)
    share = tl.load(own + at + 2 * WIDTH, real, other=0.0).to(tl.float32)
    r, z = tl.sigmoid(r), tl.sigmoid(z)
    new = _tanh(tl.load(gates + at + 2 * WIDTH, real, other=0.0).to(tl.float32) + r * share)
    before = tl.load(h + n, real, other=0.0).to(tl.float32)
    kind = inner.dtype.element_ty
    tl.store(inner + to, r.to(kind), real)
    tl.store(inner + to + WIDTH, z.to(kind), real)
    tl.store(inner + to + 2 * WIDTH, new.to(kind), real)
    tl.store(inner + to + 3 * WIDTH, share.to(kind), real)
    tl.store(hidden + n, (new + z * (before - new)).to(kind), real)


@Launched
@triton.jit
def _gru_backward(to_hidden, earlier, inner, out, own, passed, N, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = n < N
    row, column = n // WIDTH, n % WIDTH
    at, source = row * (3 * WIDTH) + column, row * (4 * WIDTH) + column
    r = tl.load(inner + source, real, other=0.0).to(tl.float32)
    z = tl.load(inner + source + WIDTH, real, other=0.0).to(tl.float32)
    new = tl.load(inner + source + 2 * WIDTH, real, other=0.0).to(tl.float32)
    share = tl.load(inner + source + 3 * WIDTH, real, other=0.0).to(tl.float32)
    g = tl.load(to_hidden + n, real, other=0.0).to(tl.float32)
    before = tl.load(earlier + n, real, other=0.0).to(tl.float32)
    to_new = g * (1 - z) * (1 - new * new)
    to_r, to_z = to_new * share * r * (1 - r), g * (before - new) * z * (1 - z)
    kind = out.dtype.element_ty
    tl.store(out + at, to_r.to(kind), real)
    tl.store(out + at + WIDTH, to_z.to(kind), real)
    tl.store(out + at + 2 * WIDTH, to_new.to(kind), real)
    tl.store(own + at, to_r.to(kind), real)
    tl.store(own + at + WIDTH, to_z.to(kind), real)
    tl.store(own + at + 2 * WIDTH, (to_new * r).to(kind), real)
    tl.store(passed + n, (g * z).to(kind), real)


def gru_cell(gates: Tensor, own: Tensor, h: Tensor, hidden: Tensor, inner: Tensor) -> None:
    """Compute one step: gates and own [C, B, 3H] and the earlier state into hidden [C, B, H] and inner [C, B, 4H]; all
    contiguous."""
    _gru[(triton.cdiv(h.numel(), 512),)](gates, own, h, hidden, inner, h.numel(), h.shape[-1], 512)


def gru_cell_backward(
    to_hidden: Tensor, earlier: Tensor, inner: Tensor, out: Tensor, own: Tensor, passed: Tensor
) -> None:
    """Write the gradients of the gates and of the hidden state's part to `out` and `own`, and the part of the earlier
    state's gradient that bypasses the gates to `passed`."""
    n = passed.numel()
    _gru_backward[(triton.cdiv(n, 512),)](to_hidden, earlier, inner, out, own, passed, n, passed.shape[-1], 512)
