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
    return torch.where(h > 0, g * g / torch.where(h > 0, h, 1.0), 0.0)


def gains(left: Tensor, total: Tensor, lam: float, least: float) -> Tensor:
    """Return the gains of divisions, minus infinity if a child is too light; left, total: sums [..., 2]."""
    right = total - left
    found = scores(left, lam) + scores(right, lam) - scores(total, lam)
    # whole, because mixed with floats, whole numbers would become float32
    floor = math.ceil(least * SCALE)
    heavy = (left[..., 1] >= floor) & (right[..., 1] >= floor)
    return torch.where(heavy, found, -torch.inf)


def candidates(histogram: Tensor, categories: Tensor) -> Tensor:
    """Return the left sums of every candidate, [nodes, columns, bins, ways, 2]; histogram: [nodes, columns, bins + 1,
    2], missing values last."""
    cells, missing = histogram[..., :-1, :], histogram[..., -1:, :]
    below = cells.cumsum(-2)
    others = below[..., -1:, :] - cells
    left = torch.where(categories[:, None, None], others, below)
    return torch.stack([left, left + missing], -2)


def best_splits(histogram: Tensor, allowed: Tensor, categories: Tensor, lam: float, least: float) -> Best:
    """Return the best split of each node; allowed: for each column, whether this tree may split by it."""
    total = histogram[..., 0, :, :].sum(-2)
    left = candidates(histogram, categories)
    gain = gains(left, total[..., None, None, None, :], lam, least)
    gain = torch.where(allowed[:, None, None], gain, -torch.inf)
    flat = gain.flatten(-3)
    place = flat.argmax(-1, keepdim=True)
    bins = cells_of(histogram)
    way = place[..., 0] % 2
    chosen, other = (sums_at(left, at) for at in (place, place ^ 1))
    heavier = 2 * chosen[..., 1] >= total[..., 1]
    missing_left = torch.where((chosen == other).all(-1), heavier, way == 1)
    top = flat.gather(-1, place)[..., 0]
    return Best(top, place[..., 0] // (2 * bins), place[..., 0] // 2 % bins, missing_left, chosen)


def sums_at(left: Tensor, place: Tensor) -> Tensor:
    """Return the sums of each node's candidate at this place, [nodes, 2]."""
    return left.flatten(-4, -2).gather(-2, place[..., None].expand(*place.shape, 2))[..., 0, :]


def cells_of(histogram: Tensor) -> int:
    """Return the number of bins of a histogram, without the one for missing values."""
    return histogram.shape[-2] - 1


def leaf_value(sums: Tensor, lam: float, rate: float) -> Tensor:
    """Return what a leaf adds to margins, -η G / (H + λ); 0 if it has no rows."""
    g, h = sums[..., 0].double() / SCALE, sums[..., 1].double() / SCALE + lam
    return torch.where(h > 0, -rate * g / torch.where(h > 0, h, 1.0), 0.0)


def goes_left(code: Tensor, bin: Tensor, missing_left: Tensor, category: Tensor, bins: int) -> Tensor:
    """Return whether rows with these codes go left at these splits."""
    code = code.to(torch.int64)
    known = torch.where(category, code != bin, code <= bin)
    return torch.where(code == bins, missing_left, known)
