"""Partitions that ignore labels, or spread every class evenly."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from unalike.data.partition.pieces import Dealer, SizeLaw
from unalike.data.partition.tools import above_zero, apportion, checked, deal, generator, number, numbered, repair


@dataclasses.dataclass(frozen=True)
class IID(Dealer):
    """Shuffle and cut into equal parts (sizes differ by one at most); `balanced`: every class evenly too."""

    name: ClassVar[str] = "iid"
    balanced: bool = False

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = checked(labels, clients, 1, "iid")
        rng = generator(seed, "iid")
        order = rng.permutation(len(labels))
        if not self.balanced:
            return np.array_split(order, clients)
        by_class = order[np.argsort(numbered(labels, "iid:true")[order], kind="stable")]
        owner = np.empty(len(labels), np.int64)
        owner[by_class] = rng.permutation(clients)[np.arange(len(labels)) % clients]  # dealt in turn, like cards
        return deal(owner, clients, rng)


@dataclasses.dataclass(frozen=True)
class PowerLaw(SizeLaw):
    """Quantity skew: the k-th client (from 1) has a share in proportion to k^-exponent; labels at random.

    Client 0 is the largest. 0 is equal sizes, 1 Zipf's law; a share below one sample becomes one, taken from the
    largest clients. No paper's: for sizes drawn at random use LogNormal.
    """

    name: ClassVar[str] = "power-law"
    exponent: float

    def __post_init__(self) -> None:
        super().__post_init__()
        number("PowerLaw's exponent", self.exponent, 0, 100, 1.5)

    def sizes(self, n: int, clients: int, seed: int) -> np.ndarray:
        sizes = apportion(np.arange(1, clients + 1) ** -float(self.exponent), n)
        repair(sizes[None], 1)
        return sizes


@dataclasses.dataclass(frozen=True)
class Quantity(SizeLaw):
    """Quantity skew: sizes in proportion to a draw from Dir(alpha, …, alpha) over the clients; labels at random.

    NIID-Bench's quantity skew (Li et al. 2022, arXiv:2102.02079; there alpha 0.5). It draws again until every client
    has 10 samples, possibly for ever; here the first draw is taken, and a client without a sample gets one of the
    largest.
    """

    name: ClassVar[str] = "quantity"
    alpha: float

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero("Quantity's alpha", self.alpha)

    def sizes(self, n: int, clients: int, seed: int) -> np.ndarray:
        rng = generator(seed, "quantity sizes")
        lucky = rng.integers(clients)
        shares = rng.dirichlet(np.full(clients, min(float(self.alpha), 1e6)))
        if not shares.sum() > 0:  # alpha near 0: all shares underflowed
            shares = np.eye(clients)[lucky]
        sizes = apportion(shares, n)
        repair(sizes[None], 1)
        return sizes
