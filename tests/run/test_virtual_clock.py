"""The virtual clock: what devices take, when they are there, and what synchronous rounds do with the late ones."""

import dataclasses as dc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import LOCAL, federation, model, refused

import unalike as ua
from unalike import config
from unalike.config import flags
from unalike.run.clock import Devices
from unalike.run.timing import Timing

IDS = np.arange(6)
EVEN = ua.LocalTraining(steps=4, batch_size=4, lr=0.1)


def simulate(method=None, **settings):
    usual = {"rounds": 3, "clients_per_round": 4, "local": EVEN, "engine": "sequential"}
    return ua.simulate(model(), federation(), method or ua.FedAvg(), **{**usual, **settings})


def devices(population=6, seed=0, **settings):
    return Devices(ua.Clock(**settings), seed, np.full(population, 10), lambda classes: np.zeros(population))


def times(run):
    return [line["virtual_seconds"] for line in run.history]


# ---- devices


def test_seconds_are_work_and_bytes():
    found = devices(step_seconds=0.5, speeds=[1, 2, 4, 1, 1, 1], latency=3.0, upload=10.0, download=[5.0] * 6)
    took = found.seconds(IDS[:3], 0, 0.0, np.array([8, 8, 8]), down=50, up=20)
    assert took.tolist() == [3 + 10 + 8 * 0.5 / speed + 2 for speed in (1, 2, 4)]


def test_lognormal_speeds_are_of_the_client_alone():
    many = devices(20_000, speeds="lognormal:1.0:3.0")
    logs = np.log(many.speeds(np.arange(20_000), 0.0))
    assert logs.mean() == pytest.approx(np.log(3), abs=0.03) and logs.std() == pytest.approx(1.0, abs=0.03)
    assert many.speeds(np.array([7, 3]), 5.0).tolist() == np.exp(logs)[[7, 3]].tolist()
    other = devices(20_000, seed=1, speeds="lognormal:1.0:3.0")
    assert not np.allclose(other.speeds(IDS, 0.0), many.speeds(IDS, 0.0))


def test_jitter_is_drawn_for_every_round():
    found = devices(jitter=0.5)
    first, second = (found.step_seconds(IDS, when) for when in (0, 1))
    assert (first != second).all() and (first == found.step_seconds(IDS, 0)).all()


def test_shares_spells_and_days():
    some = devices(4000, available=0.3, spell=10.0)
    ids = np.arange(4000)
    there = [some.there(ids, time) for time in (0.0, 9.9, 10.0)]
    assert there[0].mean() == pytest.approx(0.3, abs=0.03)
    assert (there[0] == there[1]).all() and (there[0] != there[2]).any()
    daily = devices(4000, available="day:0.25", day=100.0)
    hours = np.array([daily.there(ids, time) for time in range(0, 200, 5)])
    assert (hours.mean(0) == pytest.approx(0.25, abs=0.051)) and (hours[:20] == hours[20:]).all()
    assert hours.mean(1).min() > 0.15 and hours.mean(1).max() < 0.35  # each at its own hour


def test_traces(tmp_path):
    speeds, there = tmp_path / "speeds.csv", tmp_path / "there.csv"
    speeds.write_text("client,from,speed\n0,0,1\n0,10,2\n1,0,5\n")
    there.write_text("client,from,to\n0,0,10\n0,20,30\n1,5,40\n")
    found = devices(speeds=str(speeds), available=str(there))
    assert found.speeds(IDS[:4], 9.0).tolist() == [1, 5, 1, 5]  # devices are dealt in turn
    assert found.speeds(IDS[:4], 10.0).tolist() == [2, 5, 2, 5]
    assert [found.there(IDS[:2], t).tolist() for t in (0, 7, 12, 45, 52)] == [
        [True, False], [True, True], [False, True], [True, True], [False, True],
    ]  # fmt: skip
    plain = tmp_path / "plain.csv"
    plain.write_text('"client", "Speed"\n0,3\n1,4\n')  # some programs quote their words
    assert devices(speeds=str(plain)).speeds(IDS[:3], 0.0).tolist() == [3, 4, 3]


def test_slow_devices_go_to_some_classes():
    run = simulate(clock=ua.Clock(speeds="lognormal:1.0", slow="classes:0"), rounds=0)
    data, found = run.data.train, run.arrivals.devices
    share = [float((data.of(k)[1] == 0).float().mean()) for k in range(6)]
    order = found.speeds(IDS, 0.0)[np.argsort(np.negative(share), kind="stable")]
    assert (np.diff(order) >= 0).all()
    assert sorted(order) == sorted(devices(speeds="lognormal:1.0").speeds(IDS, 0.0))
    large = simulate(clock=ua.Clock(speeds="lognormal:1.0", slow="large"), rounds=0).arrivals.devices
    assert large.speeds(IDS, 0.0).argmin() == data.sizes.argmax()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"speeds": "normal:1"}, "no CSV file"),
        ({"speeds": "1,2,3"}, r"a list: \[1,2,3\]"),
        ({"speeds": "lognormal"}, "say lognormal:SIGMA"),
        ({"speeds": [1.0, 0.0]}, "must be a number above 0"),
        ({"available": 0.0}, "available must be a share"),
        ({"available": "day:2"}, "available must be a share"),
        ({"dropout": 1.0}, "dropout"),
        ({"late": "partial"}, "give cutoff"),
        ({"late": "never"}, "late"),
        ({"slow": "rich"}, "slow must be classes:0,1 or large"),
        ({"speeds": [1.0]}, "speeds has 1 entries"),
        ({"tiers": 2, "sampled": ua.sampling.BySize(2)}, "tiers and overselect need"),
        ({"available": 1e-12}, "Nobody is ever there"),
    ],
)
def test_mistakes(settings, why, monkeypatch):
    monkeypatch.setattr("unalike.run.arrivals.PATIENCE", 10)
    sampled = {"clients_per_round": settings.pop("sampled")} if "sampled" in settings else {}
    with refused(why):
        simulate(clock=ua.Clock(**settings), **sampled)


# ---- synchronous rounds


def test_a_round_waits_for_the_slowest():
    bare, run = simulate(), simulate(clock=ua.Clock(speeds=[1, 2, 4, 8, 16, 32], step_seconds=16.0))
    assert torch.equal(bare.server.w, run.server.w)  # a clock alone changes nothing
    slowest = [min(2.0**k for k in run.cohort(t)) for t in range(3)]
    assert np.diff([0.0, *times(run)]).tolist() == [4 * 16 / speed for speed in slowest]


def test_every_training_and_every_byte_takes_time():
    alone, twice = (simulate(m, clock=ua.Clock()) for m in (ua.FedAvg(), ua.Ditto(0.1)))
    assert times(alone) == [4.0, 8.0, 12.0] and times(twice) == [8.0, 16.0, 24.0]
    slow = simulate(clock=ua.Clock(upload=10.0, download=20.0))
    model_bytes = slow.history[0]["bytes_up"] / 4
    assert times(slow)[0] == pytest.approx(4 + model_bytes / 10 + model_bytes / 20)
    packed = simulate(clock=ua.Clock(upload=10.0), channel="topk:0.1")
    assert times(packed)[0] == pytest.approx(4 + packed.history[0]["bytes_up"] / 4 / 10)


def test_a_cutoff_leaves_the_late_out():
    clock = ua.Clock(speeds=[1, 1, 1, 1, 0.1, 0.1], cutoff=5.0)
    run = simulate(clock=clock, clients_per_round=1.0)
    fast = simulate(clients_per_round=[[0, 1, 2, 3]])
    assert torch.equal(run.server.w, fast.server.w)
    assert times(run) == [5.0, 10.0, 15.0] and [line["lost"] for line in run.history] == [2, 2, 2]


def test_late_clients_may_do_partial_work():
    clock = ua.Clock(speeds=[1, 1, 1, 1, 0.5, 0.1], cutoff=4.0, late="partial")
    for method in (ua.FedProx(0.1), ua.FedNova()):
        run = simulate(method, clock=clock, clients_per_round=1.0)
        work = ua.LocalTraining(steps=[4, 4, 4, 4, 2, 1], batch_size=4, lr=0.1)
        less = simulate(method, local=work, clients_per_round=[[0, 1, 2, 3, 4]])  # client 5 is late with one step
        assert torch.equal(run.server.w, less.server.w) and run.history[0]["lost"] == 1
    whole = simulate(clock=dc.replace(clock, cutoff=1e3), local=LOCAL)
    assert torch.equal(whole.server.w, simulate(local=LOCAL).server.w)


def test_steps_fit_by_the_speeds_of_their_round(tmp_path):
    """Client 5 is fast for 4 seconds, and then does one of four steps in the time; its samples are drawn on a clock
    that goes on when the run does."""
    speeds = tmp_path / "speeds.csv"
    speeds.write_text("client,from,speed\n0,0,1\n1,0,1\n2,0,1\n3,0,1\n4,0,1\n5,0,1\n5,4,0.25\n")
    how = {"clock": ua.Clock(speeds=str(speeds), cutoff=4.0, late="partial"), "clients_per_round": 1.0}
    by_hand = ua.LocalTraining(steps=lambda client, round: 1 if client == 5 and round else 4, batch_size=4, lr=0.1)
    whole = simulate(clients_per_round=1.0, local=by_hand)
    for engine in ("sequential", "workers", "batched", "loopback"):
        run = simulate(**how, engine=engine)
        assert run.history[-1]["batches"] == 5 * 4 + 1 and times(run) == [4.0, 8.0, 12.0]
        assert run.server.w == pytest.approx(whole.server.w, abs=1e-6)
    simulate(**how, rounds=1, folder=tmp_path / "run")
    again = simulate(**how, folder=tmp_path / "run", resume=True)
    assert torch.equal(again.server.w, whole.server.w)


@dc.dataclass(frozen=True)
class Again(ua.FedAvg):
    def round(self, server, cohort):
        for _ in range(2):
            server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")


def test_every_exchange_of_a_round_is_judged_anew(tmp_path):
    (speeds := tmp_path / "speeds.csv").write_text("client,from,speed\n0,0,1\n1,0,0.25\n1,4,1\n")
    clock = ua.Clock(speeds=str(speeds), cutoff=4.0, late="partial")
    run = simulate(Again(), clock=clock, clients_per_round=1.0, rounds=1)
    assert run.history[0]["batches"] == 3 * (4 + 1) + 6 * 4 and times(run) == [8.0]


def test_what_fits_is_judged_by_the_messages_and_all_trainings():
    uploading = simulate(clock=ua.Clock(upload=[1e9] * 5 + [10.0], cutoff=30.0, late="partial", step_seconds=2.0))
    sent = uploading.history[0]["bytes_up"] / uploading.history[0]["clients"]
    left = [40 if k < 5 else int((30.0 - sent / 10.0) / 2.0) for k in range(6)]
    assert 0 < left[5] < 40
    longer = dc.replace(EVEN, steps=40)
    clock = ua.Clock(upload=[1e9] * 5 + [10.0], cutoff=30.0, late="partial", step_seconds=2.0)
    run = simulate(clock=clock, local=longer, clients_per_round=[[0, 5]] * 3)
    assert run.history[0]["batches"] == 14 + left[5] and "lost" not in run.history[0]
    ditto = simulate(ua.Ditto(0.1), clock=ua.Clock(cutoff=6.0, late="partial"), clients_per_round=[[0, 5]] * 3)
    assert ditto.history[0]["batches"] == 2 * (3 + 3) and times(ditto) == [6.0, 12.0, 18.0]


def test_work_that_just_fits_is_in_time():
    """0.1 + 0.1 + 0.1 is more than 0.3 in floating point."""
    run = simulate(clock=ua.Clock(step_seconds=0.1, cutoff=0.3, late="partial"), clients_per_round=1.0)
    assert run.history[0]["batches"] == 6 * 3 and "lost" not in run.history[0] and times(run)[0] == 0.3


@dc.dataclass(frozen=True)
class OnPublic(ua.FedAvg):
    needs_public = True

    def client(self, me, s, m):
        return me.train(m.w, data="public", own=0.0, loss=self.matched).then(self.done)

    def matched(self, batch):
        return (batch.weights[:, None] * batch.output**2).sum()


def test_training_on_the_public_set_takes_time():
    data = federation().with_public(torch.randn(9, 5))
    for late, steps in (("drop", 3), ("partial", 2)):
        clock = ua.Clock(cutoff=2.0, late="partial") if late == "partial" else ua.Clock()
        run = ua.simulate(
            model(), data, OnPublic(), rounds=1, clients_per_round=2, local=LOCAL, engine="sequential", clock=clock
        )
        assert times(run) == [float(steps)] and run.history[0]["batches"] == 2 * steps


def test_scores_are_not_cut_short():
    """Fine-tuning at evaluation is not on the clock."""
    clock = ua.Clock(cutoff=1.0, late="partial")
    late = simulate(ua.FineTune(), clock=clock, rounds=1)
    same = ua.LocalTraining(steps=lambda client, round: 1, batch_size=4, lr=0.1)
    early = simulate(ua.FineTune(), local=same, rounds=1)
    assert torch.equal(late.server.w, early.server.w)
    assert late.history[0]["clients_loss"] == early.history[0]["clients_loss"]


def test_more_are_asked_than_are_waited_for():
    clock = ua.Clock(speeds=[6, 5, 4, 3, 2, 1], overselect=0.5)
    run = simulate(clock=clock, clients_per_round=4)  # all six are asked
    assert torch.equal(run.server.w, simulate(clients_per_round=[[0, 1, 2, 3]]).server.w)
    assert times(run)[0] == pytest.approx(4 / 3) and run.history[0]["lost"] == 2


def test_a_tenth_more_of_a_hundred_are_110():
    """100 · 1.1 is a little more than 110 in floating point."""
    arrivals = simulate(clock=ua.Clock(overselect=0.1), rounds=0).arrivals
    arrivals.run = SimpleNamespace(population=1000)
    assert arrivals._asked(ua.sampling.Uniform(count=100)) == 110


def test_what_is_said_as_usual_is_no_fact():
    assert ua.Clock(jitter=float("0.0"), speeds=float("1")).facts() == {} and ua.Clock(jitter=0.5).facts()["jitter"]


@pytest.mark.parametrize("times", ["0,0,0", "0,5,5", "0,-1,3"])
def test_times_that_end_before_they_begin(times, tmp_path):
    (tmp_path / "there.csv").write_text(f"client,from,to\n{times}\n")
    with refused("every from must be"):
        ua.Clock(available=str(tmp_path / "there.csv"))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("speeds", "0,1\n1,2\n", "must have a header"),
        ("speeds", "client;speed\n0;1\n", "must have a header"),
        ("speeds", "client,speed\n", "must have a header"),
        ("speeds", "", "must have a header"),
        ("speeds", "client,speed\n0,fast\n", "line 2: must have 2 finite numbers; got .0,fast"),
        ("speeds", "client,speed\n0,1\n\n1\n", "line 4: must have 2"),
        ("speeds", "client,from,speed\n0,0,1\n0,nan,1\n", "line 3: must have 3 finite"),
        ("speeds", "client,speed\n0,1\n0,2\n", "two speeds at one moment"),
        ("speeds", "client,speed\n0.5,1\n", "client must be a whole number"),
        ("available", "client,from,to\n0,0,inf\n", "line 2: must have 3 finite"),
        ("available", "client,speed\n0,1\n", "client, from, to"),
    ],
)
def test_mistakes_in_a_trace(name, text, why, tmp_path):
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ua.UnalikeError, match=why):
        ua.Clock(**{name: str(tmp_path / "trace.csv")})


def test_tiers_are_of_equal_speed():
    clock = ua.Clock(speeds=[1, 9, 1, 9, 1, 9], tiers=2)
    run = simulate(clock=clock, clients_per_round=2, rounds=8)
    cohorts = [{*run.cohort(t).tolist()} for t in range(8)]
    assert all(cohort <= {0, 2, 4} or cohort <= {1, 3, 5} for cohort in cohorts)
    assert {min(cohort) % 2 for cohort in cohorts} == {0, 1} and all(len(cohort) == 2 for cohort in cohorts)


def test_vanished_clients_do_not_answer():
    run = simulate(clock=ua.Clock(dropout=0.3), clients_per_round=1.0, rounds=4, seed=1)
    gone = [run.arrivals.devices.vanishing(IDS, t)[0] for t in range(4)]
    stayed = [np.flatnonzero(~one).tolist() for one in gone]
    assert torch.equal(run.server.w, simulate(clients_per_round=stayed, rounds=4, seed=1).server.w)
    assert sum(line.get("lost", 0) for line in run.history) == np.sum(gone) > 0
    assert times(run)[-1] <= 16.0
    last = simulate(clock=ua.Clock(dropout=0.99, cutoff=1.0), rounds=4)  # the server waits for one, however late
    assert times(last) == [4.0, 8.0, 12.0, 16.0] and all(line["train_loss"] for line in last.history)


def test_who_is_away_is_not_drawn():
    clock = ua.Clock(available=0.6, spell=4.0)
    run = simulate(clock=clock, clients_per_round=2, rounds=6)
    now, draws = [0.0, *times(run)], []
    for t in range(6):
        run.arrivals.time = now[t]
        draws.append(run.cohort(t))
        assert run.arrivals.devices.there(draws[-1], run.arrivals.time).all() and 1 <= len(draws[-1]) <= 2
    assert len({tuple(ids) for ids in draws}) > 1


def test_time_goes_on_when_a_run_does(tmp_path):
    clock = ua.Clock(speeds="lognormal:1.0", available=0.5, spell=5.0, dropout=0.2)
    whole = simulate(clock=clock, rounds=5)
    simulate(clock=clock, rounds=2, folder=tmp_path / "run")
    resumed = simulate(clock=clock, rounds=5, folder=tmp_path / "run", resume=True)
    assert times(resumed) == times(whole) and torch.equal(resumed.server.w, whole.server.w)


@pytest.mark.parametrize("engine", ["workers", "batched", "loopback"])
def test_every_engine_has_the_same_time(engine):
    clock = ua.Clock(speeds="lognormal:1.0", dropout=0.3, cutoff=10.0, late="partial", download=100.0)
    one, other = (simulate(ua.RFedAvgPlus(0.1), clock=clock, engine=e, local=LOCAL) for e in ("sequential", engine))
    assert times(one) == times(other) and one.history[-1]["train_loss"] == pytest.approx(
        other.history[-1]["train_loss"]
    )


def test_files_and_flags_say_the_same():
    tables = {
        "data": {"name": "digits", "clients": 6}, "local": {"steps": 2}, "run": {"rounds": 2, "clients_per_round": 3},
        "clock": {"speeds": "lognormal:1.0", "upload": 1e4},
    }  # fmt: skip
    words = (
        ["speeds", "lognormal:1.0"],
        ["clock.upload", "1e4"],
        ["staleness", "constant"],
        ["asynchronous", "buffer:2"],
    )
    said = flags.collect([(name, text) for name, text in words], {**tables, "clock": {}, "model": {}, "method": {}})
    assert said["clock"] == tables["clock"]
    assert (said["run"]["staleness"], said["run"]["asynchronous"]) == ("constant", "buffer:2")
    runs = [config.run(tables), config.run({**said, "run": tables["run"]})]
    assert times(runs[0]) == times(runs[1]) and runs[0].arrivals.clock == ua.Clock(**tables["clock"])
    with refused("clock: cutoff must be"):
        config.run({**tables, "clock": {"cutoff": -1.0}})
    with refused("Scaffold does not run so"):
        config.check({**tables, "method": {"name": "scaffold"}, "run": {"rounds": 1, "asynchronous": "buffer:2"}})
    with refused("FedBuff does not run so: it is asynchronous by itself, without this setting"):
        config.check({**tables, "method": {"name": "fedbuff"}, "run": {"rounds": 1, "asynchronous": "buffer:2"}})


def test_who_was_late_is_out_for_the_rest_of_the_round():
    class Given:
        def steps(self, call, ids):
            return np.array([1, 9, 1]) if call == "long" else np.ones(3)

        def up(self, call):
            return 0

    timing = Timing(devices(3, cutoff=5.0), Given(), 0, 0.0)
    for call in ("long", "short"):
        assert timing.exchange(call, IDS[:3], 0.0).tolist() == [True, False, True]
    assert timing.time == 6.0 and timing.gone == {1}
