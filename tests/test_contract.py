"""The contract over the registry: every method gets these for free. And toys that prove the contract's reach."""

import pytest
from toys import TOYS, FeatureMean, PeerTable, ScalarsFirst

import unalike as ua
from unalike import testing

# A method in its usual strength; its knob off (None: it has none); what it then is, and in which setting.
CASES = {
    "fedavg": (ua.FedAvg(), None, None, {}),
    "fedprox": (ua.FedProx(mu=1.0), ua.FedProx(mu=0.0), ua.FedAvg(), {}),
    # SCAFFOLD has no knob: its variates are zero in the first round, which is FedAvg's with uniform weights
    "scaffold": (ua.Scaffold(), ua.Scaffold(), ua.FedAvg(weights="uniform"), {"rounds": 1}),
}
KINDS = ("linear", "mlp", "cnn", "lstm")


def test_every_method_has_its_case():
    assert set(CASES) == set(ua.METHODS)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree(name, kind):
    testing.check_engines(CASES[name][0], kind)
    testing.check_engines(CASES[name][0], kind, "float64")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ("sequential", "workers", "batched", "loopback"))
def test_resumed_is_uninterrupted(name, engine):
    testing.check_resume(CASES[name][0], engine=engine)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case[1] is not None])
def test_vanishes_and_bites(name):
    on, off, like, changes = CASES[name]
    testing.check_vanishes(off, like, **changes)
    testing.check_bites(on, like, rounds=2)


@pytest.mark.parametrize("toy", TOYS, ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("kind", ("linear", "mlp", "lstm"))
def test_toys_agree_on_all_engines(toy, kind):
    testing.check_engines(toy, kind, "float64")


@pytest.mark.parametrize("toy", TOYS, ids=lambda t: type(t).__name__)
def test_toys_bite_and_resume(toy):
    testing.check_bites(toy, ua.FedAvg())
    testing.check_resume(toy)


def test_toys_vanish():
    testing.check_vanishes(FeatureMean(0.0), ua.FedAvg())
    testing.check_vanishes(ScalarsFirst(0.0), ua.FedAvg(weights="uniform"))


def test_only_calls_a_part_of_the_cohort():
    cohorts = {"clients_per_round": [[0, 1, 2, 4], [1, 2, 3]]}  # PeerTable leaves the last client of its cohort out
    part = testing.run(PeerTable(0.0), "mlp", engine="sequential", dtype="float64")
    same = testing.run(ua.FedAvg(), "mlp", engine="sequential", dtype="float64", **cohorts)
    assert (part.server.w - same.server.w).abs().max() < 1e-12


def test_batch_order_does_not_depend_on_chunks():
    whole = testing.run(ua.Scaffold(), "mlp", engine="batched", dtype="float64")
    parts = testing.run(ua.Scaffold(), "mlp", engine="batched", dtype="float64", clients_at_once=2)
    assert testing.difference(whole, parts) < 1e-12


def test_compiled_equals_eager():
    eager = testing.run(ua.FedProx(mu=0.5), "linear", engine="batched", dtype="float64")
    compiled = testing.run(ua.FedProx(mu=0.5), "linear", engine="batched", dtype="float64", compile=True)
    assert testing.difference(eager, compiled) < 1e-9
