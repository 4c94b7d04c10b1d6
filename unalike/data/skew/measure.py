"""Measure how unlike clients are, by five numbers that are 0 if samples are dealt at random and grow with the skew.

Each is corrected for chance: even ten clients with a hundred samples of the same kind differ. Labels and sizes are
counted exactly; the numbers about features use a sample of the clients' training samples, so that a million of them
take a second.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from unalike import draws
from unalike.data.columns import Columns
from unalike.errors import UnalikeError

# clients used for the numbers about features
CLIENTS = 40
# their samples in all; fewer if samples are wide
ROWS = 2_000
# limit on multiplications for all distances
WORK = 1e10
WORDS = 256  # kinds of tokens that are told apart
# bins of a number to predict, with equally many samples each
BINS = 10
NEAREST = 5  # neighbours of a sample
# random matchings of clients' samples with others'
MATCHINGS = 10

MEANINGS = {
    "label_distance": "mixes of labels, client and all: 1 nothing in common",
    "size_gini": "sizes: 1 if one client has all samples",
    "feature_mmd": "samples x, client and all (squared MMD): at most 1",
    "disagreement": "near samples elsewhere with other labels: at most 1",
    "drift": "a client's first samples and its last (squared MMD)",
}


def measure(fed: Any, seed: int = 0) -> dict[str, float]:
    """Return how unlike the clients' training samples are, by the names in `MEANINGS`.

    `label_distance`: the mean over clients, weighed by their samples, of the total variation distance between the
    client's distribution of labels and all clients', as (d - c) / (1 - c), where c is its expectation when the same
    samples are dealt at random in the same sizes. A number to predict counts by its tenths. `size_gini`: the Gini
    coefficient of the sizes. `feature_mmd`: the same mean of the squared maximum mean discrepancy between the client's
    x and all clients' (Gaussian kernel, the median distance as bandwidth), unbiased. `disagreement`, of P(y | x): how
    much more often one of a sample's five nearest neighbours has another label where it is at another client than where
    it is at the same one, among equally many samples of both with the same labels; 1 where all do. Of a number to
    predict, the squared difference over twice the variance. `drift`: the squared MMD of a client's (x, y) between the
    first round and the last drifting one, unbiased; the other numbers are then of the last.

    Samples of joined federations have no common features: these numbers are left out for them. Measure the parts.
    """
    draws.check_seed(seed)
    if fed.remote:
        raise UnalikeError("How unlike clients are cannot be measured here: their samples are on other machines.")
    if fed.recipe is not None:
        fed = fed.prepared()  # features of a table, in comparable units
    now = fed if fed.drift is None else fed.at(fed.drift.rounds)
    numbers = {"label_distance": _label_distance(now), "size_gini": _gini(now.sizes)}
    if hasattr(fed, "parts"):
        return numbers
    found = _look(now, seed)
    if found is not None:
        squared = _distances(found.x)
        scale = _scale(squared)
        numbers["feature_mmd"] = _between(torch.exp(-squared / scale), found)
        numbers["disagreement"] = _disagreement(squared.numpy(), found, seed)
    numbers["drift"] = _drift(fed, seed)
    return numbers


# ---------------------------------------------------------------- labels and sizes, counted


def _label_distance(fed: Any) -> float:
    if fed.classes is not None:
        return _distance(fed.label_counts())
    targets = fed.train.y.cpu().double().numpy().reshape(len(fed.train.y), -1)
    owners = fed.train.owners()
    distances = []
    for target in targets.T:
        cells = owners * BINS + _tenths(target)
        distances.append(_distance(np.bincount(cells, minlength=len(fed) * BINS).reshape(-1, BINS)))
    return float(np.mean(distances))


def _distance(counts: np.ndarray) -> float:
    """Return the mean total variation distance for counts [clients, classes], corrected for chance."""
    sizes, classes, total = counts.sum(1, keepdims=True), counts.sum(0), counts.sum()
    expected = sizes * (classes / total)
    found = np.abs(counts - expected).sum() / (2 * total)
    chance = _mean_deviation(sizes, classes, total).sum() / (2 * total)
    return float((found - chance) / (1 - chance)) if chance < 1 else 0.0


def _mean_deviation(drawn: np.ndarray, kind: np.ndarray, total: int) -> np.ndarray:
    """Return E|X - E X| where X of a kind are among so many drawn of the total without replacement (hypergeometric):
    2x (total - kind - drawn + x) / total · P(X = x) at the least whole x above the mean."""
    x = np.floor(drawn * kind / total) + 1
    left = total - kind - drawn + x

    def log_choose(n: Any, k: Any) -> np.ndarray:
        n, k = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(k, np.float64))
        parts = [torch.lgamma(torch.from_numpy(v + 1)).numpy() for v in (n, k, n - k)]
        return parts[0] - parts[1] - parts[2]

    possible = (x <= kind) & (x <= drawn)
    with np.errstate(invalid="ignore"):
        log_p = log_choose(kind, x) + log_choose(total - kind, drawn - x) - log_choose(total, drawn)
    return np.where(possible, 2 * x * left / total * np.exp(np.where(possible, log_p, -np.inf)), 0.0)


def _gini(sizes: np.ndarray) -> float:
    """Return the Gini coefficient: the mean absolute difference of two sizes over twice the mean size."""
    ordered = np.sort(sizes).astype(np.float64)
    rank = 2 * np.arange(1, len(ordered) + 1) - len(ordered) - 1
    return float((rank * ordered).sum() / max(len(ordered) * ordered.sum(), 1))


def _tenths(values: np.ndarray) -> np.ndarray:
    """Return the tenth of all values in which each value lies, 0 to 9; equal values lie in the same tenth."""
    return np.searchsorted(np.quantile(values, np.arange(1, BINS) / BINS), values, side="right")


# ---------------------------------------------------------------- a sample of the samples


@dataclasses.dataclass(frozen=True)
class _Look:
    """Some samples of some clients: features x [m, d], labels y [m, k], labels or tenths `kinds` [m], clients `owners`
    [m] numbered from 0, and the weight of each of these clients [K]."""

    x: torch.Tensor
    y: np.ndarray
    kinds: np.ndarray
    owners: np.ndarray
    weights: np.ndarray
    regression: bool


def _look(fed: Any, seed: int, half: int | None = None) -> _Look | None:
    """Draw clients with at least two samples, and some of their samples; None if there are not two such clients. `half`
    (0 or 1): use only one half of every client's samples, drawn by the same seed."""
    columns: Columns = fed.train
    least = 2 if half is None else 4
    able = np.flatnonzero(columns.sizes >= least)
    if len(able) < (2 if half is None else 1):
        return None
    random = draws.generator(seed, "measure")
    clients = np.sort(random.permutation(able)[:CLIENTS])
    room = int(np.clip((WORK / max(columns.x[:1].numel(), 1)) ** 0.5, ROWS // 5, ROWS)) // len(clients)
    picked = []
    for k in clients:
        own = random.permutation(int(columns.sizes[k]))
        own = own if half is None else own[half::2]
        picked.append(np.sort(own[:room]) + columns.offsets[k])
    rows = torch.from_numpy(np.concatenate(picked)).to(columns.x.device)
    y = columns.y.index_select(0, rows).cpu().double().numpy().reshape(len(rows), -1)
    return _Look(
        _features(columns.x.index_select(0, rows)),
        y,
        y[:, 0].astype(np.int64) if fed.classes is not None else _tenths(y[:, 0]),
        np.repeat(np.arange(len(clients)), [len(part) for part in picked]),
        columns.sizes[clients] / columns.sizes[clients].sum(),
        fed.classes is None,
    )


def _features(x: torch.Tensor) -> torch.Tensor:
    """Return samples as rows of numbers; for tokens, how often each occurs."""
    x = x.reshape(len(x), -1).cpu()
    if x.is_floating_point():
        return x.float().nan_to_num()
    words = torch.zeros(len(x), WORDS)
    return words.scatter_add_(1, x.long() % WORDS, torch.full(x.shape, 1 / x.shape[1]))


def _distances(x: torch.Tensor) -> torch.Tensor:
    """Return the squared distances of all pairs of rows, [m, m]."""
    x = x - x.mean(0)
    norms = x.square().sum(1)
    return (norms[:, None] + norms - 2 * x @ x.T).clamp_(min=0).fill_diagonal_(0)


def _scale(squared: torch.Tensor) -> float:
    """Return the kernel's scale, twice the squared bandwidth, from the median distance: the kernel is exp(-squared /
    scale)."""
    some = squared[:: len(squared) // 500 + 1, :: len(squared) // 500 + 1]
    pairs = some[tuple(torch.triu_indices(len(some), len(some), 1))]
    return 2 * float(pairs.median()) or 2 * float(pairs.mean()) or 1.0


# ---------------------------------------------------------------- features


def _between(kernel: torch.Tensor, look: _Look) -> float:
    """Return the mean squared MMD between each client and all of them together, without bias: no sample is compared
    with itself."""
    means = _block_means(kernel, look.owners)
    w = look.weights
    return float(w @ means.diagonal() - w @ means @ w)


def _block_means(kernel: torch.Tensor, owners: np.ndarray) -> np.ndarray:
    """Return the kernel's mean over pairs of two clients' samples, [K, K]; within a client over pairs of different
    samples."""
    sizes = np.bincount(owners)
    own = torch.zeros(len(owners), len(sizes))
    own[torch.arange(len(owners)), torch.from_numpy(owners)] = 1
    sums = (own.T @ kernel @ own).double().numpy()
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    return (sums - np.diag(own.T @ kernel.diagonal())) / pairs


# ---------------------------------------------------------------- labels given features


def _disagreement(squared: np.ndarray, look: _Look, seed: int) -> float:
    """Return min(1, 2p) (e - h), averaged over some matchings. p: the share of a sample's nearest neighbours that
    belong to other clients (1/2 without skew); e: the share of those with another label than the sample; h: the same
    share among its own client's neighbours."""
    random = draws.generator(seed, "disagreement")
    found = []
    for _ in range(MATCHINGS):
        share, there, home = _neighbours(squared, look, random)
        rates = there / share if share else 0.0, home / (1 - share) if share < 1 else 0.0
        found.append(min(1.0, 2 * share) * (rates[0] - rates[1]))
    return float(np.mean(found))


def _neighbours(squared: np.ndarray, look: _Look, random: np.random.Generator) -> np.ndarray:
    """Return three sums over all nearest neighbours: how many belong to other clients, how much labels differ from
    those, and how much from neighbours at the same client.

    A client is compared with equally many samples of other clients that have the same labels: pairs of one of its own
    samples and one of others' with the same label, where each sample looks for neighbours in the other pairs. So
    without skew, and with label skew alone, both kinds are equally near.
    """
    sums, weight = np.zeros(3), 0.0
    for k, own_weight in enumerate(look.weights):
        own, others = _matched(look.kinds, look.owners == k, random)
        pairs = np.arange(len(own))
        if len(pairs) < 2:
            continue
        both = np.concatenate([own, others])
        far = squared[np.ix_(own, both)]
        far[pairs, pairs] = far[pairs, pairs + len(pairs)] = np.inf
        some = min(NEAREST, 2 * len(pairs) - 2)
        nearest = np.argpartition(far, some - 1, axis=1)[:, :some]
        elsewhere, differ = nearest >= len(pairs), _differ(look, own, both[nearest])
        found = np.array([elsewhere.sum(), differ[elsewhere].sum(), differ[~elsewhere].sum()])
        sums += own_weight * found / nearest.size
        weight += own_weight
    return sums / weight if weight else sums


def _matched(kinds: np.ndarray, own: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a client and rows of others in random pairs of the same kind, as many as possible."""
    sides = [random.permutation(np.flatnonzero(side)) for side in (own, ~own)]
    # pairs the n-th of a kind here with the n-th of that kind there
    mine, theirs = (kinds[rows] * len(kinds) + _place_in_kind(kinds[rows]) for rows in sides)
    _, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    return sides[0][here], sides[1][there]


def _place_in_kind(kinds: np.ndarray) -> np.ndarray:
    """Return for each row how many earlier rows have the same kind."""
    order = np.argsort(kinds, kind="stable")
    place = np.empty(len(kinds), np.int64)
    place[order] = np.arange(len(kinds)) - np.searchsorted(kinds[order], kinds[order])
    return place


def _differ(look: _Look, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how much labels of rows [m] differ from others' [m, n]: 0 or 1; for numbers, the squared difference over
    twice the variance."""
    if not look.regression:
        return (look.y[rows] != look.y[others, 0]).astype(np.float64)
    variance = np.maximum(look.y.var(0), np.finfo(np.float64).tiny)
    return ((look.y[rows][:, None] - look.y[others]) ** 2 / (2 * variance)).mean(2)


# ---------------------------------------------------------------- drift


def _drift(fed: Any, seed: int) -> float:
    """Return the clients' mean squared MMD of (x, y) between their first samples and their last. Different halves of
    their rows are compared, because a sample before and after a change is not two independent samples."""
    if fed.drift is None:
        return 0.0
    first, last = _look(fed.at(1), seed, half=0), _look(fed.at(fed.drift.rounds), seed, half=1)
    if first is None or last is None:
        return 0.0
    clients = len(first.weights)
    squared = _distances(torch.cat([first.x, last.x]))
    kernel = torch.exp(-squared / _scale(squared)) * _same_label(first, last)
    means = _block_means(kernel, np.concatenate([first.owners, clients + last.owners]))
    own, across = means.diagonal(), means[:clients, clients:].diagonal()
    return float(first.weights @ (own[:clients] + own[clients:] - 2 * across))


def _same_label(first: _Look, last: _Look) -> torch.Tensor:
    """Return the kernel of labels, [m, m]: 1 for the same class, else 0; for numbers exp(-d²/2), d in standard
    deviations."""
    y = np.concatenate([first.y, last.y])
    if not first.regression:
        return torch.from_numpy(y == y.T).float()
    y = y / np.maximum(y.std(0), np.finfo(np.float64).tiny)
    return torch.from_numpy(np.exp(-((y[:, None] - y) ** 2).sum(2) / 2)).float()
