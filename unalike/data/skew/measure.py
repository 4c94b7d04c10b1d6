"""How unlike clients are, in five numbers that are 0 where samples are dealt at random and grow with the skew.

Each is corrected for chance: ten clients with a hundred samples of the same kind differ too. Labels and sizes are
counted; what is computed of features looks at a sample of the clients' training samples, so that it takes a second
with a million of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from unalike import draws
from unalike.data.columns import Columns
from unalike.errors import UnalikeError

CLIENTS = 40  # looked at for what is computed of features
ROWS = 2_000  # of theirs together, fewer where samples are wide
WORK = 1e10  # products of two numbers for all distances
WORDS = 256  # kinds of tokens that are told apart
BINS = 10  # of a number to predict, each with as many samples
SHUFFLES = 5

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
    x and all clients' (Gaussian kernel, the median distance as bandwidth), unbiased. `disagreement`, of P(y | x): the
    share of samples whose nearest neighbour at other clients has another label, minus the share with such a neighbour
    at the same client (of numbers: the squared difference over twice the variance), minus the same after clients have
    swapped samples of equal labels; so label skew alone gives 0. `drift`: the squared MMD of a client's (x, y) between
    the first round and the last drifting one, unbiased.

    Samples of joined federations have no common features: these numbers are left out for them. Measure the parts.
    """
    draws.check_seed(seed)
    if fed.remote:
        raise UnalikeError("How unlike clients are cannot be measured here: their samples are on other machines.")
    if fed.recipe is not None:
        fed = fed.prepared()  # features of a table, in comparable units
    numbers = {"label_distance": _label_distance(fed), "size_gini": _gini(fed.sizes)}
    if hasattr(fed, "parts"):
        return numbers
    found = _look(fed, fed.train, seed)
    if found is not None:
        squared = _distances(found.x)
        scale = _scale(squared)
        numbers["feature_mmd"] = _between(torch.exp(-squared / scale), found)
        numbers["disagreement"] = _disagreement(squared, found, seed)
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
    """Return the mean total variation distance of so many samples per client and class, corrected for chance."""
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
    """Return the tenth of all values in which each lies, 0 to 9; equal values lie in the same."""
    return np.searchsorted(np.quantile(values, np.arange(1, BINS) / BINS), values, side="right")


# ---------------------------------------------------------------- a sample of the samples


@dataclasses.dataclass(frozen=True)
class _Look:
    """Some samples of some clients: features x [m, d], labels y [m, k], labels or tenths to tell samples apart
    `kinds` [m], clients `owners` [m] numbered from 0, and what each of these clients weighs [K]."""

    x: torch.Tensor
    y: np.ndarray
    kinds: np.ndarray
    owners: np.ndarray
    weights: np.ndarray
    regression: bool


def _look(fed: Any, columns: Columns, seed: int, half: int | None = None) -> _Look | None:
    """Draw clients with at least two samples, and samples of theirs; None where there are no two such clients. `half`
    (0 or 1): of one half of every client's samples only, drawn by the same seed."""
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
    """Return samples as rows of numbers: of tokens how often each occurs."""
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
    """Return twice the squared bandwidth: the median distance, by which the kernel is exp(-squared / scale)."""
    some = squared[:: len(squared) // 500 + 1, :: len(squared) // 500 + 1]
    pairs = some[tuple(torch.triu_indices(len(some), len(some), 1))]
    return 2 * float(pairs.median()) or 2 * float(pairs.mean()) or 1.0


# ---------------------------------------------------------------- features


def _between(kernel: torch.Tensor, look: _Look) -> float:
    """Return the clients' mean squared MMD to all of them together, without bias: samples are not compared with
    themselves."""
    means = _block_means(kernel, look.owners)
    w = look.weights
    return float(w @ means.diagonal() - w @ means @ w)


def _block_means(kernel: torch.Tensor, owners: np.ndarray) -> np.ndarray:
    """Return the kernel's mean over pairs of two clients' samples, [K, K]; in a client over pairs of two samples."""
    sizes = np.bincount(owners)
    own = torch.zeros(len(owners), len(sizes))
    own[torch.arange(len(owners)), torch.from_numpy(owners)] = 1
    sums = (own.T @ kernel @ own).double().numpy()
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    return (sums - np.diag(own.T @ kernel.diagonal())) / pairs


# ---------------------------------------------------------------- labels given features


def _disagreement(squared: torch.Tensor, look: _Look, seed: int) -> float:
    random = draws.generator(seed, "disagreement")
    chance = [_gap(squared, look, _swapped(look, random)) for _ in range(SHUFFLES)]
    return _gap(squared, look, look.owners) - float(np.mean(chance))


def _gap(squared: torch.Tensor, look: _Look, owners: np.ndarray) -> float:
    """Return how much more labels differ from the nearest neighbour's elsewhere than from the nearest one's at home."""
    of = torch.from_numpy(owners)
    same = of[:, None] == of
    home = squared.masked_fill(~same, torch.inf).fill_diagonal_(torch.inf).argmin(1).numpy()
    elsewhere = squared.masked_fill(same, torch.inf).argmin(1).numpy()
    weights = (look.weights / np.bincount(owners))[owners]
    return float(weights @ (_differ(look, elsewhere) - _differ(look, home)))


def _differ(look: _Look, other: np.ndarray) -> np.ndarray:
    if not look.regression:
        return (look.y[other, 0] != look.y[:, 0]).astype(np.float64)
    variance = np.maximum(look.y.var(0), np.finfo(np.float64).tiny)
    return ((look.y[other] - look.y) ** 2 / (2 * variance)).mean(1)


def _swapped(look: _Look, random: np.random.Generator) -> np.ndarray:
    """Return owners after samples of equal labels have gone round: every client keeps its mix of labels."""
    by_kind = np.lexsort((random.random(len(look.kinds)), look.kinds))
    owners = np.empty_like(look.owners)
    owners[np.argsort(look.kinds, kind="stable")] = look.owners[by_kind]
    return owners


# ---------------------------------------------------------------- drift


def _drift(fed: Any, seed: int) -> float:
    """Return the clients' mean squared MMD of (x, y) between their first samples and their last, from different halves
    of their rows: the same picture before and after is not two pictures."""
    drift = getattr(fed, "drift", None)
    if drift is None:
        return 0.0
    first = _look(fed, fed.at(0).train, seed, half=0)
    last = _look(fed, fed.at(drift.rounds).train, seed, half=1)
    if first is None or last is None:
        return 0.0
    clients = len(first.weights)
    squared = _distances(torch.cat([first.x, last.x]))
    kernel = torch.exp(-squared / _scale(squared)) * _same_label(first, last)
    means = _block_means(kernel, np.concatenate([first.owners, clients + last.owners]))
    own, across = means.diagonal(), means[:clients, clients:].diagonal()
    return float(first.weights @ (own[:clients] + own[clients:] - 2 * across))


def _same_label(first: _Look, last: _Look) -> torch.Tensor:
    """Return the kernel of labels, [m, m]: 1 for the same class, else 0; of numbers exp(-d²/2), d in standard
    deviations."""
    y = np.concatenate([first.y, last.y])
    if not first.regression:
        return torch.from_numpy(y == y.T).float()
    y = y / np.maximum(y.std(0), np.finfo(np.float64).tiny)
    return torch.from_numpy(np.exp(-((y[:, None] - y) ** 2).sum(2) / 2)).float()
