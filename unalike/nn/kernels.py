"""The GPU kernels behind `fast`, in Triton. Pictures lie with their channels last; every client has its own weights.

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

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # it measures nothing
# a window of at most this many numbers is one tile
SMALL = 128
# programs that fill a large GPU several times over
PROGRAMS = 1000


class _Tuned:
    """A kernel that tries its configurations once per shape and keeps the fastest, where cuDNN is to do so for its own
    (`search_convolutions`); else it takes the first, so that only one is compiled."""

    def __init__(self, kernel, configs: list[triton.Config], key: list[str]):
        self.kernel, self.configs = kernel, configs
        self.search = triton.autotune(configs, key=key, do_bench=_bench)(kernel)

    def __getitem__(self, grid):
        search = torch.backends.cudnn.benchmark and not INTERPRETED
        return self.search[grid] if search else self.only(grid, self.configs[0])

    def only(self, grid, config: triton.Config):
        """Return the launcher of one configuration."""
        return lambda *args: self.kernel[grid](*args, **config.all_kwargs())


def _bench(call, quantiles):
    return triton.testing.do_bench(call, warmup=3, rep=10, quantiles=quantiles)


def _tuned(configs, key):
    """Decorate a kernel with its configurations: constants, warps, stages; the first is the one to begin with."""
    made = [triton.Config(c, num_warps=w, num_stages=s) for c, w, s in configs]
    return lambda kernel: _Tuned(kernel, made, key)


# ---------------------------------------------------------------- convolution, bias, ReLU, 2×2 max pooling


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
@_tuned(
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


@_tuned([({"BP": 32}, 4, 1), ({"BP": 16}, 4, 2), ({"BP": 16}, 4, 3)], key=["P", "CH", "K", "OUT"])
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


@_tuned(
    [({"BM": 64, "BK": 128, "NEAR": False}, 4, 3), ({"BM": 64, "BK": 128, "NEAR": False}, 4, 4),
     ({"BM": 32, "BK": 256, "NEAR": False}, 8, 4)],
    key=["M", "CH", "K", "OUT"],
)  # fmt: skip
@triton.jit
def _weight_gradient(
    x, d, dw, M, size, SHARES: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
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


@_tuned([({"BP": 16}, 4, 3), ({"BP": 16}, 4, 2), ({"BP": 32}, 4, 2)], key=["P", "CH", "K", "OUT"])
@triton.jit
def _weight_gradient_small(
    x, g, won, dw, db, P, size, SHARES: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr,
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


@_tuned(
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


def _power(n: int) -> int:
    return max(16, triton.next_power_of_2(n))


def conv_pool(x: Tensor, lines: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    c, b, h, w, i, o, k, top, left = _sizes(x, lines)
    windows = b * top * left
    y = x.new_empty(c, b, top, left, o)
    won = torch.empty_like(y, dtype=torch.int8)
    common = (x.contiguous(), lines.contiguous(), bias.contiguous(), y, won, windows, b * h * w * i)
    if k * k * i <= SMALL:
        each = 256
        _forward_small[(triton.cdiv(windows, each), c)](*common, h, w, top, left, i, k, o, _power(k * k * i), each)
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
    dx = input_gradient(d, x, lines) if inward else x.new_empty(len(x), 0)
    return dx, dw, db.sum(1).to(lines.dtype)


def unpool(g: Tensor, won: Tensor, x: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient as it was before pooling [C, B, 2 H', W + K - 1, O], and its sums [C, parts, O]."""
    c, b, _, w, _, o, k, top, left = _sizes(x, lines)
    pixels, block = b * 2 * top * (w + k - 1), 64
    d, parts = x.new_empty(c, b, 2 * top, w + k - 1, o), triton.cdiv(pixels, block)
    db = x.new_empty(c, parts, o, dtype=torch.float32)
    _unpool[(parts, c)](g, won, d, db, b * top * left, pixels, w, left, k, o, block)
    return d, db


def weight_gradient(x: Tensor, d: Tensor, lines: Tensor) -> Tensor:
    c, b, h, w, i, o, k, top, left = _sizes(x, lines)
    pixels = b * 4 * top * left
    shares = max(1, min(PROGRAMS // 2 // (c * triton.cdiv(k * k * i, 256)), pixels // 512))
    dw = x.new_empty(c, shares, *lines.shape[1:], dtype=lines.dtype if shares == 1 else torch.float32)
    grid = lambda meta: (triton.cdiv(k * k * i, meta["BK"]), shares, c)  # noqa: E731
    _weight_gradient[grid](x, d, dw, pixels, b * h * w * i, shares, h, w, top, left, i, k, o)
    return dw[:, 0] if shares == 1 else dw.sum(1).to(lines.dtype)


def weight_gradient_small(x: Tensor, g: Tensor, won: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the weights, and of the bias in parts [C, parts, O]."""
    c, b, h, w, i, o, k, top, left = _sizes(x, lines)
    windows, size = b * top * left, b * h * w * i
    shares = max(1, min(PROGRAMS // c, windows // 64))
    dw = x.new_empty(c, shares, *lines.shape[1:], dtype=torch.float32)
    db = x.new_empty(c, shares, o, dtype=torch.float32)
    wide = _power(k * k * i)
    _weight_gradient_small[(shares, c)](x, g, won, dw, db, windows, size, shares, h, w, top, left, i, k, o, wide)
    return dw.sum(1).to(lines.dtype), db


def input_gradient(d: Tensor, x: Tensor, lines: Tensor) -> Tensor:
    c, b, h, w, i, o, k, top, _ = _sizes(x, lines)
    dx = torch.empty_like(x)
    grid = lambda meta: (h * triton.cdiv(b * w, meta["BM"]), c)  # noqa: E731
    _input_gradient[grid](d, lines, dx, b, h, w, top, i, _power(i), k, o, min(64, o))
    return dx


# ---------------------------------------------------------------- convolution alone, with padding and stride


# A loop goes over the places of the window, not over its lines: places beyond the border are masked, so that nothing is
# padded in memory. Sizes are numbers of the call and not constants, so that the layers of a deep model share kernels;
# channels come as eighths, which tells the compiler that eight lie together.
SIZES = ["M", "SH", "SW", "TH", "TW", "IN8", "OUT8", "PAD"]


@_tuned([({"BM": 128}, 4, 3), ({"BM": 128}, 4, 4), ({"BM": 256}, 8, 3), ({"BM": 64}, 4, 4)], key=[*SIZES, "K", "BACK"])
@triton.jit(do_not_specialize=SIZES)
def _convolve(
    x, w, y, M, SH, SW, TH, TW, IN8, OUT8, PAD, STRIDE: tl.constexpr, K: tl.constexpr, BACK: tl.constexpr,
    LINES: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Compute a tile, pixels × channels, of one client's target [M, TH, TW, OUT] from its source [M, SH, SW, IN]: the
    convolution, or going BACK the gradient of its input. There, with a stride, a tile's pixels have the same rest, so
    that the same places of the window met them. LINES: the weights are [OUT, K, K, IN], else [IN, K, K, OUT]."""
    IN, OUT = IN8 * 8, OUT8 * 8
    EVERY: tl.constexpr = STRIDE if BACK else 1  # target pixels of a tile are this far apart
    c = tl.program_id(2).to(tl.int64)
    high, wide = tl.cdiv(TH, EVERY), tl.cdiv(TW, EVERY)
    tiles = tl.cdiv(M * high * wide, BM)
    rest = tl.program_id(0) // tiles
    top, left = rest // EVERY, rest % EVERY
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    n = tl.minimum(m, M * high * wide - 1)
    picture, row, column = n // (high * wide), n // wide % high, n % wide
    # place (j, i) of the loop is place (j0 + STRIDE j, i0 + STRIDE i) of the window, going back
    if BACK:
        j0, i0 = (top + PAD) % STRIDE, (left + PAD) % STRIDE
        down, across = (K - j0 + STRIDE - 1) // STRIDE, (K - i0 + STRIDE - 1) // STRIDE
        first_row, first_column = row + (top + PAD) // STRIDE, column + (left + PAD) // STRIDE
    else:
        j0, i0, down, across = 0, 0, K, K
        first_row, first_column = row * STRIDE - PAD, column * STRIDE - PAD
    o, k = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    x += c * M * SH * SW * IN
    w += c * (K * K) * IN * OUT
    start = ((picture * SH + first_row) * SW + first_column) * IN
    # the operand with more rows is the right one: it is read once per 64 rows of the left one
    FILTERS: tl.constexpr = BN >= 64
    total = tl.zeros((BN, BM) if FILTERS else (BM, BN), tl.float32)
    for step in range(0, down * across * tl.cdiv(IN, BK)):
        piece, place = step // (down * across) * BK, step % (down * across)
        j, i = place // across, place % across
        if BACK:
            tap, away, source_row, source_column = (j0 + STRIDE * j) * K + i0 + STRIDE * i, -j * SW - i, -j, -i
        else:
            tap, away, source_row, source_column = place, j * SW + i, j, i
        source_row += first_row
        source_column += first_column
        inside = (source_row >= 0) & (source_row < SH) & (source_column >= 0) & (source_column < SW)
        channel = piece + k
        if LINES:
            lines = w + (o * (K * K) + tap)[:, None] * IN + channel[None, :]
        else:
            lines = w + (channel * (K * K) + tap)[None, :] * OUT + o[:, None]
        windows = x + (start + away * IN)[:, None] + channel[None, :]
        if EVEN:
            weights, pixels = tl.load(lines), tl.load(windows, inside[:, None], other=0.0)
        else:
            weights = tl.load(lines, (o < OUT)[:, None] & (channel < IN)[None, :], other=0.0)
            pixels = tl.load(windows, inside[:, None] & (channel < IN)[None, :], other=0.0)
        if FILTERS:
            total = tl.dot(weights, tl.trans(pixels), total, input_precision=PRECISION)
        else:
            total = tl.dot(pixels, tl.trans(weights), total, input_precision=PRECISION)
    row, column = row * EVERY + top, column * EVERY + left
    at = ((c * M + picture) * TH + row) * TW + column
    real = (m < M * high * wide) & (row < TH) & (column < TW)
    if FILTERS:
        tl.store(y + at[None, :] * OUT + o[:, None], total.to(y.dtype.element_ty), real[None, :] & (o < OUT)[:, None])
    else:
        tl.store(y + at[:, None] * OUT + o[None, :], total.to(y.dtype.element_ty), real[:, None] & (o < OUT)[None, :])


@triton.jit
def _divided(n, inverse):
    """Return n // d for an inverse of 2⁴⁰ / d, rounded up: a division takes 20 instructions."""
    return (n.to(tl.int64) * inverse >> 40).to(tl.int32)


@triton.jit(do_not_specialize=[*SIZES, "BY_TH", "BY_TW", "STRIDE", "SHARES"])
def _places(
    x, g, dw, M, SH, SW, TH, TW, IN8, OUT8, PAD, BY_TH, BY_TW, STRIDE, SHARES, K: tl.constexpr, PRECISION: tl.constexpr,
    BN: tl.constexpr, BI: tl.constexpr, TAPS: tl.constexpr, BM: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compute the weights' gradient for some filters, places of the window and channels from one share of the pixels of
    one client: x [M, SH, SW, IN], g [M, TH, TW, OUT], dw [OUT, K, K, IN]."""
    IN, OUT = IN8 * 8, OUT8 * 8
    GROUPS: tl.constexpr = (K * K + TAPS - 1) // TAPS
    pieces = tl.cdiv(IN, BI)
    tile, share, c = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o, k = tile // (GROUPS * pieces) * BN + tl.arange(0, BN), tl.arange(0, TAPS * BI)
    place, channel = tile % GROUPS * TAPS + k // BI, tile // GROUPS % pieces * BI + k % BI
    down, across = place // K, place % K
    away = (down * SW + across) * IN + channel
    known = (place < K * K) & (channel < IN)
    pixels = M * TH * TW
    x += c * M * SH * SW * IN
    g += c * pixels * OUT
    FILTERS: tl.constexpr = BN >= 64
    total = tl.zeros((BN, TAPS * BI) if FILTERS else (TAPS * BI, BN), tl.float32)
    each = tl.cdiv(tl.cdiv(pixels, SHARES), BM) * BM
    for first in range(share * each, tl.minimum(share * each + each, pixels), BM):
        m = first + tl.arange(0, BM)
        line = _divided(m, BY_TW)
        picture = _divided(line, BY_TH)
        row, column = (line - picture * TH) * STRIDE - PAD, (m - line * TW) * STRIDE - PAD
        start = ((picture * SH + row) * SW + column) * IN
        source_row, source_column = row[:, None] + down[None, :], column[:, None] + across[None, :]
        inside = (source_row >= 0) & (source_row < SH) & (source_column >= 0) & (source_column < SW)
        inside &= (m < pixels)[:, None] & known[None, :]
        windows, gradients = x + start[:, None] + away[None, :], g + m[:, None] * OUT + o[None, :]
        if LANES == "channels":
            windows, gradients = tl.multiple_of(windows, [4, 4]), tl.multiple_of(gradients, [4, 4])
        if LANES == "pixels":
            windows, gradients = tl.max_contiguous(windows, [1, 1]), tl.max_contiguous(gradients, [1, 1])
        windows = tl.load(windows, inside, other=0.0)
        gradients = tl.load(gradients, (m < pixels)[:, None] & (o < OUT)[None, :], other=0.0)
        if FILTERS:
            total = tl.dot(tl.trans(gradients), windows, total, input_precision=PRECISION)
        else:
            total = tl.dot(tl.trans(windows), gradients, total, input_precision=PRECISION)
    dw += (c * SHARES + share) * (K * K) * IN * OUT
    if FILTERS:
        at, real = (o * (K * K))[:, None] * IN + (place * IN + channel)[None, :], (o < OUT)[:, None] & known[None, :]
    else:
        at, real = (o * (K * K))[None, :] * IN + (place * IN + channel)[:, None], (o < OUT)[None, :] & known[:, None]
    tl.store(dw + at, total.to(dw.dtype.element_ty), real)


_window_gradient = _tuned(
    [({"BM": 64, "LANES": ""}, 4, 3), ({"BM": 32, "LANES": ""}, 4, 4), ({"BM": 64, "LANES": ""}, 8, 3)],
    key=[*SIZES, "K"],
)(_places)
# A product in tf32 wants its pixels together, so that numbers are copied one by one, and LANES says what the threads of
# a warp go along: channels are whole lines of memory, pixels fall into different banks
_window_gradient_tf32 = _tuned(
    [({"BM": 32, "LANES": "pixels"}, 8, 4), ({"BM": 32, "LANES": "channels"}, 8, 4), ({"BM": 64, "LANES": ""}, 8, 3)],
    key=[*SIZES, "K"],
)(_places)

TILE = 64  # channels, of a tile of the result


def _precision() -> str:
    """Return how float32 numbers are multiplied: as the run's own convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _piece(x: Tensor) -> int:
    """Return how many channels are summed over at a time: 128 bytes, or less where that does not divide them."""
    size = 128 // x.element_size()
    while size > 16 and x.shape[-1] % size:
        size //= 2
    return size


def _convolved(x: Tensor, lines: Tensor, y: Tensor, stride: int, padding: int, back: bool, own: bool) -> Tensor:
    """Write the convolution of x, or the gradient of its input, to y; own: the weights are y's lines."""
    (c, m, sh, sw, i), (th, tw, o) = x.shape, y.shape[2:]
    rests = stride if back else 1
    bn, bk = min(TILE, _power(o)), _piece(x)

    def grid(meta):
        pixels = m * triton.cdiv(th, rests) * triton.cdiv(tw, rests)
        return triton.cdiv(pixels, meta["BM"]) * rests * rests, triton.cdiv(o, bn), c

    even = i % bk == 0 and o % bn == 0
    _convolve[grid](
        x, lines, y, m, sh, sw, th, tw, i // 8, o // 8, padding, stride, lines.shape[2], back, own, even, _precision(),
        bn, bk,
    )  # fmt: skip
    return y


def conv(x: Tensor, lines: Tensor, stride: int, padding: int) -> Tensor:
    """Return the convolution [C, B, H', W', O] of x [C, B, H, W, I] with lines [C, O, K, K, I]."""
    (c, b, h, w, _), (_, o, k, _, _) = x.shape, lines.shape
    y = x.new_empty(c, b, (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1, o)
    return _convolved(x.contiguous(), lines.contiguous(), y, stride, padding, False, True)


def conv_backward(
    g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool
) -> tuple[Tensor, Tensor]:
    g, x, lines = g.contiguous(), x.contiguous(), lines.contiguous()
    dx = conv_input_gradient(g, x, lines, stride, padding) if inward else x.new_empty(len(x), 0)
    return dx, conv_weight_gradient(g, x, lines, stride, padding)


def conv_input_gradient(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int) -> Tensor:
    # products of float32 numbers want both operands with the channels that are summed over together in memory
    turn = x.dtype == torch.float32
    lines = lines.permute(0, 4, 2, 3, 1).contiguous() if turn else lines
    return _convolved(g, lines, torch.empty_like(x), stride, padding, True, turn)


def conv_weight_gradient(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int) -> Tensor:
    (c, m, th, tw, o), (sh, sw, i), k = g.shape, x.shape[2:], lines.shape[2]
    bn, bi = min(TILE, _power(o)), min(TILE, triton.next_power_of_2(i))
    taps = min(2 * TILE // bi, triton.next_power_of_2(k * k))
    tiles = triton.cdiv(o, bn) * triton.cdiv(i, bi) * triton.cdiv(k * k, taps)
    shares = max(1, min(PROGRAMS // (c * tiles), m * th * tw // 512))
    dw = x.new_empty(c, shares, *lines.shape[1:], dtype=lines.dtype if shares == 1 else torch.float32)
    kernel = _window_gradient_tf32 if x.dtype == torch.float32 else _window_gradient
    kernel[(tiles, shares, c)](
        x, g, dw, m, sh, sw, th, tw, i // 8, o // 8, padding, -(-(2**40) // th), -(-(2**40) // tw), stride, shares, k,
        _precision(), bn, bi, taps,
    )  # fmt: skip
    return dw[:, 0] if shares == 1 else dw.sum(1).to(lines.dtype)


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
