"""Compiled, all clients of a stack go through every step; those who have finished must stay as they were."""

import pytest
import torch

import unalike as ua
from unalike import testing

LOCAL = {"epochs": 2, "batch_size": 5, "lr": 0.05, "keep_optimizer": True}
# Clients 1 and 4 take two steps, 0, 3 and 5 four, 2 six. Steps are compiled for all six, for three and for two, so
# that in steps 3 to 6 somebody who has finished comes along.
RAGGED = {"engine": "batched", "dtype": "float64", "rounds": 1, "clients_per_round": 1.0}


@pytest.fixture
def quick_compiler(monkeypatch):
    """Everything up to the code generator, which is slow."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, backend="aot_eager", **k))


def both(kind, local, **changes):
    given = {**RAGGED, "local": ua.LocalTraining(**LOCAL, **local), **changes}
    eager, compiled = (testing.run(ua.FedAvg(), kind, compile=compile, **given) for compile in (False, True))
    assert not [note for note in compiled.engine.notes if "not compiled" in note]
    return eager, compiled


@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"optimizer": "adam"}], ids=["momentum", "adam"])
def test_the_optimizer_state_of_a_finished_client_stays(local, quick_compiler):
    eager, compiled = both("linear", local)
    kept = [name for name in eager.clients[1] if "optimizer" in name]
    assert kept and all(eager.clients[1][name].any() for name in kept)
    assert testing.difference(eager, compiled) < 1e-9


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_the_statistics_of_a_finished_client_stay(buffers, quick_compiler):
    eager, compiled = both("norm", {}, buffers=buffers)
    assert (eager.server.buffers if buffers == "average" else eager.clients[1]["buffers"]).any()
    assert testing.difference(eager, compiled) < 1e-9
