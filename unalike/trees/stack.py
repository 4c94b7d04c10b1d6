"""A client's work on its rows, done for a whole stack of clients in one pass over the rows that are real.

A client function is written for one client, and its rows are padded to the largest client's number. Under `vmap` the
functions here get the stack as it is and leave the padding out: where one client has a tenth of all rows, that is a
tenth of the work. Alone, they are the same functions with a stack of one.

    counted     how many values of each column have a key of at most each threshold
    derived     codes of rows, and derivatives at the forest so far
    root_sums   histograms of the root
    next_level  rows move to the next level; histograms of the children that are asked for
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unalike.trees import bins as cutting
from unalike.trees import exact
from unalike.trees.client import Forest, margins
from unalike.trees.splits import goes_left
from unalike.trees.tree import LEAF


class Real(NamedTuple):
    """The real rows of a stack: for each, its client's number and its position among all rows."""

    client: Tensor
    place: Tensor

    @classmethod
    def of(cls, count: Tensor, rows: int) -> Real:
        """Return the first `count` rows of each client; on a GPU, which should not wait for a number, all rows."""
        if count.is_cuda:
            place = torch.arange(len(count) * rows, device=count.device)
        else:
            place = (torch.arange(rows) < count[:, None]).flatten().nonzero().flatten()
        return cls(place // rows, place)

    def take(self, values: Tensor) -> Tensor:
        """Return these rows of a stack [clients, rows, ...]."""
        return values.flatten(0, 1)[self.place]

    def put(self, values: Tensor, clients: int, rows: int) -> Tensor:
        """Return a stack [clients, rows, ...] with these values in these rows, and zeros elsewhere."""
        out = values.new_zeros(clients * rows, *values.shape[1:])
        out[self.place] = values
        return out.unflatten(0, (clients, rows))


def in_one_pass(fn: Callable[..., tuple[Tensor, ...]], own: int) -> Callable[..., tuple[Tensor, ...]]:
    """Return `fn`, a function of stacks, as a function of one client that receives whole stacks under `vmap`.

    own: how many of its arguments belong to a client; the others are the same for all. (Runs that share a stack send
    their clients different messages: then clients are handled one after another.)
    """

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> tuple[Tensor, ...]:
            return tuple(part[0] for part in fn(*(value[None] for value in given[:own]), *given[own:]))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Do nothing: the function is not differentiated."""

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[tuple[Tensor, ...], Any]:
            stacks = [
                value if dim is None else value.movedim(dim, 0) for value, dim in zip(given, in_dims, strict=True)
            ]
            if any(dim is None for dim in in_dims[:own]) or any(dim is not None for dim in in_dims[own:]):
                out = _one_after_another(Pass.forward, info.batch_size, in_dims, stacks)
            else:
                out = fn(*stacks)
            return out, (0,) * len(out)

    return Pass.apply


def _one_after_another(
    fn: Callable[..., tuple[Tensor, ...]], clients: int, dims: tuple[int | None, ...], stacks: list[Any]
) -> tuple[Tensor, ...]:
    rows = [
        fn(*(value if dim is None else value[k] for value, dim in zip(stacks, dims, strict=True)))
        for k in range(clients)
    ]
    return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))


# ---------------------------------------------------------------- the four functions


def _counted(x: Tensor, count: Tensor, low: Tensor, step: Tensor) -> tuple[Tensor]:
    real, (clients, rows, columns) = Real.of(count, x.shape[1]), x.shape
    asked = cutting.thresholds(low, step).flatten(1)
    ascending, order = asked.sort(1)
    keys = torch.where((real.place % rows < count[real.client])[:, None], cutting.keys(real.take(x)), cutting.MISSING)
    first = torch.searchsorted(ascending, keys.T.contiguous()).T  # the first threshold that is not below
    cells = asked.shape[1] + 1
    where = (real.client[:, None] * columns + torch.arange(columns, device=x.device)) * cells + first
    found = torch.zeros(clients * columns * cells, dtype=torch.int32, device=x.device)
    found.scatter_add_(0, where.flatten(), torch.ones_like(where.flatten(), dtype=torch.int32))
    below = found.view(clients, columns, cells)[..., :-1].cumsum(-1, dtype=torch.int32)
    out = torch.empty_like(below).scatter_(-1, order.expand_as(below), below)
    return (out.unflatten(-1, (*low.shape[1:], -1)),)


def _derived(
    rows: Tensor, count: Tensor, counts: Tensor, cuts: Tensor, base: Tensor, column: Tensor, bin: Tensor,
    missing_left: Tensor, value: Tensor, classes: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    real, (clients, size) = Real.of(count, rows.shape[1]), rows.shape[:2]
    own = real.take(rows)
    codes = cutting.codes(own[:, :-1], cuts)
    margin = margins(codes, Forest(column, bin, missing_left, value), base, cuts.shape[1] + 1)
    pair = exact.derivatives(margin, own[:, -1], classes or None)
    pair = torch.where(real.take(counts)[:, None, None], pair, 0)
    return real.put(codes, clients, size), real.put(pair, clients, size)


def _root_sums(codes: Tensor, pair: Tensor, count: Tensor, bins: int) -> tuple[Tensor]:
    real, clients = Real.of(count, codes.shape[1]), len(codes)
    own, slot = real.take(codes), torch.zeros_like(real.client)
    parts = [_summed(own, values, real.client, slot, clients, 1, bins) for values in real.take(pair).unbind(1)]
    return (torch.stack(parts, 1),)


def _next_level(
    codes: Tensor, pair: Tensor, place: Tensor, count: Tensor, column: Tensor, bin: Tensor, missing_left: Tensor,
    asked: Tensor, bins: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    real, (clients, size), parents = Real.of(count, codes.shape[1]), codes.shape[:2], asked.shape[1]
    own, places, pairs = real.take(codes), real.take(place), real.take(pair)
    moved, sums = [], []
    for output, (here, values) in enumerate(zip(places.unbind(1), pairs.unbind(1), strict=True)):
        inside = (here >= parents) & (here < 2 * parents)
        index = torch.where(inside, here - parents, 0)
        by = torch.where(inside, column[output][index].to(torch.int64), LEAF)
        code = own.gather(1, by.clamp(min=0)[:, None])[:, 0]
        plain = torch.zeros_like(inside)
        left = goes_left(code, bin[output][index], missing_left[output][index], plain, bins)
        right, divided = (~left).to(torch.int64), by != LEAF
        slot = torch.where(divided & (asked[output][index] == right), index, -1)
        moved.append(torch.where(divided, 2 * here + right, here))
        sums.append(_summed(own, values, real.client, slot, clients, parents, bins))
    return real.put(torch.stack(moved, 1), clients, size), torch.stack(sums, 1)


def _summed(codes: Tensor, pair: Tensor, client: Tensor, slot: Tensor, clients: int, slots: int, bins: int) -> Tensor:
    """Return sums of derivatives, whole numbers [clients, slots, columns, bins + 1, 2]; pair: [rows, 2]; slot: for each
    row the histogram of its client that counts it, or -1."""
    columns, cells, device = codes.shape[1], bins + 1, codes.device
    if slot.is_cuda:  # (a GPU should not wait for the number of rows: those that do not count add zeros)
        pair, slot = torch.where(slot[:, None] >= 0, pair, 0), slot.clamp(min=0)
    else:
        some = (slot >= 0).nonzero().flatten()
        codes, pair, client, slot = codes[some], pair[some], client[some], slot[some]
    where = (client * slots + slot)[:, None] * columns + torch.arange(columns, device=device)
    where = (where.mul_(cells).add_(codes)).mul_(2).flatten()
    out = torch.zeros(clients * slots * columns * cells * 2, dtype=torch.int64, device=device)
    for k in (0, 1):
        out.scatter_add_(0, where if k == 0 else where.add_(1), pair[:, k, None].expand(len(codes), columns).flatten())
    return out.view(clients, slots, columns, cells, 2)


_counted_in_one_pass = in_one_pass(_counted, own=2)
derived = in_one_pass(_derived, own=3)
_root = in_one_pass(_root_sums, own=3)
_level = in_one_pass(_next_level, own=4)


def counted(x: Tensor, count: Tensor, low: Tensor, step: Tensor) -> Tensor:
    """Return for each column how many of the first `count` rows have a key of at most each threshold of a search at
    `low` and `step`, int32 [columns, bins - 1, 15]."""
    return _counted_in_one_pass(x, count, low, step)[0]


def root_sums(codes: Tensor, pair: Tensor, count: Tensor, bins: int) -> Tensor:
    """Return the histograms of the roots, [outputs, 1, columns, bins + 1, 2]; pair: [rows, outputs, 2]."""
    return _root(codes, pair, count, bins)[0]


def next_level(
    codes: Tensor, pair: Tensor, place: Tensor, count: Tensor, splits: Forest, asked: Tensor, bins: int
) -> tuple[Tensor, ...]:
    """Move rows to the next level and sum the wanted children; return places [rows, outputs] and histograms [outputs,
    parents, columns, bins + 1, 2].

    splits: those of the last level, [outputs, parents], with LEAF where there is none; asked: for each parent the
    wanted child, 0 or 1, or -1.
    """
    return _level(codes, pair, place, count, splits.column, splits.bin, splits.missing_left, asked, bins)
