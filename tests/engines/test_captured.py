"""Exchanges that are captured once and replayed. Without a GPU the graph is a tape: every operation is written down and
done again on the same memory, and no Python of the method runs again."""

import dataclasses as dc
import gc
import weakref

import pytest
import torch
from cases import CASES
from tape import record

import unalike as ua
from unalike import testing
from unalike.contract import Field, Method
from unalike.engines.batched import Batched, captured
from unalike.engines.batched.lockstep import together
from unalike.engines.batched.stack import Clock, Stack
from unalike.testing.toys import TOYS

ALL = [
    *((method, "linear") for method, *_ in CASES.values()),
    *((t, kind) for t in TOYS for kind in ("linear", "norm")),
]


@pytest.fixture
def replays(monkeypatch):
    """Captures on a CPU; a list with the name of every exchange that was replayed."""
    made = []

    class Capturing(Batched):
        capture = property(lambda self: True, lambda self, value: None)

    replay = captured.Captured.replay
    monkeypatch.setattr(captured, "record", record)
    monkeypatch.setattr(captured.Captured, "replay", lambda s, *a: made.append(a[0].call.function) or replay(s, *a))
    monkeypatch.setitem(ua.engines.ENGINES, "batched", Capturing)
    return made


def run(method, kind="linear", ordinary=False, **changes):
    """Everybody in every round, so that a captured exchange fits; the clients' data are ragged."""
    given = {"rounds": 5, "clients_per_round": 1.0, "engine": "batched", "dtype": "float64", **changes}
    if ordinary:
        given["engine"] = "sequential"
    return testing.run(method, kind, **given)


SOME = [pytest.param(*one, marks=[pytest.mark.slow] * (k % 2)) for k, one in enumerate(ALL)]  # every other one


@pytest.mark.parametrize(("method", "kind"), SOME, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_replayed_exchanges_are_the_ordinary_ones(method, kind, replays):
    made = run(method, kind)
    assert not made.engine.exchanges.notes
    assert testing.difference(run(method, kind, ordinary=True), made) < 1e-9
    if type(method) in (ua.FedAvg, ua.FedProx, ua.Scaffold, ua.FedDyn, ua.FedDC, ua.FedNova):
        assert replays == ["client"] * 3  # the first and the second round are not


def equal(engine, method=None, member=None, seed=0, **changes):
    """Ten clients of one size, some of them a round: who they are, their draws and rates are inputs of a replay."""
    torch.manual_seed(seed)
    x, y = torch.randn(60, 6, dtype=torch.float64), torch.randint(0, 3, (60,))
    fed = ua.Federation.from_arrays([(x[k : k + 6], y[k : k + 6]) for k in range(0, 60, 6)], classes=3)
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.1, lr_decay=0.8, momentum=0.5, keep_optimizer=True)
    some = {"rounds": 8, "clients_per_round": 4, "local": local, "dtype": "float64", "seed": seed, **changes}
    model = ua.models.softmax_regression(6, 3)
    return ua.simulate(model, fed, method or ua.Scaffold(), engine=engine, member=member, **some)


def test_others_take_part_each_round_at_falling_rates(replays):
    assert testing.difference(equal("sequential"), equal("batched")) < 1e-12
    assert replays == ["client"] * 6


def test_chunks_of_a_cohort(replays):
    assert testing.difference(equal("sequential"), equal("batched", clients_at_once=2)) < 1e-12
    assert replays == ["client"] * 14  # two chunks a round; the first two of them are not


@pytest.mark.parametrize("method", [ua.Scaffold(), ua.FedDC(alpha=0.1), ua.RFedAvgPlus(lam=0.3)], ids=repr)
def test_several_runs_in_one_stack(method, replays):
    seeds = (0, 1, 2)
    runs = together([lambda member, s=s: equal("batched", method, member, seed=s) for s in seeds])
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

    rate = 0.1

    def client(self, me, s, m):
        return me.train(m.w, lr=self.rate).then(self.done)

    def round(self, server, cohort):
        super().round(server, cohort)
        self.rate = self.rate / 2


class Loose(Counting, ua.FedAvg):
    """A frozen method's child that is not frozen itself."""


@dc.dataclass(frozen=True)
class Growing(Method):
    """Frozen, with a list in it that is not."""

    rates: list = dc.field(default_factory=lambda: [0.1])

    def client(self, me, s, m):
        return me.train(m.w, lr=self.rates[-1]).then(self.done)

    def round(self, server, cohort):
        super().round(server, cohort)
        self.rates.append(self.rates[-1] / 2)


@pytest.mark.parametrize("make", [Fading, Counting, Loose, Growing])
def test_what_python_may_change_is_not_replayed(make, replays):
    assert testing.difference(run(make(), ordinary=True), run(make())) < 1e-12
    assert not replays


@pytest.mark.parametrize("make", [Fading, Counting, Loose, Growing])
def test_a_replay_would_repeat_the_old_round(make, replays, monkeypatch):
    """The test above can fail: without what guards it, the rate stays where it was."""
    monkeypatch.setattr(Clock, "asked", property(lambda self: False, lambda self, value: None))
    monkeypatch.setattr(captured, "_constant", lambda method: True)
    assert testing.difference(run(make(), ordinary=True), run(make())) > 1e-3
    assert replays


def plain(fn):
    """A decorator that forgets the name of what it decorates."""

    def wrapper(self, *args):
        return fn(self, *args)

    return wrapper


@dc.dataclass(frozen=True)
class TwoNamedAlike(Method):
    """Two client functions of one name, by turns."""

    @plain
    def first(self, me, s, m):
        return me.train(m.w, lr=0.1).then(self.done)

    @plain
    def second(self, me, s, m):
        return me.train(m.w, lr=0.01).then(self.done)

    def round(self, server, cohort):
        fn = self.first if cohort.round % 2 else self.second
        server.w = server.w + cohort.call(fn, w=server.w).mean("delta")


def test_functions_of_one_name_are_told_apart(replays):
    assert testing.difference(run(TwoNamedAlike(), ordinary=True, rounds=8), run(TwoNamedAlike(), rounds=8)) < 1e-12
    assert len(replays) == 4


@dc.dataclass(frozen=True)
class OwnAmounts(Method):
    """A request with an amount of work of its own, which may change who is longest."""

    def client(self, me, s, m):
        return me.train(m.w, steps=lambda client, round: 1 + client % 2).then(self.done)


@pytest.mark.parametrize("seed", range(4))
def test_amounts_of_a_requests_own(seed, replays):
    assert (
        testing.difference(equal("sequential", OwnAmounts(), seed=seed), equal("batched", OwnAmounts(), seed=seed))
        < 1e-12
    )


@dc.dataclass(frozen=True)
class Numbers(Method):
    """Sends a plain number."""

    sends = {**Method.sends, "one": Field((), weight="one")}

    def done(self, me, s, m, theta):
        return {}, {"delta": theta - m.w, "one": 1.0}


def test_a_reply_may_hold_a_plain_number(replays):
    assert testing.difference(run(Numbers(), ordinary=True), run(Numbers())) < 1e-12
    assert replays


def test_stacks_go_when_they_are_done(monkeypatch):
    """Neither a stack itself nor a loss that was made from one of its clients keeps it."""

    @dc.dataclass(frozen=True)
    class Held(Method):
        def client(self, me, s, m):
            return me.train(m.w, loss=lambda batch: 0.0 * me.layout.size * batch.mean(batch.output).sum()).then(
                self.done
            )

    alive, make = [], Stack.__init__

    def init(self, *args):
        make(self, *args)
        alive.append(weakref.ref(self))

    monkeypatch.setattr(Stack, "__init__", init)
    gc.disable()
    try:
        done = [run(method) for method in (ua.Scaffold(), Held())]
        assert len(alive) == 10 and not any(one() for one in alive) and done
    finally:
        gc.enable()


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
