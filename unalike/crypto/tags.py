"""Tags of encrypted vectors, by which clients with a common secret know an honest sum of their vectors.

Ciphertexts that can be added can be changed by whoever adds them: a server could have one client's reply opened in
place of the sum. So each reply k adds to its vector x, of whole numbers, the tags Σᵢ hᵢ·xᵢ + r_k modulo primes, where h
and r_k come from the common secret and the label of the sum, which stands for what was asked; r_k also from the row of
the reply in the list of all (`votes.Reply`: whose it is, and a number used once). Tags add up as vectors do. An opener
computes Σᵢ hᵢ·Xᵢ + Σ r_k of the sum X and of the replies that are said to be in it.

A tag does not show a change by a multiple of its prime. So the primes differ: a change below 2^63 is a multiple of two
of them at most, and whoever knows neither h nor r meets the other three only by chance, once in 2^77.
(A homomorphic authenticator as of Agrawal and Boneh, 2009, each h and r used for one sum.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from unalike.crypto.masks import derived, mask

PRIMES = tuple((1 << 26) - less for less in (5, 27, 45, 87, 101))
COUNT = len(PRIMES)
BITS = 27  # bits of a tag as a signed code


def tags(secret: bytes, label: bytes, reply: bytes, vectors: Sequence[np.ndarray]) -> list[int]:
    """Return the tags of one reply's vectors, int64."""
    return of_sum(secret, label, [reply], vectors)


def of_sum(secret: bytes, label: bytes, replies: Iterable[bytes], vectors: Sequence[np.ndarray]) -> list[int]:
    """Return the values that the tags of these replies must add up to, each modulo its prime; vectors: the sum of
    theirs."""
    rows = [*replies]
    own = [sum(_own(secret, label, place, row) for row in rows) for place in range(COUNT)]
    return [(_keyed(secret, label, place, vectors) + own[place]) % prime for place, prime in enumerate(PRIMES)]


def reduced(totals: Sequence[int]) -> list[int]:
    """Return sums of tags, each modulo its prime."""
    return [total % prime for total, prime in zip(totals, PRIMES, strict=True)]


def _keyed(secret: bytes, label: bytes, place: int, vectors: Sequence[np.ndarray]) -> int:
    """Return Σᵢ hᵢ·xᵢ modulo the place's prime."""
    total, prime = 0, PRIMES[place]
    for number, vector in enumerate(vectors):
        seed = derived(secret, b"unalike sum, weights %d %d " % (place, number) + label)
        weights = mask(seed, len(vector)).astype(np.int64) % prime
        total += int((weights * (vector % prime) % prime).sum())
    return total % prime


def _own(secret: bytes, label: bytes, place: int, row: bytes) -> int:
    """Return a reply's r."""
    return int.from_bytes(derived(secret, b"unalike sum, own %d " % place + label + row), "big") % PRIMES[place]
