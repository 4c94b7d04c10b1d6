"""CKKS for sums only (tenseal, extra `he`): approximate sums of long vectors of real numbers under encryption.

Two moduli are enough to add; the three of the tutorials cost 1.8 times the bytes. The error of a sum is some 1e-6 with
a public key and 1e-7 with a symmetric one, where numbers are of the order of 1.

Whoever has the secret key reads every ciphertext it gets. There are no threshold keys here: with one key among the
clients, one client that works with the server opens everybody (`who_opens`). A secure sum has no such key, and costs a
tenth of the bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from unalike.errors import UnalikeError

DEGREE, MODULI, SCALE = 4096, [60, 49], 2**35
SLOTS = DEGREE // 2  # numbers in a ciphertext


class Keys:
    """A secret key and its context. symmetric: one key encrypts and decrypts, four times as fast; else those without
    the secret key can encrypt too."""

    def __init__(self, symmetric: bool = False):
        ts = tenseal()
        kind = ts.ENCRYPTION_TYPE.SYMMETRIC if symmetric else ts.ENCRYPTION_TYPE.ASYMMETRIC
        with _quiet():
            self.context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, -1, MODULI, kind)
        self.context.global_scale = SCALE
        self.symmetric = symmetric

    def public(self) -> bytes:
        """Return what those get who may add, and with a public key encrypt, but not open."""
        return self.context.serialize(save_secret_key=False)

    def decrypted(self, ciphers: Sequence[bytes], numbers: int) -> np.ndarray:
        """Return the numbers of the ciphertexts."""
        ts = tenseal()
        parts = [ts.ckks_vector_from(self.context, cipher).decrypt() for cipher in ciphers]
        return np.concatenate([np.asarray(part) for part in parts] or [np.empty(0)])[:numbers]


def context_of(public: bytes) -> Any:
    """Return the context of those who have no secret key."""
    try:
        return tenseal().context_from(public)
    except (ValueError, RuntimeError, TypeError):
        raise UnalikeError("These bytes are no public key of CKKS.") from None


def encrypted(context: Any, numbers: np.ndarray) -> list[bytes]:
    """Return the ciphertexts of a vector."""
    ts = tenseal()
    parts = [numbers[a : a + SLOTS] for a in range(0, len(numbers), SLOTS)]
    return [ts.ckks_vector(context, part.tolist()).serialize() for part in parts]


def added(context: Any, clients: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the ciphertexts of the sum over clients."""
    ts, out = tenseal(), []
    for column in zip(*clients, strict=True):
        first, *rest = (ts.ckks_vector_from(context, cipher) for cipher in column)
        for other in rest:
            first.add_(other)
        out.append(first.serialize())
    return out


def who_opens(clients: int, symmetric: bool) -> str:
    """Return in words who holds the key, and who together can open what."""
    server = "no key at all" if symmetric else "the public one"
    return (
        f"all {clients} clients hold the secret key, the server {server}: the server sees ciphertexts; together with "
        "any one client it opens everybody's reply"
    )


def tenseal() -> Any:
    """Return the package."""
    try:
        import tenseal
    except ModuleNotFoundError:
        raise UnalikeError("CKKS needs the package tenseal: pip install 'unalike[he]'.") from None
    return tenseal


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep the package's remark that so few moduli cannot multiply, which comes from C++, off the screen."""
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)
