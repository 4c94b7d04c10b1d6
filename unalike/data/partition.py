"""How one data set is dealt to clients: `partition(labels, clients, seed)` gives each client its row numbers.

Every sample is used exactly once, no client is empty, and the same arguments give the same answer everywhere.
Any function of that form may be used in place of those here.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable

import numpy as np

from unalike import random
from unalike.data.federation import check_seed
from unalike.errors import UnalikeError, unknown

Partition = Callable[[np.ndarray, int, int], list[np.ndarray]]

RETRIES = 20  # draws of Dirichlet before its clients are repaired
HOPELESS = 50  # with more clients than this below min_size another draw would not help


class _Spelled:
    """`str(partition)` is what `parse` reads."""

    def __str__(self) -> str:
        name = next(name for name, kind in PARTITIONS.items() if type(self) is kind)
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = [getattr(self, f.name) for f in fields]
        while values and values[-1] == fields[len(values) - 1].default:
            values.pop()
        return ":".join([name, *(str(value).lower() for value in values)])


@dataclasses.dataclass(frozen=True)
class IID(_Spelled):
    """Shuffle and cut into equal parts (sizes differ by one at most); `balanced`: every class evenly too."""

    balanced: bool = False

    def __call__(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = _labels(labels, clients, 1, "iid")
        rng = _rng(seed, "iid")
        order = rng.permutation(len(labels))
        if not self.balanced:
            return np.array_split(order, clients)
        by_class = order[np.argsort(_numbered(labels, "iid:true")[order], kind="stable")]
        owner = np.empty(len(labels), np.int64)
        owner[by_class] = rng.permutation(clients)[np.arange(len(labels)) % clients]  # dealt like cards
        return _deal(owner, clients, rng)


@dataclasses.dataclass(frozen=True)
class Dirichlet(_Spelled):
    """Label skew: each class is shared among the clients in proportions drawn from Dir(alpha, …, alpha).

    As in NIID-Bench (Li et al. 2022, arXiv:2102.02079), a client that has its even share already gets none
    of the classes that follow. Small alpha: few classes a client and very unequal sizes; 100 is nearly IID.
    Where 20 draws leave a client below `min_size`, the best draw is repaired with samples of the largest
    clients (NIID-Bench, with a minimum of 10, draws on, possibly for ever).
    """

    alpha: float
    min_size: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, (int, float)) or not 0 < self.alpha < math.inf:
            raise UnalikeError(f"Dirichlet's alpha={self.alpha!r} must be a number above 0, such as 0.3.")
        _count("Dirichlet's min_size", self.min_size)

    def __call__(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = _labels(labels, clients, self.min_size, "dirichlet")
        numbered = _numbered(labels, "dirichlet")
        rng = _rng(seed, "dirichlet")
        totals = np.bincount(numbered)
        best, best_lack = None, math.inf
        for _ in range(RETRIES):
            counts = self._draw(totals, clients, rng)
            lack = np.maximum(self.min_size - counts.sum(0), 0).sum()
            if lack < best_lack:
                best, best_lack = counts, lack
            if not lack or (counts.sum(0) < self.min_size).sum() > HOPELESS:
                break
        counts = best if best is not None else counts
        _repair(counts, self.min_size)
        owner = np.empty(len(labels), np.int64)
        order = rng.permutation(len(labels))
        owner[order[np.argsort(numbered[order], kind="stable")]] = np.concatenate(
            [np.repeat(np.arange(clients), row) for row in counts]
        )
        return _deal(owner, clients, rng)

    def _draw(self, totals: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Samples of each class for each client, [classes, clients]."""
        counts = np.zeros((len(totals), clients), np.int64)
        sizes = np.zeros(clients, np.int64)
        fair = totals.sum() / clients
        for row, total in zip(counts, totals, strict=True):
            share = rng.dirichlet(np.full(clients, float(self.alpha)))
            room = np.flatnonzero(sizes < fair)
            lucky = rng.choice(room)  # drawn always, used where the proportions underflow (alpha near 0)
            mask = np.zeros(clients)
            mask[room] = 1.0
            share = share * mask
            if not share.sum() > 0:
                share[:] = 0.0
                share[lucky] = 1.0
            edges = (np.cumsum(share / share.sum()) * total).astype(np.int64)
            edges[room[-1] :] = total
            row[:] = np.diff(np.minimum(edges, total), prepend=0)
            sizes += row
        return counts


@dataclasses.dataclass(frozen=True)
class Shards(_Spelled):
    """Sort by label, cut into clients × per_client equal shards, give each client `per_client` at random.

    McMahan et al. 2017 (arXiv:1602.05629): with 2 shards most clients have two labels. Float targets work
    too.
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        _count("Shards' per_client", self.per_client)

    def __call__(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = _labels(labels, clients, self.per_client, "shards")
        rng = _rng(seed, "shards")
        shards = clients * self.per_client
        sizes = len(labels) // shards + (np.arange(shards) < len(labels) % shards)
        owner = np.empty(len(labels), np.int64)
        owner[np.argsort(labels, kind="stable")] = np.repeat(rng.permutation(shards) // self.per_client, sizes)
        return _deal(owner, clients, rng)


PARTITIONS: dict[str, type] = {"iid": IID, "dirichlet": Dirichlet, "shards": Shards}


def parse(text: str) -> Partition:
    """'dirichlet:0.1', 'shards:2', 'iid', 'iid:true': a name and its arguments in order."""
    name, *values = [piece.strip() for piece in str(text).split(":")]
    kind = PARTITIONS.get(name.lower())
    if kind is None:
        raise unknown("partition", name, PARTITIONS)
    fields = dataclasses.fields(kind)
    usage = ":".join([name.lower(), *(f.name for f in fields)])
    if len(values) > len(fields):
        raise UnalikeError(f"The partition {text!r} has {len(values)} arguments: write at most {usage!r}.")
    needed = [f.name for f in fields if f.default is dataclasses.MISSING][len(values) :]
    if needed:
        raise UnalikeError(f"The partition {text!r} lacks {needed[0]}: write {usage!r}, such as '{name.lower()}:0.3'.")
    arguments = []
    for field, value in zip(fields, values, strict=False):
        try:
            arguments.append(READERS[str(field.type)](value))
        except (ValueError, KeyError):
            raise UnalikeError(
                f"The partition {text!r} has {field.name}={value!r}: it must be {WORDS[str(field.type)]}; "
                f"write {usage!r}."
            ) from None
    return kind(*arguments)


READERS: dict[str, Callable] = {
    "float": float,
    "int": int,
    "bool": lambda v: {"true": True, "false": False}[v.lower()],
}
WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false"}


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return random.generator(check_seed(seed), "partition", purpose)


def _count(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise UnalikeError(f"{what}={value!r} must be a whole number of 1 or more.")


def _labels(labels: np.ndarray, clients: int, each: int, name: str) -> np.ndarray:
    """One-dimensional labels, enough of them for `each` a client."""
    _count("clients", clients)
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise UnalikeError(f"The partition {name!r} got labels of shape {list(labels.shape)}: they must be [n].")
    if len(labels) < clients * each:
        most = len(labels) // each
        raise UnalikeError(
            f"The partition {name!r} must give each of {clients} clients {each} or more of {len(labels)} "
            + (f"samples: ask for at most {most} clients." if most else "samples: ask for fewer samples a client.")
        )
    return labels


def _numbered(labels: np.ndarray, name: str) -> np.ndarray:
    """Labels as 0..(number of classes that occur)-1."""
    if labels.dtype.kind == "f":
        raise UnalikeError(
            f"The partition {name!r} needs class labels but these are {labels.dtype}: use 'iid' or 'shards'."
        )
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _deal(owner: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows of each client, in random order."""
    order = rng.permutation(len(owner))
    rows = order[np.argsort(owner[order], kind="stable")]
    return np.split(rows, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _repair(counts: np.ndarray, min_size: int) -> None:
    """Lift every client to min_size, in place, by samples of the commonest class of the largest clients."""
    sizes = counts.sum(0)
    poor = np.flatnonzero(sizes < min_size)
    if not len(poor):
        return
    largest = [(-int(size), int(k)) for k, size in enumerate(sizes) if size > min_size]
    heapq.heapify(largest)
    for k in poor:
        for _ in range(min_size - int(sizes[k])):
            size, giver = heapq.heappop(largest)  # never empty: there are at least clients * min_size samples
            label = counts[:, giver].argmax()
            counts[label, giver] -= 1
            counts[label, k] += 1
            if -size - 1 > min_size:
                heapq.heappush(largest, (size + 1, giver))
