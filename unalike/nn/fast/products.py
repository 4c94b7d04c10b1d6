"""The gradient of a convolution's weights as products of whole matrices, in plain PyTorch: in tf32 a GPU's own products
are faster there than a kernel whose operands lie the wrong way."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 64  # channels, of a tile of the result


def weight_products(g: Tensor, x: Tensor, k: int, stride: int, padding: int, programs: int) -> Tensor:
    """Return the weights' gradient as products of whole matrices, one for each place of the window.

    Pictures and gradients are laid on one grid, with zeros around them, so that a place of the window is so many rows
    further on in the pictures. Clients are cut into shares, which fill the GPU; in front of each client are zeros too,
    so that what the last share of a client reads of the next client is zero, and never a number that is not finite.

    g [C, B, H', W', O], x [C, B, H, W, I]; returns [C, O, K, K, I]. programs: how many tiles of results fill the GPU.
    """
    (c, b, h, w, i), (th, tw, o) = x.shape, g.shape[2:]
    tiles = c * _pieces(i, TILE) * _pieces(o, TILE)
    shares = max(1, min(b, _pieces(programs, tiles)))
    out = x.new_empty(k * k, c * shares, o, i)
    if stride == 1 and k > 1:
        high, wide = h + 2 * padding, w + 2 * padding
        front = (k - 1) * (wide + 1)
        rows = _pieces(front + b * high * wide, shares) * shares
        pictures, gradients = (_on_a_grid(t, front, rows, high, wide) for t in (x, g))
        inside = slice(padding, padding + h), slice(padding, padding + w)
        pictures.grid[:, :, *inside].copy_(x)
        gradients.grid[:, :, :th, :tw].copy_(g)
        left = gradients.whole.view(c * shares, rows // shares, o).transpose(1, 2)
        for place in range(k * k):
            away = place // k * wide + place % k
            right = pictures.memory[away * i :][: c * rows * i].view(c * shares, rows // shares, i)
            torch.bmm(left, right, out=out[place])
    else:
        shares = max(n for n in range(1, shares + 1) if b % n == 0)
        out, padded = out[:, : c * shares], F.pad(x, (0, 0, *(padding,) * 4)) if padding else x
        left = g.reshape(c * shares, -1, o).transpose(1, 2)
        for place in range(k * k):
            down, across = place // k, place % k
            met = padded[:, :, down : down + stride * th : stride, across : across + stride * tw : stride]
            torch.bmm(left, met.reshape(c * shares, -1, i), out=out[place])
    return out.view(k, k, c, shares, o, i).sum(3).permute(2, 3, 0, 1, 4).contiguous()


class _Grid(NamedTuple):
    memory: Tensor  # all numbers, and some more zeros
    whole: Tensor  # [C, rows, channels]
    grid: Tensor  # [C, pictures, height, width, channels]: the places of the pictures


def _on_a_grid(t: Tensor, front: int, rows: int, high: int, wide: int) -> _Grid:
    """Return zeros for pictures of this height and width: for each client so many rows, the first `front` of them in
    front."""
    c, b, channels = len(t), t.shape[1], t.shape[4]
    memory = t.new_zeros((c * rows + front) * channels)
    whole = memory[: c * rows * channels].view(c, rows, channels)
    return _Grid(memory, whole, whole[:, front : front + b * high * wide].unflatten(1, (b, high, wide)))


def _pieces(n: int, size: int) -> int:
    """Return how many pieces of this size n has, the last one perhaps smaller."""
    return -(-n // size)
