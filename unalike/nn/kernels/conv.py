"""A convolution alone, with padding and stride."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unalike.nn.fast import products
from unalike.nn.fast.operation import blank, blank_like
from unalike.nn.fast.products import TILE, Grid, weight_products
from unalike.nn.kernels.tuned import PROGRAMS, Launched, power, tuned

# A loop goes over the places of the window, not over its lines: places beyond the border are masked, so that nothing is
# padded in memory. Sizes are numbers of the call and not constants, so that the layers of a deep model share kernels;
# channels come as eighths, which tells the compiler that eight lie together.
SIZES = ["M", "SH", "SW", "TH", "TW", "IN8", "OUT8", "PAD"]


@tuned([({"BM": 128}, 4, 3), ({"BM": 128}, 4, 4), ({"BM": 256}, 8, 3), ({"BM": 64}, 4, 4)], key=[*SIZES, "K", "BACK"])
@triton.jit(do_not_specialize=[*SIZES, "APART8"])
def _convolve(
    x, w, y, M, SH, SW, TH, TW, IN8, OUT8, PAD, APART8, STRIDE: tl.constexpr, K: tl.constexpr, BACK: tl.constexpr,
    LINES: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Compute a tile, pixels × channels, of one client's target [M, TH, TW, OUT] from its source [M, SH, SW, IN]: the
    convolution, or going BACK the gradient of its input. There, with a stride, a tile's pixels have the same rest, so
    that the same places of the window met them. LINES: the weights are [OUT, K, K, IN], else [IN, K, K, OUT]; those of
    two clients lie 8 * APART8 apart."""
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
    w += c * APART8 * 8
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


@tuned([({"BM": 64}, 4, 3), ({"BM": 32}, 4, 4), ({"BM": 64}, 8, 3)], key=[*SIZES, "K"])
@triton.jit(do_not_specialize=[*SIZES, "BY_TH", "BY_TW", "STRIDE", "SHARES"])
def _window_gradient(
    x, g, dw, M, SH, SW, TH, TW, IN8, OUT8, PAD, BY_TH, BY_TW, STRIDE, SHARES, K: tl.constexpr, PRECISION: tl.constexpr,
    BN: tl.constexpr, BI: tl.constexpr, TAPS: tl.constexpr, BM: tl.constexpr,
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
    bn, bk = min(2 * TILE, power(o)), _piece(x)

    def grid(meta):
        pixels = m * triton.cdiv(th, rests) * triton.cdiv(tw, rests)
        return triton.cdiv(pixels, meta["BM"]) * rests * rests, triton.cdiv(o, bn), c

    even = i % bk == 0 and o % bn == 0
    _convolve[grid](
        x, lines, y, m, sh, sw, th, tw, i // 8, o // 8, padding, lines.stride(0) // 8, stride, lines.shape[2], back,
        own, even, _precision(), bn, bk,
    )  # fmt: skip
    return y


def conv(x: Tensor, lines: Tensor, stride: int, padding: int) -> Tensor:
    """Return the convolution [C, B, H', W', O] of x [C, B, H, W, I] with lines [C, O, K, K, I]."""
    (c, b, h, w, _), (_, o, k, _, _) = x.shape, lines.shape
    y = blank(x, c, b, (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1, o)
    return _convolved(x.contiguous(), _apart(lines), y, stride, padding, False, True)


def _apart(t: Tensor) -> Tensor:
    """Return weights or pictures of which each client's lie in order; clients may lie apart, as in a stack of model
    vectors, by a multiple of eight."""
    return t if t[0].is_contiguous() and t.stride(0) % 8 == 0 else t.contiguous()


def conv_backward(
    g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool
) -> tuple[Tensor, Tensor]:
    g, x, lines = g.contiguous(), x.contiguous(), _apart(lines)
    dx = conv_input_gradient(g, x, lines, stride, padding) if inward else blank(x, len(x), 0)
    return dx, conv_weight_gradient(g, x, lines, stride, padding)


def conv_input_gradient(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int) -> Tensor:
    # products of float32 numbers want both operands with the channels that are summed over together in memory
    turn = x.dtype == torch.float32
    if turn:  # filters lie like pictures, and so can be laid in lines: [C, I, K, K, O]
        o, k = lines.shape[1:3]
        lines = in_lines(lines, Grid(k, k, 1, k * k * o)).view(len(lines), -1, k, k, o)
    return _convolved(g, lines, blank_like(x), stride, padding, True, turn)


@Launched
@triton.jit(
    do_not_specialize=[
        "H",
        "W",
        "HIGH",
        "WIDE",
        "SHARES",
        "STRIDE",
        "TOP",
        "LEFT",
        "B4",
        "L4",
        "FRONT4",
        "IN8",
        "APART8",
    ]
)
def _turn(
    t, lines, H, W, HIGH, WIDE, SHARES, STRIDE, TOP, LEFT, B4, L4, FRONT4, IN8, APART8, BP: tl.constexpr,
    BI: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Write a tile, channels × places, of the lines of one share of one client: see `products.in_lines`. EVEN: numbers
    of pictures are multiples of four, and said as fourths. Two clients lie 8 * APART8 apart."""
    B, L, FRONT, IN = B4, L4, FRONT4, IN8 * 8
    if EVEN:
        B, L, FRONT = B4 * 4, L4 * 4, FRONT4 * 4
    share = tl.program_id(2).to(tl.int64)
    q, channel = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BI + tl.arange(0, BI)
    n = (share % SHARES).to(tl.int32) * L + q - FRONT
    at = tl.maximum(n, 0)
    line = at // B
    picture, row, column = at - line * B, line // WIDE, line % WIDE
    y, x = row * STRIDE + TOP, column * STRIDE + LEFT
    real = (n >= 0) & (row < HIGH) & (y < H) & (x < W)
    t += share // SHARES * APART8 * 8
    source = (picture * H + y) * W + x
    known = (channel < IN)[None, :]
    value = tl.load(t + source[:, None] * IN + channel[None, :], real[:, None] & known, other=0.0)
    length = L + 2 * FRONT
    target = lines + (share * IN + channel.to(tl.int64))[:, None] * length + q[None, :]
    tl.store(target, tl.trans(value), (channel < IN)[:, None] & (q < length)[None, :])


def in_lines(t: Tensor, grid: Grid, front: int = 0, stride: int = 1, first: tuple[int, int] = (0, 0)) -> Tensor:
    """Lay pictures in lines, as `products.in_lines`; everything is written once."""
    c, b, h, w, i = t.shape
    t = _apart(t)
    lines = blank(t, c * grid.shares, i, grid.length + 2 * front)
    bp, bi, even = 64, min(64, power(i)), b % 4 == 0
    fourth = 4 if even else 1
    _turn[triton.cdiv(lines.shape[2], bp), triton.cdiv(i, bi), len(lines)](
        t, lines, h, w, grid.high, grid.wide, grid.shares, stride, *first, b // fourth, grid.length // fourth,
        front // fourth, i // 8, t.stride(0) // 8, bp, bi, even,
    )  # fmt: skip
    return lines


@tuned([({"BK": 32}, 4, 3), ({"BK": 32}, 4, 2)], key=["OUT8", "IN8", "L4"])
@triton.jit(do_not_specialize=["OUT8", "IN8", "L4", "APART4", "OUT_APART8", "EACH8"])
def _row_of_three(
    left, first, second, third, out, OUT8, IN8, L4, APART4, OUT_APART8, EACH8, BO: tl.constexpr, BI: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the products of left [N, OUT, L] and three of [N, IN, L], whose lines are 4 * APART4 numbers
    apart, for out [N, OUT, 3, IN]; of that, N are 8 * OUT_APART8 apart, and OUT are 8 * EACH8 apart."""
    OUT, IN, L = OUT8 * 8, IN8 * 8, L4 * 4
    pieces = tl.cdiv(IN, BI)
    n = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) // pieces * BO + tl.arange(0, BO)
    i = tl.program_id(0) % pieces * BI + tl.arange(0, BI)
    k = tl.arange(0, BK)
    known_o, known_i = o < OUT, i < IN
    left += (n * OUT + o.to(tl.int64))[:, None] * L + k[None, :]
    away = (n * IN + i.to(tl.int64))[:, None] * (APART4 * 4) + k[None, :]
    first += away
    second += away
    third += away
    a = tl.zeros((BO, BI), tl.float32)
    b = tl.zeros((BO, BI), tl.float32)
    c = tl.zeros((BO, BI), tl.float32)
    for start in range(0, L, BK):
        if EVEN:
            rows, x, y, z = tl.load(left), tl.load(first), tl.load(second), tl.load(third)
        else:
            inside = (start + k < L)[None, :]
            rows = tl.load(left, inside & known_o[:, None], other=0.0)
            inside = inside & known_i[:, None]
            x, y = tl.load(first, inside, other=0.0), tl.load(second, inside, other=0.0)
            z = tl.load(third, inside, other=0.0)
        a = tl.dot(rows, tl.trans(x), a, input_precision=PRECISION)
        b = tl.dot(rows, tl.trans(y), b, input_precision=PRECISION)
        c = tl.dot(rows, tl.trans(z), c, input_precision=PRECISION)
        left += BK
        first += BK
        second += BK
        third += BK
    out += n * OUT_APART8 * 8 + o.to(tl.int64)[:, None] * (EACH8 * 8) + i[None, :]
    real = known_o[:, None] & known_i[None, :]
    tl.store(out, a, real)
    tl.store(out + IN, b, real)
    tl.store(out + 2 * IN, c, real)


def row_products(left: Tensor, right: list[Tensor], out: Tensor) -> None:
    """Write the products of a row of the window, as `products.row_products`; of three, the left operand is read once
    for all."""
    (n, o, length), i = left.shape, right[0].shape[1]
    lines = [left, *right]
    if len(right) != 3 or any(t.stride(1) % 4 or t.data_ptr() % 16 for t in lines):
        products.row_products(left, right, out)
        return
    even = length % 32 == 0 and o % TILE == 0 and i % TILE == 0
    _row_of_three[triton.cdiv(o, TILE) * triton.cdiv(i, TILE), n](
        *lines, out, o // 8, i // 8, length // 4, right[0].stride(1) // 4, out.stride(0) // 8, out.stride(1) // 8, TILE,
        TILE, even, _precision(),
    )  # fmt: skip


def conv_weight_gradient(g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int) -> Tensor:
    # in tf32 the kernel below reached 17 TFLOP/s, since its operands lie the wrong way
    if x.dtype == torch.float32:
        return weight_products(g, x, lines.shape[2], stride, padding, PROGRAMS // 5, in_lines, row_products)
    (c, m, th, tw, o), (sh, sw, i), k = g.shape, x.shape[2:], lines.shape[2]
    bn, bi = min(TILE, power(o)), min(TILE, triton.next_power_of_2(i))
    taps = min(2 * TILE // bi, triton.next_power_of_2(k * k))
    tiles = triton.cdiv(o, bn) * triton.cdiv(i, bi) * triton.cdiv(k * k, taps)
    shares = max(1, min(PROGRAMS // (c * tiles), m * th * tw // 512))
    dw = blank(x, c, shares, *lines.shape[1:], dtype=lines.dtype if shares == 1 else torch.float32)
    _window_gradient[(tiles, shares, c)](
        x, g, dw, m, sh, sw, th, tw, i // 8, o // 8, padding, -(-(2**40) // th), -(-(2**40) // tw), stride, shares, k,
        _precision(), bn, bi, taps,
    )  # fmt: skip
    return dw[:, 0] if shares == 1 else dw.sum(1).to(lines.dtype)
