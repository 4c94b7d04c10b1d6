"""Helpers of the partitions: checks of arguments, and ways to turn numbers of samples into rows."""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np

from unalike import draws
from unalike.errors import UnalikeError

# ---- checks


def count(what: str, value: object, least: int = 1) -> None:
    """Check for a whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise UnalikeError(f"{what}={value!r} must be a whole number of {least} or more.")


def number(what: str, value: Any, least: float, most: float, example: float) -> None:
    """Check for a number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise UnalikeError(f"{what}={value!r} must be a number from {least:g} to {most:g}, such as {example:g}.")


def above_zero(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UnalikeError(f"{what}={value!r} must be a number above 0, such as 0.3.")


def generator(seed: int, purpose: str) -> np.random.Generator:
    return draws.generator(draws.check_seed(seed), "partition", purpose)


def checked(labels: np.ndarray, clients: int, each: int, name: str) -> np.ndarray:
    """Check for one-dimensional labels, enough for `each` per client, and return them."""
    count("clients", clients)
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise UnalikeError(f"The partition {name!r} got labels of shape {list(labels.shape)}: they must be [n].")
    if len(labels) < clients * each:
        most = len(labels) // each
        raise UnalikeError(
            f"The partition {name!r} must give each of {clients} clients {each} or more of {len(labels)} "
            + (f"samples: ask for at most {most} clients." if most else "samples: ask for fewer samples per client.")
        )
    return labels


def numbered(labels: np.ndarray, name: str) -> np.ndarray:
    """Return labels as 0..(number of classes that occur)-1."""
    if labels.dtype.kind == "f":
        raise UnalikeError(
            f"The partition {name!r} needs class labels but these are {labels.dtype}: use 'iid' or 'shards'."
        )
    if labels.dtype.kind in "iu" and len(labels):
        low, high = int(labels.min()), int(labels.max())
        # nearly always the case, and needs no sorting
        if high - low <= len(labels):
            offset = labels.astype(np.int64) - low
            return (np.cumsum(np.bincount(offset) > 0) - 1)[offset]
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


# ---- from numbers of samples to rows


def stable_order(keys: np.ndarray, limit: int) -> np.ndarray:
    """Return np.argsort of whole numbers in 0..limit-1, equal ones in order; 16-bit numbers sort several times
    faster."""
    return np.argsort(keys.astype(np.uint16) if limit <= 1 << 16 else keys, kind="stable")


def deal(owner: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of each client, in random order."""
    order = rng.permutation(len(owner))
    rows = order[stable_order(owner[order], clients)]
    return np.split(rows, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def deal_counts(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return random rows for `counts` [classes, clients], which must add up to the number of samples of each class."""
    clients = counts.shape[1]
    owner = np.empty(len(classes), np.int64)
    order = rng.permutation(len(classes))
    owner[order[stable_order(classes[order], len(counts))]] = np.concatenate(
        [np.repeat(np.arange(clients), row) for row in counts]
    )
    return deal(owner, clients, rng)


def apportion(weights: np.ndarray, total: int) -> np.ndarray:
    """Divide `total` into whole parts in proportion to the weights (largest remainders); evenly if all weights are
    0."""
    if not weights.sum() > 0:
        weights = np.ones(len(weights))
    exact = weights / weights.sum() * total
    parts = np.floor(exact).astype(np.int64)
    parts[np.argsort(parts - exact, kind="stable")[: total - parts.sum()]] += 1
    return parts


def repair(counts: np.ndarray, min_size: int) -> None:
    """Raise every client to min_size, in place, with samples of the largest clients' commonest class."""
    sizes = counts.sum(0)
    poor = np.flatnonzero(sizes < min_size)
    if not len(poor):
        return
    largest = [(-int(size), int(k)) for k, size in enumerate(sizes) if size > min_size]
    heapq.heapify(largest)
    for k in poor:
        for _ in range(min_size - int(sizes[k])):
            # never empty: there are at least clients * min_size samples
            size, giver = heapq.heappop(largest)
            label = counts[:, giver].argmax()
            counts[label, giver] -= 1
            counts[label, k] += 1
            if -size - 1 > min_size:
                heapq.heappush(largest, (size + 1, giver))
