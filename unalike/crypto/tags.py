"""Tags of encrypted vectors, by which clients with a common secret know an honest sum of their vectors.

Ciphertexts that can be added can be changed by whoever adds them: a server could have one client's reply opened in
place of the sum. So each client k adds to its vector x, of whole numbers, the tags Σᵢ hᵢ·xᵢ + r_k modulo a prime, where
h and r_k come from the common secret, the label of the sum, and what was asked. Tags add up as vectors do. An opener
computes Σᵢ hᵢ·Xᵢ + Σ r_k of the sum X and of those who are said to be in it: whoever knows neither h nor r makes
another sum with these tags only by chance, once in 2^58.
(A homomorphic authenticator as of Agrawal and Boneh, 2009, each h and r used for one sum.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from unalike.crypto.masks import derived, mask

PRIME = (1 << 29) - 3
BITS = 30  # bits of a tag as a signed code
COUNT = 2  # number of tags


def tags(secret: bytes, label: bytes, client: int, vectors: Sequence[np.ndarray]) -> list[int]:
    """Return the tags of one client's vectors, int64."""
    return [(_keyed(secret, label, place, vectors) + _own(secret, label, place, client)) % PRIME for place in _places()]


def of_sum(secret: bytes, label: bytes, clients: Iterable[int], vectors: Sequence[np.ndarray]) -> list[int]:
    """Return the value that these clients' tags must add up to, modulo the prime; vectors: the sum of theirs."""
    own = [sum(_own(secret, label, place, client) for client in clients) for place in _places()]
    return [(_keyed(secret, label, place, vectors) + own[place]) % PRIME for place in _places()]


def _places() -> range:
    return range(COUNT)


def _keyed(secret: bytes, label: bytes, place: int, vectors: Sequence[np.ndarray]) -> int:
    """Return Σᵢ hᵢ·xᵢ modulo the prime."""
    total = 0
    for number, vector in enumerate(vectors):
        seed = derived(secret, b"unalike sum, weights %d %d " % (place, number) + label)
        weights = (mask(seed, len(vector)) >> np.uint32(3)).astype(np.int64) % PRIME
        total += int((weights * (vector % PRIME) % PRIME).sum())
    return total % PRIME


def _own(secret: bytes, label: bytes, place: int, client: int) -> int:
    """Return a client's r."""
    return int.from_bytes(derived(secret, b"unalike sum, own %d %d " % (place, client) + label), "big") % PRIME
