"""Convolution, bias, ReLU and 2×2 max pooling in one kernel.

A convolution is a product of matrices that are never formed: a column of the right one is a pixel's window, whose lines
are contiguous in the picture (kernel width × channels), and the left one is the weights. So filters are rows and pixels
are columns of a tile: with 64 filters the tile is one instruction high and many pixels wide, which reads shared memory
least. Both operands of a product come straight from memory, so that Triton copies the next tiles during a product.

The four pixels of a pooling window are neighbours in a tile, so that pooling and the ReLU happen before anything is
written. Backwards, the gradient is written once as it was before pooling, and both gradients of the convolution read
that. Where a window is small (a first layer: three colours), all of it is one tile, and the gradient before pooling
would be most of the traffic: it is made in registers, four times per pooled pixel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unalike.nn.fast.operation import blank, blank_like
from unalike.nn.kernels.tuned import PROGRAMS, Launched, power, tuned

# a window of at most this many numbers is one tile
SMALL = 128


@triton.jit
def _window(m, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr):
    """Return where the window of pixel m begins; pixels are numbered by pooling window, four each."""
    p = m // 4
    r = p % (PH * PW)
    row, column = 2 * (r // PW) + (m % 4) // 2, 2 * (r % PW) + m % 2
    return (((p // (PH * PW)) * H + row) * W + column) * CH


@triton.jit
def _taps(k, W: tl.constexpr, CH: tl.constexpr, K: tl.constexpr):
    """Return where number k of a window lies, from the window's beginning."""
    return k // (K * CH) * (W * CH) + k % (K * CH)


@triton.jit
def _pool(total, b, y, won, c, p, P, BP: tl.constexpr, OUT: tl.constexpr):
    """Add the bias to [filters, pixels], apply ReLU, pool, and write the values and who won."""
    o = tl.arange(0, OUT)
    total += tl.load(b + c * OUT + o).to(tl.float32)[:, None]
    value, winner = tl.max(tl.reshape(total, (OUT, BP, 4)), axis=2, return_indices=True)
    winner = tl.where(value > 0, winner, 4)
    at = (c * P + p[None, :]) * OUT + o[:, None]
    tl.store(y + at, tl.maximum(value, 0.0).to(y.dtype.element_ty), (p < P)[None, :])
    tl.store(won + at, winner.to(tl.int8), (p < P)[None, :])


# NEAR: copies of 8 bytes instead of 16. These go through the L1 cache, where the neighbour's window already is.
@tuned(
    [({"BP": 32, "BK": 64, "NEAR": False}, 4, 3), ({"BP": 32, "BK": 64, "NEAR": False}, 4, 4),
     ({"BP": 32, "BK": 64, "NEAR": True}, 4, 3)],
    key=["P", "CH", "K", "OUT"],
)  # fmt: skip
@triton.jit
def _forward(
    x, w, b, y, won, P, size,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr, K: tl.constexpr,
    OUT: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    WHOLE: tl.constexpr = K * K * CH
    c = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, OUT)
    m = tl.program_id(0) * BP * 4 + tl.arange(0, BP * 4)
    # pixels beyond the last are the last one again, and are not written: no mask
    start = _window(tl.minimum(m, P * 4 - 1), H, W, PH, PW, CH)
    x += c * size
    w += c * (WHOLE * OUT)
    total = tl.zeros((OUT, BP * 4), tl.float32)
    for first in range(0, WHOLE, BK):
        k = first + tl.arange(0, BK)
        lines = w + k[None, :] * OUT + o[:, None]
        windows = x + start[None, :] + _taps(k, W, CH, K)[:, None]
        if NEAR:
            windows = tl.max_contiguous(windows, [4, 1])
        if WHOLE % BK == 0:
            left, right = tl.load(lines), tl.load(windows)
        else:
            left = tl.load(lines, (k < WHOLE)[None, :], other=0.0)
            right = tl.load(windows, (k < WHOLE)[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    _pool(total, b, y, won, c, p, P, BP, OUT)


@tuned([({"BP": 32}, 4, 1), ({"BP": 16}, 4, 2), ({"BP": 16}, 4, 3)], key=["P", "CH", "K", "OUT"])
@triton.jit
def _forward_small(
    x, w, b, y, won, P, size,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CH: tl.constexpr, K: tl.constexpr,
    OUT: tl.constexpr, BK: tl.constexpr, EACH: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Compute a share of the pooled pixels of one client, with all of its weights in one tile."""
    WHOLE: tl.constexpr = K * K * CH
    c = tl.program_id(1).to(tl.int64)
    k, o = tl.arange(0, BK), tl.arange(0, OUT)
    real = k < WHOLE
    left = tl.load(w + (c * WHOLE + k[None, :]) * OUT + o[:, None], real[None, :], other=0.0)
    x += c * size
    begin = tl.program_id(0) * EACH
    for first in range(begin, tl.minimum(begin + EACH, P), BP):
        m = first * 4 + tl.arange(0, BP * 4)
        start = _window(tl.minimum(m, P * 4 - 1), H, W, PH, PW, CH)
        right = tl.load(x + start[None, :] + _taps(k, W, CH, K)[:, None], real[:, None], other=0.0)
        total = tl.dot(left, right, input_precision="ieee")
        _pool(total, b, y, won, c, first + tl.arange(0, BP), P, BP, OUT)


@Launched
@triton.jit
def _unpool(
    g, won, d, db, P, N,
    W: tl.constexpr, PW: tl.constexpr, K: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Write the gradient as it was before pooling, with K - 1 and more zeros left and right of every line, so that it
    is W + K - 1 wide; and its sum over this program's pixels."""
    WIDE: tl.constexpr = W + K - 1
    c = tl.program_id(1).to(tl.int64)
    n, o = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, OUT)
    # rows are counted through all pictures, whose heights are even
    row, column = n // WIDE, n % WIDE - (K - 1)
    inside = (n < N) & (column >= 0) & (column < 2 * PW)
    at = (c * P + (row // 2 * PW + column // 2)[:, None]) * OUT + o[None, :]
    winner = tl.load(won + at, inside[:, None], other=4).to(tl.int32)
    value = tl.load(g + at, inside[:, None], other=0.0)
    value = tl.where(winner == (row % 2 * 2 + column % 2)[:, None], value, 0.0)
    tl.store(d + (c * N + n[:, None]) * OUT + o[None, :], value.to(d.dtype.element_ty), (n < N)[:, None])
    tl.store(db + (c * tl.num_programs(0) + tl.program_id(0)) * OUT + o, tl.sum(value.to(tl.float32), 0))


@tuned(
    [({"BM": 64, "BK": 128, "NEAR": False}, 4, 3), ({"BM": 64, "BK": 128, "NEAR": False}, 4, 4),
     ({"BM": 32, "BK": 256, "NEAR": False}, 8, 4)],
    key=["M", "CH", "K", "OUT"],
)  # fmt: skip
@triton.jit(do_not_specialize=["SHARES"])
def _weight_gradient(
    x, d, dw, M, size, SHARES, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    CH: tl.constexpr, K: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Compute one piece of the window, one share of the pixels, one client."""
    WHOLE: tl.constexpr = K * K * CH
    share, c = tl.program_id(1), tl.program_id(2).to(tl.int64)
    k, o = tl.program_id(0) * BK + tl.arange(0, BK), tl.arange(0, OUT)
    taps = _taps(k, W, CH, K)
    x += c * size
    d += c * (M // (2 * PW) * ((W + K - 1) * OUT))
    total = tl.zeros((OUT, BK), tl.float32)
    each = tl.cdiv(tl.cdiv(M, SHARES), BM) * BM
    for first in range(share * each, tl.minimum(share * each + each, M), BM):
        m = first + tl.arange(0, BM)
        n = tl.minimum(m, M - 1)
        row, column = n // (2 * PW), n % (2 * PW)
        start = ((row // (2 * PH) * H + row % (2 * PH)) * W + column) * CH
        windows = x + start[:, None] + taps[None, :]
        if NEAR:
            windows = tl.max_contiguous(windows, [1, 4])
        gradients = d + ((row * (W + K - 1) + K - 1 + column) * OUT)[None, :] + o[:, None]
        left = tl.load(gradients, (m < M)[None, :], other=0.0)
        right = tl.load(windows) if WHOLE % BK == 0 else tl.load(windows, (k < WHOLE)[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    at = ((c * SHARES + share) * WHOLE + k[None, :]) * OUT + o[:, None]
    tl.store(dw + at, total.to(dw.dtype.element_ty), (k < WHOLE)[None, :])


@tuned([({"BP": 16}, 4, 3), ({"BP": 16}, 4, 2), ({"BP": 32}, 4, 2)], key=["P", "CH", "K", "OUT"])
@triton.jit(do_not_specialize=["SHARES"])
def _weight_gradient_small(
    x, g, won, dw, db, P, size, SHARES, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, CH: tl.constexpr, K: tl.constexpr, OUT: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Compute the whole window, one share of the pooled pixels, one client."""
    WHOLE: tl.constexpr = K * K * CH
    share, c = tl.program_id(0), tl.program_id(1).to(tl.int64)
    k, o = tl.arange(0, BK), tl.arange(0, OUT)
    real, taps = k < WHOLE, _taps(k, W, CH, K)
    total, bias = tl.zeros((OUT, BK), tl.float32), tl.zeros((OUT, BP), tl.float32)
    x += c * size
    each = tl.cdiv(tl.cdiv(P, SHARES), BP) * BP
    for first in range(share * each, tl.minimum(share * each + each, P), BP):
        p = first + tl.arange(0, BP)
        n = tl.minimum(p, P - 1)
        at = (c * P + n[None, :]) * OUT + o[:, None]
        winner = tl.load(won + at).to(tl.int32)
        value = tl.load(g + at, (p < P)[None, :], other=0.0).to(x.dtype.element_ty)
        bias += tl.where(winner < 4, value, 0.0).to(tl.float32)
        windows = x + _window(n * 4, H, W, PH, PW, CH)[:, None] + taps[None, :]
        for place in tl.static_range(4):
            right = tl.load(windows + (place // 2 * W + place % 2) * CH, real[None, :], other=0.0)
            left = tl.where(winner == place, value, 0.0).to(x.dtype.element_ty)
            total = tl.dot(left, right, total, input_precision="ieee")
    at = ((c * SHARES + share) * WHOLE + k[None, :]) * OUT + o[:, None]
    tl.store(dw + at, total, real[None, :])
    tl.store(db + (c * SHARES + share) * OUT + o, tl.sum(bias, 1))


@tuned(
    [({"BM": 128, "NEAR": False}, 4, 3), ({"BM": 256, "NEAR": False}, 8, 3), ({"BM": 128, "NEAR": False}, 4, 4)],
    key=["B", "H", "K", "OUT", "CHP"],
)  # fmt: skip
@triton.jit
def _input_gradient(
    d, w, dx, B, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, CH: tl.constexpr, CHP: tl.constexpr,
    K: tl.constexpr, OUT: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Compute pixels of one row of all pictures: the convolution of the gradient with the turned weights. Lines of the
    window above the first row of the gradient, or below the last, are left out: they are zero."""
    WIDE: tl.constexpr = (W + K - 1) * OUT
    PIECES: tl.constexpr = OUT // BK
    c, tiles = tl.program_id(1).to(tl.int64), tl.cdiv(B * W, BM)
    row, m = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    n = tl.minimum(m, B * W - 1)
    picture, column = n // W, n % W
    k, i = tl.arange(0, BK), tl.arange(0, CHP)
    d += c * B * (2 * PH * WIDE)
    w += c * (K * K * CH * OUT)
    start = (picture * (2 * PH) + row - (K - 1)) * WIDE + column * OUT
    total = tl.zeros((CHP, BM), tl.float32)
    low, high = tl.maximum(K - 1 - row, 0), tl.minimum(2 * PH + K - 1 - row, K)
    for piece in range(low * (K * PIECES), high * (K * PIECES)):
        line, rest = piece // (K * PIECES), piece % (K * PIECES)
        tap = (K - 1 - line) * K + K - 1 - rest // PIECES
        weights = w + (tap * CH + i)[:, None] * OUT + (rest % PIECES * BK + k)[None, :]
        windows = d + start[None, :] + (line * WIDE + rest * BK + k)[:, None]
        if NEAR:
            windows = tl.max_contiguous(windows, [4, 1])
        left = tl.load(weights) if CH == CHP else tl.load(weights, (i < CH)[:, None], other=0.0)
        total = tl.dot(left, tl.load(windows), total, input_precision="ieee")
    at = ((c * B + picture) * H + row) * W + column
    real = (m < B * W)[None, :] & (i < CH)[:, None]
    tl.store(dx + at[None, :] * CH + i[:, None], total.to(dx.dtype.element_ty), real)


def _sizes(x: Tensor, lines: Tensor):
    """Return clients, pictures, height, width, channels; filters, window; pooled height and width."""
    c, b, h, w, i = x.shape
    o, k = lines.shape[4], lines.shape[1]
    return c, b, h, w, i, o, k, (h - k + 1) // 2, (w - k + 1) // 2


def conv_pool(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    c, b, h, w, i, o, k, top, left = _sizes(x, lines)
    windows = b * top * left
    y = blank(x, c, b, top, left, o)
    won = blank_like(y, dtype=torch.int8)
    common = (x.contiguous(), lines.contiguous(), bias.contiguous(), y, won, windows, b * h * w * i)
    if k * k * i <= SMALL:
        each = 256
        _forward_small[(triton.cdiv(windows, each), c)](*common, h, w, top, left, i, k, o, power(k * k * i), each)
    else:
        _forward[lambda meta: (triton.cdiv(windows, meta["BP"]), c)](*common, h, w, top, left, i, k, o)
    return y, won


def conv_pool_backward(g: Tensor, won: Tensor, x: Tensor, lines: Tensor, inward: bool) -> tuple[Tensor, Tensor, Tensor]:
    g, won, x, lines = g.contiguous(), won.contiguous(), x.contiguous(), lines.contiguous()
    small = lines[0, ..., 0].numel() <= SMALL
    d, db = unpool(g, won, x, lines) if inward or not small else (x, x)
    if small:
        dw, db = weight_gradient_small(x, g, won, lines)
    else:
        dw = weight_gradient(x, d, lines)
    dx = input_gradient(d, x, lines) if inward else blank(x, len(x), 0)
    return dx, dw, db.sum(1).to(lines.dtype)


def unpool(g: Tensor, won: Tensor, x: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient as it was before pooling [C, B, 2 H', W + K - 1, O], and its sums [C, parts, O]."""
    c, b, _, w, _, o, k, top, left = _sizes(x, lines)
    pixels, block = b * 2 * top * (w + k - 1), 64
    d, parts = blank(x, c, b, 2 * top, w + k - 1, o), triton.cdiv(pixels, block)
    db = blank(x, c, parts, o, dtype=torch.float32)
    _unpool[(parts, c)](g, won, d, db, b * top * left, pixels, w, left, k, o, block)
    return d, db


def weight_gradient(x: Tensor, d: Tensor, lines: Tensor) -> Tensor:
    c, b, h, w, i, o, k, top, left = _sizes(x, lines)
    pixels = b * 4 * top * left
    shares = max(1, min(PROGRAMS // 2 // (c * triton.cdiv(k * k * i, 256)), pixels // 512))
    dw = blank(x, c, shares, *lines.shape[1:], dtype=lines.dtype if shares == 1 else torch.float32)
    grid = lambda meta: (triton.cdiv(k * k * i, meta["BK"]), shares, c)  # noqa: E731
    _weight_gradient[grid](x, d, dw, pixels, b * h * w * i, shares, h, w, top, left, i, k, o)
    return dw[:, 0] if shares == 1 else dw.sum(1).to(lines.dtype)


def weight_gradient_small(x: Tensor, g: Tensor, won: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the weights, and of the bias in parts [C, parts, O]."""
    c, b, h, w, i, o, k, top, left = _sizes(x, lines)
    windows, size = b * top * left, b * h * w * i
    shares = max(1, min(PROGRAMS // c, windows // 64))
    dw = blank(x, c, shares, *lines.shape[1:], dtype=torch.float32)
    db = blank(x, c, shares, o, dtype=torch.float32)
    wide = power(k * k * i)
    _weight_gradient_small[(shares, c)](x, g, won, dw, db, windows, size, shares, h, w, top, left, i, k, o, wide)
    return dw.sum(1).to(lines.dtype), db


def input_gradient(d: Tensor, x: Tensor, lines: Tensor) -> Tensor:
    c, b, h, w, i, o, k, top, _ = _sizes(x, lines)
    dx = blank_like(x)
    grid = lambda meta: (h * triton.cdiv(b * w, meta["BM"]), c)  # noqa: E731
    _input_gradient[grid](d, lines, dx, b, h, w, top, i, power(i), k, o, min(64, o))
    return dx
