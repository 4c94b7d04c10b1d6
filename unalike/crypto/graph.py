"""Who shares masks with whom (SecAgg+, Bell et al. 2020), and how many neighbours and what threshold to choose.

Everybody with everybody costs a client n masks and the server n²; with k neighbours each it is k and n·k. Neighbours
are the next k/2 on either side of a ring, in an order that nobody can foresee, so that nobody can surround a client.

Bounds, over the draw of the order, of n clients of which a share γ works with the server and a share δ is lost:

    privacy       n · P(t or more of k neighbours corrupt)          < 2^-40
    completion    n · P(fewer than t of k neighbours survive)       < 2^-30
    connection    n · P(k/2 in a row lost or corrupt)              < 2^-40
    a lying server: t > k/2 as well, else it could tell two halves of the neighbours two stories; and privacy and
                  connection must hold in every order that it may try before it asks (the seed of the order is a hash,
                  and part of what is hashed is the server's to choose)
"""

from __future__ import annotations

import dataclasses as dc
import hashlib
import math
from collections.abc import Sequence

from unalike.errors import UnalikeError

PRIVACY, COMPLETION = 2.0**-40, 2.0**-30


@dc.dataclass(frozen=True)
class Choice:
    """neighbours: number of neighbours of each client, k; threshold: how many of them open a secret, t."""

    neighbours: int
    threshold: int


class Lattice:
    """The neighbours of each client on a ring. order: of the clients; degree: number of neighbours of each."""

    def __init__(self, clients: Sequence[int], degree: int, seed: bytes):
        if not 1 <= degree < len(clients):
            raise UnalikeError(f"{len(clients)} clients have 1 to {len(clients) - 1} neighbours each; got {degree}.")
        if degree % 2 and degree < len(clients) - 1:
            raise UnalikeError(f"neighbours must be even, half on either side; got {degree}.")
        self.degree = degree
        self._order = sorted(clients, key=lambda client: hashlib.sha256(seed + client.to_bytes(8, "big")).digest())
        self._place = {client: place for place, client in enumerate(self._order)}
        # a server asks for each client's several times
        self._known: dict[int, tuple[int, ...]] = {}
        self._near: dict[int, frozenset[int]] = {}

    def of(self, client: int) -> tuple[int, ...]:
        """Return the neighbours of a client, in ascending order."""
        if client not in self._known:
            self._known[client] = self._find(client)
        return self._known[client]

    def near(self, client: int) -> frozenset[int]:
        """Return the neighbours of a client, as a set."""
        if client not in self._near:
            self._near[client] = frozenset(self.of(client))
        return self._near[client]

    def _find(self, client: int) -> tuple[int, ...]:
        if self.degree == len(self._order) - 1:
            return tuple(sorted(other for other in self._order if other != client))
        place, half = self._place[client], self.degree // 2
        steps = [step for step in range(-half, half + 1) if step]
        return tuple(sorted(self._order[(place + step) % len(self._order)] for step in steps))


def choose(clients: int, lost: float, corrupt: float, lying: bool = True, tries: float = 1) -> Choice:
    """Return the fewest neighbours, and the lowest threshold, with which all bounds hold; all clients if there is no
    such number. tries: orders that a lying server may try; 2^80 are more than anyone can."""
    if clients < 3 or not (lost >= 0 and corrupt >= 0 and lost + corrupt < 1):
        raise UnalikeError("Neighbours are chosen for 3 clients or more, of which not all are lost or corrupt.")
    if tries < 1 or (tries > 1 and not lying):
        raise UnalikeError(f"tries is 1, or more for a server that lies; got {tries!r}.")
    privacy = PRIVACY / tries
    bad, gone = math.floor(corrupt * clients), math.ceil(lost * clients)
    for degree in range(2, clients - 1, 2):
        threshold = _threshold(clients, degree, bad, gone, lying, privacy)
        if threshold and clients * math.exp(_in_a_row(clients, bad + gone, degree // 2)) < privacy:
            return Choice(degree, threshold)
    return Choice(clients - 1, default_threshold(clients - 1))


def _threshold(clients: int, degree: int, bad: int, gone: int, lying: bool, privacy: float) -> int:
    """Return the lowest threshold for this many neighbours; 0 if there is none."""
    corrupt, surviving = (_chances(clients - 1, marked, degree) for marked in (bad, clients - gone - 1))
    threshold = degree // 2 + 1 if lying else 1
    while threshold <= degree and clients * math.fsum(corrupt[threshold:]) >= privacy:
        threshold += 1
    return threshold if clients * math.fsum(surviving[:threshold]) < COMPLETION else 0


def _chances(population: int, marked: int, drawn: int) -> list[float]:
    """Return the probability of each number of marked items among the drawn, from 0 (hypergeometric)."""
    whole = _log_choose(population, drawn)
    ways = (_log_choose(marked, k) + _log_choose(population - marked, drawn - k) for k in range(drawn + 1))
    return [math.exp(way - whole) for way in ways]


def _in_a_row(clients: int, marked: int, places: int) -> float:
    """Return the logarithm of the probability that these places of a random order are all marked."""
    return _log_choose(clients - places, marked - places) - _log_choose(clients, marked)


def _log_choose(whole: int, part: int) -> float:
    if not 0 <= part <= whole:
        return -math.inf
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)


def default_threshold(neighbours: int) -> int:
    """Return the threshold if every client is every other's neighbour: more than two thirds of the neighbours."""
    return max(1, 2 * neighbours // 3 + 1)


def corrupt_borne(neighbours: int, threshold: int) -> int:
    """Return how many neighbours may collude with a lying server without giving it both secrets of a client: each other
    neighbour gives one of the two, so the server needs 2t of k + c shares. A negative result: two different lists alone
    give it both."""
    return 2 * threshold - neighbours - 1


def least_opened(clients: int, threshold: int, corrupt: int) -> int:
    """Return the smallest number of honest clients whose sum a lying server can open, if every client is every other's
    neighbour and each is told a different list of those who came.

    To leave a client out of the sum the server needs t − c honest shares of its masking key. Each of h = n − c honest
    clients reports at most n − 1 − t others as lost, because it requires t present. So at most h (n − 1 − t) / (t − c)
    are left out.
    """
    honest = clients - corrupt
    if threshold <= corrupt:
        return 0
    return max(0, honest - honest * (clients - 1 - threshold) // (threshold - corrupt))
