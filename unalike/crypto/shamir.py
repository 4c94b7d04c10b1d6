"""Shamir's secret sharing: any `threshold` shares give the secret, fewer reveal nothing (Shamir 1979).

    f(x) = secret + a1 x + ... + a(t-1) x^(t-1) mod prime; the share at x is f(x); secret = f(0) by Lagrange

Python's integers do not take constant time: do not let an attacker measure a machine that deals shares.
"""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence

from unalike.errors import UnalikeError

PRIME = (1 << 256) + 297  # above every secret of 32 bytes
BYTES = 33  # bytes of a share
Draw = Callable[[int], bytes]  # returns this many random bytes


def deal(
    secret: int, threshold: int, points: Sequence[int], draw: Draw = os.urandom, prime: int = PRIME
) -> dict[int, int]:
    """Return the share of a secret at each point."""
    if not 1 <= threshold <= len(points):
        raise UnalikeError(f"Shamir: the threshold must lie in [1, {len(points)}], the number of shares.")
    # enough more bytes than the prime has, so that all residues are equally likely
    size = prime.bit_length() // 8 + 17
    drawn = [int.from_bytes(draw(size), "little") % prime for _ in range(threshold - 1)]
    return shares([secret, *drawn], points, prime)


def shares(coefficients: Sequence[int], points: Sequence[int], prime: int = PRIME) -> dict[int, int]:
    """Return the values of a polynomial at each point; the lowest coefficient comes first."""
    if len({*points}) < len(points) or not all(0 < x < prime for x in points):
        raise UnalikeError("Shamir: points must be different, and lie in [1, prime).")
    if not 0 <= coefficients[0] < prime:
        raise UnalikeError("Shamir: the secret must lie in [0, prime).")
    return {x: _value(coefficients, x, prime) for x in points}


def _value(coefficients: Sequence[int], x: int, prime: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % prime
    return total


def combine(given: Mapping[int, int], prime: int = PRIME) -> int:
    """Return the secret from shares by point; with fewer than the threshold, a meaningless number."""
    return sum(map(operator.mul, weights(tuple(given), prime), given.values())) % prime


@functools.lru_cache(maxsize=1024)  # a round's sums have the same neighbours
def weights(points: tuple[int, ...], prime: int = PRIME) -> list[int]:
    """Return Lagrange's weights at 0 for shares at these points: w(i) = Π x(j) / (x(j) − x(i)), j ≠ i."""
    whole = math.prod(points)  # points are small in practice: a remainder at the end is faster than one at each step
    tops = [whole // x % prime for x in points]
    bottoms = [math.prod([other - x for other in points if other != x]) % prime for x in points]
    others = _products_of_others(bottoms, prime)
    inverse = pow(others[0] * bottoms[0], -1, prime)  # one inversion for all
    return [top * rest * inverse % prime for top, rest in zip(tops, others, strict=True)]


def _products_of_others(values: Sequence[int], prime: int) -> list[int]:
    """Return, for each value, the product of all the others."""
    before, product = [], 1
    for value in values:
        before.append(product)
        product = product * value % prime
    out, product = [0] * len(values), 1
    for k in reversed(range(len(values))):
        out[k] = before[k] * product % prime
        product = product * values[k] % prime
    return out
