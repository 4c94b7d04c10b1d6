"""PowerSGD: golden factors and errors over rounds, what both readings of the error share, what travels."""

import dataclasses as dc

import numpy as np
import pytest
import torch
from goldens import everywhere, golden
from torch import nn

import unalike as ua
from unalike import testing
from unalike.nn.layout import Layout

CASES = golden("channel_powersgd")["cases"]


class Told:
    """A cohort that brings each client its update, and notes the factors that the server sends."""

    def __init__(self, cohort, updates, seen):
        self.cohort, self.updates, self.seen = cohort, updates, seen

    def only(self, ids):
        return Told(self.cohort.only(ids), self.updates, self.seen)

    def call(self, fn, **message):
        self.seen.update(message)
        if fn.__name__ == "client":
            message["update"] = ua.PerClient(self.updates)
        return self.cohort.call(fn, **message)


@dc.dataclass(frozen=True)
class Given(ua.PowerSGD):
    """The file's updates in the place of training, from the file's first Q."""

    case: int = 0

    def setup(self, server, everyone):
        server.right = torch.tensor(CASES[self.case]["Q0"], dtype=server.w.dtype).flatten()

    def client(self, me, s, m):
        return self.done(me, s, m, m.w + m.update)

    def round(self, server, cohort):
        updates = torch.tensor(CASES[self.case]["steps"][cohort.round]["updates"], dtype=server.w.dtype)
        before, seen = server.w, {}
        super().round(server, Told(cohort, updates.flatten(1), seen))
        server.seen_left, server.moved = seen["left"], server.w - before


@everywhere
@pytest.mark.parametrize("number", range(len(CASES)), ids=[c["name"] for c in CASES])
@pytest.mark.parametrize("error", ["mean", "own"])
def test_golden(number, engine, dtype, error):
    case = CASES[number]
    steps, rank = case["steps"], case["rank"]
    clients, m, n = np.shape(steps[0]["updates"])
    fed = ua.Federation.from_arrays([(np.zeros((2, n)), np.zeros(2, int))] * clients, classes=m)
    for count in range(1, len(steps) + 1):
        torch.manual_seed(0)
        method = Given(rank, error, case=number)
        run = ua.simulate(
            nn.Linear(n, m, bias=False), fed, method, rounds=count, engine=engine, dtype=dtype, device="cpu",
            local=ua.LocalTraining(steps=1, batch_size=2, lr=0.1), evaluate_every=100,
        )  # fmt: skip
        row, near = steps[count - 1], {"atol": 1e-9 if dtype == "float64" else 5e-6, "rtol": 0}
        np.testing.assert_allclose(run.server.seen_left.view(m, rank), row["P"], **near)
        np.testing.assert_allclose(run.server.right.view(n, rank), row["Q"], **near)
        np.testing.assert_allclose(run.server.moved.view(m, n), row["decoded_mean"], **near)
        errors = torch.stack([run.clients[k]["error"].view(m, n) for k in range(clients)])
        wanted = torch.tensor(row["errors_after"], dtype=errors.dtype)
        if error == "mean":
            np.testing.assert_allclose(errors, wanted, **near)
        np.testing.assert_allclose(errors.mean(0), wanted.mean(0), **near)  # the same on the average


def run(method, kind="mlp", **changes):
    return testing.run(method, kind, **{"engine": "sequential", "dtype": "float64", "device": "cpu", **changes})


def test_what_was_sent_and_what_is_left_are_the_updates():
    given = {"clients_per_round": 1.0, "rounds": 1}
    compressed, plain = run(ua.PowerSGD(1, weights="uniform"), **given), run(ua.FedAvg("uniform"), **given)
    errors = torch.stack([compressed.clients[k]["error"] for k in range(6)]).mean(0)
    assert float(errors.abs().max()) > 1e-4
    torch.testing.assert_close(compressed.server.w + errors, plain.server.w, atol=1e-12, rtol=0)


def test_both_errors_move_the_model_alike_where_all_take_part():
    runs = [run(ua.PowerSGD(1, error), clients_per_round=1.0, rounds=3) for error in ("own", "mean")]
    torch.testing.assert_close(runs[0].server.w, runs[1].server.w, atol=1e-12, rtol=0)
    runs = [run(ua.PowerSGD(1, error), rounds=3) for error in ("own", "mean")]
    assert float((runs[0].server.w - runs[1].server.w).abs().max()) > 1e-4


def test_bytes():
    module, _ = testing.task("mlp")  # 6-8-5-3: at rank 2 only the first matrix gets smaller
    size = sum(p.numel() for p in module.parameters())
    factors, rest = 2 * (8 + 6), size - 8 * 6
    assert 2 * (5 + 8) < 5 * 8
    factors, rest = factors + 2 * (5 + 8), rest - 5 * 8  # and the second; 2 · (3 + 5) is more than 15
    line = run(ua.PowerSGD(2), dtype="float32").history[0]
    assert line["bytes_up"] == 5 * 4 * (factors + rest)
    assert line["bytes_down"] == 5 * 4 * (size + factors)
    line = run(ua.PowerSGD(2, "mean"), dtype="float32").history[0]
    assert line["bytes_down"] == 5 * 4 * (size + factors + 2 * (6 + 8))


def test_a_model_that_nothing_makes_smaller_is_averaged():
    module, fed = testing.task("linear")
    runs = [ua.simulate(module, fed, m, **testing.settings()) for m in (ua.PowerSGD(3), ua.FedAvg())]
    assert torch.equal(runs[0].server.w, runs[1].server.w)


def test_columns_that_are_nothing_new_are_drawn_anew():
    """An update of rank 1 under a rank of 2: the second column is zero, and the next Q has none of zeros."""
    method = ua.PowerSGD(2)
    layout = Layout([("weight", (7, 9))])
    left = torch.outer(torch.arange(1.0, 8.0), torch.tensor([1.0, 2.0])).flatten()
    p = method.orthonormal(layout, left).view(7, 2)
    assert float(p[:, 0].norm()) == pytest.approx(1) and not p[:, 1].any()
    zero = method.orthonormal(layout, 0 * left)
    assert not zero.any()

    class Server:
        def normal(self, purpose, shape):
            return torch.full(shape, 5.0)

    right = torch.zeros(9, 2)
    right[:, 0] = 1.0
    assert method.onward(layout, right.flatten(), Server()).view(9, 2).tolist() == [[1.0, 5.0]] * 9


def test_several_networks():
    small, large = nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 4))
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(6, 5, generator=draw), torch.arange(6) % 4) for _ in range(4)]
    fed = ua.Federation.from_arrays(clients, classes=4)
    given = {"rounds": 2, "local": ua.LocalTraining(epochs=1, batch_size=3, lr=0.1), "device": "cpu"}
    both = ua.simulate(
        {"small": small, "large": large}, fed, ua.PowerSGD(1), architecture=["small", "large"] * 2, **given
    )
    alone = ua.simulate(large, fed, ua.PowerSGD(1), clients_per_round=[[1, 3], [1, 3]], **given)
    torch.testing.assert_close(both.server.w["large"], alone.server.w)
