"""Okamoto and Uchiyama's encryption ("A new public-key cryptosystem as secure as factoring", EUROCRYPT 1998), for sums.

    n = p² q        c = g^m h^r mod n,  h = g^n        c₁ c₂ encrypts m₁ + m₂        m = L(c^(p-1)) / L(g^(p-1)) mod p

Ciphertexts are half as long as Paillier's of the same n, and everything is twice as fast or more. **Its weakness**: who
learns what one ciphertext of his own making decrypts to has the key. Encrypt a number larger than p; the answer is that
number modulo p; the difference is a multiple of p. So it is for parties that follow the protocol, and never a default
here. Noise has short exponents, as in `paillier`, with the same further assumption.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from unalike.crypto import paillier
from unalike.errors import UnalikeError

# bits of an exponent that one row of the table of powers covers
WINDOW = 8
# longest number encrypted with the table; longer ones by a plain power
NUMBER_BITS = 512


class PublicKey:
    """The public key: encrypts, adds, puts several cells into one ciphertext."""

    def __init__(self, n: int, g: int):
        gmpy2 = _gmpy2()
        self.n, self.g = gmpy2.mpz(n), gmpy2.mpz(g)
        self.h = pow(self.g, self.n, self.n)
        self.bits = self.n.bit_length()
        self.width = (self.bits + 7) // 8  # bytes of a ciphertext

    @property
    def modulus(self) -> int:
        """Return the modulus of ciphertexts."""
        return self.n

    def encrypt(self, number: int, noise: int | None = None) -> int:
        """Return a ciphertext of a whole number."""
        return self._raised(number) * (self.noise() if noise is None else noise) % self.n

    def noise(self) -> int:
        """Return a fresh encryption of zero."""
        digits = paillier.digits_of(secrets.randbits(paillier.exponent_bits(self.bits)), WINDOW, len(self._powers_of_h))
        return paillier.raised(self._powers_of_h, digits, self.n)

    def refreshed(self, cipher: int) -> int:
        """Return another ciphertext of the same number."""
        return cipher * self.noise() % self.n

    def slots(self, slot: int) -> int:
        """Return how many cells of `slot` bits fit into one number, which must stay below p/2."""
        return (self.bits // 3 - 2) // slot

    def pack(self, ciphers: Sequence[int], slot: int) -> int:
        """Put the cells of several ciphertexts side by side into one, the first lowest."""
        out, shift = ciphers[-1], 1 << slot
        for cipher in reversed(ciphers[:-1]):
            out = pow(out, shift, self.n) * cipher % self.n
        return out

    def ciphers_to_bytes(self, ciphers: Iterable[int]) -> bytes:
        """Write ciphertexts one after another."""
        return paillier.joined_bytes(ciphers, self.width)

    def ciphers_from_bytes(self, data: bytes, count: int) -> list[int]:
        """Read `count` ciphertexts; refuse invalid bytes."""
        found = paillier.divided_bytes(data, count, self.width)
        if any(not 0 < cipher < self.n for cipher in found):
            raise UnalikeError("A ciphertext is out of range: it was made with another key.")
        return found

    def to_bytes(self) -> bytes:
        """Write the public key."""
        return b"".join(int(part).to_bytes(self.width, "little") for part in (self.n, self.g))

    @staticmethod
    def from_bytes(data: bytes, least: int = paillier.BITS) -> PublicKey:
        """Read another party's public key."""
        half = len(data) // 2
        n, g = (int.from_bytes(part, "little") for part in (data[:half], data[half:]))
        if not least - 2 <= n.bit_length() <= paillier.MOST_BITS or not 1 < g < n:
            raise UnalikeError(f"An Okamoto-Uchiyama key has {n.bit_length()} bits; {least} are wanted.")
        return PublicKey(n, g)

    def _raised(self, number: int) -> int:
        if abs(number) >> NUMBER_BITS:
            return pow(self.g, number, self.n)
        digits = paillier.digits_of(abs(number), WINDOW, NUMBER_BITS // WINDOW)
        found = paillier.raised(self._powers_of_g, digits, self.n)
        return found if number >= 0 else _gmpy2().invert(found, self.n)

    @cached_property
    def _powers_of_g(self) -> list[list[int]]:
        return paillier.powers(self.g, self.n, NUMBER_BITS, WINDOW)

    @cached_property
    def _powers_of_h(self) -> list[list[int]]:
        return paillier.powers(self.h, self.n, paillier.exponent_bits(self.bits), WINDOW)


class SecretKey(PublicKey):
    """The owner's key, which decrypts."""

    def __init__(self, p: int, q: int, g: int):
        self.p, self.squared = _gmpy2().mpz(p), _gmpy2().mpz(p) ** 2
        super().__init__(self.squared * q, g)
        self._unit = _gmpy2().invert(self._logarithm(self.g), self.p)

    def decrypt(self, cipher: int) -> int:
        """Return the number in a ciphertext, from -p/2 to p/2."""
        number = self._logarithm(cipher) * self._unit % self.p
        return int(number - self.p if 2 * number > self.p else number)

    def _logarithm(self, cipher: int) -> int:
        return (pow(cipher, self.p - 1, self.squared) - 1) // self.p


def generate(bits: int = paillier.BITS) -> SecretKey:
    """Make a new key: two primes of a third of its length."""
    if not 192 <= bits <= paillier.MOST_BITS:
        raise UnalikeError(f"A key has from 192 to {paillier.MOST_BITS} bits; got {bits}.")
    size = -(-bits // 3)
    p, q = paillier.prime(size), paillier.prime(size)
    while True:
        g = paillier.unit(p * p * q)
        if pow(g, p - 1, p * p) != 1:
            return SecretKey(p, q, g)


def _gmpy2() -> Any:
    return paillier.gmpy2_module()
