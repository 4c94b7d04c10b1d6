"""ElGamal with a distributed key: sums, who must be there to open them, and noise in shares."""

import numpy as np
import pytest

from unalike.crypto import elgamal
from unalike.crypto.elgamal import Group, Holder
from unalike.crypto.secure_sum import Void
from unalike.errors import UnalikeError

SMALL = Group(2039)  # the squares have the order 1019: for tests only


def holders(count):
    people = [Holder(SMALL, 100 + 7 * k) for k in range(count)]
    return people, SMALL.product([one.public for one in people])


def test_the_known_group_is_one_of_a_safe_prime():
    gmpy2 = pytest.importorskip("gmpy2")
    prime = elgamal.MODP_2048
    assert prime.bit_length() == 2048 and gmpy2.is_prime(prime) and gmpy2.is_prime((prime - 1) // 2)
    assert pow(4, (prime - 1) // 2, prime) == 1


@pytest.mark.parametrize("numbers", [[1, 2, 3], [-5, 2, -9], [0, 0, 0]])
def test_everybody_opens_the_sum(numbers):
    people, public = holders(3)
    cipher = elgamal.total(SMALL, [elgamal.encrypt(SMALL, public, number) for number in numbers])
    parts = {k: one.part(cipher) for k, one in enumerate(people)}
    assert elgamal.opened(SMALL, cipher, parts, 3, most=20) == sum(numbers)


def test_with_one_lost_while_opening_nothing_opens():
    people, public = holders(3)
    cipher = elgamal.encrypt(SMALL, public, 4)
    parts = {k: one.part(cipher) for k, one in enumerate(people[:2])}
    with pytest.raises(Void, match="2 of 3 clients"):
        elgamal.opened(SMALL, cipher, parts, 3, most=20)
    wrong = SMALL.product([*parts.values()])
    assert cipher[1] * pow(wrong, -1, SMALL.prime) % SMALL.prime != SMALL.power(4)


def test_any_threshold_of_clients_opens_the_sum():
    people, public = holders(5)
    points = [1, 2, 3, 4, 5]
    dealt = [one.deal(3, points) for one in people]
    for k, one in enumerate(people):
        one.receive([shares[k + 1] for shares in dealt])
    cipher = elgamal.total(SMALL, [elgamal.encrypt(SMALL, public, number) for number in (3, -1, 5, 2, 2)])
    for some in ([0, 1, 2], [1, 3, 4], [4, 2, 0]):
        parts = {k + 1: people[k].part_of(cipher) for k in some}
        assert elgamal.opened_by_some(SMALL, cipher, parts, 3, most=30) == 11
    with pytest.raises(Void, match="2 clients"):
        elgamal.opened_by_some(SMALL, cipher, {k + 1: people[k].part_of(cipher) for k in (0, 1)}, 3, most=30)


def test_who_can_open_is_said():
    assert "all of them together" in elgamal.who_opens(5) and "any 3 of them" in elgamal.who_opens(5, 3)


def test_a_sum_out_of_range_is_an_error():
    with pytest.raises(UnalikeError, match="not in"):
        SMALL.found(SMALL.power(200), 20)


def test_noise_of_t_honest_clients_is_the_whole():
    """σ²/t each: t shares have the variance σ², n shares more."""
    share, draws = elgamal.noise_share(4.0, 5), np.random.default_rng(0)
    total = draws.normal(0, share, (20_000, 5)).sum(1)
    assert np.isclose(total.std(), 4.0, rtol=0.02)
