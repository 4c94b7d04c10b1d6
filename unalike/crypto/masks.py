"""Masks: the seed that two clients share, and the long vector generated from a seed.

A pair's seed is X25519, then HKDF-SHA256 to 16 bytes. A mask is AES-128 in counter mode from a zero counter, read as
little-endian words: 5 GB a second with AES instructions, ten times NumPy's generators, and with the full 128 bits of
secrecy.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Sequence
from typing import Any

import numpy as np

from unalike.errors import UnalikeError

SEED = 16  # bytes
# bytes of a mask handled at a time: they stay in the cache
BLOCK = 1 << 18
# masks handled side by side: each takes some memory
STREAMS = 1 << 11
ZEROS = bytes(BLOCK)


def public_of(private: bytes) -> bytes:
    """Return the public key of a private X25519 key, 32 bytes each."""
    return _private(private).public_key().public_bytes_raw()


def agreement(private: bytes, public: bytes) -> bytes:
    """Return the secret shared by the owners of two X25519 keys; derive keys from it, never use it as one."""
    return agreements(private, [public])[0]


def agreements(private: bytes, publics: Sequence[bytes]) -> list[bytes]:
    """Return the secrets that the owner of a private key shares with each of these public keys; loading the private key
    costs as much as one of them, so it is done once."""
    (_, x25519), own = _cryptography(), _private(private)
    try:
        return [own.exchange(x25519.X25519PublicKey.from_public_bytes(public)) for public in publics]
    except ValueError:
        raise UnalikeError("A public key of another client is none.") from None


def _private(private: bytes) -> Any:
    _, x25519 = _cryptography()
    return x25519.X25519PrivateKey.from_private_bytes(private)


def derived(secret: bytes, info: bytes, size: int = SEED) -> bytes:
    """Return HKDF-SHA256 of a secret, up to 32 bytes, for the purpose that `info` names."""
    return expanded(extracted(secret), info, size)


def extracted(secret: bytes) -> bytes:
    """Return the first half of HKDF-SHA256 (RFC 5869, without salt): the same for every purpose."""
    return hmac.digest(bytes(32), secret, "sha256")


def expanded(key: bytes, info: bytes, size: int = SEED) -> bytes:
    """Return the second half of HKDF-SHA256 of an extracted key, up to 32 bytes."""
    return hmac.digest(key, info + b"\x01", "sha256")[:size]


def pair_seed(private: bytes, public: bytes, info: bytes) -> bytes:
    """Return the seed that two clients share for a purpose; each computes it from its own private key."""
    return derived(agreement(private, public), info)


def add_mask(total: np.ndarray, seed: bytes, minus: bool = False) -> None:
    """Add the mask of a seed to a vector of uint32 or uint64, in place, modulo its word size; minus: subtract it."""
    add_masks([total], [(seed, minus)])


def add_masks(vectors: Sequence[np.ndarray], seeds: Sequence[tuple[bytes, bool]]) -> None:
    """Add the masks of several seeds to vectors, in place; each seed comes with whether its mask is subtracted. A mask
    is one stream, which goes on from one vector to the next."""
    for some in range(0, len(seeds), STREAMS):
        streams = [(_stream(seed), np.subtract if minus else np.add) for seed, minus in seeds[some : some + STREAMS]]
        for vector in vectors:
            _pass(vector, streams)


def _pass(total: np.ndarray, streams: Sequence[tuple[Any, Any]]) -> None:
    """Add the next bytes of streams to a vector: block by block, so that the sum stays in the processor's cache while
    all masks pass."""
    step, kind = BLOCK // total.itemsize, total.dtype.newbyteorder("<")
    block = np.empty(min(BLOCK, total.nbytes) + 15, dtype=np.uint8)
    for start in range(0, len(total), step):
        part = total[start : start + step]
        length = ZEROS[: part.nbytes]
        for stream, change in streams:
            count = stream.update_into(length, block)
            change(part, block[:count].view(kind), out=part)


def mask(seed: bytes, size: int, kind: Any = np.uint32) -> np.ndarray:
    """Return the mask of a seed with `size` words."""
    total = np.zeros(size, dtype=kind)
    add_mask(total, seed)
    return total


def _stream(seed: bytes) -> Any:
    ciphers, _ = _cryptography()
    return ciphers.Cipher(ciphers.algorithms.AES(seed), ciphers.modes.CTR(bytes(16))).encryptor()


@functools.cache
def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import ciphers
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers import algorithms, modes  # noqa: F401 (attributes of ciphers)
    except ModuleNotFoundError:
        raise UnalikeError("Secure sums need the package cryptography: pip install 'unalike[privacy]'.") from None
    return ciphers, x25519
