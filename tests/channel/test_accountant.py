"""What a run has spent: golden numbers, the traps of accounting, the least noise, resumed runs."""

import json

import pytest
from paths import GOLDEN

from unalike.channel.accountant import Accountant
from unalike.channel.events import REPLACE, SampledGaussian

CASES = {case["name"]: case for case in json.loads((GOLDEN / "channel_accounting.json").read_text())["cases"]}
POISSON = [name for name, case in CASES.items() if case["sampling"] == "poisson" and "epsilon" in case]


def spent(event, rounds, delta, relation=None):
    return Accountant().after(event, rounds).spent(delta, relation).epsilon


def tight(event, rounds, delta, relation=None):
    return Accountant().after(event, rounds).tight(delta, relation)


@pytest.mark.parametrize("name", POISSON)
def test_bernoulli_sampling(name):
    case = CASES[name]
    event, rounds, delta, golden = SampledGaussian(case["q"], case["sigma"]), case["T"], case["delta"], case["epsilon"]
    rdp = spent(event, rounds, delta)
    assert rdp == pytest.approx(golden["rdp_add_remove"], abs=1e-4)
    assert rdp == pytest.approx(golden["opacus_rdp"], abs=4e-4)  # the same formula at other orders
    by_pld = tight(event, rounds, delta)
    assert by_pld.epsilon == pytest.approx(golden["pld_add_remove"], abs=2e-3) and by_pld.way == "PLD"
    assert by_pld.epsilon == pytest.approx(golden["opacus_prv"], abs=2e-2)
    assert golden["own_rdp_classic_conversion"] > rdp  # the older conversion is not the one in use
    replaced = tight(event, rounds, delta, REPLACE)
    assert replaced.epsilon == pytest.approx(golden["pld_replace"], abs=2e-3) and replaced.relation == REPLACE
