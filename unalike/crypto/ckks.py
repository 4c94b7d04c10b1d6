"""CKKS (tenseal, extra `he`): approximate sums of long vectors of real numbers under encryption.

`ADDING`: two moduli are enough to add; the three of the tutorials, which `MULTIPLYING` by plain numbers takes, cost 1.8
times the bytes. The error of a sum is some 1e-6 with a public key and 1e-7 with a symmetric one, where numbers are of
the order of 1.

Whoever has the secret key reads every ciphertext it gets. There are no threshold keys here: with one key among the
clients, one client that works with the server opens everybody (`who_opens`). A secure sum has no such key, and costs a
tenth of the bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses as dc
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from unalike.errors import UnalikeError

MOST_BYTES = 1 << 20  # most bytes of one ciphertext
# length before each ciphertext, if several travel together
LENGTH = struct.Struct("<I")


@dc.dataclass(frozen=True)
class Parameters:
    """The ring's degree, the bits of the moduli, the scale; rotations: needed to add a ciphertext's own numbers up."""

    degree: int
    moduli: tuple[int, ...]
    scale: int
    rotations: bool = False

    @property
    def slots(self) -> int:
        """Return how many numbers a ciphertext holds."""
        return self.degree // 2


ADDING = Parameters(4096, (60, 49), 2**35)
MULTIPLYING = Parameters(8192, (60, 40, 60), 2**40, rotations=True)
SLOTS = ADDING.slots


class Keys:
    """A secret key and its context. symmetric: one key encrypts and decrypts, four times as fast; otherwise parties
    without the secret key can encrypt too."""

    def __init__(self, symmetric: bool = False, parameters: Parameters = ADDING):
        ts = tenseal()
        kind = ts.ENCRYPTION_TYPE.SYMMETRIC if symmetric else ts.ENCRYPTION_TYPE.ASYMMETRIC
        with _quiet():
            self.context = ts.context(ts.SCHEME_TYPE.CKKS, parameters.degree, -1, list(parameters.moduli), kind)
        self.context.global_scale = parameters.scale
        if parameters.rotations:
            self.context.generate_galois_keys()
        self.symmetric = symmetric

    @classmethod
    def of(cls, secret: bytes, symmetric: bool) -> Keys:
        """Return the keys that `secret` wrote."""
        found = cls.__new__(cls)
        with _quiet():
            found.context = context_of(secret)
        found.symmetric = symmetric
        if not found.context.has_secret_key():
            raise UnalikeError("These bytes are no secret key of CKKS.")
        return found

    def secret(self) -> bytes:
        """Return the bytes for those who may encrypt and decrypt."""
        return self.context.serialize(
            save_public_key=not self.symmetric, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
        )

    def public(self) -> bytes:
        """Return the bytes for those who may add and, with a public key, encrypt, but not decrypt."""
        return self.context.serialize(save_secret_key=False)

    def decrypted(self, ciphers: Sequence[bytes], numbers: int) -> np.ndarray:
        """Return the numbers of the ciphertexts."""
        parts = [vector_of(self.context, cipher).decrypt() for cipher in ciphers]
        return np.concatenate([np.asarray(part) for part in parts] or [np.empty(0)])[:numbers]


def context_of(public: bytes) -> Any:
    """Return the context for those who have no secret key."""
    try:
        return tenseal().context_from(public)
    except (ValueError, RuntimeError, TypeError):
        raise UnalikeError("These bytes are no key of CKKS.") from None


def vector_of(context: Any, cipher: bytes) -> Any:
    """Return a ciphertext as an object that can be computed with."""
    try:
        vector = tenseal().ckks_vector_from(context, cipher)
    except (ValueError, RuntimeError, TypeError):
        vector = None
    if vector is None or not vector.size():  # no bytes at all would be read as no numbers
        raise UnalikeError("These bytes are no ciphertext of this CKKS key.")
    return vector


def encrypted(context: Any, numbers: np.ndarray, slots: int = SLOTS) -> list[bytes]:
    """Return the ciphertexts of a vector. slots: as in the key's parameters."""
    ts = tenseal()
    parts = [numbers[a : a + slots] for a in range(0, len(numbers), slots)]
    return [ts.ckks_vector(context, part.tolist()).serialize() for part in parts]


def added(context: Any, clients: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the ciphertexts of the sum over clients."""
    out = []
    for column in zip(*clients, strict=True):
        first, *rest = (vector_of(context, cipher) for cipher in column)
        for other in rest:
            first.add_(other)
        out.append(first.serialize())
    return out


def joined(ciphers: Sequence[bytes]) -> bytes:
    """Write ciphertexts one after another, each with its length before it."""
    return b"".join(LENGTH.pack(len(cipher)) + cipher for cipher in ciphers)


def divided(data: bytes, count: int | None = None) -> list[bytes]:
    """Return the ciphertexts that `joined` wrote; refuse other bytes, and a number of them other than `count`."""
    at = 0
    parts: list[bytes] = []
    while at + LENGTH.size <= len(data) and (count is None or len(parts) < count):
        (length,) = LENGTH.unpack_from(data, at)
        if length > MOST_BYTES:
            break
        parts.append(data[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    if at != len(data) or (count is not None and len(parts) != count):
        raise UnalikeError("These bytes are not the ciphertexts asked for.")
    return parts


def who_opens(clients: int, symmetric: bool) -> str:
    """Return in words who holds the key, and who together can open what."""
    server = "no key at all" if symmetric else "the public one"
    return (
        f"all {clients} clients hold the secret key, the server {server}: the server sees ciphertexts; together with "
        "any one client it opens everybody's reply"
    )


def tenseal() -> Any:
    """Return the package tenseal, or raise an error that says how to install it."""
    try:
        import tenseal
    except ModuleNotFoundError:
        raise UnalikeError("CKKS needs the package tenseal: pip install 'unalike[he]'.") from None
    return tenseal


@contextlib.contextmanager
def _quiet() -> Any:
    """Suppress the package's C++ message that so few moduli cannot multiply."""
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)
