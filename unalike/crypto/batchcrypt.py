"""Packed Paillier sums after BatchCrypt (Zhang et al., ATC 2020): many small codes in one ciphertext.

A signed code of b bits lies in a slot of b bits and ⌈log₂ n⌉ for padding, so that the sum of n clients never reaches
the next slot. The paper has two's complement; here an offset of 2^(b-1) - 1 makes all codes positive, which adds up the
same. Clipping and rounding to codes are the channel's stages (`clip`, `quantise:8:LIMIT`).

Whoever has the secret key reads every ciphertext it gets: with one key among the clients, one client that works with
the server opens everybody. `who_opens` says it.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Sequence

import numpy as np

from unalike.crypto.paillier import PublicKey, SecretKey
from unalike.crypto.ring import carry_bits
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Packing:
    """How codes are packed. bits: per code; clients: most that are summed; key_bits: of the Paillier key."""

    bits: int
    clients: int
    key_bits: int

    @property
    def slot(self) -> int:
        """Return the bits of a slot."""
        return self.bits + carry_bits(self.clients)

    @property
    def slots(self) -> int:
        """Return the number of codes in a ciphertext."""
        return (self.key_bits - 2) // self.slot

    @property
    def offset(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def count(self, numbers: int) -> int:
        """Return how many ciphertexts `numbers` codes take."""
        return math.ceil(numbers / self.slots)

    def packed(self, codes: np.ndarray) -> list[int]:
        """Return codes as plain numbers, the first code in the lowest bits."""
        if np.abs(codes).max(initial=0) > self.offset:
            raise UnalikeError(f"Codes of {self.bits} bits lie in [-{self.offset}, {self.offset}].")
        shifted = [int(code) + self.offset for code in codes]
        rows = [shifted[a : a + self.slots] for a in range(0, len(shifted), self.slots)]
        return [sum(code << self.slot * place for place, code in enumerate(row)) for row in rows]

    def unpacked(self, plain: Sequence[int], numbers: int, summed: int) -> np.ndarray:
        """Return the sums of codes over `summed` clients."""
        mask = (1 << self.slot) - 1
        found = [int(p) >> self.slot * place & mask for p in plain for place in range(self.slots)][:numbers]
        total = np.array(found, dtype=np.int64) - summed * self.offset
        if (np.abs(total) > summed * self.offset).any():
            raise UnalikeError("A packed sum runs over its slots: a client sent codes that are too large.")
        return total

    def encrypted(self, key: PublicKey, codes: np.ndarray) -> list[int]:
        """Return the ciphertexts of one client's codes."""
        return [key.encrypt(number) for number in self.packed(codes)]

    def added(self, key: PublicKey, clients: Sequence[Sequence[int]]) -> list[int]:
        """Return the ciphertexts of the sum."""
        if len(clients) > self.clients:
            raise UnalikeError(f"{len(clients)} clients are summed, and slots are for {self.clients}.")
        return [key.total(column) for column in zip(*clients, strict=True)]

    def decrypted(self, key: SecretKey, ciphers: Sequence[int], numbers: int, summed: int) -> np.ndarray:
        """Return the sums of the codes."""
        return self.unpacked([key.decrypt(cipher) % key.n for cipher in ciphers], numbers, summed)


def who_opens(clients: int) -> str:
    """Return in words who holds the key, and who together can open what."""
    return (
        f"all {clients} clients hold the secret key, the server the public one: the server sees ciphertexts; together "
        "with any one client it opens everybody's reply"
    )
