"""Who takes part in a round."""

import numpy as np
import pytest
from reference import Each, federation, mlp

import unalike as ua
from unalike.run.sampling import Bernoulli, BySize, Listed, Uniform, draw, sampling

SIZES = np.array([10] * 50)


def many(how, sizes=SIZES, rounds=2000, seed=0):
    how.check(len(sizes))
    return [draw(how, seed, t, sizes) for t in range(rounds)]


def shares(draws, population):
    return np.bincount(np.concatenate(draws), minlength=population) / len(draws)


@pytest.mark.parametrize(
    "how,size", [(0.1, 5), (0.11, 6), (1.0, 50), (0.001, 1), (1, 1), (7, 7), (50, 50), (np.int64(3), 3)]
)
def test_a_fraction_or_a_count(how, size):
    how = sampling(how)
    assert how.size(50) == size
    for ids in many(how, rounds=20):
        assert len(ids) == size and ids.dtype == np.int64
        assert (np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < 50  # ascending, nobody twice


def test_uniform_takes_everybody_equally_often():
    share = shares(many(sampling(5)), 50)
    assert abs(share - 0.1).max() < 4.5 * (0.1 * 0.9 / 2000) ** 0.5


def test_bernoulli_numbers_and_shares():
    draws = many(Bernoulli(0.2))
    counts = np.array([len(d) for d in draws])
    assert counts.mean() == pytest.approx(10, abs=4 * (50 * 0.2 * 0.8 / 2000) ** 0.5)
    assert counts.var() == pytest.approx(50 * 0.2 * 0.8, rel=0.15)
    assert abs(shares(draws, 50) - 0.2).max() < 4.5 * (0.2 * 0.8 / 2000) ** 0.5
    assert all((np.diff(d) > 0).all() for d in draws)


def test_bernoulli_draws_again_when_nobody_comes():
    """With probability 0.01 of 10 clients: given that somebody comes, one comes in 95.6 % of the rounds."""
    draws = many(Bernoulli(0.01), SIZES[:10])
    assert min(len(d) for d in draws) == 1
    one = 10 * 0.01 * 0.99**9 / (1 - 0.99**10)
    assert np.mean([len(d) == 1 for d in draws]) == pytest.approx(one, abs=4 * (one * (1 - one) / 2000) ** 0.5)


def test_by_size():
    """One client of sizes 1, 2 and 7: drawn in those proportions; of two, the hand-worked chances."""
    sizes = np.array([1, 2, 7])
    p = sizes / 10
    assert shares(many(BySize(1), sizes, 4000), 3) == pytest.approx(p, abs=4 * 0.5 / 4000**0.5)
    both = [sum(p[j] * p[k] / (1 - p[j]) for j in range(3) if j != k) + p[k] for k in range(3)]
    assert shares(many(BySize(2), sizes, 4000), 3) == pytest.approx(both, abs=4 * 0.5 / 4000**0.5)


def test_lists_are_replayed_and_begin_again():
    how = sampling([[3, 1], (4,), np.array([0, 2, 9])])
    draws = [d.tolist() for d in many(how, rounds=5)]
    assert draws == [[1, 3], [4], [0, 2, 9], [1, 3], [4]]
    assert how.size(50) == 3
    assert sampling(np.array([[0, 1], [2, 3]])) == Listed(((0, 1), (2, 3)))


@pytest.mark.parametrize("how", [Uniform(count=5), Uniform(fraction=0.3), Bernoulli(0.3), BySize(5)])
def test_a_draw_is_a_function_of_seed_and_round(how):
    first = [d.tolist() for d in many(how, rounds=10)]
    assert [draw(how, 0, t, SIZES).tolist() for t in reversed(range(10))] == first[::-1]
    assert len({str(d) for d in first}) > 8
    assert [d.tolist() for d in many(how, rounds=10, seed=1)] != first


def test_a_run_uses_the_draw():
    class Who(Each):
        def setup(self, server, everyone):
            server.seen = []

        def round(self, server, cohort):
            server.seen = [*server.seen, cohort.ids.tolist()]
            super().round(server, cohort)

    fed = federation((3, 4, 5, 3, 2))
    for how in (0.4, 3, Bernoulli(0.5), BySize(2), [[4, 0], [2]]):
        run = ua.simulate(mlp(), fed, Who(), rounds=3, clients_per_round=how, seed=7)
        assert run.server.seen == [draw(sampling(how), 7, t, fed.train.sizes).tolist() for t in range(3)]
        assert [line["clients"] for line in run.history] == [len(ids) for ids in run.server.seen]


@pytest.mark.parametrize(
    "given,words",
    [
        (0, "whole number from 1 to 50"),
        (51, "clients_per_round: 51 of 50 clients"),
        (-1, "whole number from 1 to 50"),
        (0.0, "must be a fraction in (0, 1]"),
        (1.5, "must be a fraction in (0, 1]"),
        (float("nan"), "must be a fraction in (0, 1]"),
        (True, "must be a fraction in (0, 1]"),
        ("all", "must be a fraction in (0, 1]"),
        (None, "must be a fraction in (0, 1]"),
        ([1, 2, 3], "a list of client lists"),
        ([[0.5, 1]], "a list of client lists"),
        ([["a"]], "a list of client lists"),
        ([], "the list of client lists is empty"),
        ([[0], []], "the list of round 2 is empty or names a client twice"),
        ([[0, 0]], "the list of round 1 is empty or names a client twice"),
        ([[0], [50]], "the list of round 2 names client 50 of 50"),
        ([[-1]], "the list of round 1 names client -1 of 50"),
    ],
)
def test_wrong_clients_per_round(given, words):
    with pytest.raises(ua.UnalikeError) as caught:
        sampling(given).check(50)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make,words",
    [
        (lambda: Uniform(), "a count or a fraction"),
        (lambda: Uniform(count=3, fraction=0.1), "a count or a fraction"),
        (lambda: Uniform(fraction=2.0), "must lie in (0, 1]; got 2.0"),
        (lambda: Uniform(count=2.5), "whole number from 1 to 50"),
        (lambda: Bernoulli(0), "must lie in (0, 1]; got 0"),
        (lambda: Bernoulli("0.5"), "must lie in (0, 1]; got '0.5'"),
        (lambda: Bernoulli(1e-9), "of 50 clients leaves 5e-08 a round"),
        (lambda: BySize(0), "whole number from 1 to 50"),
        (lambda: BySize(51), "BySize: 51 of 50 clients"),
        (lambda: Listed(()), "is empty"),
    ],
)
def test_wrong_samplings(make, words):
    with pytest.raises(ua.UnalikeError) as caught:
        make().check(50)
    assert words in str(caught.value) and "\n" not in str(caught.value)
