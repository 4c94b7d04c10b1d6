"""The gradient of a convolution's weights as products of whole matrices: in tf32 a GPU's own products are faster there
than a kernel whose operands lie the wrong way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike.nn.fast.operation import blank

TILE = 64  # channels, of a tile of the result


class Grid(NamedTuple):
    """How the pixels of all pictures lie in lines, one line a channel: by row, column and picture, in `high` rows of
    `wide` columns. A client's lines are cut into shares of `length` numbers, each with `front` numbers more on both
    sides. Whatever lies outside of the pictures is zero."""

    high: int
    wide: int
    shares: int
    length: int


def in_lines(t: Tensor, grid: Grid, front: int = 0, stride: int = 1, first: tuple[int, int] = (0, 0)) -> Tensor:
    """Return the lines [C shares, I, front + length + front] of pictures [C, B, H, W, I]; of every `stride`-th row and
    column, from `first` on."""
    c, b, _, _, i = t.shape
    t = t[:, :, first[0] :: stride, first[1] :: stride]
    whole = t.new_zeros(c, i, grid.high, grid.wide, b)
    whole[:, :, : t.shape[2], : t.shape[3]] = t.permute(0, 4, 2, 3, 1)
    lines = whole.flatten(2)
    lines = F.pad(lines, (front, grid.shares * grid.length - lines.shape[2] + front))
    return lines.unfold(2, grid.length + 2 * front, grid.length).transpose(1, 2).flatten(0, 1).contiguous()


def row_products(left: Tensor, right: list[Tensor], out: Tensor) -> None:
    """Write the product of left [N, O, L] and each of right [N, I, L] to its place in out [N, O, K, I]."""
    for across, met in enumerate(right):
        torch.bmm(left, met.transpose(1, 2), out=out[:, :, across])


def weight_products(
    g: Tensor, x: Tensor, k: int, stride: int, padding: int, programs: int, lay: Callable[..., Tensor] = in_lines,
    multiply: Callable[[Tensor, list[Tensor], Tensor], None] = row_products,
) -> Tensor:  # fmt: skip
    """Return the weights' gradient as products of whole matrices, one for each place of the window.

    Gradients and pictures are laid in lines on one grid, so that a place of the window is so many numbers further on,
    or back, in the pictures: a multiple of the number of pictures, as products like it. Columns of zeros behind each
    row serve both its end and the beginning of the next.

    g [C, B, H', W', O], x [C, B, H, W, I]; returns [C, O, K, K, I]. programs: how many tiles of results fill the GPU;
    lay: what lays pictures in lines; multiply: what makes the products of a row of the window.
    """
    (c, b, h, w, i), (th, tw, o) = x.shape, g.shape[2:]
    # the window's lines: how many rows of the grid further on, and which rest
    away = [divmod(j - padding, stride) for j in range(k)]
    least, most = away[0][0], away[-1][0]
    high, wide = max(th, _pieces(h, stride)), max(tw, _pieces(w, stride))
    wide += max(0, -least, tw - wide + most)
    shares = max(1, min(high, _pieces(programs, c * _pieces(i, TILE) * _pieces(o, TILE))))
    grid = Grid(high, wide, shares, _pieces(high * wide, shares) * b)
    front = max(-least, most) * (wide + 1) * b
    left = lay(g, grid)
    rests = sorted({rest for _, rest in away})
    right = {first: lay(x, grid, front, stride, first) for first in product(rests, repeat=2)}
    out = blank(x, c * shares, o, k, k, i)
    for down, (rows, rest) in enumerate(away):
        starts = [(other, front + (rows * wide + columns) * b) for columns, other in away]
        multiply(left, [right[rest, other][:, :, n : n + grid.length] for other, n in starts], out[:, :, down])
    return out if shares == 1 else out.view(c, shares, o, k, k, i).sum(1)


def _pieces(n: int, size: int) -> int:
    """Return how many pieces of this size n has, the last one perhaps smaller."""
    return -(-n // size)
