"""Switches that are set for the whole process are put back when a run is over."""

import sys
import warnings

import pytest
import small
import torch

import unalike as ua
from unalike import testing
from unalike.engines.batched import Batched
from unalike.nn import numerics


@pytest.fixture
def malloc(monkeypatch):
    seen = []
    monkeypatch.setattr(numerics, "_set_malloc", seen.append)
    return seen


def test_malloc_keeps_memory_while_a_run_lasts(malloc):
    inside = []
    watch = type("Watch", (ua.Callback,), {"on_round": lambda self, run, line: inside.append(list(malloc))})()
    small.run(engine="sequential", rounds=1, callbacks=[watch])
    assert inside == [[numerics.KEEPING]] and malloc == [numerics.KEEPING, numerics.USUAL]


def test_of_several_runs_the_last_one_puts_malloc_back(malloc):
    with numerics.kept_memory(), numerics.kept_memory():
        assert malloc == [numerics.KEEPING]
    assert malloc == [numerics.KEEPING, numerics.USUAL]
    with pytest.raises(ValueError), numerics.kept_memory():
        raise ValueError
    assert malloc[2:] == [numerics.KEEPING, numerics.USUAL]


def test_the_compilers_switches_are_those_of_a_step_alone(monkeypatch):
    inside, config = [], torch._dynamo.config
    before = config.recompile_limit, config.allow_rnn
    monkeypatch.setattr(torch, "compile", lambda f, **k: f)
    step = ua.engines.batched.step.Step._step

    def watched(self, *given):
        inside.append((config.recompile_limit, config.allow_rnn))
        return step(self, *given)

    monkeypatch.setattr(ua.engines.batched.step.Step, "_step", watched)
    filters, interval, threads = list(warnings.filters), sys.getswitchinterval(), torch.get_num_threads()
    testing.run(ua.FedAvg(), "linear", engine="batched", compile=True, rounds=1)
    assert set(inside) == {(max(64, before[0]), True)}
    assert (config.recompile_limit, config.allow_rnn) == before != (max(64, before[0]), True)
    assert (warnings.filters, sys.getswitchinterval(), torch.get_num_threads()) == (filters, interval, threads)


def test_a_budget_of_gpu_memory_ends_with_its_engine(monkeypatch):
    shares = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    engine = testing.run(ua.FedAvg(), "linear", rounds=0, engine="batched").engine
    engine.close()
    assert shares == []
    engine._limited = True
    engine.close()
    engine.close()
    assert shares == [1.0] and not Batched._limited
