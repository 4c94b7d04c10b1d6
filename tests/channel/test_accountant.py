"""What a run has spent: golden numbers, a second program's, the traps of accounting, resumed runs."""

import functools
import json
import math
import sys

import numpy as np
import pytest
from paths import GOLDEN

from unalike.channel import accountant as accounting
from unalike.channel.accountant import KINDS, Accountant
from unalike.channel.events import (
    ADD_REMOVE,
    REPLACE,
    ZERO_OUT,
    CohortGaussian,
    GaussianSum,
    LocalGaussian,
    LocalLaplace,
    SampledGaussian,
    TreeGaussian,
    curve,
    dp_accounting,
    noise_beside_count,
    together,
)
from unalike.channel.integer_events import DiscreteGaussianSum, SkellamSum
from unalike.errors import UnalikeError

CASES = {case["name"]: case for case in json.loads((GOLDEN / "channel_accounting.json").read_text())["cases"]}
POISSON = [name for name, case in CASES.items() if case["sampling"] == "poisson" and "epsilon" in case]
FIXED = [name for name, case in CASES.items() if case["sampling"] == "without_replacement"]
TREES = [name for name, case in CASES.items() if "leaves" in case]
COARSE = 2e-4  # a grid of half the time: its ε is at most 1e-3 larger in these cases

# One event of every kind, from its noise
EVERY = {
    "gaussian": GaussianSum,
    "sampled gaussian": lambda noise: SampledGaussian(0.1, noise),
    "fixed cohort": lambda noise: CohortGaussian(100, 10, noise),
    "tree": lambda noise: TreeGaussian(100, noise),
    "local gaussian": LocalGaussian,
    "local laplace": LocalLaplace,
    "skellam": lambda noise: SkellamSum((50 * noise) ** 2, 100.0, 50.0, 0.1),
    "discrete gaussian": lambda noise: DiscreteGaussianSum((50 * noise) ** 2, 100.0, 50.0, 0.1, 10, 4),
}


def spent(event, rounds, delta, relation=None):
    return Accountant().after(event, rounds).spent(delta, relation).epsilon


@functools.cache
def tight(event, rounds, delta, relation=None, grid=accounting.GRID):
    return Accountant().after(event, rounds).tight(delta, relation, grid)


# ---- golden numbers


def test_every_case_is_used():
    calibrations = {"calibrate_eps8", "calibrate_eps2"}  # in test_calibrate.py
    assert {*POISSON, *FIXED, *TREES, *calibrations, "none_one_shot"} == set(CASES)


@pytest.mark.parametrize("name", POISSON)
def test_bernoulli_sampling(name):
    case = CASES[name]
    event, rounds, delta, golden = SampledGaussian(case["q"], case["sigma"]), case["T"], case["delta"], case["epsilon"]
    rdp = spent(event, rounds, delta)
    assert rdp == pytest.approx(golden["rdp_add_remove"], abs=1e-4)
    assert rdp == pytest.approx(golden["opacus_rdp"], abs=4e-4)  # the same formula at other orders
    by_pld = tight(event, rounds, delta)
    assert by_pld.epsilon == pytest.approx(golden["pld_add_remove"], abs=2e-3)
    assert by_pld.epsilon == pytest.approx(golden["opacus_prv"], abs=2e-2)
    assert (by_pld.way, by_pld.relation) == ("PLD", ADD_REMOVE)
    replaced = tight(event, rounds, delta, REPLACE, COARSE)
    assert replaced.epsilon == pytest.approx(golden["pld_replace"], abs=2e-3)
    assert (replaced.way, replaced.relation) == ("PLD", REPLACE)


@pytest.mark.parametrize("name", POISSON)
def test_two_conversions_from_renyi_are_in_use_and_ours_is_the_smaller(name):
    case, orders = CASES[name], np.arange(2.0, 33.0)
    event = SampledGaussian(case["q"], case["sigma"])
    rdp = case["T"] * event.renyi(orders, ADD_REMOVE)
    golden, delta = case["epsilon"], case["delta"]
    ours = rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    assert ours.min() == pytest.approx(golden["own_rdp_integer_orders"], abs=1e-4)
    assert orders[ours.argmin()] == golden["own_order"]
    assert (rdp + math.log(1 / delta) / (orders - 1)).min() == pytest.approx(golden["own_rdp_classic_conversion"])
    assert spent(event, case["T"], delta) < golden["own_rdp_classic_conversion"] - 0.2


def test_one_release_without_sampling():
    case = CASES["none_one_shot"]
    golden, event, delta = case["epsilon"], GaussianSum(case["sigma"]), case["delta"]
    rdp = spent(event, case["T"], delta)
    assert rdp == pytest.approx(golden["rdp_add_remove"], abs=1e-4) == pytest.approx(golden["opacus_rdp"], abs=1e-4)
    exact = tight(event, case["T"], delta)
    assert exact.epsilon == pytest.approx(golden["exact_add_remove"], abs=1e-6) and exact.way == "exact"
    assert exact.epsilon == pytest.approx(golden["pld_add_remove"], abs=2e-3)
    assert exact.epsilon == pytest.approx(golden["opacus_prv"], abs=2e-2)
    replaced = tight(event, case["T"], delta, REPLACE)
    assert replaced.epsilon == pytest.approx(golden["exact_replace_sensitivity_2"], abs=1e-6)
    everybody = tight(SampledGaussian(1.0, case["sigma"]), case["T"], delta)
    assert everybody == exact


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_cohort_moves_the_sum_by_two_clips(name):
    """The trap: dp-accounting's RDP takes the noise relative to 2C, and half of what is spent would be forgotten."""
    case = CASES[name]
    golden, rounds, delta = case["epsilon"], case["T"], case["delta"]
    event = CohortGaussian(case["N"], case["m"], case["sigma"])
    right, wrong = "rdp_replace_noise_relative_to_clip", "rdp_replace_noise_relative_to_replace_sensitivity"
    guarantee = Accountant().after(event, rounds).spent(delta)
    assert guarantee.epsilon == pytest.approx(golden[right], abs=1e-4) and guarantee.relation == REPLACE
    twice = CohortGaussian(case["N"], case["m"], 2 * case["sigma"])
    assert spent(twice, rounds, delta) == pytest.approx(golden[wrong], abs=1e-4)
    no_loss_distribution = tight(event, rounds, delta)
    assert no_loss_distribution == guarantee and not golden["pld_supports"]
    with pytest.raises(UnalikeError, match="no guarantee for 'add or remove'; 'replace' it has"):
        spent(event, rounds, delta, ADD_REMOVE)
    plain = tight(GaussianSum(case["sigma"]), rounds, delta, REPLACE)
    assert plain.epsilon == pytest.approx(golden["no_amplification_exact_replace_noise_relative_to_clip"], rel=1e-6)
    assert tight(CohortGaussian(9, 9, case["sigma"]), rounds, delta).epsilon == plain.epsilon
    sampled = SampledGaussian(case["q"], case["sigma"])
    assert spent(sampled, rounds, delta) == pytest.approx(golden["poisson_same_q_rdp_add_remove"], abs=1e-4)
    by_pld = tight(sampled, rounds, delta).epsilon
    assert by_pld == pytest.approx(golden["poisson_same_q_pld_add_remove"], abs=2e-3)


@pytest.mark.parametrize("name", TREES)
def test_trees(name):
    case = CASES[name]
    golden, event = case["epsilon"], TreeGaussian(case["leaves"], case["sigma"])
    guarantee = Accountant().after(event, case["trees"]).spent(case["delta"])
    assert guarantee.epsilon == pytest.approx(golden["rdp_zero_out"], abs=1e-4) and guarantee.relation == ZERO_OUT
    exact = tight(event, case["trees"], case["delta"])
    assert exact.epsilon == pytest.approx(golden["exact_of_all_node_releases"], abs=1e-6)
    dp = dp_accounting()
    theirs = dp.SingleEpochTreeAggregationDpEvent(case["sigma"], case["leaves"])
    rdp = case["trees"] * curve(theirs, accounting.ORDERS, "REPLACE_SPECIAL")
    total = case["trees"] * event.renyi(accounting.ORDERS, ZERO_OUT)
    np.testing.assert_allclose(rdp, total, rtol=1e-12)


@pytest.mark.parametrize(("leaves", "nodes"), [(1, 1), (2, 2), (3, 2), (4, 3), (63, 6), (64, 7), (100, 7), (128, 8)])
def test_a_leaf_lies_in_as_many_nodes_as_a_tree_that_is_built_says(leaves, nodes):
    """The trap: 100 leaves are 7 nodes deep, not 8. Node (level, k) covers steps k·2^level + 1 … (k + 1)·2^level."""
    complete = [range(k << level, k + 1 << level) for level in range(9) for k in range(leaves >> level)]
    assert max(sum(leaf in node for node in complete) for leaf in range(leaves)) == nodes
    assert TreeGaussian(leaves, 1.0).depth == nodes


def test_nodes_that_the_golden_prefix_sums_release():
    """Of the nodes that are ever noised, the most that a step lies in are those that are accounted for."""
    mechanisms = json.loads((GOLDEN / "channel_dp_mechanisms.json").read_text())["cases"]
    trees = [case for case in mechanisms if case["rule"] == "tree_prefix_sums"]
    for case in trees:
        nodes = {tuple(node) for step in case["steps"] for node in step["nodes"]}
        steps = range(len(case["x"]))
        most = max(sum(step >> level == k for level, k in nodes) for step in steps)
        assert most == TreeGaussian(len(steps), 1.0).depth
    assert len(trees) == 2


# ---- opacus 1.6.0, run once beside this: RDPAccountant and PRVAccountant(eps_error=0.001) at δ = 1e-6


@pytest.mark.parametrize(
    ("history", "rdp", "prv"),
    [
        ([(0.02, 1.5, 300)], 1.346584833582882, 1.227275005316976),
        ([(0.02, 1.1, 200), (0.02, 2.0, 300)], 2.2504732338935174, 1.9472316736815234),
        ([(1.0, 3.0, 10), (0.05, 1.5, 100)], 5.974478676598095, 5.589735693225377),
    ],
    ids=["one noise", "noise that changes", "without sampling, then with"],
)
def test_compositions_as_opacus_has_them(history, rdp, prv):
    account = Accountant()
    for q, noise, rounds in history:
        account.add(SampledGaussian(q, noise), rounds)
    assert account.spent(1e-6).epsilon == pytest.approx(rdp, abs=1e-5)
    assert account.tight(1e-6, grid=COARSE).epsilon == pytest.approx(prv, abs=3e-3)


# ---- by hand


def test_local_noise_is_at_twice_the_clip_and_without_amplification():
    assert tight(LocalGaussian(4.0), 1, 1e-5).epsilon == pytest.approx(
        1.9930914044149257
    )  # replace, in the golden file
    assert tight(LocalGaussian(3.0), 9, 1e-5).epsilon == tight(LocalGaussian(1.0), 1, 1e-5).epsilon
    assert Accountant().after(LocalGaussian(1.0)).relation == REPLACE


def test_laplace_noise_is_pure():
    few = Accountant().after(LocalLaplace(4.0), 3)
    assert (few.spent(0.0).epsilon, few.spent(0.0).way) == (1.5, "pure")
    assert few.spent(1e-9).epsilon == 1.5  # RDP gives more for three rounds …
    many = Accountant().after(LocalLaplace(100.0), 10_000).spent(1e-5)
    assert many.way == "RDP" and many.epsilon < 20  # … and far less than 200 for ten thousand
    assert spent(LocalGaussian(1.0), 1, 0.0) == math.inf


def test_two_sums_over_the_same_clients_are_one_event():
    """Drawn once, noised twice: as if one sum had been released with less noise, not as if drawn twice."""
    assert together(3.0, 4.0) == pytest.approx(2.4) and together(1.0, 0.0) == 0.0
    once = spent(SampledGaussian(0.01, together(1.0, 1.0)), 100, 1e-5)
    twice = spent(SampledGaussian(0.01, 1.0), 200, 1e-5)
    assert once > twice + 0.5  # two events would understate it


def test_noise_beside_the_count_of_an_adaptive_clip():
    assert noise_beside_count(1.0, 1.0) == pytest.approx((1 - 1 / 4) ** -0.5)
    for noise, std in ((0.7, 0.5), (1.3, 30.0)):
        assert together(noise_beside_count(noise, std), 2 * std) == pytest.approx(noise)
    assert noise_beside_count(0.0, 1.0) == 0.0
    with pytest.raises(UnalikeError, match=r"noise above 0.5 beside noise 1; got 0.3"):
        noise_beside_count(1.0, 0.3)


# ---- every kind


def test_every_kind_is_here():
    assert set(EVERY) == set(KINDS) == {make(1.0).kind for make in EVERY.values()}


@pytest.mark.parametrize("kind", EVERY)
def test_without_noise_nothing_is_private(kind):
    account = Accountant().after(EVERY[kind](0.0))
    assert account.spent(1e-5).epsilon == account.tight(1e-5).epsilon == math.inf


@pytest.mark.parametrize("kind", EVERY)
def test_more_noise_spends_less_and_more_rounds_more(kind):
    make = EVERY[kind]
    assert 0 < spent(make(8.0), 3, 1e-5) < spent(make(4.0), 3, 1e-5) < spent(make(4.0), 4, 1e-5) < math.inf
    assert spent(make(4.0), 3, 1e-5) >= tight(make(4.0), 3, 1e-5).epsilon > 0
    assert spent(make(4.0), 3, 1e-3) <= spent(make(4.0), 3, 1e-6)


@pytest.mark.parametrize("kind", ["sampled gaussian", "skellam", "discrete gaussian"])
def test_fewer_clients_drawn_spend_less(kind):
    def event(q):
        values = {"sampled gaussian": (q, 1.0), "skellam": (4e4, 100.0, 50.0, q)}
        return KINDS[kind](*values.get(kind, (4e4, 100.0, 50.0, q, 10, 4)))

    assert spent(event(0.01), 50, 1e-5) < spent(event(0.2), 50, 1e-5) < spent(event(1.0), 50, 1e-5)


@pytest.mark.parametrize("kind", EVERY)
def test_resumed_equals_uninterrupted(kind):
    event, whole, first = EVERY[kind](2.0), Accountant(unit="sample"), Accountant(unit="sample")
    for _ in range(7):
        whole.add(event)
    for _ in range(3):
        first.add(event)
    kept = json.loads(json.dumps(first.rows))  # lists of text and numbers only
    resumed = Accountant(kept, unit="sample")
    resumed.add(event, 4)
    assert resumed.rows == whole.rows and resumed.spent(1e-5) == whole.spent(1e-5)
    assert len(whole.rows) == 1 and whole.rows[0][0] == kind and whole.rows[0][-1] == 7


def test_a_round_s_epsilon_does_not_compute_the_curve_again(monkeypatch):
    event, account, calls = SampledGaussian(0.01234, 1.0), Accountant(), []
    whole = SampledGaussian.renyi
    monkeypatch.setattr(SampledGaussian, "renyi", lambda *a: calls.append(a) or whole(*a))
    spending = []
    for _ in range(5):
        account.add(event)
        spending.append(account.spent(1e-5).epsilon)
    assert spending == sorted(spending) and len(calls) == 1


def test_what_is_said():
    account = Accountant(unit="sample")
    assert account.spent(1e-5).epsilon == account.tight(1e-5).epsilon == 0.0
    account.add(TreeGaussian(100, 10.0))
    assert str(account.spent(1e-5)) == "ε = 1.08 at δ = 1e-05 (zero out one sample; RDP)"
    assert account.after(TreeGaussian(100, 10.0)).spent(1e-5).epsilon > account.spent(1e-5).epsilon
    assert account.rows == [["tree", 100, 10.0, 1]]  # `after` is a copy


def test_a_loss_distribution_that_would_take_minutes_is_not_tried():
    hopeless = tight(SampledGaussian(0.01, 0.1), 1000, 1e-5)
    assert hopeless.way == "RDP" and hopeless.epsilon > 1000


def test_orders_that_are_left_out_are_not_spoken_of(caplog):
    assert spent(SampledGaussian(0.5, 30.0), 1000, 1e-5) == pytest.approx(2.2996373720729997)
    assert not caplog.records


# ---- mistakes


def test_without_the_package_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UnalikeError) as raised:
        Accountant().after(GaussianSum(1.0)).tight(1e-5)
    assert str(raised.value) == 'Accounting for privacy needs dp_accounting: pip install "unalike[privacy]".'


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GaussianSum(-1.0), "GaussianSum noise must be a number of at least 0; got -1.0."),
        (lambda: GaussianSum(math.nan), "got nan"),
        (lambda: SampledGaussian(0.0, 1.0), r"SampledGaussian q must be in \(0, 1\]; got 0.0."),
        (lambda: SampledGaussian(1.1, 1.0), "got 1.1"),
        (lambda: CohortGaussian(10, 11, 1.0), "from 1 to 10 of 10 clients; got 11"),
        (lambda: TreeGaussian(0, 1.0), "at least one leaf; got 0"),
        (lambda: SkellamSum(-1.0, 1.0, 1.0), "SkellamSum variance"),
        (lambda: SkellamSum(1.0, 1.0, 1.0, 2.0), "SkellamSum q"),
        (lambda: Accountant([["gausian", 1.0, 3]]), "no event of privacy 'gausian'. Did you mean 'gaussian'?"),
        (lambda: Accountant().add(GaussianSum(1.0), -1), "cannot be taken back"),
        (lambda: spent(GaussianSum(1.0), 1, 1.0), r"δ must be in \[0, 1\); got 1.0"),
        (lambda: spent(SampledGaussian(0.1, 1.0), 1, 1e-5, REPLACE), "Bernoulli sampling has no 'replace'"),
        (lambda: spent(SkellamSum(9.0, 1.0, 1.0), 1, 1e-5, ADD_REMOVE), "'skellam' has no guarantee for 'add or"),
        (
            lambda: spent(DiscreteGaussianSum(9.0, 1.0, 1.0), 1, 1e-5, ADD_REMOVE),
            "'discrete gaussian' has no guarantee for 'add or",
        ),
    ],
)
def test_mistakes_are_one_line(make, says):
    with pytest.raises(UnalikeError, match=says):
        make()


def test_noises_that_no_one_guarantee_covers(monkeypatch):
    account = Accountant([["tree", 4, 1.0, 1], ["local gaussian", 1.0, 1]])
    assert account.relation == REPLACE
    monkeypatch.setattr(TreeGaussian, "relations", (ZERO_OUT,))
    with pytest.raises(UnalikeError, match="covers these together: local gaussian, tree"):
        account.spent(1e-5)
