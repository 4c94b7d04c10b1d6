"""The contract over the registry: every method gets these for free. And toys that prove the contract's reach."""

import dataclasses as dc

import pytest
import torch
from toys import TOYS, FeatureMean, PeerTable, ScalarsFirst, SecondOrder

import unalike as ua
from unalike import testing

LOCAL = testing.settings()["local"]
EVEN = {"local": ua.LocalTraining(steps=3, batch_size=5, lr=0.05)}
FREE = {"local": dc.replace(LOCAL, clip_norm=None)}
UNIFORM = ua.FedAvg(weights="uniform")
# A method in its usual strength; its knob off (None: it has none); what it then is, and in which setting.
CASES = {
    "fedavg": (ua.FedAvg(), None, None, {}),
    "fedprox": (ua.FedProx(mu=1.0), ua.FedProx(mu=0.0), ua.FedAvg(), {}),
    # SCAFFOLD has no knob: its variates are zero in the first round, which is FedAvg's with uniform weights
    "scaffold": (ua.Scaffold(), ua.Scaffold(), UNIFORM, {"rounds": 1}),
    "qfedavg": (ua.QFedAvg(q=1.0), ua.QFedAvg(q=0.0), UNIFORM, {}),
    "fednova": (ua.FedNova(), ua.FedNova(), ua.FedAvg(), EVEN),  # with equal work it is FedAvg
    # FedDyn's server adds the drift whatever alpha is: it never is FedAvg
    "feddyn": (ua.FedDyn(alpha=0.1), None, None, {}),
    "feddc": (ua.FedDC(alpha=0.1), ua.FedDC(0.1, "official", correction=False), ua.FedDyn(alpha=0.1), FREE),
    "rfedavg": (ua.RFedAvg(lam=0.3), ua.RFedAvg(lam=0.0), ua.FedAvg(), {}),
    "rfedavg-plus": (ua.RFedAvgPlus(lam=0.3), ua.RFedAvgPlus(lam=0.0), ua.FedAvg(), {}),
    "fedfa": (
        ua.FedFa(), ua.FedFa(client_momentum=0.0, server_momentum=0.0, weighting="samples"), ua.FedAvg(), {},
    ),
    "fedavgr": (ua.FedAvgR(1e-2, 1e-2, 0.1), ua.FedAvgR(0.0, 0.0, 0.0), ua.FedAvg(), {}),
    "oneshot": (ua.OneShot(epochs=3), None, None, {}),
    "flhc": (ua.FLHC(2, warmup=0), ua.FLHC(1, warmup=0), ua.FedAvg(), {}),
    "fedavgm": (ua.FedAvgM(), ua.FedAvgM(server_momentum=0.0), ua.FedAvg(), {}),
    "fedadagrad": (ua.FedAdagrad(), None, None, {}),
    "fedyogi": (ua.FedYogi(), None, None, {}),
    "fedadam": (ua.FedAdam(), None, None, {}),
    "centralized": (ua.Centralized(), None, None, {"clients_per_round": 1}),
    "local-only": (ua.LocalOnly(), None, None, {}),
}  # fmt: skip
KINDS = ("linear", "mlp", "cnn", "norm", "lstm")


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


@pytest.mark.parametrize("name", [n for n in CASES if n != "fedavg"])
def test_is_not_fedavg_in_disguise(name):
    testing.check_bites(CASES[name][0], ua.FedAvg(), rounds=2)
    testing.check_bites(CASES[name][0], UNIFORM, rounds=2)


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


def programs(run):
    return [program for kept in run.engine.steps.values() for program in kept]


def same_compiled(method, kind, **changes):
    eager = testing.run(method, kind, engine="batched", dtype="float64", **changes)
    compiled = testing.run(method, kind, engine="batched", dtype="float64", compile=True, **changes)
    assert testing.difference(eager, compiled) < 1e-9
    assert [p.mode for p in programs(compiled)] == ["compiled"] * len(programs(compiled))


@pytest.mark.parametrize("method", [ua.Scaffold(), FeatureMean(), SecondOrder()], ids=lambda m: type(m).__name__)
def test_traced_equals_eager(method, monkeypatch):
    """Everything up to the code generator, which is slow: the whole step is one graph without breaks."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, backend="aot_eager", fullgraph=True, **k))
    same_compiled(method, "mlp", rounds=1, clients_per_round=[[0, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("linear", "mlp", "cnn"))
def test_compiled_equals_eager(kind):
    same_compiled(ua.FedAvg(), kind)


def test_what_cannot_be_compiled_is_run_eagerly(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, backend=broken, **k))
    run = testing.run(ua.FedAvg(), "linear", engine="batched", dtype="float64", compile=True)
    eager = testing.run(ua.FedAvg(), "linear", engine="batched", dtype="float64")
    assert testing.difference(run, eager) == 0
    assert [p.mode for p in programs(run)] == ["eager"]
    assert "not compiled" in programs(run)[0].notes[0]
