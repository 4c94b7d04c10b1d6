"""Shamir's shares: golden numbers, and that t shares give the secret where t - 1 do not."""

import itertools
import random

import pytest
from goldens import golden
from hypothesis import given, settings
from hypothesis import strategies as st

from unalike.crypto import shamir
from unalike.errors import UnalikeError


@pytest.mark.parametrize("case", golden("channel_shamir")["cases"], ids=lambda case: case["name"])
def test_shares_are_the_golden_ones(case):
    prime, points = int(case["prime"]), range(1, case["count"] + 1)
    found = shamir.shares([int(c) for c in case["coefficients"]], points, prime)
    assert [[x, str(share)] for x, share in found.items()] == case["shares"] and len(found) == case["count"]
    assert len(case["coefficients"]) == case["threshold"]
    for subset in case["subsets_that_give_the_secret"]:
        assert shamir.combine({x: found[x] for x in subset}, prime) == int(case["secret"])
    few = case["combined_from_t_minus_1_shares_is_not_the_secret"]
    assert shamir.combine({x: found[x] for x in range(1, case["threshold"])}, prime) == int(few) != int(case["secret"])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**256 - 1), st.integers(1, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, more, chance):
    points = sorted(chance.sample(range(1, 1000), threshold + more))
    found = shamir.deal(secret, threshold, points, chance.randbytes)
    for some in itertools.islice(itertools.combinations(points, threshold), 6):
        assert shamir.combine({x: found[x] for x in some}) == secret


def test_one_share_too_few_says_nothing():
    """Over all polynomials of a tiny field, t - 1 shares go with every secret equally often."""
    pairs = [
        (secret, tuple(shamir.shares([secret, a, b], [1, 2], 5).values()))
        for secret, a, b in itertools.product(range(5), repeat=3)
    ]
    for seen in {shares for _, shares in pairs}:
        assert sorted(secret for secret, shares in pairs if shares == seen) == [0, 1, 2, 3, 4]


def test_coefficients_are_drawn_anew_for_every_secret():
    draw = random.Random(0).randbytes
    assert shamir.deal(7, 2, [1, 2], draw) != shamir.deal(7, 2, [1, 2], draw)


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [(1, 3, [1, 2]), (1, 0, [1]), (1, 1, [0]), (1, 1, [2, 2]), (shamir.PRIME, 1, [1])],
)
def test_what_cannot_be_shared_is_refused(secret, threshold, points):
    with pytest.raises(UnalikeError, match="Shamir"):
        shamir.deal(secret, threshold, points)
