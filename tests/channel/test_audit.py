"""The lower bound of ε from an attack: by hand, valid where the noise is right, broken where it is half."""

import numpy as np
import pytest

from unalike.channel.accountant import Accountant, epsilon_of_mu
from unalike.channel.audit import audit, clopper_pearson
from unalike.channel.events import GaussianSum
from unalike.errors import UnalikeError

REPEATS, DELTA = 500, 1e-5


def attacked(noise, seed):
    """Return ⟨release, u⟩ with a canary of one clip and without it."""
    generator = np.random.default_rng(seed)
    return 1 + noise * generator.normal(size=REPEATS), noise * generator.normal(size=REPEATS)


def test_clopper_pearson_by_hand():
    below, above = clopper_pearson(np.array([0, REPEATS]), REPEATS, 0.025)
    np.testing.assert_allclose(below, [0, 0.025 ** (1 / REPEATS)])
    np.testing.assert_allclose(above, [1 - 0.025 ** (1 / REPEATS), 1])
    below, above = clopper_pearson(np.array([5]), 10, 0.025)  # the table's 0.187 and 0.813
    np.testing.assert_allclose([below[0], above[0]], [0.1871, 0.8129], atol=5e-5)


def test_a_bound_by_hand():
    """450 of 500 canaries found, 50 of 500 mistaken: the rates' unfavourable ends are 0.8703 and 0.1297."""
    found = audit([1.0] * 450 + [0.0] * 50, [1.0] * 50 + [0.0] * 450, DELTA, threshold=0.5)
    assert (found.true_positives, found.false_positives) == (
        pytest.approx(0.8703, abs=1e-4),
        pytest.approx(0.1297, abs=1e-4),
    )
    assert found.mu == pytest.approx(2 * 1.1277, abs=2e-3)  # Φ(1.1277) = 0.8703
    assert found.epsilon == epsilon_of_mu(found.mu, DELTA)


@pytest.mark.parametrize("threshold", [0.5, None])
@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_the_bound_stays_below_what_is_stated_and_breaks_it_with_half_the_noise(noise, threshold):
    stated = Accountant().after(GaussianSum(noise)).tight(DELTA).epsilon
    right = [audit(*attacked(noise, seed), DELTA, threshold).epsilon for seed in range(20)]
    halved = [audit(*attacked(noise / 2, seed), DELTA, threshold).epsilon for seed in range(20)]
    assert 0.3 * stated < np.median(right) and max(right) < stated < min(halved)


def test_confidence_costs():
    values = attacked(1.0, 0)
    bounds = [audit(*values, DELTA, 0.5, confidence).epsilon for confidence in (0.5, 0.95, 0.999)]
    assert bounds == sorted(bounds, reverse=True) and bounds[0] > bounds[2]


def test_the_threshold_comes_from_the_first_half_and_the_bound_from_the_second():
    present, absent = attacked(1.0, 1)
    chosen = audit(present, absent, DELTA)
    half = REPEATS // 2
    assert chosen == audit(present[half:], absent[half:], DELTA, threshold=chosen.threshold)
    assert chosen.threshold in np.concatenate([present[:half], absent[:half]])


def test_what_cannot_be_told_apart_shows_nothing():
    values = np.zeros(REPEATS)
    assert audit(values, values, DELTA).epsilon == audit(values, values, DELTA, threshold=-1.0).epsilon == 0.0
    assert audit(-np.ones(9), np.ones(9), DELTA, threshold=0.0).mu == 0.0  # the wrong way round


@pytest.mark.parametrize(
    "arguments",
    [([], [1.0], DELTA, 0.5), ([1.0], [0.0], DELTA), ([1.0], [0.0], 0.0, 0.5), ([1.0], [0.0], DELTA, 0.5, 1.0)],
)
def test_mistakes_are_one_line(arguments):
    with pytest.raises(UnalikeError, match="An audit needs at least"):
        audit(*arguments)
