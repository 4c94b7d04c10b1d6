"""The GPU kernels behind `fast`, in Triton. Pictures lie with their channels last; every client has its own weights.

A convolution is a product of matrices that are never formed: a row of the left one is a pixel's window, and in a line
of the picture a window is contiguous (kernel width × channels), so a tile is loaded line by line. The four pixels of a
pooling window are neighbours in a tile, so that pooling and the ReLU happen before anything is written.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor


def _tuned(configs, key):
    """Decorate a kernel so that Triton tries these configurations once per shape and keeps the fastest. (Its
    interpreter, without a GPU, measures nothing.)"""
    configs = configs[:1] if os.environ.get("TRITON_INTERPRET") == "1" else configs
    return triton.autotune([triton.Config(c, num_warps=w, num_stages=s) for c, w, s in configs], key=key)


@triton.jit
def _window(m, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr):
    """Return where the window of pixel m begins; pixels are numbered by pooling window, four each."""
    p = m // 4
    r = p % (PH * PW)
    row, column = 2 * (r // PW) + (m % 4) // 2, 2 * (r % PW) + m % 2
    return (((p // (PH * PW)) * H + row) * W + column) * CH


@_tuned(
    [({"BP": 32, "BK": 32}, 4, 3), ({"BP": 32, "BK": 64}, 4, 3), ({"BP": 32, "BK": 64}, 8, 3),
     ({"BP": 64, "BK": 32}, 8, 3), ({"BP": 64, "BK": 64}, 8, 3), ({"BP": 16, "BK": 64}, 4, 4)],
    key=["P", "LINE", "OUT"],
)  # fmt: skip
@triton.jit
def _forward(
    x, w, b, y, won, P, size,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr, K: tl.constexpr,
    LINE: tl.constexpr, OUT: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    PIECES: tl.constexpr = (LINE + BK - 1) // BK
    m = tl.program_id(0) * BP * 4 + tl.arange(0, BP * 4)
    real = m < P * 4
    start = _window(m, H, W, PH, PW, CH)
    o = tl.arange(0, OUT)
    total = tl.zeros((BP * 4, OUT), tl.float32)
    x += c * size
    w += c * (K * LINE * OUT)
    for piece in range(0, K * PIECES):
        line = piece // PIECES
        k = (piece % PIECES) * BK + tl.arange(0, BK)
        inside = k < LINE
        left = tl.load(x + start[:, None] + (line * (W * CH) + k)[None, :], real[:, None] & inside[None, :], other=0.0)
        right = tl.load(w + (line * LINE + k)[:, None] * OUT + o[None, :], inside[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    total += tl.load(b + c * OUT + o)[None, :].to(tl.float32)
    value, winner = tl.max(tl.reshape(total, (BP, 4, OUT)), axis=1, return_indices=True)
    winner = tl.where(value > 0, winner, 4)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    at = (c * P + p[:, None]) * OUT + o[None, :]
    tl.store(y + at, tl.maximum(value, 0.0).to(y.dtype.element_ty), (p < P)[:, None])
    tl.store(won + at, winner.to(tl.int8), (p < P)[:, None])


@triton.jit
def _gradient_tile(g, won, at, real, place, DTYPE: tl.constexpr):
    """Return the gradient of pixels before pooling: the pooled gradient for pixels that won, else zero."""
    winner = tl.load(won + at, real, other=4).to(tl.int32)
    return tl.where(winner == place, tl.load(g + at, real, other=0.0), 0.0).to(DTYPE)


@_tuned(
    [({"BM": 64, "BK": 64}, 4, 3), ({"BM": 128, "BK": 64}, 4, 3), ({"BM": 64, "BK": 64}, 8, 3),
     ({"BM": 128, "BK": 64}, 8, 2), ({"BM": 32, "BK": 64}, 4, 4), ({"BM": 64, "BK": 128}, 8, 3)],
    key=["P", "LINE", "OUT"],
)  # fmt: skip
@triton.jit
def _weight_gradient(
    x, g, won, dw, db, P, size,
    SHARES: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr,
    K: tl.constexpr, LINE: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute one line of the window, one piece of it, one share of the pixels, one client."""
    PIECES: tl.constexpr = (LINE + BK - 1) // BK
    line, share, c = tl.program_id(0) // PIECES, tl.program_id(1), tl.program_id(2).to(tl.int64)
    k = (tl.program_id(0) % PIECES) * BK + tl.arange(0, BK)
    o = tl.arange(0, OUT)
    total = tl.zeros((OUT, BK), tl.float32)
    bias = tl.zeros((OUT,), tl.float32)
    x += c * size + line * (W * CH)
    each = tl.cdiv(tl.cdiv(P * 4, SHARES), BM) * BM
    end = tl.minimum(share * each + each, P * 4)
    for first in range(share * each, end, BM):
        m = first + tl.arange(0, BM)
        real = m < end
        window = x + _window(m, H, W, PH, PW, CH)[:, None] + k[None, :]
        left = tl.load(window, real[:, None] & (k < LINE)[None, :], other=0.0)
        at = (c * P + (m // 4)[:, None]) * OUT + o[None, :]
        d = _gradient_tile(g, won, at, real[:, None], (m % 4)[:, None], x.dtype.element_ty)
        total = tl.dot(tl.trans(d), left, total, input_precision="ieee")
        bias += tl.sum(d.to(tl.float32), 0)
    at = ((c * SHARES + share) * OUT + o[:, None]) * (K * LINE) + (line * LINE + k)[None, :]
    tl.store(dw + at, total, (k < LINE)[None, :])
    if tl.program_id(0) == 0:
        tl.store(db + (c * SHARES + share) * OUT + o, bias)


@_tuned([({"BM": 64}, 4, 3), ({"BM": 128}, 4, 2), ({"BM": 128}, 8, 3), ({"BM": 32}, 4, 3)], key=["P", "LINE", "OUT"])
@triton.jit
def _weight_gradient_5(
    x, g, won, dw, db, P, size,
    SHARES: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr,
    LINE: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute the weight gradient of a 5×5 window with few channels: all five lines in one program, so that the
    gradient is read once."""
    share, c = tl.program_id(0), tl.program_id(1).to(tl.int64)
    k, o = tl.arange(0, BK), tl.arange(0, OUT)
    t0 = tl.zeros((OUT, BK), tl.float32)
    t1, t2, t3, t4 = t0, t0, t0, t0
    bias = tl.zeros((OUT,), tl.float32)
    x += c * size
    each = tl.cdiv(tl.cdiv(P * 4, SHARES), BM) * BM
    end = tl.minimum(share * each + each, P * 4)
    for first in range(share * each, end, BM):
        m = first + tl.arange(0, BM)
        real = m < end
        at = (c * P + (m // 4)[:, None]) * OUT + o[None, :]
        d = _gradient_tile(g, won, at, real[:, None], (m % 4)[:, None], x.dtype.element_ty)
        bias += tl.sum(d.to(tl.float32), 0)
        d = tl.trans(d)
        window = x + _window(m, H, W, PH, PW, CH)[:, None] + k[None, :]
        mask = real[:, None] & (k < LINE)[None, :]
        t0 = tl.dot(d, tl.load(window, mask, other=0.0), t0, input_precision="ieee")
        t1 = tl.dot(d, tl.load(window + W * CH, mask, other=0.0), t1, input_precision="ieee")
        t2 = tl.dot(d, tl.load(window + 2 * W * CH, mask, other=0.0), t2, input_precision="ieee")
        t3 = tl.dot(d, tl.load(window + 3 * W * CH, mask, other=0.0), t3, input_precision="ieee")
        t4 = tl.dot(d, tl.load(window + 4 * W * CH, mask, other=0.0), t4, input_precision="ieee")
    out = dw + ((c * SHARES + share) * OUT + o[:, None]) * (5 * LINE) + k[None, :]
    mask = (k < LINE)[None, :]
    tl.store(out, t0, mask)
    tl.store(out + LINE, t1, mask)
    tl.store(out + 2 * LINE, t2, mask)
    tl.store(out + 3 * LINE, t3, mask)
    tl.store(out + 4 * LINE, t4, mask)
    tl.store(db + (c * SHARES + share) * OUT + o, bias)


@_tuned(
    [({"BM": 128}, 4, 3), ({"BM": 128}, 8, 3), ({"BM": 64}, 4, 3), ({"BM": 128}, 4, 2), ({"BM": 64}, 4, 4)],
    key=["P", "K", "OUT", "CHP"],
)
@triton.jit
def _input_gradient(
    g, won, w, dx, M, P,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr, CHP: tl.constexpr,
    K: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute the input gradient: every input pixel gathers from the K × K output pixels that read it."""
    c = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    picture, r = m // (H * W), m % (H * W)
    row, column = r // W, r % W
    o, i = tl.arange(0, OUT), tl.arange(0, CHP)
    total = tl.zeros((BM, CHP), tl.float32)
    w += c * (K * K * CH * OUT)
    for k in range(0, K * K):
        up, back = row - k // K, column - k % K
        real = (m < M) & (up >= 0) & (back >= 0) & (up < 2 * PH) & (back < 2 * PW)
        p = (picture * PH + up // 2) * PW + back // 2
        at = (c * P + p[:, None]) * OUT + o[None, :]
        d = _gradient_tile(g, won, at, real[:, None], ((up % 2) * 2 + back % 2)[:, None], w.dtype.element_ty)
        t = tl.load(w + (k * CH + i[:, None]) * OUT + o[None, :], (i < CH)[:, None], other=0.0)
        total = tl.dot(d, tl.trans(t), total, input_precision="ieee")
    mask = (m < M)[:, None] & (i < CH)[None, :]
    tl.store(dx + (c * M + m[:, None]) * CH + i[None, :], total.to(dx.dtype.element_ty), mask)


def _sizes(x: Tensor, weight: Tensor):
    """Return clients, pictures, height, width, channels; filters, window; pooled height and width."""
    c, b, h, w, i = x.shape
    o, k = weight.shape[1], weight.shape[3]
    return c, b, h, w, i, o, k, (h - k + 1) // 2, (w - k + 1) // 2


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    c, b, h, w, i, o, k, top, left = _sizes(x, weight)
    x, lines = x.contiguous(), weight.permute(0, 3, 4, 2, 1).contiguous()  # [C, K, K, CH, OUT]
    y = x.new_empty(c, b, top, left, o)
    won = torch.empty_like(y, dtype=torch.int8)
    windows = b * top * left
    _forward[lambda meta: (triton.cdiv(windows, meta["BP"]), c)](
        x, lines, bias.contiguous(), y, won, windows, b * h * w * i, h, w, top, left, i, k, k * i, o
    )
    return y, won


def conv_pool_backward(
    g: Tensor, won: Tensor, x: Tensor, weight: Tensor, inward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    c, b, h, w, i, o, k, top, left = _sizes(x, weight)
    x, g, won, windows, line = x.contiguous(), g.contiguous(), won.contiguous(), b * top * left, k * i
    narrow = k == 5 and line <= 32
    shares = 8 if narrow else 1
    dw, db = x.new_empty(c, shares, o, k * line, dtype=torch.float32), x.new_empty(c, shares, o, dtype=torch.float32)
    common = (x, g, won, dw, db, windows, b * h * w * i, shares, h, w, top, left, i)
    if narrow:
        _weight_gradient_5[(shares, c)](*common, line, 32, o)
    else:
        grid = lambda meta: (k * triton.cdiv(line, meta["BK"]), shares, c)  # noqa: E731
        _weight_gradient[grid](*common, k, line, o)
    dw = dw.sum(1).view(c, o, k, k, i).permute(0, 1, 4, 2, 3).to(weight.dtype).contiguous()
    dx = x.new_empty(c, 0)
    if inward:
        dx, pixels = torch.empty_like(x), b * h * w
        lines = weight.permute(0, 3, 4, 2, 1).contiguous()
        _input_gradient[lambda meta: (triton.cdiv(pixels, meta["BM"]), c)](
            g, won, lines, dx, pixels, windows, h, w, top, left, i, max(16, triton.next_power_of_2(i)), k, o
        )
    return dx, dw, db.sum(1).to(weight.dtype)


# ---------------------------------------------------------------- one step of an LSTM, all clients


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


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
