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
