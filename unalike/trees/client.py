"""A client's part in growing trees, as functions of tensors that run for one client or, under `vmap`, for a stack.

Rows are padded to the largest client's number; padding rows have derivatives of zero and do not count. Trees come as
arrays by place (`unalike.trees.tree`), with a dimension for rounds and one for outputs before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from unalike.trees.settings import Boosting
from unalike.trees.splits import SMALLEST, best_splits, goes_left, leaf_value
from unalike.trees.tree import LEAF


def row(batch: Any) -> Tensor:
    """Return each sample of a batch as a row: its numbers, then its label."""
    x = batch.x.flatten(1)
    return torch.cat([x, batch.y[:, None].to(x.dtype)], 1)


def real_rows(rows: Tensor, count: Tensor) -> Tensor:
    """Return which rows are samples and not padding."""
    return torch.arange(len(rows), device=rows.device) < count


class Forest(NamedTuple):
    """The trees of all rounds so far, [rounds, outputs, places] each."""

    column: Tensor
    bin: Tensor
    missing_left: Tensor
    value: Tensor


def margins(codes: Tensor, forest: Forest, base: Tensor, bins: int) -> Tensor:
    """Return the margins of rows, float64 [rows, outputs], added tree by tree."""
    rounds, width, size = forest.value.shape
    steps, cells, out = size.bit_length() - 2, bins + 1, []
    column, right, values = forest.column.clamp(min=0).to(torch.int64), _right(forest, bins), _at_the_bottom(forest)
    flat, first = codes.flatten(), torch.arange(len(codes), device=codes.device) * codes.shape[1]
    for output in range(width):
        total = base.double().expand(len(codes)) + torch.zeros(len(codes), dtype=torch.float64, device=codes.device)
        for number in range(rounds):
            place = torch.ones_like(first)
            for _ in range(steps):
                code = flat[first + column[number, output][place]]
                place = 2 * place + right[number, output][cells * place + code]
            total = total + values[number, output][place - (1 << steps)]
        out.append(total)
    return torch.stack(out, 1)


def _right(forest: Forest, bins: int) -> Tensor:
    """Return for each place and code 1 if such a row goes right, else 0, [rounds, outputs, places * (bins + 1)]; at a
    leaf all go left."""
    cells = torch.arange(bins + 1, device=forest.bin.device)
    left = torch.where(cells == bins, forest.missing_left[..., None], cells <= forest.bin[..., None])
    return (~left & (forest.column != LEAF)[..., None]).flatten(-2).to(torch.int64)


def _at_the_bottom(forest: Forest) -> Tensor:
    """Return the values of all places of the lowest level; a leaf above it gives them its own."""
    size = forest.value.shape[-1]
    value, leaf = forest.value[..., 1:2], forest.column[..., 1:2] == LEAF
    for first in (1 << level for level in range(1, size.bit_length() - 1)):
        above, ended = value.repeat_interleave(2, -1), leaf.repeat_interleave(2, -1)
        value = torch.where(ended, above, forest.value[..., first : 2 * first])
        leaf = ended | (forest.column[..., first : 2 * first] == LEAF)
    return value


def moved(codes: Tensor, place: Tensor, tree: Forest, bins: int) -> Tensor:
    """Return the places of rows one split further; rows at a leaf stay."""
    column = tree.column[place].to(torch.int64)
    code = codes.gather(1, column.clamp(min=0)[:, None])[:, 0]
    left = goes_left(code, tree.bin[place], tree.missing_left[place], torch.zeros_like(column, dtype=torch.bool), bins)
    return torch.where(column == LEAF, place, 2 * place + (~left).to(torch.int64))


def histograms(codes: Tensor, pair: Tensor, slot: Tensor, slots: int, bins: int) -> Tensor:
    """Return sums of derivatives, whole numbers [slots, columns, bins + 1, 2]; pair: [rows, 2]; slot: for each row the
    histogram that counts it, or -1."""
    columns, cells = codes.shape[1], bins + 1
    where = torch.where(slot >= 0, slot, slots)[:, None] * columns + torch.arange(columns, device=codes.device)
    where = (where * cells + codes.to(torch.int64)).flatten()
    size, parts = (slots + 1) * columns * cells, []
    for k in (0, 1):
        own = pair[:, k, None].expand(len(codes), columns).flatten()
        parts.append(torch.zeros(size, dtype=torch.int64, device=codes.device).scatter_add(0, where, own))
    return torch.stack(parts, -1).reshape(slots + 1, columns, cells, 2)[:slots]


def own_tree(codes: Tensor, pair: Tensor, settings: Boosting) -> Forest:
    """Return the tree that one client grows on its own rows, [places] each; pair: [rows, 2]. (`leaves` and `columns`
    apply only to trees that a server grows.)"""
    size, device = 2 << settings.depth, codes.device
    every = torch.ones(codes.shape[1], dtype=torch.bool, device=device)
    place = torch.ones(len(codes), dtype=torch.int64, device=device)
    column, bin = (torch.full((size,), fill, dtype=torch.int64, device=device) for fill in (LEAF, 0))
    missing_left, value = torch.zeros(size, dtype=torch.bool, device=device), torch.zeros(size, dtype=torch.float64)
    sums = torch.zeros(size, 2, dtype=torch.int64, device=device).index_add(0, place, pair)
    for level in range(settings.depth):
        here = torch.arange(1 << level, 2 << level, device=device)
        slot = torch.where(place >= 1 << level, place - (1 << level), -1)
        found = best_splits(
            histograms(codes, pair, slot, 1 << level, settings.bins), every, ~every, settings.lam, settings.least
        )
        good = found.gain > max(settings.gamma, SMALLEST)
        column = column.index_copy(0, here, torch.where(good, found.column, LEAF))
        bin, missing_left = bin.index_copy(0, here, found.bin), missing_left.index_copy(0, here, found.missing_left)
        left = torch.where(good[:, None], found.left, 0)
        right = torch.where(good[:, None], sums[here] - found.left, 0)
        children = torch.stack([left, right], 1).flatten(0, 1)
        sums = sums.index_copy(0, torch.arange(2 << level, 4 << level, device=device), children)
        place = moved(codes, place, Forest(column, bin, missing_left, value), settings.bins)
    value = torch.where(column == LEAF, leaf_value(sums, settings.lam, settings.rate), 0.0)
    return Forest(column, bin, missing_left, value)
