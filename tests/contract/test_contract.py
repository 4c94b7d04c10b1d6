"""The contract over the registry: every method gets these for free. And toys that prove the contract's reach."""

import pytest
import torch
from cases import CASES, KIND, UNIFORM

import unalike as ua
from unalike import testing
from unalike.testing.toys import TOYS, FeatureMean, OpenRing, PeerTable, Ring, ScalarsFirst, SecondOrder

# Every method on two models; the toys, which reach for every corner of the contract, on all of them.
KINDS = ("linear", "mlp", "cnn", "norm", "lstm")
EXACT = {"engine": "sequential", "dtype": "float64"}


def test_every_method_has_its_case():
    assert set(CASES) == set(ua.METHODS)


def halved(first, second):
    """Each method with the first; with the second every other one, and the rest in `make acceptance`."""
    marks = [[pytest.mark.slow] * (k % 2) for k in range(len(CASES))]
    return [(*first, name) for name in CASES] + [
        pytest.param(*second, name, marks=mark) for name, mark in zip(CASES, marks, strict=True)
    ]


@pytest.mark.parametrize(("kind", "dtype", "name"), halved(("mlp", "float64"), ("norm", "float32")))
def test_engines_agree(name, kind, dtype):
    testing.check_engines(CASES[name][0], kind, dtype)


@pytest.mark.parametrize(("engine", "name"), halved(("batched",), ("loopback",)))
def test_resumed_is_uninterrupted(name, engine):
    testing.check_resume(CASES[name][0], engine=engine)


@pytest.fixture(scope="module")
def plain():
    """Runs that methods are compared with, each done once: most methods are compared with the same two."""
    done = {}

    def run(method, kind="mlp", **changes):
        asked = repr((method, kind, changes))
        if asked not in done:
            done[asked] = testing.run(method, kind, **EXACT, **changes)
        return done[asked]

    return run


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case[1] is not None])
def test_vanishes(name, plain):
    _, off, like, changes = CASES[name]
    assert testing.apart(testing.run(off, "mlp", **EXACT, **changes), plain(like, **changes)) <= 1e-12


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if n != "fedavg" and not (c[0].serverless or c[0].network)]
)
def test_bites(name, plain):
    """It is neither FedAvg in disguise, nor what it is with its knob off."""
    on, _, like, _ = CASES[name]
    kind = KIND.get(name, "mlp")
    run = testing.run(on, kind, **EXACT)
    for other in (ua.FedAvg(), UNIFORM, *([] if like is None else [like])):
        assert testing.apart(run, plain(other, kind)) >= 1e-6, other


@pytest.mark.parametrize("toy", [*TOYS, Ring()], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in ("lstm", "norm"))) for k in KINDS])
def test_toys_agree_on_all_engines(toy, kind):
    testing.check_engines(toy, kind, "float64")
    testing.check_engines(toy, kind, "float32")


@pytest.mark.parametrize("toy", TOYS, ids=lambda t: type(t).__name__)
def test_toys_bite_and_resume(toy):
    testing.check_bites(toy, ua.FedAvg())
    for engine in testing.ENGINES:
        testing.check_resume(toy, engine=engine)


def test_a_method_without_a_server_resumes():
    for engine in testing.ENGINES:
        testing.check_resume(Ring(), engine=engine)


def test_a_method_without_a_server_vanishes_and_bites():
    """Where nobody takes anything of the other's model, everybody trains alone."""
    testing.check_vanishes(Ring(0.0), ua.LocalOnly())
    testing.check_bites(Ring(), ua.LocalOnly())
    testing.check_bites(Ring(), ua.FedAvg())


def test_what_the_server_may_read_changes_nothing():
    """A ring whose rows are sealed and one whose rows the server may read; alone, everybody keeps its own model."""
    runs = [testing.run(m, "mlp", engine="sequential", dtype="float64") for m in (Ring(), OpenRing(), Ring(0.0))]
    sealed, seen, alone = ([run.clients[k]["theta"] for k in range(6)] for run in runs)
    assert all(torch.equal(a, b) for a, b in zip(sealed, seen, strict=True))
    assert all((a - b).abs().max() > 1e-6 for a, b in zip(sealed, alone, strict=True))


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


@pytest.mark.parametrize("method", [FeatureMean(), ua.Scaffold(), SecondOrder()], ids=lambda m: type(m).__name__)
@pytest.mark.slow
def test_traced_equals_eager(method, monkeypatch):
    """Everything up to the code generator, which is slow: the whole step is one graph without breaks."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": "aot_eager", "fullgraph": True}))
    same_compiled(method, "mlp", rounds=1, clients_per_round=[[0, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("linear", "mlp", "cnn"))
def test_compiled_equals_eager(kind):
    same_compiled(ua.FedAvg(), kind)


def test_what_cannot_be_compiled_is_run_eagerly(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": broken}))
    run = testing.run(ua.FedAvg(), "linear", engine="batched", dtype="float64", compile=True)
    eager = testing.run(ua.FedAvg(), "linear", engine="batched", dtype="float64")
    assert testing.difference(run, eager) == 0
    assert [p.mode for p in programs(run)] == ["eager"]
    assert "not compiled" in programs(run)[0].notes[0]
