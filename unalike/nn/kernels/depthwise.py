"""A convolution of each channel by itself. It moves bytes and multiplies little, so it needs no matrix products.

Pictures [C, M, H, W, I] and windows [C, K, K, I] have their channels last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unalike.nn.fast.operation import blank, blank_like
from unalike.nn.kernels.tuned import PROGRAMS, Launched

TILE = 2048  # numbers


@Launched
@triton.jit
def _each_channel(
    x, w, y, M, SH, SW, TH, TW, CH, PAD, STRIDE: tl.constexpr, K: tl.constexpr, BACK: tl.constexpr,
    BI: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute a tile, pixels × channels, of one client's target [M, TH, TW, I] from its source [M, SH, SW, I]: the
    convolution, or going BACK the gradient of its input."""
    c = tl.program_id(2).to(tl.int64)
    i, m = tl.program_id(1) * BI + tl.arange(0, BI), tl.program_id(0) * BM + tl.arange(0, BM)
    picture, row, column = m // (TH * TW), m // TW % TH, m % TW
    x += c * M * SH * SW * CH
    w += c * (K * K) * CH
    total = tl.zeros((BM, BI), tl.float32)
    for place in tl.static_range(K * K):
        if BACK:
            across, along = row + PAD - place // K, column + PAD - place % K
            met = (across % STRIDE == 0) & (along % STRIDE == 0)
            source_row, source_column = across // STRIDE, along // STRIDE
            inside = met & (across >= 0) & (source_row < SH) & (along >= 0) & (source_column < SW)
        else:
            source_row, source_column = row * STRIDE - PAD + place // K, column * STRIDE - PAD + place % K
            inside = (source_row >= 0) & (source_row < SH) & (source_column >= 0) & (source_column < SW)
        at = ((picture * SH + source_row) * SW + source_column) * CH
        value = tl.load(
            x + at[:, None] + i[None, :], (inside & (m < M * TH * TW))[:, None] & (i < CH)[None, :], other=0.0
        )
        total += value.to(tl.float32) * tl.load(w + place * CH + i, i < CH, other=0.0).to(tl.float32)[None, :]
    y += c * M * TH * TW * CH
    tl.store(
        y + m[:, None] * CH + i[None, :], total.to(y.dtype.element_ty), (m < M * TH * TW)[:, None] & (i < CH)[None, :]
    )


@Launched
@triton.jit
def _windows(
    x, g, dw, M, SH, SW, TH, TW, CH, PAD, STRIDE, SHARES, EACH, K: tl.constexpr, BI: tl.constexpr, BM: tl.constexpr
):
    """Compute the gradient of one place of the windows of some channels, from one share of one client's pixels."""
    share, c = tl.program_id(1), tl.program_id(2).to(tl.int64)
    place, i = tl.program_id(0) % (K * K), tl.program_id(0) // (K * K) * BI + tl.arange(0, BI)
    pixels = M * TH * TW
    x += c * M * SH * SW * CH
    g += c * pixels * CH
    total = tl.zeros((BM, BI), tl.float32)
    for first in range(share * EACH, tl.minimum(share * EACH + EACH, pixels), BM):
        m = first + tl.arange(0, BM)
        picture, row, column = m // (TH * TW), m // TW % TH, m % TW
        source_row, source_column = row * STRIDE - PAD + place // K, column * STRIDE - PAD + place % K
        inside = (source_row >= 0) & (source_row < SH) & (source_column >= 0) & (source_column < SW)
        real = (inside & (m < pixels))[:, None] & (i < CH)[None, :]
        at = ((picture * SH + source_row) * SW + source_column) * CH
        value = tl.load(x + at[:, None] + i[None, :], real, other=0.0).to(tl.float32)
        total += value * tl.load(g + m[:, None] * CH + i[None, :], real, other=0.0).to(tl.float32)
    tl.store(dw + ((c * SHARES + share) * (K * K) + place) * CH + i, tl.sum(total, 0), i < CH)


def _tile(channels: int) -> tuple[int, int]:
    """Return how many channels and pixels a tile has."""
    wide = min(64, triton.next_power_of_2(channels))
    return wide, TILE // wide


def _each(x: Tensor, lines: Tensor, y: Tensor, stride: int, padding: int, back: bool) -> Tensor:
    (c, m, sh, sw, i), (th, tw) = x.shape, y.shape[2:4]
    bi, bm = _tile(i)
    grid = (triton.cdiv(m * th * tw, bm), triton.cdiv(i, bi), c)
    _each_channel[grid](x, lines, y, m, sh, sw, th, tw, i, padding, stride, lines.shape[1], back, bi, bm)
    return y


def depthwise(x: Tensor, lines: Tensor, stride: int, padding: int) -> Tensor:
    """Return the convolution [C, B, H', W', I]."""
    (c, b, h, w, i), k = x.shape, lines.shape[1]
    y = blank(x, c, b, (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1, i)
    return _each(x.contiguous(), lines.contiguous(), y, stride, padding, False)


def depthwise_backward(
    g: Tensor, x: Tensor, lines: Tensor, stride: int, padding: int, inward: bool
) -> tuple[Tensor, Tensor]:
    g, x, lines = g.contiguous(), x.contiguous(), lines.contiguous()
    dx = _each(g, lines, blank_like(x), stride, padding, True) if inward else blank(x, len(x), 0)
    (c, m, th, tw, i), (sh, sw), k = g.shape, x.shape[2:4], lines.shape[1]
    bi, bm = _tile(i)
    tiles, pixels = k * k * triton.cdiv(i, bi), m * th * tw
    shares = max(1, min(2 * PROGRAMS // (c * tiles), pixels // (4 * bm)))
    each = triton.cdiv(triton.cdiv(pixels, shares), bm) * bm
    dw = blank(x, c, shares, k, k, i, dtype=torch.float32)
    _windows[(tiles, shares, c)](x, g, dw, m, sh, sw, th, tw, i, padding, stride, shares, each, k, bi, bm)
    return dx, dw.sum(1).to(lines.dtype)
