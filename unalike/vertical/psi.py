"""Private set intersection: which ids two parties have in common, and nothing about the others.

Each party hashes its ids to points of Curve25519 and multiplies them by a secret number of its own (X25519). Both
numbers together give the same point for the same id, in either order; without both, a point tells nothing (the
decisional Diffie-Hellman assumption).

    guest → host    a·H(i), in the order of the points themselves, which is no order of the ids
    host → guest    b·H(j), likewise, and b·(a·H(i)) in the guest's order
    guest           computes a·(b·H(j)), sees which are among b·(a·H(i)), and tells the host which of its own are

Both learn the size of the other's set and who is in both. Neither learns more, if both keep to the protocol. Whoever
takes part can put ids in that it only guesses (all phone numbers of a town): that is what registered keys and the
printed report are for, not cryptography.

Points must be on the curve and not on its twist: multiplication keeps a point where it is, so every id would show one
bit.
"""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.crypto.paillier import gmpy2_module
from unalike.errors import UnalikeError

LABEL = b"unalike psi 1"
PRIME = 2**255 - 19
WIDTH = 32  # bytes of a point
MOST = 50_000_000  # most ids of one party


class Side:
    """One party's half: its points in the order in which they are sent, and its secret number."""

    def __init__(self, ids: Sequence[str], key: bytes | None = None):
        self._key = secrets.token_bytes(WIDTH) if key is None else key
        once = masked([point(one) for one in ids], self._key)
        order = sorted(range(len(once)), key=once.__getitem__)
        self.order = np.array(order, np.int64)  # for each point sent, its row
        self.once = as_tensor([once[k] for k in order])

    def twice(self, points: Tensor, who: str) -> Tensor:
        """Return another party's points multiplied by this party's number too, in their order."""
        return as_tensor(masked(as_points(points, who), self._key))


def normal(text: str, fold_case: bool = False) -> str:
    """Return an id in the form in which it is compared: composed characters, no surrounding spaces, optionally in lower
    case."""
    text = unicodedata.normalize("NFC", text).strip()
    return text.casefold() if fold_case else text


def point(one: str) -> bytes:
    """Hash an id to a point of the curve: the first of SHA-256's attempts that is one."""
    legendre, data = gmpy2_module("Matching ids").legendre, LABEL + one.encode()
    for counter in range(256):
        u = int.from_bytes(hashlib.sha256(bytes([counter]) + data).digest(), "little") & (1 << 255) - 1
        if u < PRIME and legendre((u * (u * (u + 486662) + 1)) % PRIME, PRIME) == 1:
            return u.to_bytes(WIDTH, "little")
    raise UnalikeError("An id could not be hashed to the curve.")  # probability 2^-256


def masked(points: Iterable[bytes], key: bytes) -> list[bytes]:
    """Multiply points by a secret number."""
    x25519 = _x25519()
    own, public = x25519.X25519PrivateKey.from_private_bytes(key), x25519.X25519PublicKey.from_public_bytes
    try:
        return [own.exchange(public(one)) for one in points]
    except ValueError:
        raise UnalikeError("a point is of low order: it is nobody's id.") from None


def as_tensor(points: Sequence[bytes]) -> Tensor:
    """Write points as bytes [n, 32]."""
    return torch.frombuffer(bytearray(b"".join(points)), dtype=torch.uint8).reshape(-1, WIDTH) if points else _none()


def as_points(points: Tensor, who: str) -> list[bytes]:
    """Read another party's points: bytes [n, 32], all different."""
    if points.dtype != torch.uint8 or points.dim() != 2 or points.shape[1] != WIDTH or len(points) > MOST:
        raise UnalikeError(f"{who} sent points of shape {list(points.shape)}: they must be bytes, {WIDTH} each.")
    data = points.contiguous().numpy().tobytes()
    found = [data[k : k + WIDTH] for k in range(0, len(data), WIDTH)]
    if len(set(found)) < len(found):
        raise UnalikeError(f"{who} sent a point twice: its ids must be different.")
    return found


def matches(own_twice: Tensor, their_twice: Tensor, who: str) -> list[tuple[int, int]]:
    """Return pairs of positions (own, theirs) with equal points, in the order of the points."""
    theirs = {one: k for k, one in enumerate(as_points(their_twice, who))}
    pairs = [(one, k, theirs[one]) for k, one in enumerate(as_points(own_twice, who)) if one in theirs]
    return [(mine, other) for _, mine, other in sorted(pairs)]


def _none() -> Tensor:
    return torch.zeros(0, WIDTH, dtype=torch.uint8)


def _x25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError:
        raise UnalikeError("Matching ids needs cryptography: pip install 'unalike[vertical]'.") from None
    return x25519
