"""How much noise for an ε, and how many rounds."""

import json

import pytest
from paths import GOLDEN

from unalike.channel.accountant import Accountant
from unalike.channel.calibrate import noise_for, rounds_left
from unalike.channel.events import GaussianSum, LocalLaplace, SampledGaussian, TreeGaussian
from unalike.errors import UnalikeError

CASES = {case["name"]: case for case in json.loads((GOLDEN / "channel_accounting.json").read_text())["cases"]}


def test_noise_for_an_epsilon():
    case = CASES["calibrate_eps2"]
    target, delta, rounds = case["target_epsilon"], case["delta"], case["T"]
    noise = noise_for(target, delta, rounds, lambda noise: SampledGaussian(case["q"], noise))
    assert noise == pytest.approx(case["noise_multiplier"]["pld_add_remove"], abs=2e-3)
    spends = [
        Accountant().after(SampledGaussian(case["q"], z), rounds).tight(delta).epsilon for z in (noise, 0.999 * noise)
    ]
    assert spends[0] <= target < spends[1]


def test_the_other_golden_noise_spends_what_was_asked_for():
    case = CASES["calibrate_eps8"]
    event = SampledGaussian(case["q"], case["noise_multiplier"]["pld_add_remove"])
    guarantee = Accountant().after(event, case["T"]).tight(case["delta"])
    assert guarantee.epsilon == pytest.approx(case["target_epsilon"], abs=2e-3)


@pytest.mark.parametrize(
    "make", [GaussianSum, lambda noise: TreeGaussian(16, noise), LocalLaplace], ids=["gaussian", "tree", "laplace"]
)
@pytest.mark.parametrize("target", [0.5, 20.0])
def test_by_renyi(make, target):
    noise = noise_for(target, 1e-6, 20, make, tight=False)
    least, less = (Accountant().after(make(z), 20).spent(1e-6).epsilon for z in (noise, noise / 1.0002))
    assert least <= target < less


def test_tight_noise_is_less():
    assert noise_for(1.0, 1e-5, 10, GaussianSum) < 0.95 * noise_for(1.0, 1e-5, 10, GaussianSum, tight=False)


@pytest.mark.parametrize("most", [0.3, 2.0, 9.0])
def test_rounds_that_still_fit(most):
    event, account = SampledGaussian(0.02, 1.0), Accountant().after(SampledGaussian(0.01, 2.0), 10)
    left = rounds_left(account, event, most, 1e-5)
    assert account.after(event, left).spent(1e-5).epsilon <= most < account.after(event, left + 1).spent(1e-5).epsilon


def test_noise_that_was_found_lasts_for_the_rounds_asked_for():
    noise = noise_for(3.0, 1e-5, 40, GaussianSum)
    assert rounds_left(Accountant(), GaussianSum(noise), 3.0, 1e-5, tight=True) == 40
    assert rounds_left(Accountant(), GaussianSum(noise), 3.0, 1e-5) < 40  # by RDP, which gives more
    assert rounds_left(Accountant().after(GaussianSum(noise), 39), GaussianSum(noise), 3.0, 1e-5, tight=True) == 1


def test_a_budget_that_is_spent_has_no_rounds_left():
    assert rounds_left(Accountant().after(GaussianSum(0.1)), GaussianSum(0.1), 1.0, 1e-5) == 0
    assert rounds_left(Accountant(), GaussianSum(0.0), 1.0, 1e-5) == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: noise_for(0.0, 1e-5, 1, GaussianSum), "ε above 0"),
        (lambda: noise_for(1.0, 0.0, 1, GaussianSum), r"δ in \(0, 1\)"),
        (lambda: noise_for(1.0, 1e-5, 0, GaussianSum), "at least one round"),
        (lambda: noise_for(1e-4, 1e-300, 10**12, GaussianSum), "allow a larger ε or δ, or fewer rounds"),
        (lambda: rounds_left(Accountant(), GaussianSum(1e12), 9.0, 1e-5), "Any number of rounds fits"),
    ],
)
def test_mistakes_are_one_line(call, says):
    with pytest.raises(UnalikeError, match=says):
        call()
