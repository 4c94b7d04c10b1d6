"""Compiled, all clients of a stack go through every step; those who have finished must stay as they were."""

import pytest
from torch import nn

import unalike as ua
from unalike import testing
from unalike.engines.batched import recorded

LOCAL = {"epochs": 2, "batch_size": 5, "lr": 0.05, "keep_optimizer": True}
# Clients 1 and 4 take two steps, 0, 3 and 5 four, 2 six. Steps are compiled for all six, for three and for two, so
# that in steps 3 to 6 somebody who has finished comes along.
RAGGED = {"engine": "batched", "dtype": "float64", "rounds": 1, "clients_per_round": 1.0}


@pytest.fixture
def quick_compiler(monkeypatch):
    """Everything up to the code generator, which is slow."""
    monkeypatch.setattr(recorded, "BACKEND", "aot_eager")


def both(kind, local, **changes):
    given = {**RAGGED, "local": ua.LocalTraining(**LOCAL, **local), **changes}
    eager, compiled = (testing.run(ua.FedAvg(), kind, compile=compile, **given) for compile in (False, True))
    assert not [note for note in compiled.engine.notes if "not compiled" in note]
    return eager, compiled


@pytest.mark.parametrize(
    "local", [pytest.param({"momentum": 0.9}, marks=pytest.mark.slow), {"optimizer": "adam"}], ids=["momentum", "adam"]
)
def test_the_optimizer_state_of_a_finished_client_stays(local, quick_compiler):
    eager, compiled = both("linear", local)
    kept = [name for name in eager.clients[1] if "optimizer" in name]
    assert kept and all(eager.clients[1][name].any() for name in kept)
    assert testing.difference(eager, compiled) < 1e-9


@pytest.mark.parametrize("buffers", ["average", pytest.param("local", marks=pytest.mark.slow)])
def test_the_statistics_of_a_finished_client_stay(buffers, quick_compiler):
    eager, compiled = both("norm", {}, buffers=buffers)
    assert (eager.server.buffers if buffers == "average" else eager.clients[1]["buffers"]).any()
    assert testing.difference(eager, compiled) < 1e-9


def bodies(run):
    """What makes a step of each width: PyTorch's checks and then the compiled code, or the code alone."""
    (static,) = [step.static for step in run.engine.steps_made]
    return {width: again.func == static._body for (width, _), again in static._again.items()}


@pytest.mark.slow
def test_checks_are_made_once_a_width(quick_compiler):
    eager, compiled = both("linear", {}, rounds=3)
    assert bodies(compiled) == {6: False, 2: False}
    assert testing.difference(eager, compiled) < 1e-9


def test_a_mask_is_drawn_anew_for_every_step(quick_compiler):
    """By a key that is another tensor each time."""
    _, fed = testing.task("linear")
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    given = {**RAGGED, "local": ua.LocalTraining(**LOCAL), "rounds": 2}
    eager, compiled = (ua.simulate(module, fed, ua.FedAvg(), compile=compile, **given) for compile in (False, True))
    assert bodies(compiled) == {6: True, 2: True}
    assert testing.difference(eager, compiled) < 1e-9


def test_code_that_does_less_than_a_step_is_not_called_alone(quick_compiler, monkeypatch):
    def half(self, work):
        work()
        return lambda: None

    monkeypatch.setattr(recorded.Recorder, "record", half)
    eager, compiled = both("linear", {}, rounds=2)
    assert bodies(compiled) == {6: True, 2: True}
    assert testing.difference(eager, compiled) < 1e-9
