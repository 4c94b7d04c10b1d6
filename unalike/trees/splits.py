"""The best split of a node, from its histogram: XGBoost's gain, on whole numbers.

    gain = S(left) + S(right) - S(node),   S = G² / (H + λ),   if gain > max(γ, 1e-6) and both children have H >= least

A candidate is (column, bin, way): values with a code of at most `bin` go left (of a category: all but this one), and
rows that lack the value go right (way 0) or left (way 1). Among equal gains the first column wins, then the first bin,
then way 0; where no row of the node lacks the value, a later row without the value goes to the heavier child.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from unalike.trees.exact import SCALE

SMALLEST = 1e-6  # least gain of a split


class Best(NamedTuple):
    """The best split of each node: `left` has its sums of derivatives, whole multiples of 2^-30, [nodes, 2]."""

    gain: Tensor
    column: Tensor
    bin: Tensor
    missing_left: Tensor
    left: Tensor


def scores(sums: Tensor, lam: float) -> Tensor:
    """Return S = G² / (H + λ) for sums [..., 2]; 0 if there are no rows."""
    g, h = sums[..., 0].double() / SCALE, sums[..., 1].double() / SCALE + lam
    return torch.where(h > 0, g * g / h, 0.0)


def gains(left: Tensor, total: Tensor, lam: float, least: float) -> Tensor:
    """Return the gains of divisions, minus infinity if a child is too light; left, total: sums [..., 2]."""
    right = total - left
    found = scores(left, lam) + scores(right, lam) - scores(total, lam)
    # whole, because mixed with floats, whole numbers would become float32
    floor = math.ceil(least * SCALE)
    heavy = (left[..., 1] >= floor) & (right[..., 1] >= floor)
    return torch.where(heavy, found, -torch.inf)


def candidates(histogram: Tensor, categories: Tensor, lacking: bool = True) -> Tensor:
    """Return the left sums of every candidate, [nodes, columns, bins, ways, 2]; histogram: [nodes, columns, bins + 1,
    2], missing values last; lacking: whether there are any: if not, both ways are one."""
    apart = histogram.movedim(-1, 0).contiguous()  # each derivative's sums side by side: several times faster
    cells, missing = apart[..., :-1], apart[..., -1:]
    below = cells.cumsum(-1)
    others = below[..., -1:] - cells
    left = torch.where(categories[:, None], others, below)
    return torch.stack([left, left + missing] if lacking else [left], -1).movedim(0, -1)


def best_splits(
    histogram: Tensor, allowed: Tensor, categories: Tensor, lam: float, least: float, lacking: bool = True
) -> Best:
    """Return the best split of each node; allowed: for each column, whether this tree may split by it; lacking: whether
    any row lacks a value: if none does, it takes half the time."""
    total = histogram[..., 0, :, :].sum(-2)
    left = candidates(histogram, categories, lacking)
    gain = gains(left, total[..., None, None, None, :], lam, least)
    gain = torch.where(allowed[:, None, None], gain, -torch.inf)
    flat = gain.flatten(-3)
    place = flat.argmax(-1, keepdim=True)
    bins, ways = left.shape[-3:-1]
    chosen = sums_at(left, place)
    missing_left = 2 * chosen[..., 1] >= total[..., 1]
    if lacking:
        other, way = sums_at(left, place ^ 1), place[..., 0] % ways
        missing_left = torch.where((chosen == other).all(-1), missing_left, way == 1)
    top = flat.gather(-1, place)[..., 0]
    return Best(top, place[..., 0] // (ways * bins), place[..., 0] // ways % bins, missing_left, chosen)


def sums_at(left: Tensor, place: Tensor) -> Tensor:
    """Return the sums of each node's candidate at this place, [nodes, 2]."""
    return left.flatten(-4, -2).gather(-2, place[..., None].expand(*place.shape, 2))[..., 0, :]


def leaf_value(sums: Tensor, lam: float, rate: float) -> Tensor:
    """Return what a leaf adds to margins, -η G / (H + λ); 0 if it has no rows."""
    g, h = sums[..., 0].double() / SCALE, sums[..., 1].double() / SCALE + lam
    return torch.where(h > 0, -rate * g / h, 0.0)


def goes_left(code: Tensor, bin: Tensor, missing_left: Tensor, category: Tensor, bins: int) -> Tensor:
    """Return whether rows with these codes go left at these splits."""
    code = code.to(torch.int64)
    known = torch.where(category, code != bin, code <= bin)
    return torch.where(code == bins, missing_left, known)
