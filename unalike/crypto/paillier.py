"""Paillier's encryption: whoever has the public key can add numbers that only the key's owner can read.

Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999, with g = n + 1:

    c = (1 + m n) r^n mod n²        c₁ c₂ encrypts m₁ + m₂        c^k encrypts k m        all modulo n

A ciphertext is a plain integer (gmpy2's mpz), numbers are integers: `fixed` and `unfixed` turn reals into them. Sums
above n/2 are negative numbers (`SecretKey.decrypt`).

Two ways to make the noise r^n:

- `randomness="full"`, the textbook's: r is drawn from all units modulo n. One power with an exponent as long as n.
- `randomness="short"`, the default: h^s with h = (-y²)^n of a random y and a short random s (Damgård, Jurik, Nielsen,
  "A generalization of Paillier's public-key system with applications to electronic voting", 2010), from a table of
  h's powers; some forty times faster. **This rests on one more assumption**: that h^s with a short s (448 bits for
  keys of 2048 bits, 512 for 3072) cannot be told from h^s with a long one. Nobody knows how to tell them apart; there
  is no proof from Paillier's own assumption. Each party draws a y of its own, so nobody has to trust another's h.

Paillier hides numbers, not mistakes: ciphertexts can be changed by whoever passes them on, and everybody with the
secret key reads everything. Keys below 2048 bits are for tests. Random numbers come from `secrets`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from unalike.errors import UnalikeError, one_of

BITS = 2048
MOST_BITS = 8192
# a modulus with a factor below this is not an honest key
SMALL_FACTORS = 1 << 12
SHORT = ((2048, 448), (3072, 512), (MOST_BITS, 640))  # (bits of a key, bits of its short exponents)


class PublicKey:
    """The public key: encrypts, adds, multiplies by numbers, puts several cells into one ciphertext."""

    # bits of an exponent that one row of the table of powers covers
    window = 8

    def __init__(self, n: int, randomness: str = "short"):
        self.n = gmpy2_module().mpz(n)
        self.squared = self.n * self.n
        self.bits = self.n.bit_length()
        self.randomness = randomness
        one_of(self, "randomness", "short", "full")
        self.width = (2 * self.bits + 7) // 8  # bytes of a ciphertext

    @property
    def modulus(self) -> int:
        """Return the modulus of ciphertexts."""
        return self.squared

    def encrypt(self, number: int, noise: int | None = None) -> int:
        """Return a ciphertext of a whole number. noise: made in advance by `noise()`, to be used once."""
        return (1 + number % self.n * self.n) * (self.noise() if noise is None else noise) % self.squared

    def noise(self) -> int:
        """Return a fresh encryption of zero."""
        return self._short() if self.randomness == "short" else self._full(unit(self.n))

    def refreshed(self, cipher: int) -> int:
        """Return another ciphertext of the same number, which cannot be linked with the first."""
        return cipher * self.noise() % self.squared

    def total(self, ciphers: Iterable[int]) -> int:
        """Return a ciphertext of the sum. It has no new noise: see `refreshed`."""
        out, squared = gmpy2_module().mpz(1), self.squared
        for cipher in ciphers:
            out = out * cipher % squared
        return out

    def times(self, cipher: int, number: int) -> int:
        """Return a ciphertext of the product with a whole number."""
        return pow(cipher, number, self.squared)  # a negative power is a power of the inverse

    def plus(self, cipher: int, number: int) -> int:
        """Return a ciphertext of the sum with a known number, without new noise."""
        return cipher * (1 + number % self.n * self.n) % self.squared

    def pack(self, ciphers: Sequence[int], slot: int) -> int:
        """Put the cells of several ciphertexts side by side into one, `slot` bits each, the first lowest."""
        if len(ciphers) > self.slots(slot):
            raise UnalikeError(f"{len(ciphers)} cells of {slot} bits do not fit into a key of {self.bits} bits.")
        out, shift = ciphers[-1], 1 << slot
        for cipher in reversed(ciphers[:-1]):
            out = pow(out, shift, self.squared) * cipher % self.squared
        return out

    def slots(self, slot: int) -> int:
        """Return how many cells of `slot` bits fit into one number; two bits are reserved for its sign and n's top
        bit."""
        return (self.bits - 2) // slot

    def weighted(self, ciphers: Sequence[int], columns: Sequence[Sequence[int]]) -> list[int]:
        """Return a ciphertext of Σ numberᵢ·cipherᵢ for each column of whole numbers.

        Bucket method (Pippenger): numbers are cut into digits, and ciphertexts with the same digit are multiplied
        first. That takes about a fifth of the time of one power per number.
        """
        total = self.total(ciphers)
        return [self._weighted(ciphers, [int(v) for v in column], total) for column in columns]

    def ciphers_to_bytes(self, ciphers: Iterable[int]) -> bytes:
        """Write ciphertexts one after another, `width` bytes each."""
        return joined_bytes(ciphers, self.width)

    def ciphers_from_bytes(self, data: bytes, count: int) -> list[int]:
        """Read `count` ciphertexts; refuse invalid bytes."""
        return self.checked(divided_bytes(data, count, self.width))

    def checked(self, ciphers: list[int]) -> list[int]:
        """Return the ciphertexts; raise if one is out of range or shares a factor with the key."""
        product = gmpy2_module().mpz(1)
        for cipher in ciphers:
            if not 0 < cipher < self.squared:
                raise UnalikeError("A ciphertext is out of range: it was made with another key.")
            product = product * cipher % self.n
        if math.gcd(int(product), int(self.n)) != 1:
            raise UnalikeError("A ciphertext has a factor in common with the key: it is none.")
        return ciphers

    def to_bytes(self) -> bytes:
        """Write the public key."""
        return int(self.n).to_bytes((self.bits + 7) // 8, "little")

    @staticmethod
    def from_bytes(data: bytes, least: int = BITS, randomness: str = "short") -> PublicKey:
        """Read another party's public key; refuse one that is too short or cannot be a product of two primes."""
        gmpy2, n = gmpy2_module(), int.from_bytes(data[: MOST_BITS // 8 + 1], "little")
        if not least <= n.bit_length() <= MOST_BITS:
            raise UnalikeError(f"A Paillier key has {n.bit_length()} bits; {least} to {MOST_BITS} are accepted.")
        if gmpy2.gcd(n, gmpy2.primorial(SMALL_FACTORS)) != 1 or gmpy2.is_prime(n) or gmpy2.is_power(n):
            raise UnalikeError("A Paillier key must be a product of two large primes; this one is not.")
        return PublicKey(n, randomness)

    @cached_property
    def _base(self) -> int:
        """Return the base h of short exponents, from this party's own random y."""
        return self._full(-(unit(self.n) ** 2) % self.n)

    @cached_property
    def _table(self) -> list[list[int]]:
        return powers(self._base, self.squared, exponent_bits(self.bits), self.window)

    def _full(self, unit: int) -> int:
        return pow(unit, self.n, self.squared)

    def _short(self) -> int:
        digits = digits_of(secrets.randbits(exponent_bits(self.bits)), self.window, len(self._table))
        return raised(self._table, digits, self.squared)

    def _weighted(self, ciphers: Sequence[int], numbers: list[int], total: int) -> int:
        least = min(numbers, default=0)
        out, squared = self._buckets(ciphers, [number - least for number in numbers]), self.squared
        return out * pow(total, least, squared) % squared

    def _buckets(self, ciphers: Sequence[int], numbers: list[int]) -> int:
        """Return the ciphertext of Σ numberᵢ·cipherᵢ for numbers that are not negative."""
        window = max(2, len(ciphers).bit_length() - 3)
        windows = -(-max(numbers, default=0).bit_length() // window)
        out, squared = gmpy2_module().mpz(1), self.squared
        for digits in reversed(list(zip(*(digits_of(n, window, windows) for n in numbers), strict=True))):
            buckets: list[int] = [gmpy2_module().mpz(1)] * (1 << window)
            for digit, cipher in zip(digits, ciphers, strict=True):
                if digit:
                    buckets[digit] = buckets[digit] * cipher % squared
            out = pow(out, 1 << window, squared) * _bucket_sum(buckets, squared) % squared
        return out


class SecretKey(PublicKey):
    """The owner's key: it decrypts, and encrypts faster than the public key can, modulo p² and q² separately."""

    window = 11

    def __init__(self, p: int, q: int, randomness: str = "short"):
        gmpy2 = gmpy2_module()
        self.p, self.q = gmpy2.mpz(p), gmpy2.mpz(q)
        super().__init__(self.p * self.q, randomness)
        if p == q or gmpy2.gcd(self.n, (self.p - 1) * (self.q - 1)) != 1:
            raise UnalikeError("A Paillier key needs two different primes of the same length.")
        self.p_squared, self.q_squared = self.p * self.p, self.q * self.q
        self._p_of_squares = gmpy2.invert(self.p_squared, self.q_squared)
        self._p_of_primes = gmpy2.invert(self.p, self.q)
        self._unit_p, self._unit_q = (self._unit(prime, prime * prime) for prime in (self.p, self.q))

    @property
    def public(self) -> PublicKey:
        """Return the key for others."""
        return PublicKey(self.n, self.randomness)

    def decrypt(self, cipher: int) -> int:
        """Return the number in a ciphertext, from -n/2 to n/2."""
        p, q = self.p, self.q
        at_p = (pow(cipher, p - 1, self.p_squared) - 1) // p * self._unit_p % p
        at_q = (pow(cipher, q - 1, self.q_squared) - 1) // q * self._unit_q % q
        number = at_p + p * ((at_q - at_p) * self._p_of_primes % q)
        return int(number - self.n if 2 * number > self.n else number)

    def secret_to_bytes(self) -> bytes:
        """Return both primes as bytes, for a file that only the owner can read."""
        length = (self.bits + 7) // 8
        return b"".join(int(prime).to_bytes(length, "little") for prime in (self.p, self.q))

    @staticmethod
    def secret_from_bytes(data: bytes, randomness: str = "short") -> SecretKey:
        """Read one's own secret key."""
        primes = [int.from_bytes(half, "little") for half in (data[: len(data) // 2], data[len(data) // 2 :])]
        if len(data) % 2 or not all(gmpy2_module().is_prime(prime) for prime in primes):
            raise UnalikeError("This is no secret Paillier key.")
        return SecretKey(primes[0], primes[1], randomness)

    def _unit(self, prime: int, squared: int) -> int:
        return gmpy2_module().invert((pow(self.n + 1, prime - 1, squared) - 1) // prime, prime)

    def _joined(self, at_p: int, at_q: int) -> int:
        return at_p + self.p_squared * ((at_q - at_p) * self._p_of_squares % self.q_squared)

    def _full(self, unit: int) -> int:
        return self._joined(pow(unit, self.n, self.p_squared), pow(unit, self.n, self.q_squared))

    @cached_property
    def _powers_apart(self) -> tuple[list[list[int]], list[list[int]]]:
        bits = exponent_bits(self.bits)
        squares = (self.p_squared, self.q_squared)
        at_p, at_q = (powers(self._base % squared, squared, bits, self.window) for squared in squares)
        return at_p, at_q

    def _short(self) -> int:
        at_p, at_q = self._powers_apart
        digits = digits_of(secrets.randbits(exponent_bits(self.bits)), self.window, len(at_p))
        return self._joined(raised(at_p, digits, self.p_squared), raised(at_q, digits, self.q_squared))


def generate(bits: int = BITS, randomness: str = "short") -> SecretKey:
    """Make a new key: two primes of half its length, both 3 modulo 4, as the short exponents require."""
    if not 64 <= bits <= MOST_BITS or bits % 2:
        raise UnalikeError(f"A Paillier key has an even number of bits from 64 to {MOST_BITS}; got {bits}.")
    while True:
        p, q = prime(bits // 2), prime(bits // 2)
        if p != q and math.gcd(p - 1, q - 1) == 2 and (p * q).bit_length() == bits:
            return SecretKey(p, q, randomness)


def fixed(value: float, bits: int) -> int:
    """Return a real number as a whole multiple of 2^-bits."""
    if not math.isfinite(value):
        raise UnalikeError(f"Only finite numbers can be encrypted; got {value}.")
    return round(math.ldexp(value, bits))


def unfixed(number: int, bits: int) -> float:
    """Undo `fixed`: return the real number; exact as far as a float can hold it."""
    return number / (1 << bits)


def joined(cells: Sequence[int], slot: int) -> int:
    """Put signed cells side by side into one number, `slot` bits each, the first lowest."""
    if any(not -(1 << slot - 1) <= cell < 1 << slot - 1 for cell in cells):
        raise UnalikeError(f"A cell does not fit into {slot} bits with its sign.")
    return sum(int(cell) << slot * place for place, cell in enumerate(cells))


def divided(number: int, slot: int, count: int) -> list[int]:
    """Return the signed cells of a number made by `joined` or `pack`; a negative cell borrows from the next."""
    cells, half = [], 1 << slot - 1
    for _ in range(count):
        cell = (number + half) % (1 << slot) - half
        cells.append(cell)
        number = (number - cell) >> slot
    return cells


def joined_bytes(ciphers: Iterable[int], width: int) -> bytes:
    """Write ciphertexts one after another, `width` bytes each."""
    return b"".join(int(cipher).to_bytes(width, "little") for cipher in ciphers)


def divided_bytes(data: bytes, count: int, width: int) -> list[int]:
    """Read `count` ciphertexts of `width` bytes; the key checks whether they are valid."""
    if len(data) != count * width:
        raise UnalikeError(f"{count} ciphertexts take {count * width} bytes; got {len(data)}.")
    mpz = gmpy2_module().mpz
    return [mpz(int.from_bytes(data[i : i + width], "little")) for i in range(0, len(data), width)]


def exponent_bits(bits: int) -> int:
    """Return the bits of a key's short exponents."""
    return next(short for most, short in SHORT if bits <= most)


def unit(n: int) -> int:
    """Return a random number that has no factor in common with n."""
    while True:
        found = secrets.randbelow(int(n))
        if math.gcd(found, int(n)) == 1:
            return gmpy2_module().mpz(found)


def powers(base: int, modulus: int, bits: int, window: int) -> list[list[int]]:
    """Return the table of base^(digit · 2^(window · row)), from which `raised` computes any power with an exponent of
    `bits` bits."""
    table = []
    for _ in range(-(-bits // window)):
        row = [gmpy2_module().mpz(1)]
        for _ in range((1 << window) - 1):
            row.append(row[-1] * base % modulus)
        table.append(row)
        base = row[-1] * base % modulus
    return table


def raised(table: list[list[int]], digits: Iterable[int], modulus: int) -> int:
    """Return the power whose exponent has these digits."""
    out = 1
    for row, digit in zip(table, digits, strict=True):
        out = out * row[digit] % modulus
    return out


def digits_of(number: int, window: int, count: int) -> list[int]:
    """Cut a number into `count` digits of `window` bits, the lowest first."""
    mask = (1 << window) - 1
    return [number >> shift & mask for shift in range(0, window * count, window)]


def _bucket_sum(buckets: list[int], modulus: int) -> int:
    """Return Π bucket_d^d with two products for each bucket."""
    running = out = gmpy2_module().mpz(1)
    for bucket in reversed(buckets[1:]):
        running = running * bucket % modulus
        out = out * running % modulus
    return out


def prime(bits: int) -> int:
    """Draw a prime of `bits` bits that is 3 modulo 4; its top two bits are set, so that a product has full length."""
    while True:
        candidate = secrets.randbits(bits) | 3 << bits - 2 | 3
        if gmpy2_module().is_prime(candidate, 40):
            return candidate


def gmpy2_module(what: str = "Paillier's encryption") -> Any:
    """Return the package gmpy2, or raise an error that names what needs it."""
    try:
        import gmpy2
    except ImportError:
        raise UnalikeError(f"{what} needs gmpy2: pip install 'unalike[vertical]'.") from None
    return gmpy2
