"""What integer noise spends: the golden bounds, exact sums in one dimension, sampling, rounding."""

import json
import math

import numpy as np
import pytest
from paths import GOLDEN

from unalike.channel.accountant import Accountant
from unalike.channel.events import REPLACE, ZERO_OUT
from unalike.channel.integer_events import DiscreteGaussianSum, SkellamSum, rounded_norms, sampled
from unalike.errors import UnalikeError

GOLDENS = json.loads((GOLDEN / "channel_integer_noise.json").read_text())["cases"]
ROWS = [(case["variance"], row) for case in GOLDENS if case["rule"] == "skellam_rdp" for row in case["rows"]]
ORDERS = np.arange(2, 40)


def skellam(variance, shift=0):
    """Return the log probabilities of −200 … 200."""
    from scipy.special import ive

    k = np.abs(np.arange(-200, 201) - shift)
    return np.log(np.maximum(ive(k, variance), 1e-300))


def divergence(p, q, order):
    return float(np.logaddexp.reduce(order * p + (1 - order) * q) / (order - 1))


@pytest.mark.parametrize(("variance", "row"), ROWS)
def test_skellam_s_bound_and_what_it_bounds(variance, row):
    shift, order = row["shift"], row["alpha"]
    event = SkellamSum(variance, shift, shift)
    bound = event.renyi(np.array([float(order)]), ZERO_OUT)[0]
    assert bound == pytest.approx(row["bound"], abs=1e-9)
    exact = divergence(skellam(variance, shift), skellam(variance), order)
    assert exact == pytest.approx(row["exact_rdp"], abs=1e-9) and exact <= bound
    twice = SkellamSum(variance, 2 * shift, 2 * shift).renyi(np.array([float(order)]), ZERO_OUT)
    assert event.renyi(np.array([float(order)]), REPLACE) == twice


@pytest.mark.parametrize("q", [0.05, 0.5])
@pytest.mark.parametrize("relation, other", [(ZERO_OUT, 0), (REPLACE, -3)])
def test_sampling_stays_below_the_bound(q, relation, other):
    """A client who is drawn with probability q and brings a share of the noise, against exact sums: with it there are
    11 shares, without it 10, and the two runs differ in what it sends when it is drawn."""
    share, least = 2.0, 20.0
    without, sends, else_sends = skellam(least), skellam(least + share, 3), skellam(least + share, other)
    one, two = (np.logaddexp(math.log(1 - q) + without, math.log(q) + drawn) for drawn in (sends, else_sends))
    bound = SkellamSum(least, 3, 3, q).renyi(ORDERS.astype(float), relation)
    for order, most in zip(ORDERS[:12], bound, strict=False):
        assert 0 < divergence(one, two, order) <= most and divergence(two, one, order) <= most
    plain = SkellamSum(least, 3, 3).renyi(ORDERS.astype(float), relation)
    assert (bound < plain).all() and bound[0] < 0.9 * plain[0]


def test_a_client_more_brings_noise_and_shows():
    """In many dimensions the size of a sum tells how many shares it has: "add or remove" has no bound here."""
    entries, without, present = 10_000, skellam(20.0), skellam(22.0)
    each = divergence(present, without, 2)
    assert entries * each > 1000 * SkellamSum(20.0, 0.0, 0.0).renyi(np.array([2.0]), ZERO_OUT)[0] + 10
    for kind in (SkellamSum, DiscreteGaussianSum):
        assert kind.relations == (ZERO_OUT, REPLACE)
        assert Accountant().after(kind(9.0, 1.0, 1.0)).spent(1e-5).relation == ZERO_OUT


def test_the_bound_of_sampling_by_hand():
    """The moment is 1 − q + q e^((α − 1) D): at order 3 with D = 0.7, log(0.75 + 0.25 e^1.4) / 2."""
    by_hand = math.log(0.75 + 0.25 * math.exp(1.4)) / 2
    assert sampled(np.array([2, 3]), np.array([0.4, 0.7]), 0.25)[1] == pytest.approx(by_hand, rel=1e-12)


def test_between_whole_orders_moments_are_interpolated():
    event = SkellamSum(10.0, 3, 3)
    at_2, at_3 = event.renyi(np.array([2.0, 3.0]), ZERO_OUT)
    assert event.renyi(np.array([2.5]), ZERO_OUT)[0] == pytest.approx((0.5 * at_2 + 0.5 * 2 * at_3) / 1.5)
    assert event.renyi(np.array([1.5]), ZERO_OUT)[0] == pytest.approx(at_2)
    exact = divergence(skellam(10.0, 3), skellam(10.0), 2.5)
    assert exact <= event.renyi(np.array([2.5]), ZERO_OUT)[0]


def test_discrete_gaussian_noise_of_one_client_and_of_many():
    orders = np.array([2.0, 8.0])
    one = DiscreteGaussianSum(16.0, 6.0, 3.0, dimension=4)
    assert one.tau == 0
    np.testing.assert_allclose(one.renyi(orders, ZERO_OUT), orders * 9 / 32)
    np.testing.assert_allclose(one.renyi(orders, REPLACE), orders * 36 / 32)
    coarse = DiscreteGaussianSum(1.0, 6.0, 3.0, clients=2, dimension=4)  # shares of variance ½, by hand:
    assert coarse.tau == pytest.approx(10 * math.exp(-(math.pi**2) / 2))
    tau = coarse.tau
    squares = min(9 + 12 * tau + 4 * tau**2, (3 + 2 * tau) ** 2)
    want = np.minimum(orders * 4.5 + 4 * tau, orders * squares / 2)
    np.testing.assert_allclose(coarse.renyi(orders, ZERO_OUT), want)
    assert want[0] > 9 and want[1] == pytest.approx(36 + 4 * tau)
    with pytest.raises(UnalikeError, match=r"at least 0.5 on the integer grid; got 0.316"):
        DiscreteGaussianSum(1.0, 6.0, 3.0, clients=10)


def test_rounding_lengthens_a_vector_by_no_more_than_the_bound():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 50))
    x *= 8 / np.linalg.norm(x, axis=1, keepdims=True)
    rounded = np.floor(x + generator.random(x.shape))
    for beta, share in ((0.0, 1.0), (math.exp(-0.5), 1 - math.exp(-0.5)), (0.01, 0.99)):
        l1, l2 = rounded_norms(8.0, 50, beta)
        within = (np.linalg.norm(rounded, axis=1) <= l2) & (np.abs(rounded).sum(1) <= l1)
        assert within.mean() >= share
    assert rounded_norms(8.0, 49, 0.0) == (15.0 * 7.0, 15.0)  # 8 + √49; no more than √49 times as much in the 1-norm
    assert rounded_norms(0.5, 10_000, 0.5)[0] == pytest.approx(rounded_norms(0.5, 10_000, 0.5)[1] ** 2)  # whole numbers
