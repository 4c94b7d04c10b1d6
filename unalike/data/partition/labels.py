"""Partitions by label."""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from typing import ClassVar

import numpy as np

from unalike.data.partition import tools
from unalike.data.partition.pieces import Dealer
from unalike.data.partition.tools import checked, count, deal, deal_counts, generator, numbered
from unalike.draws import check_seed
from unalike.errors import UnalikeError, one_of

# draws of Dirichlet before its clients are repaired
RETRIES = 20
# if more clients than this are below min_size, another draw would not help
HOPELESS = 50


@dataclasses.dataclass(frozen=True)
class Dirichlet(Dealer):
    """Label skew: each class is shared among the clients in proportions drawn from Dir(alpha, …, alpha).

    As in NIID-Bench (Li et al. 2022, arXiv:2102.02079), a client that has its even share already gets none
    of the classes that follow. Small alpha: few classes per client and very unequal sizes; 100 is nearly IID.
    Where 20 draws leave a client below `min_size`, the best draw is repaired with samples of the largest
    clients (NIID-Bench, with a minimum of 10, draws on, possibly for ever). With min_size 0 the first draw is taken
    as it is: clients may then be empty, and Dataset.split must be told drop_empty=True.
    """

    name: ClassVar[str] = "dirichlet"
    alpha: float
    min_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.above_zero("Dirichlet's alpha", self.alpha)
        count("Dirichlet's min_size", self.min_size, least=0)

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = checked(labels, clients, max(self.min_size, 1), "dirichlet")
        classes = numbered(labels, "dirichlet")
        rng = generator(seed, "dirichlet")
        totals = np.bincount(classes)
        best, best_lack = None, math.inf
        for _ in range(RETRIES):
            counts = self._draw(totals, clients, rng)
            lack = np.maximum(self.min_size - counts.sum(0), 0).sum()
            if lack < best_lack:
                best, best_lack = counts, lack
            if not lack or (counts.sum(0) < self.min_size).sum() > HOPELESS:
                break
        counts = best if best is not None else counts
        tools.repair(counts, self.min_size)
        return deal_counts(classes, counts, rng)

    def _draw(self, totals: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the number of samples of each class for each client, [classes, clients]."""
        counts = np.zeros((len(totals), clients), np.int64)
        sizes = np.zeros(clients, np.int64)
        fair = totals.sum() / clients
        for row, total in zip(counts, totals, strict=True):
            share = rng.dirichlet(np.full(clients, float(self.alpha)))
            room = np.flatnonzero(sizes < fair)
            # always drawn, but used only if the proportions underflow (alpha near 0)
            lucky = rng.choice(room)
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
class Shards(Dealer):
    """Sort by label, cut into clients × per_client equal shards, give each client `per_client` at random.

    McMahan et al. 2017 (arXiv:1602.05629): with 2 shards most clients have two labels. Float targets work
    too.
    """

    name: ClassVar[str] = "shards"
    per_client: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        count("Shards' per_client", self.per_client)

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = checked(labels, clients, self.per_client, "shards")
        rng = generator(seed, "shards")
        shards = clients * self.per_client
        sizes = len(labels) // shards + (np.arange(shards) < len(labels) % shards)
        owner = np.empty(len(labels), np.int64)
        owner[np.argsort(labels, kind="stable")] = np.repeat(rng.permutation(shards) // self.per_client, sizes)
        return deal(owner, clients, rng)


@dataclasses.dataclass(frozen=True)
class Classes(Dealer):
    """Every client has samples of exactly `per_client` classes, drawn at random.

    NIID-Bench's #C=c (Li et al. 2022, arXiv:2102.02079): a class is shared evenly among its owners. There client k
    owns class k mod K and c-1 random ones, so that sizes are left to chance and, with fewer clients than classes, a
    class may be left without owner and unused. Here a class has owners in proportion to its samples (no more than
    it has samples), which makes sizes as even as even shares allow, and every class has an owner.
    """

    name: ClassVar[str] = "classes"
    per_client: int

    def __post_init__(self) -> None:
        super().__post_init__()
        count("Classes' per_client", self.per_client)

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        each = self.per_client
        labels = checked(labels, clients, each, self.name)
        classes = numbered(labels, self.name)
        totals = np.bincount(classes)
        wanted = f"The partition {str(self)!r} must give each of {clients} clients {each} of {len(totals)} classes"
        if each > len(totals):
            raise UnalikeError(f"{wanted}: ask for at most {len(totals)} classes per client.")
        if clients * each < len(totals):
            raise UnalikeError(f"{wanted}, which leaves classes without a client: ask for more classes or clients.")
        if np.minimum(totals, clients).sum() < clients * each:
            raise UnalikeError(f"{wanted}, but small classes have too few samples: ask for fewer classes or clients.")
        rng = generator(seed, self.name)
        owners = _owners(totals, clients, each)
        counts = _owned(owners, clients, each, rng) * (totals // owners)[:, None]
        sizes = counts.sum(0)
        for row, spare in zip(counts, totals % owners, strict=True):  # one more for the smallest of a class's owners
            mine = np.flatnonzero(row)
            mine = mine[np.argsort(sizes[mine], kind="stable")[:spare]]
            row[mine] += 1
            sizes[mine] += 1
        return deal_counts(classes, counts, rng)


def _owners(totals: np.ndarray, clients: int, each: int) -> np.ndarray:
    """Return the number of clients that own each class: at least 1, in proportion to its samples, at most its
    samples."""
    owners = np.ones(len(totals), np.int64)
    most = np.minimum(totals, clients)
    share = [(-float(total), label) for label, total in enumerate(totals) if most[label] > 1]
    heapq.heapify(share)
    for _ in range(clients * each - len(totals)):
        label = heapq.heappop(share)[1]
        owners[label] += 1
        if owners[label] < most[label]:
            heapq.heappush(share, (-totals[label] / owners[label], label))
    return owners


def _owned(owners: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Return 0/1 [classes, clients]: `each` random classes per client, `owners[k]` clients per class.

    A class that still needs as many owners as there are clients left goes to all of them, so the draw always succeeds.
    """
    owned = np.zeros((len(owners), clients), np.int64)
    left = owners.copy()
    for k in range(clients):
        key = np.full(len(owners), np.inf)
        np.divide(rng.exponential(size=len(owners)), left, out=key, where=left > 0)
        key[left == clients - k] = -1.0
        mine = np.argsort(key, kind="stable")[:each]
        owned[mine, k] = 1
        left[mine] -= 1
    return owned


@dataclasses.dataclass(frozen=True)
class Similarity(Dealer):
    """A share of the samples is dealt at random, the rest sorted by label and dealt in contiguous slices.

    rFedAvg's "similarity" (Wang et al., ICDE 2023): 1 is IID, 0 gives each client one or two labels where there are
    more clients than classes. With leftovers="drop" this is index for index the authors' program after
    random.seed(seed): both parts are cut into slices of equal length, and what is left over (fewer than clients
    samples of each part, in the sorted one of the last labels) is not used. The default "spread" gives it to the
    clients, one each in turn.
    `train_and_test` deals test samples in the same way, the random stream going on, as the authors do.
    """

    name: ClassVar[str] = "similarity"
    share: float
    leftovers: str = "spread"

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.number("Similarity's share", self.share, 0, 1, 0.1)
        one_of(self, "leftovers", "spread", "drop")

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = checked(labels, clients, 1, self.name)
        stream = random.Random(check_seed(seed))
        return self._deal(labels, self._shuffled(labels, stream), clients)

    def train_and_test(
        self, labels: np.ndarray, test_labels: np.ndarray, clients: int, seed: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the training rows and test rows of each client; a client may have no test rows."""
        labels = checked(labels, clients, 1, self.name)
        stream = random.Random(check_seed(seed))
        order, test_order = self._shuffled(labels, stream), self._shuffled(test_labels, stream)
        return self._deal(labels, order, clients), self._slices(test_labels, test_order, clients)

    def _shuffled(self, labels: np.ndarray, stream: random.Random) -> np.ndarray:
        order = list(range(len(labels)))
        stream.shuffle(order)
        return np.array(order, np.int64)

    def _deal(self, labels: np.ndarray, order: np.ndarray, clients: int) -> list[np.ndarray]:
        parts = self._slices(labels, order, clients)
        if not min(len(part) for part in parts):
            raise UnalikeError(
                f"The partition {str(self)!r} leaves clients empty, with {clients} clients for {len(labels)} samples: "
                "ask for fewer clients or leftovers='spread'."
            )
        return parts

    def _slices(self, labels: np.ndarray, order: np.ndarray, clients: int) -> list[np.ndarray]:
        mixed, rest = np.split(order, [round(self.share * len(order))])
        rest = rest[np.argsort(labels[rest], kind="stable")]
        more = np.zeros((2, clients), np.int64)
        if self.leftovers == "spread":  # the second part's begin where the first part's ended: sizes differ by one
            first, second = len(mixed) % clients, len(rest) % clients
            more[0, :first] = 1
            more[1, (first + np.arange(second)) % clients] = 1
        halves = [
            np.split(part, np.cumsum(len(part) // clients + extra))[:clients]
            for part, extra in zip((mixed, rest), more, strict=True)
        ]
        return [np.concatenate(pair) for pair in zip(*halves, strict=True)]


@dataclasses.dataclass(frozen=True)
class PowerLawClasses(Dealer):
    """Client k has the classes k, k+1, … (mod K), `classes` of them, in very unequal amounts.

    `form` "mnist" is FedProx's MNIST (Li et al. 2020, arXiv:1812.06127, generate_niid.py; there 1000 clients of 2
    digits): 5 samples of each of the client's classes, then the rest of a class in proportions lognormal(0, 2).
    "letters" is its FEMNIST of the letters a to j (my_sample.py; 200 clients, 5 letters each in FedFa's table): a
    client's size is lognormal(4, 1) + 5, the same of each of its classes, at least 2. The authors' sampler goes back
    to a class's first images again and again, so their clients share images; here they never do.

    Every sample is used once: proportions are scaled to what there is of each class. leftovers="drop" is nearer
    to the authors: "mnist" rounds every amount down (they use 69,035 of 70,000 samples), "letters" keeps the sizes as
    drawn where a class suffices. Which samples go where is ours: the authors' files were made without a seed.
    """

    name: ClassVar[str] = "power-law-classes"
    classes: int = 2
    form: str = "mnist"
    leftovers: str = "spread"

    def __post_init__(self) -> None:
        super().__post_init__()
        count("PowerLawClasses' classes", self.classes)
        one_of(self, "form", "mnist", "letters")
        one_of(self, "leftovers", "spread", "drop")

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = checked(labels, clients, 1, self.name)
        classes = numbered(labels, self.name)
        totals = np.bincount(classes)
        kinds = len(totals)
        wanted = f"The partition {str(self)!r} must give each of {clients} clients {self.classes} of {kinds} classes"
        if self.classes > kinds:
            raise UnalikeError(f"{wanted}: ask for at most {kinds} classes per client.")
        if clients + self.classes - 1 < kinds:
            raise UnalikeError(
                f"{wanted}, which leaves classes without a client: ask for at least {kinds - self.classes + 1} clients."
            )
        rng = generator(seed, self.name)
        owners = (np.arange(clients)[:, None] + np.arange(self.classes)) % kinds  # [clients, classes per client]
        least, weights = self._drawn(clients, rng)
        counts = np.zeros((kinds, clients + 1), np.int64)  # the last column counts samples that no client gets
        for label, total in enumerate(totals):
            mine = owners == label
            room = int(total - least * mine.sum())
            if room < 0:
                raise UnalikeError(
                    f"{wanted}, at least {least} samples of each, but a class has {total} samples for {mine.sum()} "
                    "clients: ask for fewer clients."
                )
            counts[label, :-1][mine.any(1)] = least + self._amounts(weights[mine], room)
            counts[label, -1] = total - counts[label].sum()
        return deal_counts(classes, counts, rng)[:-1]

    def _drawn(self, clients: int, rng: np.random.Generator) -> tuple[int, np.ndarray]:
        """Draw the number of samples that every client gets of each of its classes, and the size of the additional
        part."""
        if self.form == "mnist":
            return 5, rng.lognormal(0, 2, (clients, self.classes))
        each = np.maximum((rng.lognormal(4, 1, clients) + 5) / self.classes - 2, 0)
        return 2, np.repeat(each[:, None], self.classes, axis=1)

    def _amounts(self, weights: np.ndarray, room: int) -> np.ndarray:
        if self.leftovers == "spread":
            return tools.apportion(weights, room)
        scale = room / weights.sum() if self.form == "mnist" else min(1.0, room / max(weights.sum(), 1e-9))
        return np.floor(weights * scale).astype(np.int64)
