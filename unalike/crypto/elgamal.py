"""Additive ElGamal whose key nobody holds: small forms of two papers' schemes for sums of a few whole numbers.

    Zhu et al. (2021)      each client has x_k, the public key is H = Π g^x_k. E(m) = (g^r, g^m H^r). A sum is opened by
                           everybody, each sending (Π g^r)^x_k; no dealer. One client lost while opening: nothing opens.
    Truex et al. (2019)    t of n open: each client deals Shamir shares of its x_k to all, so that everybody holds a
                           share of Σ x_k. Each client adds noise of the variance σ²/t to what it encrypts, t honest
                           clients' shares of it are the whole: fewer corrupt than n − t + 1 cannot take it off.

A sum m comes out as g^m and is found in a table: it must be small. One number costs two powers and two group elements
(512 bytes at 2048 bits): masks or packed Paillier are hundreds of times cheaper. Kept to reproduce the papers.
"""

from __future__ import annotations

import dataclasses as dc
import math
import secrets
from collections.abc import Mapping, Sequence

from unalike.crypto import shamir
from unalike.crypto.secure_sum import Void
from unalike.errors import UnalikeError

# group 14 of RFC 3526: p and (p - 1) / 2 are prime
MODP_2048 = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B"
    "302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE6"
    "49286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB9ED529077096966D"
    "670C354E4ABC9804F1746C08CA18217C32905E462E36CE3BE39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF695581718"
    "3995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)


@dc.dataclass(frozen=True)
class Group:
    """The squares modulo a safe prime; 4 generates them."""

    prime: int = MODP_2048

    @property
    def order(self) -> int:
        return (self.prime - 1) // 2

    def power(self, exponent: int, base: int = 4) -> int:
        return pow(base, exponent % self.order, self.prime)

    def product(self, values: Sequence[int]) -> int:
        total = 1
        for value in values:
            total = total * value % self.prime
        return total

    def found(self, element: int, most: int) -> int:
        """Return the m in [-most, most] with g^m = element, by small and giant steps."""
        step = math.isqrt(2 * most + 1) + 1
        table: dict[int, int] = {}
        value = 1
        for small in range(step):
            table.setdefault(value, small)
            value = value * 4 % self.prime
        giant, value = self.power(-step), element * self.power(most) % self.prime
        for large in range(step + 1):
            if value in table:
                return large * step + table[value] - most
            value = value * giant % self.prime
        raise UnalikeError(f"The sum is not in [-{most}, {most}]: a client sent more than it may, or another key.")


Cipher = tuple[int, int]


def encrypt(group: Group, public: int, number: int) -> Cipher:
    """Return a ciphertext of a whole number."""
    noise = secrets.randbelow(group.order)
    return group.power(noise), group.power(number) * group.power(noise, public) % group.prime


def total(group: Group, ciphers: Sequence[Cipher]) -> Cipher:
    """Return a ciphertext of the sum."""
    return group.product([c[0] for c in ciphers]), group.product([c[1] for c in ciphers])


class Holder:
    """A client with its part of a key that nobody holds completely."""

    def __init__(self, group: Group, secret: int | None = None):
        self.group = group
        self._secret = secrets.randbelow(group.order) if secret is None else secret
        self.public = group.power(self._secret)
        self._share = 0

    def part(self, cipher: Cipher) -> int:
        """Return this client's part in opening a ciphertext, if all must open it (Zhu)."""
        return self.group.power(self._secret, cipher[0])

    def deal(self, threshold: int, points: Sequence[int]) -> dict[int, int]:
        """Return shares of this client's secret for all clients, by their points (Truex)."""
        return shamir.deal(self._secret, threshold, points, prime=self.group.order)

    def receive(self, shares: Sequence[int]) -> None:
        """Take one share of every client's secret: their sum is a share of the whole key."""
        self._share = sum(shares) % self.group.order

    def part_of(self, cipher: Cipher) -> int:
        """Return this client's part in opening a ciphertext, if `threshold` clients open it (Truex)."""
        return self.group.power(self._share, cipher[0])


def opened(group: Group, cipher: Cipher, parts: Mapping[int, int], clients: int, most: int) -> int:
    """Return the number in a ciphertext that all clients open; raise `Void` if one of them is lost."""
    if len(parts) < clients:
        raise Void(f"{len(parts)} of {clients} clients opened the sum, and all must: it is void, nothing was learnt.")
    return _number(group, cipher, group.product([*parts.values()]), most)


def opened_by_some(group: Group, cipher: Cipher, parts: Mapping[int, int], threshold: int, most: int) -> int:
    """Return the number in a ciphertext that `threshold` clients open; parts: by their points."""
    if len(parts) < threshold:
        raise Void(f"{len(parts)} clients opened the sum, and {threshold} must: it is void, nothing was learnt.")
    some = dict([*parts.items()][:threshold])
    weights = shamir.weights(tuple(some), group.order)
    mask = group.product([group.power(w, part) for w, part in zip(weights, some.values(), strict=True)])
    return _number(group, cipher, mask, most)


def _number(group: Group, cipher: Cipher, mask: int, most: int) -> int:
    return group.found(cipher[1] * pow(mask, -1, group.prime) % group.prime, most)


def who_opens(clients: int, threshold: int | None = None) -> str:
    """Return in words who holds the key, and who together can open what. threshold: of the form in which some open."""
    if threshold is None:
        return (
            f"each of {clients} clients holds a part of the secret key, the server the public one: all of them "
            "together open any ciphertext, a sum or one client's reply; fewer open none"
        )
    return (
        f"each of {clients} clients holds a share of the secret key, the server the public one: any {threshold} of "
        "them together open any ciphertext, a sum or one client's reply, which has that client's own noise alone; "
        "fewer open none"
    )


def noise_share(sigma: float, threshold: int) -> float:
    """Return the standard deviation of one client's noise, such that `threshold` honest clients' noise adds up to σ."""
    return sigma / math.sqrt(threshold)
