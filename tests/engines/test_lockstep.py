"""Several runs in one stack: each computes what it computes alone, whatever happens to the others."""

import dataclasses as dc
import signal
import threading
import time

import pytest
import small
import torch
from small import refused

import unalike as ua
from unalike.engines.batched.lockstep import together
from unalike.methods.flhc import FLHC
from unalike.methods.oneshot import OneShot

SEEDS = (0, 1, 2)
SIZES = {0: small.SIZES, 1: (5, 9, 3, 3, 14, 2), 2: small.SIZES}
METHODS = {
    "fedavg": ua.FedAvg(),
    "fedprox": ua.FedProx(0.1),
    "scaffold": ua.Scaffold(),  # keeps state
    "feddc": ua.FedDC(),  # state as large as the model
    "fednova": ua.FedNova(),  # looks at its own number of steps
    "fedavgr": ua.FedAvgR(trace=0.01, frobenius=0.01, mmd=0.1),  # an exchange before round 1, tables, draws
    "rfedavg+": ua.RFedAvgPlus(lam=0.1),  # two exchanges a round, rows that differ
    "flhc": FLHC(clusters=2, warmup=1),  # several calls a round, each of some clients
    "oneshot": OneShot(epochs=3),  # another amount of work than the run's
}


def start(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def one(method, seed, member=None, callbacks=(), sizes=None, public=None, **changes):
    data = small.federation(seed, sizes or SIZES[seed]).replace(public=public)
    given = {"rounds": 4, "engine": "batched", "clients_per_round": 0.7, "seed": seed, "dtype": "float64", **changes}
    return small.run(method, module=start(seed), data=data, callbacks=callbacks, member=member, **given)


def all_of(method, each=lambda seed: {}, seeds=SEEDS, **changes):
    return together([lambda member, s=s: one(method, s, member, **changes, **each(s)) for s in seeds])


def assert_near(a, b, tolerance=1e-12):
    mine, yours = small.states(a), small.states(b)
    assert mine.keys() == yours.keys()
    for name, value in mine.items():
        value, other = (torch.as_tensor(v, dtype=torch.float64) for v in (value, yours[name]))
        torch.testing.assert_close(value, other, atol=tolerance, rtol=tolerance, msg=name)
    for x, y in zip(small.timeless(a.history), small.timeless(b.history), strict=True):
        assert x == {k: pytest.approx(v, rel=tolerance, abs=tolerance) if v is not None else None for k, v in y.items()}


@pytest.fixture
def stacked(monkeypatch):
    """How many runs were in each stack that was run."""
    from unalike.engines.batched import lockstep as module

    seen, answer = [], module.SharedStack.answer

    def spy(self, group):
        answer(self, group)
        seen.append(len(group))

    monkeypatch.setattr(module.SharedStack, "answer", spy)
    return seen


# ---------------------------------------------------------------- the same as alone


@pytest.mark.parametrize("name", METHODS)
def test_runs_in_one_stack_are_the_runs_alone(name, stacked):
    runs = all_of(METHODS[name])
    assert stacked and {*stacked} == {3}
    for seed, run in zip(SEEDS, runs, strict=True):
        assert_near(run, one(METHODS[name], seed))
        assert "3 runs in one stack" in run.reason
    assert not torch.equal(runs[0].server.w, runs[2].server.w)


def test_further_networks_begin_where_each_run_has_them(stacked):
    method = ua.LGFedAvg(mu=0.5, hidden=3)  # clients' decoders begin at a function of the run's seed
    for seed, run in zip(SEEDS, all_of(method), strict=True):
        assert_near(run, one(method, seed))


def test_runs_with_public_sets_stand_alone(stacked):
    """Each run draws its own public batches, the same for all its clients."""
    public = torch.zeros(4, 5, dtype=torch.float64), None
    for seed, run in zip(SEEDS, all_of(ua.FedAvg(), public=public), strict=True):
        assert_near(run, one(ua.FedAvg(), seed))
    assert 3 not in stacked and 2 not in stacked


def test_in_float32_and_in_chunks(stacked):
    for options in ({"dtype": "float32"}, {"dtype": "float32", "clients_at_once": 2}):
        for seed, run in zip(SEEDS, all_of(ua.Scaffold(), **options), strict=True):
            assert_near(run, one(ua.Scaffold(), seed, **options), 1e-5)
    assert {*stacked} == {3}


@pytest.mark.slow
def test_compiled(stacked, monkeypatch):
    """Up to the code generator, which is slow; the stack has steps of its own, of its own width."""
    from unalike.engines.batched.graphs import StaticBuffers

    compile, widths, init = torch.compile, [], StaticBuffers.__init__
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": "aot_eager"}))
    monkeypatch.setattr(StaticBuffers, "__init__", lambda s, p, *rest: widths.append(p.width) or init(s, p, *rest))
    for seed, run in zip(SEEDS, all_of(ua.Scaffold(), compile=True), strict=True):
        assert_near(run, one(ua.Scaffold(), seed))
    assert {*stacked} == {3} and widths == [12]


def test_rates_and_amounts_of_work_may_differ(stacked):
    def local(seed):
        clients = len(SIZES[seed])
        lr = [0.1, [0.01 * (k + 1) for k in range(clients)], lambda client, round: 0.02 * (client + 1) / (round + 1)]
        return {"local": ua.LocalTraining(epochs=seed + 1, batch_size=4, lr=lr[seed], momentum=0.5, lr_decay=0.9)}

    runs = all_of(ua.FedAvg(), local)
    assert {*stacked} == {3}
    for seed, run in zip(SEEDS, runs, strict=True):
        assert_near(run, one(ua.FedAvg(), seed, **local(seed)))


def test_lists_and_functions_that_are_the_same_for_all_mean_each_runs_own_clients(stacked):
    rate = lambda client, round: 0.02 * (client + 1)  # noqa: E731
    local = ua.LocalTraining(epochs=[1, 2, 1, 3, 1, 2], batch_size=4, lr=rate)
    for seed, run in zip(SEEDS, all_of(ua.FedAvg(), local=local), strict=True):
        assert_near(run, one(ua.FedAvg(), seed, local=local))
    assert {*stacked} == {3}


def test_what_a_client_knows_of_itself_is_its_own_runs(stacked):
    class Knows(ua.FedAvg):
        def client(self, me, s, m):
            return me.train(m.w + 0.01 * (me.n + me.relative_size + me.lr + me.steps + me.mean_steps)).then(self.done)

    for seed, run in zip(SEEDS, all_of(Knows()), strict=True):
        assert_near(run, one(Knows(), seed))
    assert {*stacked} == {3}


def test_rows_of_a_message_reach_their_clients(stacked):
    class Shifted(ua.FedAvg):
        def client(self, me, s, m):
            return me.train(m.w + m.own).then(self.done)

        def round(self, server, cohort):
            own = ua.PerClient(torch.from_numpy(0.1 * cohort.ids + cohort.samples / 20.0))
            server.w = server.w + cohort.call(self.client, w=server.w, own=own).mean("delta")

    for seed, run in zip(SEEDS, all_of(Shifted()), strict=True):
        assert_near(run, one(Shifted(), seed))
    assert {*stacked} == {3}


@dc.dataclass(frozen=True)
class Warmed(ua.Method):
    """A run of 42 samples trains before it trains in earnest; the others look on for an exchange."""

    sends = {"delta": ua.Field(), "nothing": ua.Field("scalar")}

    def look(self, me, s, m):
        return {}, {"nothing": 0 * me.n}

    def warm(self, me, s, m):
        return me.train(m.w, lr=1e-30).then(self.warmed)

    def warmed(self, me, s, m, theta):
        return {}, {"nothing": 0 * theta.sum()}

    def round(self, server, cohort):
        cohort.call(self.warm if cohort.everyone.samples.sum() == 42 else self.look, w=server.w)
        server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")


def test_runs_that_have_trained_before_in_a_round_draw_their_own_orders(stacked):
    runs = all_of(Warmed(), seeds=(0, 1))
    for seed, run in zip((0, 1), runs, strict=True):
        assert_near(run, one(Warmed(), seed))


def test_what_an_engine_notes_is_said_by_its_member():
    def start(member):
        run = one(ua.FedAvg(), 0, member, rounds=1)
        run.engine.own.exchanges.notes.append("not captured: no reason")
        return run.engine.notes

    assert together([start]) == [["not captured: no reason"]]


def test_populations_may_differ(stacked):
    fewer = lambda seed: {"sizes": SIZES[seed][: 6 - seed]}  # noqa: E731
    for seed, run in zip(SEEDS, all_of(ua.Scaffold(), fewer), strict=True):
        assert_near(run, one(ua.Scaffold(), seed, **fewer(seed)))
    assert {*stacked} == {3}
    stacked.clear()
    all_of(ua.FedAvgR(), lambda seed: {"sizes": SIZES[0][: 6 - seed // 2]})
    assert stacked[0] == 3  # before round 1
    assert {*stacked[1:]} == {2}  # its message has a row for everybody: of another length in the third run


def test_the_clients_of_several_runs_may_have_the_same_names(stacked):
    def make(seed, member=None):
        data = small.federation(seed).replace(names=list("abcdef"), label_names=["x", "y", "z"])
        return small.run(ua.FedAvg(), data=data, member=member, seed=seed, engine="batched", dtype="float64")

    for seed, run in zip(SEEDS, together([lambda member, s=s: make(s, member) for s in SEEDS]), strict=True):
        assert_near(run, make(seed))
    assert {*stacked} == {3}


def test_kept_optimizers_buffers_and_personal_models(stacked):
    local = ua.LocalTraining(epochs=1, batch_size=4, lr=0.01, optimizer="adam", keep_optimizer=True)

    def make(seed, member=None):
        return small.run(
            ua.Scaffold(), module=small.model(batch_norm=True), data=small.federation(seed), member=member,
            seed=seed, engine="batched", dtype="float64", local=local, buffers="local",
        )  # fmt: skip

    for seed, run in zip(SEEDS, together([lambda member, s=s: make(s, member) for s in SEEDS]), strict=True):
        assert_near(run, make(seed), 1e-10)
    assert {*stacked} == {3}


# ---------------------------------------------------------------- those that do not fit


class Other(torch.nn.Sequential):
    """The same description as the small model's; another function."""

    def forward(self, x):
        return super().forward(2 * x)


@pytest.mark.parametrize(
    "change",
    [
        {"method": ua.FedProx(0.5)},
        {"local": ua.LocalTraining(epochs=1, batch_size=4, lr=0.1, momentum=0.9)},
        {"engine": "sequential"},
        {"dtype": "float32"},
        {"module": Other(*start(0))},
    ],
)
def test_a_run_of_another_kind_stays_by_itself(change, stacked):
    kinds = [{}, {}, change]
    Other.__name__ = "Sequential"

    def make(k, member=None):
        given = {"method": ua.FedProx(0.1), "module": start(k), "engine": "batched", "dtype": "float64", **kinds[k]}
        return small.run(data=small.federation(k), seed=k, member=member, **given)

    runs = together([lambda member, k=k: make(k, member) for k in range(3)])
    for k, run in enumerate(runs):
        assert_near(run, make(k))
    assert {*stacked} == {2} and "in one stack" not in runs[2].reason


def test_a_method_that_cannot_be_stacked_over_runs_is_answered_one_by_one(stacked):
    class Branching(ua.FedAvg):
        def client(self, me, s, m):
            return me.train(m.w if float(m.w.sum()) != 123.0 else m.w * 0).then(self.done)

    runs = all_of(Branching())
    assert not stacked
    for seed, run in zip(SEEDS, runs, strict=True):
        assert_near(run, one(Branching(), seed))
        assert "in one stack" not in run.reason


# ---------------------------------------------------------------- one goes, the others stay


def test_one_that_diverges_leaves_and_disturbs_nobody(stacked):
    wild = {1: {"local": ua.LocalTraining(epochs=1, batch_size=4, lr=1e308)}}
    found = all_of(ua.Scaffold(), lambda seed: wild.get(seed, {}))
    assert isinstance(found[1], ua.errors.Diverged)
    assert {*stacked} == {2, 3}
    for seed in (0, 2):
        assert_near(found[seed], one(ua.Scaffold(), seed))


@pytest.mark.parametrize("error", [ua.UnalikeError("This one fails."), SystemExit("This one fails.")])
def test_an_error_of_one_is_raised_when_the_others_are_through(error, tmp_path):
    class Fails(ua.Callback):
        def on_round(self, run, line):
            if line["round"] == 2:
                raise error

    each = lambda seed: {"folder": tmp_path / str(seed), "callbacks": [Fails()] if seed == 1 else []}  # noqa: E731
    with refused("This one fails.", type(error)):
        all_of(ua.FedAvg(), each)
    assert [len(small.logged(tmp_path / str(s))) for s in SEEDS] == [4, 2, 4]


def test_an_error_in_a_client_function_is_its_own_runs(stacked):
    class NoSamples(ua.FedAvg):
        def client(self, me, s, m):
            return me.losses(m.w, data="validation").then(self.go)

        def go(self, me, s, m, loss):
            return me.train(m.w).then(self.done)

    def make(k, member=None):
        data = small.federation(k, validation=True)
        if k == 1:
            nothing = torch.empty(0, 5), torch.empty(0, dtype=torch.int64)
            validation = [data.validation.of(c) if c != 3 else nothing for c in range(6)]
            data = ua.Federation.from_arrays(
                [data.train.of(c) for c in range(6)], client_validations=validation, test=data.global_test, classes=3
            )
        return small.run(NoSamples(), module=start(k), data=data, seed=k, engine="batched", member=member,
                         clients_per_round=1.0)  # fmt: skip

    done = []
    with refused("Client 3 has no validation samples"):  # its own number, not that in the stack
        together([lambda member, k=k: done.append(make(k, member)) for k in range(3)])
    assert len(done) == 2


def test_runs_resumed_at_different_rounds_meet(tmp_path, stacked):
    class Stop(ua.Callback):
        def __init__(self, at):
            self.at = at

        def on_round(self, run, line):
            return line["round"] == self.at

    part = lambda seed: {"folder": tmp_path / str(seed), "resume": True}  # noqa: E731
    all_of(ua.Scaffold(), lambda seed: {**part(seed), "callbacks": [Stop(3 - seed)]}, rounds=6)
    stacked.clear()
    runs = all_of(ua.Scaffold(), part, rounds=6)
    for seed, run in zip(SEEDS, runs, strict=True):
        assert_near(run, one(ua.Scaffold(), seed, rounds=6))
    assert sorted(stacked) == [2, 3, 3, 3]  # round 2 alone, round 3 with two, then all


def test_an_interrupt_ends_all_runs_and_leaves_no_thread(tmp_path):
    class Interrupt(ua.Callback):
        def on_round(self, run, line):
            if line["round"] == 2:
                signal.raise_signal(signal.SIGINT)

    before = threading.active_count()
    part = lambda seed: {"folder": tmp_path / str(seed), "resume": True}  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        all_of(ua.Scaffold(), lambda seed: {**part(seed), "callbacks": [Interrupt()] if seed == 1 else []})
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert threading.active_count() == before
    for seed, run in zip(SEEDS, all_of(ua.Scaffold(), part), strict=True):  # no folder is still locked
        assert_near(run, one(ua.Scaffold(), seed))


def test_seconds_are_each_runs_share(monkeypatch):
    """On a clock that a call of a stack puts forward by 3, and the end of a round by 5."""
    from unalike.engines.batched import lockstep as module

    now, answer = [0.0], module.SharedStack.answer

    def slow(self, group):
        answer(self, group)
        now[0] += 3

    class Slow(ua.Callback):
        def on_round(self, run, line):
            now[0] += 5

    monkeypatch.setattr(module.SharedStack, "answer", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    runs = all_of(ua.RFedAvgPlus(lam=0.1), lambda seed: {"callbacks": [Slow()]})
    assert [[line["seconds"] for line in run.history] for run in runs] == [[2.0] * 4] * 3  # two exchanges, three runs
    assert all(line["seconds_evaluation"] == 0 for run in runs for line in run.history)
