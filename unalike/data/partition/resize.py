"""Give clients other sizes: each keeps its mix of labels, as far as the samples allow."""

from __future__ import annotations

import numpy as np

from unalike.data.partition import tools

# share of the overall label distribution mixed into each client's, so that any sizes can be met
SHARE = 1e-3
# iterations of fitting; a fixed number, so that no last digit decides when it ends
ROUNDS = 100
# bins of a number to predict, which stand in for classes
LEVELS = 100


def resized(parts: list[np.ndarray], labels: np.ndarray | None, sizes: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return the same rows for clients of these sizes, which must add up to the number of rows.

    The numbers of samples of each class and client are fitted to the new sizes with the classes' totals fixed, by
    scaling rows and columns in turn (iterative proportional fitting). Without `labels` the parts are one order, which
    is cut at other places.
    """
    rows = np.concatenate(parts)
    if labels is None:
        return np.split(rows, np.cumsum(sizes)[:-1])
    classes = _classes(np.asarray(labels)[rows])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    kinds = int(classes.max()) + 1
    counts = np.bincount(classes * len(parts) + owner, minlength=kinds * len(parts)).reshape(kinds, -1)
    fitted = _rounded(_fitted(counts, sizes), counts.sum(1), sizes)
    return [rows[part] for part in tools.deal_counts(classes, fitted, tools.generator(seed, "sizes"))]


def _classes(labels: np.ndarray) -> np.ndarray:
    """Return classes as 0, 1, …; numbers to predict become bins with equal numbers of samples."""
    if labels.dtype.kind != "f":
        return tools.numbered(labels, "sizes")
    levels = min(LEVELS, len(labels))
    out = np.empty(len(labels), np.int64)
    out[np.argsort(labels, kind="stable")] = np.arange(len(labels)) * levels // len(labels)
    return out


def _fitted(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return amounts [classes, clients] with the clients' mixes, the classes' totals and the new sizes."""
    totals = counts.sum(1)
    mixes = (1 - SHARE) * counts / np.maximum(counts.sum(0), 1) + SHARE * (totals / totals.sum())[:, None]
    by_class = np.ones(len(counts))
    for _ in range(ROUNDS):
        by_client = sizes / (by_class @ mixes)
        by_class = totals / (mixes @ by_client)
    return by_class[:, None] * mixes * (sizes / (by_class @ mixes))


def _rounded(amounts: np.ndarray, totals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return whole numbers near the amounts, whose rows add up to the totals and whose columns to the sizes."""
    amounts = np.round(amounts, 6)  # what differs in the last digits of two machines is a tie on both
    counts = np.floor(amounts).astype(np.int64)
    places = np.argsort(np.argsort(counts - amounts, axis=0, kind="stable"), axis=0, kind="stable")
    counts += places < sizes - counts.sum(0)
    while (over := counts.sum(1) - totals).any():
        _exchange(counts, amounts, int(over.argmax()), int(over.argmin()), int(min(over.max(), -over.min())))
    return counts


def _exchange(counts: np.ndarray, amounts: np.ndarray, giver: int, taker: int, number: int) -> None:
    """Give up to `number` clients, where it costs least, one sample more of one class and one less of another."""
    cost = np.round((amounts[giver] - counts[giver]) - (amounts[taker] - counts[taker]), 6)
    able = np.flatnonzero(counts[giver] > 0)
    some = able[np.argsort(cost[able], kind="stable")[:number]]
    counts[giver, some] -= 1
    counts[taker, some] += 1
