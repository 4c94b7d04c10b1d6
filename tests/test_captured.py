"""Exchanges that are captured once and replayed. Without a GPU a replay is acted: the device's side runs again on the
fixed places, with everything that Python decided when it was captured, which is just what a graph would repeat."""

import dataclasses as dc

import pytest
import torch
from test_contract import CASES
from torch.utils._pytree import tree_map
from toys import TOYS

import unalike as ua
from unalike import testing
from unalike.contract import Method
from unalike.engines import captured
from unalike.engines.batched import Batched, Stack
from unalike.engines.together import together

ALL = [*(method for method, *_ in CASES.values()), *TOYS]


@pytest.fixture
def replays(monkeypatch):
    """Captures on a CPU; a list with the name of every exchange that was replayed."""
    made = []

    def record(work, device):
        out = work()
        return lambda: tree_map(lambda mine, new: mine.copy_(new), out, work()), out

    class Capturing(Batched):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.capture = True

    replay = captured.Captured.replay
    monkeypatch.setattr(captured, "record", record)
    monkeypatch.setattr(captured.Captured, "replay", lambda s, *a: made.append(s.call.fn.__name__) or replay(s, *a))
    monkeypatch.setitem(ua.engines.ENGINES, "batched", Capturing)
    return made


def run(method, kind="linear", ordinary=False, **changes):
    """Everybody in every round, so that a captured exchange fits; the clients' data are ragged."""
    given = {"rounds": 5, "clients_per_round": 1.0, "engine": "batched", "dtype": "float64", **changes}
    if ordinary:
        given["engine"] = "sequential"
    return testing.run(method, kind, **given)


@pytest.mark.parametrize("kind", ["linear", "norm"])
@pytest.mark.parametrize("method", ALL, ids=lambda m: type(m).__name__)
def test_replayed_exchanges_are_the_ordinary_ones(method, kind, replays):
    made = run(method, kind)
    assert not made.engine._exchanges.notes
    assert testing.difference(run(method, kind, ordinary=True), made) < 1e-9
    if type(method) in (ua.FedAvg, ua.FedProx, ua.Scaffold, ua.FedDyn, ua.FedDC, ua.FedNova):
        assert replays == ["client"] * 3  # the first and the second round are not


def equal(engine, method=None, *first, seed=0, **changes):
    """Ten clients of one size, some of them a round: who they are, their draws and rates are inputs of a replay."""
    torch.manual_seed(seed)
    x, y = torch.randn(60, 6, dtype=torch.float64), torch.randint(0, 3, (60,))
    fed = ua.Federation.from_arrays([(x[k : k + 6], y[k : k + 6]) for k in range(0, 60, 6)], classes=3)
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.1, lr_decay=0.8, momentum=0.5, keep_optimizer=True)
    some = {"rounds": 8, "clients_per_round": 4, "local": local, "dtype": "float64", "seed": seed, **changes}
    model = ua.models.softmax_regression(6, 3)
    return ua.simulate(model, fed, method or ua.Scaffold(), engine=engine, callbacks=first, **some)


def test_others_take_part_each_round_at_falling_rates(replays):
    assert testing.difference(equal("sequential"), equal("batched")) < 1e-12
    assert replays == ["client"] * 6


def test_chunks_of_a_cohort(replays):
    assert testing.difference(equal("sequential"), equal("batched", clients_at_once=2)) < 1e-12
    assert replays == ["client"] * 14  # two chunks a round; the first two of them are not


@pytest.mark.parametrize("method", [ua.Scaffold(), ua.FedDC(alpha=0.1), ua.RFedAvgPlus(lam=0.3)], ids=repr)
def test_several_runs_in_one_stack(method, replays):
    seeds = (0, 1, 2)
    runs = together([lambda seat, s=s: equal("batched", method, seat, seed=s) for s in seeds])
    assert replays
    for seed, run in zip(seeds, runs, strict=True):
        assert testing.difference(equal("sequential", method, seed=seed), run) < 1e-12


@dc.dataclass(frozen=True)
class Fading(Method):
    """Trains at a rate that falls with the round."""

    def client(self, me, s, m):
        return me.train(m.w, lr=0.1 / (1 + me.round)).then(self.done)


class Counting(Method):
    """Not frozen: what the server's half leaves on the method reaches the clients."""

    def __init__(self):
        self.rate = 0.1

    def client(self, me, s, m):
        return me.train(m.w, lr=self.rate).then(self.done)

    def round(self, server, cohort):
        super().round(server, cohort)
        self.rate /= 2


@pytest.mark.parametrize("make", [Fading, Counting])
def test_what_python_may_change_is_not_replayed(make, replays):
    assert testing.difference(run(make(), ordinary=True), run(make())) < 1e-12
    assert not replays


def test_a_replay_would_repeat_the_old_round(replays, monkeypatch):
    """The test above can fail: without the note that somebody asked for the round, the rate stays where it was."""
    monkeypatch.setattr(Stack, "timeless", property(lambda self: True, lambda self, value: None), False)
    assert testing.difference(run(Fading(), ordinary=True), run(Fading())) > 1e-4
    assert replays


def test_other_amounts_of_work_go_the_ordinary_way(replays):
    local = ua.LocalTraining(epochs=lambda client, round: 1 + (round == 3), batch_size=5, lr=0.05)
    made = run(ua.FedAvg(), local=local)
    assert testing.difference(run(ua.FedAvg(), ordinary=True, local=local), made) < 1e-12
    assert replays == ["client"]  # the third round; the fourth does not fit, and nothing is tried after that


def test_what_cannot_be_captured_runs_and_says_so(replays, monkeypatch, capsys):
    def record(work, device):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(captured, "record", record)
    made = run(ua.FedAvg(), callbacks=[ua.callbacks.Progress()])
    assert testing.difference(run(ua.FedAvg(), ordinary=True), made) < 1e-12
    said = "the exchange was not captured: operation not permitted when stream is capturing"
    assert made.engine.notes == [said] and f"note: {said}\n" in capsys.readouterr().err


def test_a_diverging_client_is_named(replays):
    rate = lambda client, round: 1e308 if (client, round) == (3, 4) else 0.1  # noqa: E731
    local = ua.LocalTraining(epochs=3, batch_size=5, lr=rate)
    with pytest.raises(ua.Diverged, match="client 3"):
        run(ua.FedAvg(), local=local)
    assert replays


def test_off_where_there_is_no_gpu_or_fast_is_false():
    assert not run(ua.FedAvg()).engine.capture
    assert not run(ua.FedAvg(), fast=False).engine.capture
