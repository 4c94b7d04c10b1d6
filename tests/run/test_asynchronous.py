"""Asynchronous runs: who begins and arrives when, from which version, what is kept, and which methods can."""

import dataclasses as dc

import numpy as np
import pytest
import torch
from small import LOCAL, federation, model, refused

import unalike as ua
from unalike import testing
from unalike.channel.aged import AgedSums
from unalike.channel.sums import Sums
from unalike.contract import Call, Outcome
from unalike.contract.staleness import staleness_weight as weight
from unalike.methods import METHODS
from unalike.run.arrivals import refusal
from unalike.run.clock import Devices
from unalike.run.under_way import UnderWay

EVEN = ua.LocalTraining(steps=3, batch_size=4, lr=0.1)
CAN = {
    "fedavg": ua.FedAvg(), "fedprox": ua.FedProx(1.0), "fedavgm": ua.FedAvgM(), "fedadagrad": ua.FedAdagrad(),
    "fedyogi": ua.FedYogi(), "fedadam": ua.FedAdam(), "fednova": ua.FedNova(), "qfedavg": ua.QFedAvg(1.0),
}  # fmt: skip
RAGGED = ua.Clock(speeds="lognormal:1.0", jitter=0.2, dropout=0.2, upload="lognormal:0.5:100")


def simulate(method, **settings):
    usual = {"rounds": 4, "clients_per_round": 3, "local": EVEN, "engine": "sequential", "seed": 1}
    return ua.simulate(model(), federation(), method, **{**usual, **settings})


def numbers(run):
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in run.history]


# ---- bit for bit


@pytest.mark.parametrize("name", CAN)
def test_arriving_together_is_the_synchronous_run(name):
    together, apart = simulate(CAN[name]), simulate(CAN[name], asynchronous="buffer:3")
    assert torch.equal(together.server.w, apart.server.w)
    assert [line["virtual_seconds"] for line in apart.history] == [3.0, 6.0, 9.0, 12.0]
    known = {**numbers(together)[-1], "virtual_seconds": 12.0, "staleness": 0.0, "staleness_most": 0, "under_way": 0}
    assert numbers(apart)[-1] == known
    assert not apart.arrivals.under_way.state()["_under_way versions"]  # nobody works with any: no message is kept
    assert len(apart.arrivals.under_way.calls) == 1


@pytest.mark.parametrize(
    ("method", "engine"), [(ua.FedAvg(), "batched"), (ua.FedBuff(2), "loopback"), (ua.FedAsync(0.5), "sequential")]
)
def test_resumes_in_mid_flight(method, engine, tmp_path):
    how = {"clock": RAGGED, "engine": engine, "rounds": 7, "local": LOCAL}
    how |= {"asynchronous": "buffer:2"} if method.asynchronous == "can" else {}
    whole = simulate(method, **how)
    assert max(line["staleness_most"] for line in whole.history) > 1  # there is a flight to be interrupted
    for rounds in (3, 4):
        simulate(method, **how | {"rounds": rounds}, folder=tmp_path / "run", resume=rounds > 3)
    resumed = simulate(method, **how, folder=tmp_path / "run", resume=True)
    assert torch.equal(whole.server.w, resumed.server.w) and numbers(whole) == numbers(resumed)
    assert not [name for name in resumed.server.values if name.startswith("_under_way")]


def test_listed_arrivals_resume_with_the_versions_that_are_still_needed(tmp_path):
    """Version 0 is needed three steps after the run was interrupted, version 1 no more."""
    steps = [[(0, 0)], [(1, 1)], [(2, 2)], [(4, 2)], [(3, 0)]]
    whole = simulate(ua.FedAvg(), asynchronous=steps, rounds=5)
    part = simulate(ua.FedAvg(), asynchronous=steps, rounds=3, folder=tmp_path / "run")
    assert [*part.arrivals.under_way.calls] == [0, 2]
    resumed = simulate(ua.FedAvg(), asynchronous=steps, rounds=5, folder=tmp_path / "run", resume=True)
    assert torch.equal(whole.server.w, resumed.server.w) and numbers(whole) == numbers(resumed)


def test_other_arrivals_are_another_run(tmp_path):
    simulate(ua.FedBuff(2), asynchronous=[[(0, 0)], [(1, 0)]], rounds=1, folder=tmp_path / "run")
    with refused("clock.asynchronous"):
        simulate(ua.FedBuff(2), asynchronous=[[(0, 0)], [(2, 1)]], rounds=2, folder=tmp_path / "run", resume=True)


def test_another_clock_is_another_run(tmp_path):
    simulate(ua.FedBuff(2), clock=RAGGED, folder=tmp_path / "run", rounds=1)
    with refused("clock.jitter"):
        simulate(ua.FedBuff(2), folder=tmp_path / "run", resume=True, clock=dc.replace(RAGGED, jitter=0.1))


# ---- who begins and arrives


@dc.dataclass(frozen=True)
class Began(ua.FedBuff):
    """Clients send the model that they began with; the server's is its version, everywhere."""

    def client(self, me, s, m):
        return {}, {"delta": m.w}

    def setup(self, server, everyone):
        server.w = torch.zeros_like(server.w)
        server.log = []

    def round(self, server, cohort):
        cohort.start(self.client, w=server.w)
        for age, replies, began in cohort.arrived(self.buffer):
            assert float(began.w[0]) == float(replies.mean("delta")[0]) == cohort.round - age
            server.log = [*server.log, [cohort.round, age, *replies.ids.tolist()]]
        server.w = server.w + 1


def test_a_reply_is_of_the_version_that_its_client_began_with():
    # work is a second for everybody (no training: latency); clients 0 and 1 are 1 and 5 seconds away
    clock = ua.Clock(latency=1.0)
    run = simulate(Began(1), clock=clock, rounds=3, clients_per_round=[[0, 1], [2], [3]])
    # both begin with version 0; at 1 s client 0 arrives first, then client 1 before client 2, which began at 1 s
    assert run.server.log == [[0, 0, 0], [1, 1, 1], [2, 1, 2]]
    assert [line["virtual_seconds"] for line in run.history] == [1.0, 1.0, 2.0]


def test_places_are_filled_when_clients_arrive():
    # speeds: client 5 is slow; two are at work at any time, and the server steps with two arrivals
    clock = ua.Clock(speeds=[1.0, 1.0, 1.0, 1.0, 1.0, 0.25])
    run = simulate(ua.FedBuff(2), clock=clock, rounds=8, clients_per_round=2)
    assert all(line["clients"] == 2 for line in run.history)
    assert {line["under_way"] for line in run.history} <= {0, 1}
    assert simulate(ua.FedBuff(4), clock=clock, rounds=2, clients_per_round=2).history[-1]["clients"] == 4
    began = [line["bytes_down"] for line in run.history]
    each = run.history[0]["bytes_up"] // 2
    assert sum(began) == each * (2 * 8 + run.history[-1]["under_way"])  # whoever began has arrived, or is under way


def test_a_client_begins_with_each_version_once():
    run = simulate(Began(3), clock=ua.Clock(latency=1.0, jitter=0.0), rounds=5, clients_per_round=2)
    assert all(len({*who}) == len(who) for _, _, *who in run.server.log)
    assert sum(len(who) for _, _, *who in run.server.log) == 15  # others begin in the places of those that came


def test_vanished_clients_are_counted_and_replaced():
    run = simulate(ua.FedBuff(2), clock=ua.Clock(dropout=0.5), rounds=6)
    assert sum(line.get("lost", 0) for line in run.history) > 0
    assert [line["clients"] for line in run.history] == [2] * 6


def test_steps_are_whole_although_most_vanish():
    """Who has vanished may begin again with the same version; else six clients would soon be used up."""
    run = simulate(ua.FedBuff(5), clock=ua.Clock(dropout=0.9), rounds=3)
    assert [line["clients"] for line in run.history] == [5, 5, 5]
    assert sum(line["lost"] for line in run.history) > 30


def test_patience_is_for_those_that_vanish_one_after_another(monkeypatch):
    """A large step has many that vanish, and is whole all the same."""
    monkeypatch.setattr("unalike.run.under_way.PATIENCE", 15)
    devices = Devices(ua.Clock(dropout=0.6), 0, np.ones(500), lambda classes: np.zeros(500))
    way = UnderWay(devices, 0, 100, lambda version: np.arange(100))
    way.start(Call("f", {}, {}, 0, 0), lambda ids: np.ones(len(ids)))
    assert sum(len(ids) for _, ids in way.arrived(200)) == 200 and way.lost > 200


@pytest.mark.parametrize(
    ("arrivals", "why"),
    [
        ([[(0, 1)]], "version of at most 0"),
        ([[(6, 0)]], "client below 6"),
        ([[]], "must list who arrives"),
        ([0], "must list who arrives"),
        ([[(0, 0), (0, 0)]], "arrives twice"),
        ([[(0, 0)]], "asynchronous lists 1 steps, and this is step 2"),
    ],
)
def test_listed_arrivals_that_cannot_be(arrivals, why):
    with refused(why):
        simulate(ua.FedBuff(2), asynchronous=arrivals, rounds=2)


def test_who_is_away_does_not_begin():
    clock = ua.Clock(available=0.5, spell=4.0)
    run = simulate(Began(1), clock=dc.replace(clock, latency=1.0), rounds=12, clients_per_round=2)
    ends, devices = [line["virtual_seconds"] for line in run.history], run.arrivals.devices
    began = [(client, ends[round] - 1.0) for round, _, client in run.server.log]  # a second before it arrived
    assert ends[-1] >= 6.0 and all(devices.there(np.array([client]), time)[0] for client, time in began)


def test_ten_thousand_under_way_cost_their_arrivals():
    seen, called = [], []

    @dc.dataclass(frozen=True)
    class Counting(ua.FedBuff):
        def round(self, server, cohort):
            super().round(server, cohort)
            way = cohort._exchanges.under_way
            seen.append((len(way.heap), len(way.calls)))

    class Calls(ua.Callback):
        def on_reply(self, run, outcome):
            called.append(len(outcome.ids))

    x, y = np.zeros((12_000, 2), np.float32), np.zeros(12_000, int)
    fed = ua.Federation.from_arrays([(x[k : k + 1], y[k : k + 1]) for k in range(12_000)], classes=2)
    settings = {"rounds": 4, "clients_per_round": 10_000, "evaluate_clients": "none", "callbacks": [Calls()]}
    ua.simulate(
        ua.models.softmax_regression(2, 2), fed, Counting(10), **settings, clock=ua.Clock(speeds="lognormal:1.0"),
        local=ua.LocalTraining(steps=1),
    )  # fmt: skip
    assert sum(called) == 40  # replies that were computed
    assert [under_way for under_way, _ in seen] == [9_999] * 4  # but for the last arrival of a step, places are filled
    assert all(kept <= round for round, (_, kept) in enumerate(seen, 1))  # a message a version, not a client


def test_a_method_may_wait_twice_in_a_step():
    @dc.dataclass(frozen=True)
    class Two(Began):
        def round(self, server, cohort):
            cohort.start(self.client, w=server.w)
            for _ in range(2):
                for age, replies, _ in cohort.arrived(2):
                    server.log = [*server.log, [cohort.round, age, *replies.ids.tolist()]]
            server.w = server.w + 1

    run = simulate(Two(1), clock=ua.Clock(latency=1.0), rounds=3, clients_per_round=2)
    # all that begin take a second, so that those of the second wait began with the present version like the others
    assert [age for _, age, *_ in run.server.log] == [0] * 6
    assert [line["clients"] for line in run.history] == [4] * 3


def test_more_arrivals_than_clients_are_refused():
    for method, how in ((ua.FedBuff(), {}), (ua.FedAvg(), {"asynchronous": "buffer:7"})):
        with refused("and there are 6 clients"):
            simulate(method, **how)


# ---- BatchNorm's statistics


@dc.dataclass(frozen=True)
class Statistics(ua.FedBuff):
    """Everybody's own statistics are 8, whatever it began with."""

    share: float = 1.0

    def client(self, me, s, m):
        return {}, {"delta": torch.zeros_like(m.w), "buffers": torch.full_like(m.buffers, 8.0) - m.buffers}

    def round(self, server, cohort):
        cohort.share_of_statistics(self.share)
        super().round(server, cohort)


def statistics(method, **settings):
    settings = {"rounds": 8, "clients_per_round": 6, "engine": "sequential", "seed": 1, "clock": RAGGED, **settings}
    return ua.simulate(model(batch_norm=True), federation(), method, local=EVEN, **settings).server.buffers


def test_statistics_are_the_mean_of_those_of_clients():
    """Their differences from what they began with, added up, would run away."""
    found = statistics(Statistics(2))
    torch.testing.assert_close(found, torch.full_like(found, 8.0))


def test_statistics_may_be_mixed_in():
    first = ua.simulate(model(batch_norm=True), federation(), ua.FedAvg(), rounds=0).server.buffers
    torch.testing.assert_close(statistics(Statistics(1, share=0.5), rounds=3), 8.0 + (first - 8.0) / 8)


def test_fedasync_mixes_statistics_like_weights():
    still = statistics(ua.FedAsync(1e-9), rounds=4)
    first = ua.simulate(model(batch_norm=True), federation(), ua.FedAvg(), rounds=0).server.buffers
    torch.testing.assert_close(still, first)


# ---- how much old replies count


def test_staleness_functions():
    assert [weight("constant", age) for age in (0, 7)] == [1.0, 1.0]
    assert [weight("polynomial:0.5", age) for age in (0, 3)] == [1.0, 0.5]
    assert [weight("hinge:10:4", age) for age in (4, 5, 6)] == [1.0, 1 / 11, 1 / 21]
    for wrong in ("polynomial", "hinge:1", "linear", "polynomial:-1"):
        with refused("staleness must be"):
            weight(wrong, 0)


def test_old_replies_count_less_in_sums_and_weights():
    def sums(ids, rows):
        out = Sums({"delta": ua.Field()}, ua.FedAvg())
        out.add(Outcome(np.array(ids), {"delta": torch.tensor(rows)}, np.array([2.0] * len(ids)), np.zeros(len(ids))))
        out.add_losses(np.zeros(len(ids)))
        return out

    aged = AgedSums([(0.5, sums([3], [[1.0]])), (1.0, sums([0, 1], [[2.0], [4.0]]))])
    assert aged.total("delta").item() == 0.5 * 2 * 1 + 2 * 2 + 2 * 4
    assert aged.weights == {"delta": 0.5 * 2 + 4}
    assert aged.ids.tolist() == [3, 0, 1] and len(aged.losses) == 3


def test_staleness_is_a_setting():
    how = {"clock": RAGGED, "asynchronous": "buffer:2", "rounds": 6, "local": LOCAL}
    plain, steep = (simulate(ua.FedAvg(), **how, staleness=s) for s in ("constant", "polynomial:2"))
    assert not torch.equal(plain.server.w, steep.server.w)
    assert [line["virtual_seconds"] for line in plain.history] == [line["virtual_seconds"] for line in steep.history]


# ---- who can


def test_which_methods_can():
    can = {name for name, method in METHODS.items() if method.asynchronous == "can"}
    assert can == {*CAN, "finetune"}
    assert {name for name, method in METHODS.items() if method.asynchronous == "is"} == {"fedasync", "fedbuff"}


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (ua.Scaffold(), "Scaffold does not run asynchronously: its clients keep 'control'"),
        (ua.RFedAvg(0.1), "reads 'mean' of each client"),
        (ua.OneShot(), "OneShot does not run asynchronously: its round"),
        (ua.DefKT(), "it has no server"),
        (ua.Centralized(), "pooled"),
        (ua.FedBuff(), "FedBuff is asynchronous by itself"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_others_are_refused(method, why):
    with refused(why):
        simulate(method, asynchronous="buffer:3")


def test_all_others_have_a_reason():
    for name, (method, *_) in __import__("cases").CASES.items():
        assert bool(refusal(method)) == (METHODS[name].asynchronous != "can")


@dc.dataclass(frozen=True)
class Twice(ua.FedAvg):
    how: str = "call"

    def round(self, server, cohort):
        if self.how == "rows":
            cohort.call(self.client, w=ua.PerClient(torch.stack([server.w] * 3)))
        elif self.how == "ids":
            len(cohort)
        cohort.call(self.client, w=server.w)
        cohort.call(self.client, w=server.w)


@pytest.mark.parametrize(
    ("how", "why"), [("call", "calls its clients twice"), ("rows", "a row of its own"), ("ids", "asks who takes part")]
)
def test_a_method_that_is_wrong_about_itself(how, why):
    with refused(why):
        simulate(Twice(how=how), asynchronous="buffer:3")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"asynchronous": "10"}, "asynchronous must be buffer:COUNT"),
        ({"asynchronous": "buffer:2", "clients_per_round": ua.sampling.Bernoulli(0.5)}, "how many are at work"),
        ({"asynchronous": "buffer:2", "clock": ua.Clock(cutoff=3.0)}, "of synchronous rounds"),
        ({"asynchronous": "buffer:2", "channel": "clip:1.0,local-noise:1.0"}, "adds noise"),
        ({"asynchronous": "buffer:2", "channel": "clip:1.0,noise:1.0"}, "leave out clock and asynchronous"),
        ({"clock": RAGGED, "channel": "clip:1.0,noise:1.0"}, "leave out clock and asynchronous"),
        ({"asynchronous": "buffer:2", "channel": "secure-sum"}, "hides replies"),
        ({"asynchronous": "buffer:2", "staleness": "steep"}, "staleness must be"),
    ],
)
def test_settings_that_do_not_go_together(settings, why):
    with refused(why):
        simulate(ua.FedAvg(weights="uniform"), **settings)


def test_noise_and_a_method_that_is_asynchronous_by_itself():
    with refused("FedBuff is asynchronous by itself, so leave out the channel"):
        simulate(ua.FedBuff(2), channel="clip:1.0,noise:1.0")


@pytest.mark.parametrize("method", [ua.FedBuff(2), ua.FedAvg()], ids=lambda m: m.name)
def test_data_that_drift_are_refused(method):
    how = {"asynchronous": "buffer:2"} if method.name == "fedavg" else {}
    with refused("the data drift"):
        ua.simulate(
            model(), federation().skewed("drift:4:noise:1"), method, rounds=1, clients_per_round=3, local=EVEN, **how
        )


def test_compressed_replies_arrive_too():
    how = {"clock": RAGGED, "asynchronous": "buffer:2", "local": LOCAL, "channel": "topk:0.2", "rounds": 6}
    runs = [simulate(ua.FedAvg(), engine=engine, **how) for engine in ("sequential", "loopback")]
    assert runs[0].history[-1]["bytes_up"] < runs[0].history[-1]["bytes_up_plain"]
    assert testing.difference(*runs) < 1e-6


def test_clients_are_told_the_bound_that_they_began_with(tmp_path):
    channel = "adaptive-clip:0.02:0.5:1"
    how = {"clock": RAGGED, "asynchronous": "buffer:2", "local": LOCAL, "channel": channel, "rounds": 6}
    runs = [simulate(ua.FedAvg(), engine=engine, **how) for engine in ("sequential", "loopback")]
    assert testing.difference(*runs) < 1e-6
    assert runs[0].history[0]["bytes_down"] == runs[1].history[0]["bytes_down"]
    simulate(ua.FedAvg(), **how | {"rounds": 3}, folder=tmp_path / "run")
    again = simulate(ua.FedAvg(), **how, folder=tmp_path / "run", resume=True)
    assert torch.equal(again.server.w, runs[0].server.w)
