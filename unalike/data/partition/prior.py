"""Partitions of the FedDyn and FedDC programs, index for index, from NumPy's legacy random stream."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from unalike.data.partition.pieces import Dealer, SizeLaw
from unalike.data.partition.tools import above_zero, checked, number, numbered, repair
from unalike.draws import check_seed

# redraws that PriorDirichlet allows per data set, plus 1,000 per sample
REDRAWS = 5_000_000
# samples that count for this: those of a million would take half a minute
COUNTED = 150_000
# words of the random stream that are read ahead
BLOCK = 1 << 16


@dataclasses.dataclass(frozen=True)
class LogNormal(SizeLaw):
    """Quantity skew: sizes in proportion to lognormal(log(n / clients), sigma) draws; labels at random.

    Index for index the "iid" of FedDyn's and FedDC's programs (Acar et al., ICLR 2021; Gao et al., CVPR 2022) for
    the same seed: they use sigma 0 (balanced) and 0.3 (unbalanced). Their arithmetic is kept:
    sizes are truncated to whole numbers and client 0 gets what is left, so that 50,000 samples over 100 clients at
    sigma 0 are 599 for client 0 and 499 for each other. Every sample is used. Only a client that would be empty
    differs: it gets one sample of the largest.
    """

    name: ClassVar[str] = "lognormal"
    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        number("LogNormal's sigma", self.sigma, 0, 20, 0.3)

    def sizes(self, n: int, clients: int, seed: int) -> np.ndarray:
        stream = legacy(seed)
        # the authors' programs draw the order first
        stream.permutation(n)
        return _sizes(stream, n, clients, self.sigma)

    def order(self, n: int, seed: int) -> np.ndarray:
        return legacy(seed).permutation(n)


@dataclasses.dataclass(frozen=True)
class PriorDirichlet(Dealer):
    """Label skew: each client draws its own class proportions from Dir(alpha, …, alpha), then its samples by them.

    Index for index what FedDyn's and FedDC's programs give for the same seed (Acar et al., ICLR 2021; Gao et al.,
    CVPR 2022; there 0.3 and 0.6), sizes as in LogNormal(sigma). Unlike in Dirichlet sizes do not
    depend on alpha, and late in the dealing clients must take the classes that are left. A random client with room
    draws a label from its proportions, again where the class is used up, until all samples are dealt.

    Their program redraws for ever when a client's proportions have only used-up classes left, and for hours when
    these have next to nothing else. Here a data set has 5,000,000 redraws and 1,000 more for each of its first 150,000
    samples. Where more are to be expected, the draw is made from the proportions of what is left, evenly where these
    are all 0: the same distribution, no longer the same stream. Of 50,000 samples in ten even classes over 100 clients
    that happens at alpha 0.6 with no seed of twelve, at 0.3 with six (on which theirs would run for half an hour to
    days) and at 0.1 with all.
    """

    name: ClassVar[str] = "prior-dirichlet"
    alpha: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero("PriorDirichlet's alpha", self.alpha)
        number("PriorDirichlet's sigma", self.sigma, 0, 20, 0.3)

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = checked(labels, clients, 1, self.name)
        classes = numbered(labels, self.name)
        stream = legacy(seed)
        order = stream.permutation(len(labels))
        sizes = _sizes(stream, len(labels), clients, self.sigma)
        kinds = int(classes.max()) + 1
        priors = stream.dirichlet([min(float(self.alpha), 1e6)] * kinds, size=clients)
        for k in np.flatnonzero(~np.isfinite(priors[:, 0])):  # alpha near 0: all proportions underflowed
            priors[k] = np.eye(kinds)[stream.randint(kinds)]
        return _sample_by_sample(stream, order, classes[order], sizes, priors)


def legacy(seed: int) -> np.random.RandomState:
    """Return the generator that np.random.seed(seed) starts; a seed beyond 32 bits is passed as two words."""
    seed = check_seed(seed)
    return np.random.RandomState(seed if seed < 1 << 32 else [seed & 0xFFFFFFFF, seed >> 32])


def _sizes(stream: np.random.RandomState, n: int, clients: int, sigma: float) -> np.ndarray:
    drawn = stream.lognormal(np.log(n // clients), sigma, clients)
    sizes = (drawn / np.sum(drawn) * n).astype(np.int64)
    sizes[0] += n - sizes.sum()
    repair(sizes[None], 1)
    return sizes


class _Words:
    """The 32-bit words of a legacy stream, read ahead, and the draws that RandomState makes from them.

    This lets millions of redraws be handled as arrays. NumPy has frozen this stream and its use (NEP 19).
    """

    def __init__(self, stream: np.random.RandomState):
        self.stream, self.block, self.at, self.length = stream, np.empty(0, np.uint32), 0, 0
        # gives Python numbers, and faster than the array does
        self.view: memoryview = self.block.data

    def ahead(self, count: int) -> np.ndarray:
        """Return the next `count` words without using them up."""
        if self.at + count > self.length:
            fresh = self.stream.randint(0, 1 << 32, max(BLOCK, count), dtype=np.uint32)
            self.block, self.at = np.concatenate([self.block[self.at :], fresh]), 0
            self.view, self.length = self.block.data, len(self.block)
        return self.block[self.at : self.at + count]

    def below(self, limit: int, mask: int) -> int:
        """Draw randint(limit): take words, cut to the bits that matter, until one is small enough."""
        while mask:
            if self.at >= self.length:
                self.ahead(1)
            self.at += 1
            value = self.view[self.at - 1] & mask
            if value < limit:
                return value
        return 0

    def uniform(self) -> float:
        """Draw random_sample() from two words."""
        if self.at + 2 > self.length:
            self.ahead(2)
        self.at += 2
        return ((self.view[self.at - 2] >> 5) * 67108864 + (self.view[self.at - 1] >> 6)) / 9007199254740992

    def skip(self, words: int, good: Callable[[np.ndarray], np.ndarray], most: int) -> int:
        """Skip to the first draw (of `words` words) that is good; return the number of draws skipped, `most` if all."""
        passed, size = 0, 64
        while passed < most:
            hit = good(self.ahead(words * min(size, most - passed)))
            first = int(hit.argmax())
            found = bool(hit[first])
            step = first if found else len(hit)
            self.at += words * step
            passed += step
            if found:
                break
            size = min(4 * size, BLOCK)
        return passed


def _sample_by_sample(
    stream: np.random.RandomState, order: np.ndarray, classes: np.ndarray, sizes: np.ndarray, priors: np.ndarray
) -> list[np.ndarray]:
    """Deal rows to clients of these sizes, one by one; `classes` are the classes of the rows in `order`."""
    clients, kinds = priors.shape
    words = _Words(stream)
    sums = np.cumsum(priors, axis=1)
    edges = sums.tolist()
    by_class = [order[classes == label].tolist() for label in range(kinds)]  # taken from the end
    parts, room = [np.empty(size, np.int64) for size in sizes], sizes.tolist()  # filled from the end
    mask = (1 << (clients - 1).bit_length()) - 1
    free = np.arange(mask + 1) < clients  # clients that have room
    open_clients = clients
    redraws = REDRAWS + 1000 * min(len(order), COUNTED)

    for _ in range(len(order)):
        k = words.below(clients, mask)
        if not room[k]:
            passed = redraws
            if open_clients * redraws > clients:
                passed = words.skip(1, lambda ahead: free[ahead & mask], redraws)
            redraws -= passed
            k = words.below(clients, mask) if redraws else _pick(free.astype(np.float64), words.uniform())
        label = bisect.bisect_left(edges[k], words.uniform()) % kinds  # a number beyond the last edge means class 0
        if not by_class[label]:
            left = np.array([bool(rows) for rows in by_class])
            chances = np.where(left, priors[k], 0.0)
            passed = redraws
            if chances.sum() * redraws > 1:
                passed = words.skip(2, _falls_on(left, sums[k]), redraws)
            redraws -= passed
            if redraws:
                label = bisect.bisect_left(edges[k], words.uniform()) % kinds
            else:
                label = _pick(chances if chances.sum() > 1e-300 else left.astype(np.float64), words.uniform())
        room[k] -= 1
        parts[k][room[k]] = by_class[label].pop()
        if not room[k]:
            free[k] = False
            open_clients -= 1
    return parts


def _falls_on(left: np.ndarray, edges: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that tells whether uniform draws (two words each) hit a class that has samples left."""
    spans = [(edges[label - 1] if label else -1.0, edges[label]) for label in np.flatnonzero(left)]
    if left[0]:
        spans.append((edges[-1], 1.0))

    def good(words: np.ndarray) -> np.ndarray:
        drawn = ((words[0::2] >> 5) * 67108864.0 + (words[1::2] >> 6)) / 9007199254740992
        hit = np.zeros(len(drawn), bool)
        for start, stop in spans:
            hit |= (drawn > start) & (drawn <= stop)
        return hit

    return good


def _pick(weights: np.ndarray, uniform: float) -> int:
    """Return one of the indices with a positive weight, in proportion to the weights."""
    edges = np.cumsum(weights)
    return int(np.searchsorted(edges, uniform * edges[-1], side="right"))
