"""Runs whose replies are compressed: the same on every engine, resumed, learning, and with the bytes that were said."""

import pytest
import small
import torch

import unalike as ua
from unalike import testing
from unalike.models import softmax_regression

CHANNELS = [
    "quantise:6:0.1", "qsgd:8", "half", "randomk:0.2", "stc:0.1", "topk:0.1,quantise:6",
    {"delta": "topk:0.2", "control": "quantise:5"},
]  # fmt: skip


@pytest.fixture(scope="module")
def plain():
    return testing.run(ua.Scaffold(), "mlp", engine="sequential", dtype="float64")


@pytest.mark.parametrize("channel", CHANNELS, ids=str)
def test_engines_agree(channel, plain):
    method = ua.Scaffold()
    first = testing.run(method, "mlp", engine="sequential", dtype="float64", channel=channel)
    assert float((first.server.w - plain.server.w).abs().max()) > 1e-6
    assert first.history[-1]["bytes_up"] < plain.history[-1]["bytes_up"]
    for engine in ("batched", "loopback"):
        other = testing.run(method, "mlp", engine=engine, dtype="float64", channel=channel)
        assert testing.difference(first, other) < 1e-9, engine
        assert [line["bytes_up"] for line in other.history] == [line["bytes_up"] for line in first.history]


def test_bytes_of_a_round():
    module, _ = testing.task("mlp")
    size = sum(p.numel() for p in module.parameters())
    for channel, each in (
        ("quantise:4", -(-size * 4 // 8) + 4),
        ("topk:0.1,half", round(0.1 * size) * 2 + -(-round(0.1 * size) * 7 // 8)),
    ):
        run = testing.run(ua.FedAvg(), "mlp", engine="batched", channel=channel)
        assert [line["bytes_up"] for line in run.history] == [5 * each, 4 * each]


@pytest.mark.parametrize("channel", ["topk:0.1", "stc:0.1", "randomk:0.1:true,quantise:4"])
@pytest.mark.parametrize("engine", ["batched", "loopback"])
def test_resumed_is_uninterrupted(channel, engine, tmp_path):
    given = {"channel": channel, "engine": engine, "clients_per_round": [[0, 1, 2], [1, 2, 3], [0, 3]]}
    whole = small.run(rounds=3, **given)
    small.run(rounds=1, folder=tmp_path / "run", **given)
    resumed = small.run(rounds=3, folder=tmp_path / "run", resume=True, **given)
    wanted, got = small.states(whole), small.states(resumed)
    assert wanted.keys() == got.keys()
    errors = [name for name in wanted if "error-delta" in name]
    assert errors and any(wanted[name].any() for name in errors)
    for name, value in wanted.items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, got[name]), name


@pytest.mark.parametrize("method", [ua.FedAvg(), ua.Scaffold(), ua.FedDC(0.1)], ids=lambda m: m.name)
def test_learns_with_feedback_and_worse_without(method):
    fed = ua.load("digits").split("dirichlet:0.3", 10, seed=0, test=0.2)
    local = ua.LocalTraining(epochs=1, batch_size=16, lr=0.2)

    def loss(channel):
        torch.manual_seed(0)
        run = ua.simulate(
            softmax_regression(64, 10), fed, method, rounds=15, local=local, engine="batched", device="cpu",
            evaluate_every=15, channel=channel,
        )  # fmt: skip
        return run.history[-1]["test_loss"]

    fed_back, without = loss("topk:0.01"), loss("topk:0.01:false")
    assert fed_back < 0.8 * without, (fed_back, without)
    assert fed_back < 1.9  # log 10 = 2.3 knows nothing
