"""How `engine="auto"` decides on a CPU: by a measurement that is kept, or by the model's size."""

import json

import numpy as np
import pytest
import torch
from small import assert_same

import unalike as ua
from unalike import testing
from unalike.engines import costs
from unalike.engines.costs import Costs

LONG = {"rounds": 40, "clients_per_round": 5, "local": ua.LocalTraining(steps=12, batch_size=5, lr=0.05)}  # 2400 steps


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(costs, "_busy", lambda: False)


def found(monkeypatch, value):
    """As if this had been measured."""
    monkeypatch.setattr(costs, "_measure", lambda job, busy: value)


def test_the_shortest_prediction_wins(monkeypatch):
    monkeypatch.setattr(costs, "available_cores", lambda: 2)
    # 100 clients of 30 steps: alone 3000 x 0.2 ms; threads 3000 x 0.2 / 2; a stack 30 x 1 ms + 3000 x 2 us
    one = Costs(single=2e-4, crowd=2e-4, stack=1e-3, each=2e-6)
    name, seconds = one.choose("batched", 30, 3000, 10, compiler=True)
    assert name == "batched"
    assert seconds == pytest.approx(
        {"sequential": 6.0, "workers": 3.0, "batched": 0.36, "batched, compiled": 10 + 10 * (0.1 * 0.03 + 0.6 * 0.006)}
    )
    assert one.choose("batched", 30, 3000, 10_000, compiler=True)[0] == "batched, compiled"
    assert one.choose("batched", 30, 3000, 10_000, compiler=False)[0] == "batched"


def test_the_time_of_compiling_is_measured_and_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "compile", lambda f, **k: f)
    found(monkeypatch, Costs(1.0, 1.0, 1.0, 0.0))  # a step of a stack is slow: compiling pays
    one = type("One", (ua.Callback,), {"on_round": lambda self, run, line: True})()  # ends after the first round
    run = testing.run(ua.FedAvg(), "linear", callbacks=[one], **LONG)
    assert run.reason.startswith("batched: batched, compiled") and 0 < run.engine.compiling_seconds < 10
    (kept,) = json.loads((tmp_path / "cache/step-costs.json").read_text()).values()
    assert kept["compiling"] == run.engine.compiling_seconds != costs.COMPILING
    # other work is expected to take as long as this did the first time
    costs.keep_compiling(run.engine.job, 0.25 * kept["compiling"])
    other = costs.measured(testing.run(ua.FedAvg(), "mlp", **{**LONG, "rounds": 0}).engine.job)
    assert other.compiling == kept["compiling"] and other.first == 0
    slow = Costs(2e-4, 2e-4, 1e-3, 2e-6, compiling=100.0)
    assert slow.choose("batched", 30, 3000, 10, compiler=True)[1]["batched, compiled"] > 100


def test_the_time_of_compiling_is_kept_on_a_busy_machine_too(monkeypatch, tmp_path):
    """Its own compiling keeps a small machine busy. Costs measured there are measured again when it is quiet."""
    monkeypatch.setattr(costs, "_busy", lambda: True)
    found(monkeypatch, Costs(1.0, 1.0, 1.0, 1.0))
    job = testing.run(ua.FedAvg(), "linear", **{**LONG, "rounds": 0}).engine.job
    assert costs.measured(job).busy and not (tmp_path / "cache/step-costs.json").exists()
    costs.keep_compiling(job, 3.5)
    costs._known.cache_clear()  # another process
    found(monkeypatch, Costs(2.0, 2.0, 2.0, 2.0))
    assert costs.measured(job) == Costs(1.0, 1.0, 1.0, 1.0, compiling=3.5, first=3.5, busy=True)
    monkeypatch.setattr(costs, "_busy", lambda: False)
    assert costs.measured(job) == Costs(2.0, 2.0, 2.0, 2.0, compiling=3.5, first=3.5)


def test_one_long_client_makes_a_stack_slow(monkeypatch):
    monkeypatch.setattr(costs, "available_cores", lambda: 2)
    one = Costs(single=2e-4, crowd=2e-4, stack=1e-3, each=2e-6)
    assert one.choose("batched", 2000, 4000, 5, compiler=False)[0] == "workers"


def test_the_usual_engine_stays_unless_another_is_clearly_faster(monkeypatch):
    monkeypatch.setattr(costs, "available_cores", lambda: 1)
    for single, name in ((0.8e-3, "batched"), (0.7e-3, "sequential")):  # a stack of one: 1 ms a step
        assert Costs(single, single, 1e-3, 0.0).choose("batched", 10, 10, 1, compiler=False)[0] == name


def test_a_round_of_ragged_clients():
    sizes = [5] * 99 + [5000]
    fed = ua.Federation.from_arrays([(torch.zeros(n, 3), torch.zeros(n, dtype=torch.int64)) for n in sizes], classes=2)
    run = ua.simulate(torch.nn.Linear(3, 2), fed, ua.FedAvg(), rounds=0, engine="sequential", local=LONG["local"])
    job = run.engine.job
    job.local = ua.LocalTraining(epochs=2, batch_size=5)
    longest, total = costs.workload(job, 100)
    assert (longest, total) == pytest.approx((2000, 99 * 2 + 2000))
    longest, total = costs.workload(job, 10)  # ten of a hundred: the long one is among them in a tenth of the rounds
    assert (longest, total) == pytest.approx((0.1 * 2000 + 0.9 * 2, 219.8))


def test_measured_once_and_kept(monkeypatch, tmp_path):
    first = testing.run(ua.FedAvg(), "linear", **LONG)
    assert "would train for some" in first.reason
    (kept,) = json.loads((tmp_path / "cache/step-costs.json").read_text()).values()
    assert all(kept[name] > 0 for name in ("single", "crowd", "stack")) and kept["each"] >= 0

    def again(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(costs, "_measure", again)
    assert testing.run(ua.FedAvg(), "linear", **LONG).reason == first.reason
    costs._known.cache_clear()  # as a new process
    assert testing.run(ua.FedAvg(), "linear", **LONG).reason == first.reason
    with pytest.raises(AssertionError, match="measured again"):
        testing.run(ua.FedAvg(), "mlp", **LONG)


def test_a_busy_machine_or_a_broken_file_stops_nobody(monkeypatch, tmp_path):
    file = tmp_path / "cache/step-costs.json"
    file.parent.mkdir()
    file.write_text('{"abc": [1, 2')
    monkeypatch.setattr(costs, "_busy", lambda: True)
    assert "would train" in testing.run(ua.FedAvg(), "linear", **LONG).reason
    assert file.read_text() == '{"abc": [1, 2'  # what was seen on a busy machine is not kept
    monkeypatch.setattr(costs, "_busy", lambda: False)
    costs._known.cache_clear()
    monkeypatch.setattr(costs.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("read-only")))
    assert "would train" in testing.run(ua.FedAvg(), "linear", **LONG).reason


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"rounds": 2}, "stack 5 clients"),  # 120 steps
        ({"deterministic": True}, "stack 5 clients"),
        ({"clients_per_round": 1}, "one client per round"),
    ],
)
def test_where_nothing_is_measured(monkeypatch, changes, words):
    found(monkeypatch, None)
    assert words in testing.run(ua.FedAvg(), "linear", **{**LONG, **changes}).reason


def test_measuring_changes_nothing(monkeypatch):
    """Neither the result nor what clients keep; a method with state, and a kept optimizer."""
    local = ua.LocalTraining(steps=12, batch_size=5, lr=0.05, momentum=0.9, keep_optimizer=True)
    changes = {**LONG, "local": local}
    auto = testing.run(ua.Scaffold(), "linear", **changes)
    assert_same(auto, testing.run(ua.Scaffold(), "linear", engine=auto.engine.name, **changes))


def test_a_resumed_run_keeps_its_engine(monkeypatch, tmp_path):
    threads, alone = Costs(1e-4, 1e-4, 1.0, 1.0), Costs(1e-4, 1.0, 1.0, 1.0)
    monkeypatch.setattr(costs, "available_cores", lambda: 2)
    found(monkeypatch, threads)
    first = testing.run(ua.FedAvg(), "linear", **LONG, folder=tmp_path / "run")
    assert first.reason.startswith("workers: workers would train")
    costs._known.cache_clear()
    (tmp_path / "cache/step-costs.json").unlink()
    found(monkeypatch, alone)
    assert testing.run(ua.FedAvg(), "linear", **LONG).engine.name == "sequential"
    more = {**LONG, "rounds": 45, "folder": tmp_path / "run", "resume": True}
    assert testing.run(ua.FedAvg(), "linear", **more).reason == "workers: as before"
    config = tmp_path / "run/config.toml"
    for there, here in (('device = "cpu"', 'device = "cuda"'), ('engine = "auto"', 'engine = "loopback"')):
        written = config.read_text()
        assert written.count(there) == 1
        config.write_text(written.replace(there, here))  # as if it had begun there, or been given that engine
        more["rounds"] += 1
        assert testing.run(ua.FedAvg(), "linear", **more).engine.name == "sequential"


@pytest.mark.slow
def test_compiled_where_it_pays(monkeypatch):
    compiled = Costs(1.0, 1.0, 1.0, 0.0)
    found(monkeypatch, compiled)
    monkeypatch.setattr(costs, "compiler", lambda: True)
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": "eager"}))
    run = testing.run(ua.FedAvg(), "linear", **LONG)
    assert run.engine.compile and run.reason.startswith("batched: batched, compiled would train")
    assert not testing.run(ua.FedAvg(), "linear", **LONG, compile=False).engine.compile
    assert np.isfinite(run.history[-1]["train_loss"])
