"""Steps of one client that are captured once and replayed; without a GPU, from a tape."""

import pytest
import torch
from tape import record
from torch import nn

import unalike as ua
from unalike import testing
from unalike.client import captured_steps
from unalike.engines.sequential import Sequential


class Graph:
    """A tape, as a CUDA graph is used."""

    def __init__(self, again):
        self.replay = again


@pytest.fixture
def capturing(monkeypatch):
    """Sequential engines that capture, and a list of what was captured."""
    made = []

    def graphed(work, device):
        again, out = record(work, device)
        made.append(work)
        return Graph(again), out

    class Capturing(Sequential):
        def __init__(self, job):
            super().__init__(job)
            self.capture()

    monkeypatch.setattr(captured_steps, "graphed", graphed)
    monkeypatch.setitem(ua.engines.ENGINES, "sequential", Capturing)
    return made


LOCAL = [
    ua.LocalTraining(epochs=2, batch_size=4, lr=0.1),
    ua.LocalTraining(epochs=1, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.01, clip_norm=0.5),
    ua.LocalTraining(steps=5, batch_size=3, lr=0.01, optimizer="adam"),
]


@pytest.mark.parametrize("kind", ["linear", "norm"])
@pytest.mark.parametrize("method", [ua.FedAvg(), ua.Scaffold(), ua.FedDC(alpha=0.1), ua.FedProx(mu=0.1)])
def test_captured_steps_are_the_ordinary_ones(capturing, monkeypatch, method, kind):
    for local in LOCAL:
        options = {"engine": "sequential", "rounds": 3, "local": local}
        captured = testing.run(method, kind, **options)
        with monkeypatch.context() as usual:
            usual.setitem(ua.engines.ENGINES, "sequential", Sequential)
            plain = testing.run(method, kind, **options)
        assert torch.equal(plain.server.w, captured.server.w) and testing.difference(plain, captured) == 0
        assert [line["train_loss"] for line in plain.history] == [line["train_loss"] for line in captured.history]
        assert not captured.engine.notes and captured.engine.one_client.captured.known
    assert capturing


def test_a_loss_of_the_methods_own_is_not_captured(capturing):
    run = testing.run(ua.RFedAvgPlus(), "linear", engine="sequential", rounds=2)
    assert not capturing and not run.engine.one_client.captured.known


def test_what_cannot_be_captured_runs_as_before(capturing, monkeypatch):
    def fails(work, device):
        work()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured_steps, "graphed", fails)
    run = testing.run(ua.Scaffold(), "norm", engine="sequential", rounds=2)
    assert run.engine.notes == ["the steps were not captured: operation not permitted when stream is capturing"]
    monkeypatch.setitem(ua.engines.ENGINES, "sequential", Sequential)
    plain = testing.run(ua.Scaffold(), "norm", engine="sequential", rounds=2)
    assert torch.equal(plain.server.w, run.server.w)


class Replacing(nn.Module):
    """A layer that puts a new tensor in the place of its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.out(x - self.mean)


def test_buffers_that_a_layer_replaces(capturing, monkeypatch):
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (9, 6)]
    runs = []
    for engine in (None, Sequential):
        if engine is not None:
            monkeypatch.setitem(ua.engines.ENGINES, "sequential", engine)
        torch.manual_seed(1)
        local = ua.LocalTraining(epochs=2, batch_size=3, lr=0.1)
        fed = ua.Federation.from_arrays(clients)
        runs.append(ua.simulate(Replacing(), fed, ua.FedAvg(), rounds=2, engine="sequential", local=local))
    captured, plain = (run.model.state_dict() for run in runs)
    assert all(torch.equal(captured[name], plain[name]) for name in plain) and capturing
