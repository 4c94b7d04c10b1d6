"""Statistics of each picture's channels, and what is linear in a picture: the parts of normalisation layers.

Pictures are [C, B, I, S] (clients, pictures, channels, pixels) in any layout. A stride of 1 is known to the compiler,
and a tile is long in that direction: channels where they lie last, else pixels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unalike.nn.fast.operation import blank
from unalike.nn.kernels.tuned import Launched

TILE = 2048  # numbers
WHOLE = 16384  # numbers, of a tile that stays in registers between the passes over it
LINES = (32, 16)  # channels that are read together, as memory likes it best


@Launched
@triton.jit
def _moments(x, mean, var, B, CH, S, XC, XB, XI, XS, BI: tl.constexpr, BS: tl.constexpr):
    """Compute the mean and the variance over the pixels of some channels of one picture."""
    row, i, s = tl.program_id(0).to(tl.int64), tl.program_id(1) * BI + tl.arange(0, BI), tl.arange(0, BS)
    x += row // B * XC + row % B * XB
    total = tl.zeros((BS, BI), tl.float32)
    for first in range(0, S, BS):
        real = (first + s < S)[:, None] & (i < CH)[None, :]
        total += tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
    middle = tl.sum(total, 0) / S
    total = tl.zeros((BS, BI), tl.float32)
    for first in range(0, S, BS):
        real = (first + s < S)[:, None] & (i < CH)[None, :]
        away = tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
        away = tl.where(real, away - middle[None, :], 0.0)
        total += away * away
    tl.store(mean + row * CH + i, middle, i < CH)
    tl.store(var + row * CH + i, tl.sum(total, 0) / S, i < CH)


@Launched
@triton.jit
def _sums(g, x, mean, plain, centred, B, CH, S, GC, GB, GI, GS, XC, XB, XI, XS, BI: tl.constexpr, BS: tl.constexpr):
    """Compute the sums of g, and of g times x less its mean, over the pixels of some channels of one picture."""
    row, i, s = tl.program_id(0).to(tl.int64), tl.program_id(1) * BI + tl.arange(0, BI), tl.arange(0, BS)
    g += row // B * GC + row % B * GB
    x += row // B * XC + row % B * XB
    middle = tl.load(mean + row * CH + i, i < CH, other=0.0)[None, :]
    all_of_g, together = tl.zeros((BS, BI), tl.float32), tl.zeros((BS, BI), tl.float32)
    for first in range(0, S, BS):
        real = (first + s < S)[:, None] & (i < CH)[None, :]
        own = tl.load(g + (first + s)[:, None] * GS + i[None, :] * GI, real, other=0.0).to(tl.float32)
        away = tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32) - middle
        all_of_g += own
        together += own * away
    tl.store(plain + row * CH + i, tl.sum(all_of_g, 0), i < CH)
    tl.store(centred + row * CH + i, tl.sum(together, 0), i < CH)


@Launched
@triton.jit
def _linear(
    g, x, a, b, d, y, B, CH, S, GC, GB, GI, GS, XC, XB, XI, XS, YC, YB, YI, YS,
    TWO: tl.constexpr, BI: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Compute x · b + d, or with TWO g · a + x · b + d; a, b and d are numbers of each channel of each picture."""
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BI + tl.arange(0, BI)
    s = tl.program_id(2) * BS + tl.arange(0, BS)
    real = (s < S)[:, None] & (i < CH)[None, :]
    at = row * CH + i
    x += row // B * XC + row % B * XB
    y += row // B * YC + row % B * YB
    value = tl.load(x + s[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
    value = value * tl.load(b + at, i < CH, other=0.0)[None, :] + tl.load(d + at, i < CH, other=0.0)[None, :]
    if TWO:
        g += row // B * GC + row % B * GB
        own = tl.load(g + s[:, None] * GS + i[None, :] * GI, real, other=0.0).to(tl.float32)
        value += own * tl.load(a + at, i < CH, other=0.0)[None, :]
    tl.store(y + s[:, None] * YS + i[None, :] * YI, value.to(y.dtype.element_ty), real)


@triton.jit
def _in_group(each, known, i, PER, ALONE: tl.constexpr):
    """Return for each channel the sum over those of its group."""
    each = tl.where(known, each, 0.0)
    if ALONE:
        return tl.zeros_like(each) + tl.sum(each)
    alike = i[:, None] // PER == i[None, :] // PER
    return tl.sum(tl.where(alike, each[None, :], 0.0), 1)


@Launched
@triton.jit
def _group_norm(
    x, gamma, beta, y, mean, inverse, B, CH, S, EPS, XC, XB, XI, XS, YC, YB, YI, YS,
    PER: tl.constexpr, STEP: tl.constexpr, BI: tl.constexpr, BS: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """Normalise STEP channels of one picture, in whole groups of PER. ONCE: all its pixels are one tile."""
    row, s = tl.program_id(0).to(tl.int64), tl.arange(0, BS)
    i = tl.program_id(1) * STEP + tl.arange(0, BI)
    known = (tl.arange(0, BI) < STEP) & (i < CH)
    ALONE: tl.constexpr = STEP == PER
    x += row // B * XC + row % B * XB
    y += row // B * YC + row % B * YB
    value = tl.load(x + s[:, None] * XS + i[None, :] * XI, (s < S)[:, None] & known[None, :], other=0.0).to(tl.float32)
    total = value
    for first in range(BS, S, BS):
        real = (first + s < S)[:, None] & known[None, :]
        total += tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
    middle = _in_group(tl.sum(total, 0), known, i, PER, ALONE) / (S * PER)
    total = tl.zeros((BS, BI), tl.float32)
    for first in range(0, S, BS):
        real = (first + s < S)[:, None] & known[None, :]
        if not ONCE:
            value = tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
        away = tl.where(real, value - middle[None, :], 0.0)
        total += away * away
    spread = 1 / tl.sqrt(_in_group(tl.sum(total, 0), known, i, PER, ALONE) / (S * PER) + EPS)
    at = row // B * CH + i
    factor = spread * tl.load(gamma + at, known, other=0.0).to(tl.float32)
    rest = tl.load(beta + at, known, other=0.0).to(tl.float32) - middle * factor
    for first in range(0, S, BS):
        real = (first + s < S)[:, None] & known[None, :]
        if not ONCE:
            value = tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
        scaled = (value * factor[None, :] + rest[None, :]).to(y.dtype.element_ty)
        tl.store(y + (first + s)[:, None] * YS + i[None, :] * YI, scaled, real)
    group = row * (CH // PER) + i // PER
    tl.store(mean + group, middle, known & (i % PER == 0))
    tl.store(inverse + group, spread, known & (i % PER == 0))


@Launched
@triton.jit
def _group_norm_backward(
    g, x, gamma, mean, inverse, dx, dgamma, dbeta, B, CH, S, GC, GB, GI, GS, XC, XB, XI, XS, DC, DB, DI, DS,
    PER: tl.constexpr, STEP: tl.constexpr, BI: tl.constexpr, BS: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of STEP channels of one picture; gamma's and beta's are the picture's part of them."""
    row, s = tl.program_id(0).to(tl.int64), tl.arange(0, BS)
    i = tl.program_id(1) * STEP + tl.arange(0, BI)
    known = (tl.arange(0, BI) < STEP) & (i < CH)
    ALONE: tl.constexpr = STEP == PER
    g += row // B * GC + row % B * GB
    x += row // B * XC + row % B * XB
    dx += row // B * DC + row % B * DB
    group = row * (CH // PER) + i // PER
    middle, spread = tl.load(mean + group, known, other=0.0), tl.load(inverse + group, known, other=0.0)
    factor = tl.load(gamma + row // B * CH + i, known, other=0.0).to(tl.float32)
    real = (s < S)[:, None] & known[None, :]
    own = tl.load(g + s[:, None] * GS + i[None, :] * GI, real, other=0.0).to(tl.float32)
    away = tl.load(x + s[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32) - middle[None, :]
    all_of_g, together = own, own * away
    for first in range(BS, S, BS):
        real = (first + s < S)[:, None] & known[None, :]
        other = tl.load(g + (first + s)[:, None] * GS + i[None, :] * GI, real, other=0.0).to(tl.float32)
        value = tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
        all_of_g += other
        together += other * (value - middle[None, :])
    plain, centred = tl.sum(all_of_g, 0), tl.sum(together, 0) * spread
    tl.store(dbeta + row * CH + i, plain, known)
    tl.store(dgamma + row * CH + i, centred, known)
    level = _in_group(plain * factor, known, i, PER, ALONE) / (S * PER)
    slope = _in_group(centred * factor, known, i, PER, ALONE) / (S * PER) * spread
    for first in range(0, S, BS):
        real = (first + s < S)[:, None] & known[None, :]
        if not ONCE:
            own = tl.load(g + (first + s)[:, None] * GS + i[None, :] * GI, real, other=0.0).to(tl.float32)
            away = tl.load(x + (first + s)[:, None] * XS + i[None, :] * XI, real, other=0.0).to(tl.float32)
            away -= middle[None, :]
        value = own * factor[None, :] - level[None, :] - away * slope[None, :]
        value = (value * spread[None, :]).to(dx.dtype.element_ty)
        tl.store(dx + (first + s)[:, None] * DS + i[None, :] * DI, value, real)


def _tile(x: Tensor) -> tuple[int, int]:
    """Return how many channels and pixels a tile of [C, B, I, S] has."""
    channels = min(32, triton.next_power_of_2(x.shape[2])) if x.stride(2) == 1 else 1
    return channels, min(TILE // channels, triton.next_power_of_2(x.shape[3]))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance over the pixels, [C, B, I] each, in float32."""
    c, b, i, s = x.shape
    mean, var = (blank(x, c, b, i, dtype=torch.float32) for _ in range(2))
    bi, bs = _tile(x)
    _moments[(c * b, triton.cdiv(i, bi))](x, mean, var, b, i, s, *x.stride(), bi, bs)
    return mean, var


def sums(g: Tensor, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of g, and of g · (x - mean), over the pixels."""
    c, b, i, s = x.shape
    plain, centred = (blank(x, c, b, i, dtype=torch.float32) for _ in range(2))
    bi, bs = _tile(x)
    grid = (c * b, triton.cdiv(i, bi))
    _sums[grid](g, x, mean.contiguous(), plain, centred, b, i, s, *g.stride(), *x.stride(), bi, bs)
    return plain, centred


def linear(x: Tensor, b: Tensor, d: Tensor, y: Tensor, g: Tensor | None = None, a: Tensor | None = None) -> None:
    """Write x · b + d, plus g · a where that is given, to y."""
    (c, pictures, i, s), two = x.shape, g is not None
    first, factor = (x, b) if g is None or a is None else (g, a)
    bi, bs = _tile(x)
    grid = (c * pictures, triton.cdiv(i, bi), triton.cdiv(s, bs))
    _linear[grid](
        first, x, factor.contiguous(), b.contiguous(), d.contiguous(), y, pictures, i, s, *first.stride(), *x.stride(),
        *y.stride(), two, bi, bs,
    )  # fmt: skip


def _groups(x: Tensor, groups: int) -> tuple[tuple[int, int], tuple[int, int, int, int, bool], int]:
    """Return a kernel's grid; its constants: the channels of a group, those that a program normalises, the sides of its
    tile, and whether that holds all pixels; and its warps."""
    c, b, i, s = x.shape
    per, pixels = i // groups, triton.next_power_of_2(s)
    steps = [per * max(1, line // per) for line in LINES]
    step = next((n for n in steps if triton.next_power_of_2(n) * pixels <= WHOLE), steps[0])
    wide = triton.next_power_of_2(step)
    high = pixels if wide * pixels <= WHOLE else max(1, 2 * TILE // wide)
    return (c * b, triton.cdiv(i, step)), (per, step, wide, high, high >= s), 4 if wide * high < WHOLE else 8


def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float, y: Tensor) -> tuple[Tensor, Tensor]:
    """Write the normalised x to y; return each group's mean and inverse deviation, [C, B, groups]."""
    c, b, i, s = x.shape
    mean, inverse = (blank(x, c, b, groups, dtype=torch.float32) for _ in range(2))
    grid, constants, warps = _groups(x, groups)
    _group_norm[grid](
        x, gamma.contiguous(), beta.contiguous(), y, mean, inverse, b, i, s, eps, *x.stride(), *y.stride(), *constants,
        num_warps=warps,
    )  # fmt: skip
    return mean, inverse


def group_norm_backward(
    g: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inverse: Tensor, dx: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the gradient of x to dx; return those of gamma and beta."""
    c, b, i, s = x.shape
    dgamma, dbeta = (blank(x, c, b, i, dtype=torch.float32) for _ in range(2))
    grid, constants, warps = _groups(x, mean.shape[2])
    _group_norm_backward[grid](
        g, x, gamma.contiguous(), mean.contiguous(), inverse.contiguous(), dx, dgamma, dbeta, b, i, s, *g.stride(),
        *x.stride(), *dx.stride(), *constants, num_warps=warps,
    )  # fmt: skip
    return dgamma.sum(1).to(gamma.dtype), dbeta.sum(1).to(gamma.dtype)
