"""Vectors of whole codes under encryption: encrypted by a client, added by a server without a key, opened by a client.

`Paillier` packs codes after BatchCrypt. `Ckks` is an approximate scheme used exactly: codes are scaled so that the
error of a sum stays far below half a code, and whoever opens rounds. So a sum has the same bits as in the clear, and
the error, which would tell of the secret key to who sees it beside the ciphertext (Li and Micciancio 2021), never
leaves an opener.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from unalike.crypto import ckks
from unalike.crypto.batchcrypt import Packing
from unalike.crypto.common_key import PAILLIER, CommonKey
from unalike.crypto.paillier import PublicKey, SecretKey
from unalike.crypto.ring import carry_bits
from unalike.errors import UnalikeError

# bytes of one ciphertext with its length, padded with zeros: its own are about 65,676
CKKS_BYTES = 65_728
RANGE = 24  # bits of the largest number of a CKKS vector: the modulus has 60, the scale 35, and one is the sign's
# bits of a sum of codes over up to 1,024 clients: the error is then below a tenth of a code
CKKS_BITS = 38


@dc.dataclass(frozen=True)
class Vector:
    """What both ends know about a vector of codes: their number, the bits of each, the clients of the sum."""

    count: int
    bits: int
    clients: int

    @property
    def sum_bits(self) -> int:
        """Return the bits of a sum of codes."""
        return self.bits + carry_bits(self.clients)


class Adder(Protocol):
    """The server's part: it has no secret key."""

    def read(self, data: bytes, vector: Vector) -> list[Any]:
        """Return the ciphertexts of a vector; refuse invalid bytes."""
        ...

    def plus(self, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        """Return the ciphertexts of the sum of two vectors."""
        ...

    def written(self, ciphers: Sequence[Any]) -> bytes:
        """Return ciphertexts as the bytes that `read` reads."""
        ...


class Opener(Adder, Protocol):
    """A client's part: it has the secret key too."""

    def encrypted(self, codes: np.ndarray, vector: Vector) -> bytes:
        """Return the bytes of one client's codes, encrypted."""
        ...

    def opened(self, ciphers: Sequence[Any], vector: Vector, summed: int) -> np.ndarray:
        """Return the codes, summed over `summed` clients."""
        ...


# ---------------------------------------------------------------- Paillier


class PaillierAdder:
    """Adds under a Paillier public key."""

    def __init__(self, key: PublicKey):
        self.key = key

    def packing(self, vector: Vector) -> Packing:
        """Return how codes are packed into ciphertexts."""
        return Packing(vector.bits, vector.clients, self.key.bits)

    def read(self, data: bytes, vector: Vector) -> list[Any]:
        return self.key.ciphers_from_bytes(data, self.packing(vector).count(vector.count))

    def plus(self, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        return [self.key.total(pair) for pair in zip(one, other, strict=True)]

    def written(self, ciphers: Sequence[Any]) -> bytes:
        return self.key.ciphers_to_bytes(ciphers)


class PaillierOpener(PaillierAdder):
    """Has the secret key, which also makes encrypting faster."""

    def __init__(self, key: SecretKey):
        super().__init__(key)
        self.secret = key

    def encrypted(self, codes: np.ndarray, vector: Vector) -> bytes:
        return self.written(self.packing(vector).encrypted(self.key, codes))

    def opened(self, ciphers: Sequence[Any], vector: Vector, summed: int) -> np.ndarray:
        return self.packing(vector).decrypted(self.secret, ciphers, vector.count, summed)


# ---------------------------------------------------------------- CKKS


class CkksAdder:
    """Adds CKKS ciphertexts: this needs no key at all, only the parameters, which are the same for all."""

    def __init__(self, context: Any = None):
        self.context = ckks.Keys(symmetric=True).context if context is None else context

    def read(self, data: bytes, vector: Vector) -> list[Any]:
        count = math.ceil(vector.count / ckks.SLOTS)
        if len(data) != count * CKKS_BYTES:
            raise UnalikeError(f"{count} ciphertexts take {count * CKKS_BYTES} bytes; got {len(data)}.")
        return [self._one(data[a : a + CKKS_BYTES]) for a in range(0, len(data), CKKS_BYTES)]

    def _one(self, data: bytes) -> Any:
        (length,) = ckks.LENGTH.unpack_from(data)
        found = ckks.vector_of(self.context, data[ckks.LENGTH.size : ckks.LENGTH.size + length])
        parts = found.ciphertext()
        if found.size() != ckks.SLOTS or [(part.size(), part.scale) for part in parts] != [(2, ckks.ADDING.scale)]:
            raise UnalikeError("A ciphertext of CKKS is not as long, or not in the unit, that was agreed.")
        return found

    def plus(self, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        return [a + b for a, b in zip(one, other, strict=True)]

    def written(self, ciphers: Sequence[Any]) -> bytes:
        return b"".join(_framed(cipher.serialize()) for cipher in ciphers)


class CkksOpener(CkksAdder):
    """Has the secret key."""

    def __init__(self, keys: ckks.Keys):
        super().__init__(keys.context)

    def encrypted(self, codes: np.ndarray, vector: Vector) -> bytes:
        whole = np.zeros(math.ceil(len(codes) / ckks.SLOTS) * ckks.SLOTS)
        whole[: len(codes)] = codes * _factor(vector)
        return b"".join(map(_framed, ckks.encrypted(self.context, whole)))

    def opened(self, ciphers: Sequence[Any], vector: Vector, summed: int) -> np.ndarray:
        numbers = np.concatenate([np.asarray(cipher.decrypt()) for cipher in ciphers])[: vector.count] / _factor(vector)
        codes = np.rint(numbers)
        most = summed * ((1 << vector.bits - 1) - 1)
        if np.abs(numbers - codes).max(initial=0) > 0.25 or np.abs(codes).max(initial=0) > most:
            raise UnalikeError("A sum under CKKS is no sum of whole codes: a client, or the server, broke the rules.")
        return codes.astype(np.int64)


def exact_bits(clients: int) -> int:
    """Return the bits of a sum that CKKS adds exactly: the error grows with the root of the number of clients."""
    return CKKS_BITS - max(0, math.ceil((carry_bits(clients) - 10) / 2))


def _factor(vector: Vector) -> float:
    """Return the factor for codes with which their sum is as large as the modulus allows."""
    most = exact_bits(vector.clients)
    if vector.sum_bits > most:
        raise UnalikeError(
            f"A sum of codes of {vector.bits} bits over {vector.clients} clients has {vector.sum_bits} bits, and CKKS "
            f"adds {most} exactly: take fewer bits or clients, or paillier or secure-sum."
        )
    return 2.0 ** (RANGE - vector.sum_bits)


def _framed(cipher: bytes) -> bytes:
    """Return a ciphertext with its length, padded to a fixed size: how well it compresses must not be visible."""
    framed = ckks.joined([cipher])
    if len(framed) > CKKS_BYTES:
        raise UnalikeError(f"A ciphertext of CKKS has {len(cipher)} bytes, more than it ever should.")
    return framed.ljust(CKKS_BYTES, b"\0")


# ---------------------------------------------------------------- both


@functools.lru_cache(maxsize=2)
def opener(key: CommonKey) -> PaillierOpener | CkksOpener:
    """Return a client's part under a common key; clients in one process have the same, and its tables of powers."""
    return PaillierOpener(key.paillier()) if key.scheme == PAILLIER else CkksOpener(key.ckks())


def cipher_bytes(scheme: str, vector: Vector, key_bits: int) -> int:
    """Return the bytes of an encrypted vector. key_bits: of a Paillier key."""
    if scheme == PAILLIER:
        return Packing(vector.bits, vector.clients, key_bits).count(vector.count) * (2 * key_bits // 8)
    return math.ceil(vector.count / ckks.SLOTS) * CKKS_BYTES
