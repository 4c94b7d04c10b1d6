"""Runs whose channel has noise: it has the stated size on every engine, what was spent is accounted for, and what would
go past the noise is refused."""

import dataclasses as dc
import math
import tomllib

import numpy as np
import pytest
import small
import torch
from torch import nn

import unalike as ua
from unalike.channel import accountant
from unalike.channel.accountant import Accountant
from unalike.channel.audit import audit
from unalike.channel.events import GaussianSum, SampledGaussian, TreeGaussian
from unalike.contract import Field, Method
from unalike.errors import UnalikeError

UNIFORM = ua.FedAvg(weights="uniform")
ENGINES = ("sequential", "batched", "loopback")


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """A loss distribution takes seconds: one test computes one."""
    if "tight" not in request.node.name:
        monkeypatch.setattr(accountant, "loss_epsilon", lambda *_: 1.25)


def private(method=UNIFORM, **changes):
    return small.run(method, **{"clients_per_round": 1.0, "channel": "clip:1.0,noise:1.0", **changes})


def epsilon(*events, delta=1e-5):
    account = Accountant()
    for event in events:
        account.add(event)
    return account.spent(delta).epsilon


@dc.dataclass(frozen=True)
class Ones(Method):
    """Every client sends ones, in several exchanges; before round 1 to a call of everybody."""

    exchanges: int = 1
    before: int = 0

    sends = {"delta": Field(weight="one")}

    def setup(self, server, everyone):
        server.got = [float(everyone.call(self.client, w=server.w).sum("delta")[0]) for _ in range(self.before)]

    def client(self, me, s, m):
        return {}, {"delta": torch.ones_like(m.w)}

    def round(self, server, cohort):
        server.entered = cohort.round
        replies = [cohort.call(self.client, w=server.w) for _ in range(self.exchanges)]
        server.got = [*server.got, float(replies[0].mean("delta")[0])]
        server.counted = replies[0].count


# ---------------------------------------------------------------- the noise


def wide():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 1200), nn.Tanh(), nn.Linear(1200, 3))


def moved(channel, engine, seed=0, dtype="float64"):
    """Return where one round leads; the clip is what replies reach."""
    run = private(
        channel=channel, module=wide(), engine=engine, rounds=1, seed=seed, dtype=dtype, evaluate_clients="none"
    )
    return run.server.w.double()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "noised, plain, sigma",
    [
        ("clip:0.01,noise:3.0", "clip:0.01,noise:0", 0.03),
        ("clip:0.01,local-noise:3.0", "clip:0.01", 0.03 * math.sqrt(6)),
        ("clip:0.01,tree-noise:3.0", "clip:0.01,noise:0", 0.03),
    ],
)
def test_the_sum_has_the_stated_noise_on_every_engine(engine, noised, plain, sigma):
    noise = 6 * (moved(noised, engine) - moved(plain, engine))  # of the sum: there are six clients
    n = noise.numel()
    assert float(noise.square().mean().sqrt()) == pytest.approx(sigma, rel=6 / math.sqrt(2 * n))
    assert abs(float(noise.mean())) < 6 * sigma / math.sqrt(n)


@pytest.mark.parametrize("stages", ["adaptive-clip:0.01:0.5:0.2:0.4,noise:3.0", "clip:0.01:1,local-noise:1.0:laplace"])
def test_engines_draw_the_same_noise(stages):
    one, *others = (moved(stages, engine) for engine in ENGINES)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for other in others)


def test_without_noise_and_with_a_long_clip_it_is_fedavg_to_the_bit():
    plain, run = small.run(UNIFORM, clients_per_round=1.0), private(channel="clip:1000.0,noise:0")
    assert torch.equal(run.server.w, plain.server.w)
    assert run.history[-1]["epsilon"] is None  # nothing is guaranteed


def test_a_mean_is_of_the_expected_cohort_whoever_came():
    run = private(Ones(), channel="clip:100.0,noise:0", clients_per_round=ua.sampling.Bernoulli(0.5), rounds=8)
    came = [line["clients"] for line in run.history]
    assert run.server.got == pytest.approx([k / 3 for k in came]) and len({*came}) > 1
    assert run.server.counted == 3.0


# ---------------------------------------------------------------- what was spent


def test_each_line_says_what_was_spent_so_far_and_the_last_a_tight_bound():
    run = private(rounds=3, clients_per_round=ua.sampling.Bernoulli(0.5))
    expected = [epsilon(*[SampledGaussian(0.5, 1.0)] * t) for t in (1, 2, 3)]
    assert [line["epsilon"] for line in run.history] == pytest.approx(expected)
    assert ["epsilon_pld" in line for line in run.history] == [False, False, True]
    assert run.history[-1]["epsilon_pld"] < expected[-1]
    assert all(line["train_loss"] is None for line in run.history)
    assert run.summary()["epsilon"] == pytest.approx(expected[-1]) and run.summary()["delta"] == 1e-5
    assert run.summary()["guarantee"].endswith("(add or remove one client; PLD)")


def test_exchanges_of_a_round_and_of_everybody():
    """Two sums of the same drawn clients are one release with 1/√2 of the noise; everybody is always drawn."""
    half = ua.sampling.Bernoulli(0.5)
    run = private(Ones(exchanges=2, before=1), rounds=2, clients_per_round=half)
    twice = [SampledGaussian(0.5, 1 / math.sqrt(2))] * 2
    assert run.history[-1]["epsilon"] == pytest.approx(epsilon(GaussianSum(1.0), *twice))


def test_a_tree_is_spent_when_it_begins():
    run = private(channel="clip:1.0,tree-noise:2.0:2", clients_per_round=ua.sampling.Turns(3), rounds=3)
    tree = TreeGaussian(2, 2.0)
    expected = [epsilon(tree), epsilon(tree), epsilon(tree, tree)]
    assert [line["epsilon"] for line in run.history] == pytest.approx(expected)


@pytest.mark.parametrize("stages", ["clip:1.0,noise:1.0", "adaptive-clip:0.1:0.5:0.2:0.4,noise:1.0"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, stages):
    sampled = {"channel": stages, "clients_per_round": ua.sampling.Bernoulli(0.9)}
    whole = private(rounds=4, folder=tmp_path / "a", **sampled)
    private(rounds=2, folder=tmp_path / "b", **sampled)
    parts = private(rounds=4, folder=tmp_path / "b", resume=True, **sampled)
    assert small.states(parts).keys() == small.states(whole).keys()
    assert torch.equal(parts.server.w, whole.server.w)
    assert small.timeless(parts.history)[-1] == small.timeless(whole.history)[-1]
    assert [line["epsilon"] for line in small.logged(tmp_path / "b")] == [line["epsilon"] for line in whole.history]


def test_a_run_stops_before_it_spends_too_much(tmp_path):
    run = private(rounds=9, max_epsilon=7.0, folder=tmp_path / "a", evaluate_every=5)
    assert run.rounds_done == 2 and run.history[-1]["epsilon_pld"] <= 7.0  # three rounds would be 8.39
    assert run.summary()["final"]["round"] == 2 and "test_accuracy" in run.history[-1]
    again = private(rounds=9, max_epsilon=7.0, folder=tmp_path / "a", evaluate_every=5, resume=True)
    assert again.rounds_done == 2 and len(small.logged(tmp_path / "a")) == 2
    more = private(rounds=9, max_epsilon=9.0, folder=tmp_path / "a", evaluate_every=5, resume=True)
    assert more.rounds_done == 3


def test_an_epsilon_finds_the_noise():
    run = private(channel="clip:1.0,noise:auto", epsilon=6.0, delta=1e-6, rounds=4)
    z = run.channel.noises[0].z
    assert 5.99 < run.history[-1]["epsilon_pld"] <= 6.0 and z == round(z, 4)
    tree = private(channel="clip:1.0,tree-noise:auto", epsilon=6.0, delta=1e-6, rounds=4)
    assert tree.channel.noises[0].z == z  # of trees of one round each


def test_the_run_says_its_noise_in_its_facts(tmp_path):
    private(channel="clip:1.0,noise:auto", epsilon=6.0, rounds=1, folder=tmp_path / "a")
    facts = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    clip, noise = facts["channel"]["stages"]
    z = float(noise.removeprefix("noise:"))
    assert clip == "clip:1.0" and z == pytest.approx(0.7637, abs=2e-4)  # found to 1e-4, and rounded up
    same = {"channel": "clip:1.0,noise:auto", "folder": tmp_path / "a", "resume": True}
    run = private(epsilon=6.0, rounds=2, **same)  # the noise stays; what it was found for is spent
    assert run.rounds_done == 1 and run.channel.noises[0].z == z and "ε = 6" in run.ended
    assert private(epsilon=12.0, rounds=2, **same).rounds_done == 2


@pytest.mark.parametrize(
    "method, channel, exchanges",
    [(Ones(exchanges=2), "clip:1.0,noise:auto", 2), (ua.Scaffold(), "clip:1.0,noise:auto@delta,noise:3.0@control", 1)],
)
def test_noise_is_found_for_all_that_a_round_spends(method, channel, exchanges):
    run = private(method, channel=channel, epsilon=8.0, exchanges=exchanges, rounds=4)
    assert 7.99 < run.history[-1]["epsilon_pld"] <= 8.0 and not run.ended


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_round_ends_before_the_exchange_that_spends_too_much(tmp_path, engine):
    """One exchange is 3.7 and two are 5.5: not even the first round can be done, and all is as it was."""
    asked = {
        "channel": "clip:1.0,noise:1.2",
        "max_epsilon": 5.0,
        "rounds": 3,
        "folder": tmp_path / "a",
        "engine": engine,
    }
    run = private(Ones(exchanges=2), **asked)
    assert run.rounds_done == 0 and run.history == [] and not hasattr(run.server, "entered")
    assert run.spending.guarantee().epsilon <= 5.0 and run.server.values["_spent"][0][-1] == 1  # one was made
    assert "Exchange 2 of round 1" in run.summary()["ended"] and run.notes == [run.ended]
    again = private(Ones(exchanges=2), resume=True, **asked)
    assert again.server.values["_spent"] == run.server.values["_spent"]  # nothing more is tried
    more = private(Ones(exchanges=2), resume=True, **{**asked, "max_epsilon": 7.0})
    assert more.rounds_done == 1 and more.spending.guarantee().epsilon <= 7.0


class Sometimes(Ones):
    """Calls nobody in every other round, the first one too."""

    def round(self, server, cohort):
        if cohort.round % 2:
            super().round(server, cohort)


def test_rounds_that_call_nobody_hide_nothing_of_those_that_do():
    tree = private(Sometimes(), channel="clip:1.0,tree-noise:1.0:2", clients_per_round=ua.sampling.Turns(3), rounds=6)
    event = TreeGaussian(2, 1.0)
    expected = [0.0, *[epsilon(*[event] * t) for t in (1, 1, 2, 2, 3)]]
    assert [line["epsilon"] for line in tree.history] == pytest.approx(expected)
    run = private(Sometimes(), max_epsilon=5.0, rounds=6)
    assert run.rounds_done < 4 and run.spending.guarantee().epsilon <= 5.0


def test_delta_is_the_runs_and_small(tmp_path):
    run = private(rounds=1, folder=tmp_path / "a")
    assert tomllib.loads((tmp_path / "a" / "config.toml").read_text())["run"]["delta"] == 1e-5 and run.notes == []
    with pytest.raises(UnalikeError, match=r"run\.delta is 1e-05, here 0\.01"):
        private(rounds=2, folder=tmp_path / "a", resume=True, delta=0.01)
    config = (tmp_path / "a" / "config.toml").read_text()
    (tmp_path / "a" / "config.toml").write_text(config.replace("delta = 1e-05\n", ""))  # of before it was written
    assert private(rounds=2, folder=tmp_path / "a", resume=True).rounds_done == 2
    many = private(data=small.federation(sizes=(4,) * 11), rounds=0, delta=0.099)
    assert "more than 1 / 11 clients" in many.notes[0]


# ---------------------------------------------------------------- what is refused


@dc.dataclass(frozen=True)
class Reads(Method):
    """Reads what noise is to hide."""

    what: str = "ids"

    sends = {"delta": Field(weight="one")}

    def client(self, me, s, m):
        return {}, {"delta": torch.zeros_like(m.w)}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        tried = {
            "ids": lambda: replies.ids,
            "losses": replies.losses,
            "cohort": lambda: cohort.ids,
            "length": lambda: len(cohort),
            "samples": lambda: cohort.samples,
            "only": lambda: cohort.everyone.only([0]),
            "rates": lambda: cohort.rates,
        }
        server.found = np.size(tried[self.what]())


class Whole(Method):
    """Sends whole numbers."""

    sends = {"delta": Field(weight="one")}

    def client(self, me, s, m):
        return {}, {"delta": torch.zeros_like(m.w, dtype=torch.int64)}


HALF = {"clients_per_round": ua.sampling.Bernoulli(0.5)}
REFUSED = [
    (ua.FedAvg(), {}, "give FedAvg weights='uniform'"),
    (UNIFORM, {"clients_per_round": 3}, "clients_per_round='bernoulli:0.5'"),
    (UNIFORM, {"clients_per_round": ua.sampling.BySize(3)}, "bernoulli:0.5"),
    (UNIFORM, {"module": small.model(batch_norm=True)}, "buffers='freeze' or 'local'"),
    (UNIFORM, {"channel": "clip:1.0", "epsilon": 3.0}, "there is none"),
    (UNIFORM, {"max_epsilon": 3.0, "channel": ()}, "there is none"),
    (UNIFORM, {"epsilon": 3.0}, "noise:auto"),
    (UNIFORM, {"channel": "clip:1.0,noise:auto"}, "give epsilon"),
    (UNIFORM, {"channel": "clip:1.0,local-noise:auto", "epsilon": 3.0}, "'auto' is for one stage"),
    (UNIFORM, {"channel": "clip:1.0,tree-noise:1.0:2", "clients_per_round": 3}, "clients_per_round='turns:3'"),
    (UNIFORM, {"channel": "clip:1.0,tree-noise:1.0:2", "clients_per_round": ua.sampling.Turns(2)}, "turns:3"),
    (UNIFORM, {"channel": "clip:1.0,tree-noise:1.0:2", "clients_per_round": [[0, 1], [1, 2]]}, "turns:3"),
    (UNIFORM, {"delta": 0.0}, "delta must lie in"),
    (UNIFORM, {"delta": 0.1}, "delta must lie in"),
    (Ones(exchanges=2), {"channel": "clip:1.0,noise:auto", "epsilon": 8.0}, "give exchanges=2"),
    (Ones(before=1), {"channel": "clip:1.0,noise:auto", "epsilon": 8.0}, "give the noise a number"),
    (
        ua.Scaffold(),
        {"channel": "clip:1.0,noise:auto@delta,local-noise:1@control", "epsilon": 8.0},
        "all of them a number",
    ),
    (UNIFORM, {"channel": "clip:1.0,tree-noise:auto", "epsilon": 8.0, "exchanges": 2}, "one exchange per round"),
    (UNIFORM, {"channel": "adaptive-clip:0.1,tree-noise:1.0", "rounds": 0}, "one bound for all"),
    (UNIFORM, {"channel": "adaptive-clip:0.1:0.5:0.2:0.01,noise:1.0", "rounds": 0}, "Raise the std"),
    (ua.FLHC(2, warmup=0), {}, "FLHC reads 'own' of every single client"),
    (ua.DefKT(), {}, "DefKT sends the server nothing"),
    (ua.Centralized(), {}, "pools all data"),
    (ua.RFedAvgPlus(weights="uniform"), HALF, "RFedAvgPlus reads who takes part or answers"),
    (ua.FedCluster(2, weights="uniform"), HALF, "FedCluster reads who takes part or answers"),
    (ua.PowerSGD(weights="uniform"), {"rounds": 0}, "PowerSGD reads who takes part or answers"),
    (ua.L2GD(variant="steady"), HALF, "who takes part"),
    (Reads("ids"), {}, "Reads reads who answered"),
    (Reads("losses"), {}, "losses"),
    (Reads("losses"), {"channel": "clip:1.0,local-noise:1.0"}, "losses"),
    (Reads("cohort"), HALF, "who takes part"),
    (Reads("length"), HALF, "who takes part"),
    (Reads("samples"), HALF, "who takes part"),
    (Reads("only"), HALF, "a part of the clients"),
    (Whole(), {}, "whole numbers"),
]


@pytest.mark.parametrize("method, changes, why", REFUSED)
def test_what_would_go_past_the_noise_is_one_line(method, changes, why):
    with pytest.raises(UnalikeError) as error:
        private(method, **{"rounds": 1, **changes})
    assert why in str(error.value) and "\n" not in str(error.value)


def test_what_noise_need_not_hide_is_read():
    assert private(Reads("rates"), **HALF, rounds=1).server.found == 6  # of all, whoever takes part
    assert private(Reads("cohort"), rounds=1).server.found == 6  # everybody does
    local = {"channel": "clip:1.0,local-noise:1.0", "clients_per_round": 2, "rounds": 1}
    assert [private(Reads(what), **local).server.found for what in ("ids", "cohort", "only")] == [2, 2, 1]
    assert private(ua.FLHC(2, warmup=0), **local).rounds_done == 1  # each reply has noise of its own
    assert private(ua.FedAvg(), **local).rounds_done == 1
    assert private(ua.PowerSGD(), **local).rounds_done == 1
    assert private(ua.L2GD(variant="steady"), rounds=1).rounds_done == 1  # everybody takes part


@pytest.mark.parametrize("buffers", ["freeze", "local"])
def test_batchnorms_statistics_that_stay_at_home_are_no_matter(buffers):
    assert private(module=small.model(batch_norm=True), buffers=buffers, rounds=1).rounds_done == 1


RUN = [
    ua.FedAvgM(), ua.FedProx(), ua.FedAdagrad(), ua.FedYogi(), ua.FedAdam(), ua.Scaffold(), ua.FedDyn(), ua.FedDC(),
    ua.FedExP(), ua.FedNova(), ua.Ditto(), ua.FedRep(), ua.IFCA(2),
]  # fmt: skip


@pytest.mark.parametrize("method", RUN, ids=lambda m: type(m).__name__)
def test_methods_that_read_sums_run(method):
    run = private(method, clients_per_round=ua.sampling.Bernoulli(0.7), rounds=2)
    assert run.history[-1]["epsilon"] > 0


def test_sample_weights_without_an_option_are_equal():
    """FedProx weighs by samples and has no option for it: under noise every client counts the same."""
    mean = private(ua.FedProx(mu=0.0), channel="clip:1000.0,noise:0").server.w
    assert torch.equal(mean, small.run(UNIFORM, clients_per_round=1.0).server.w)


# ---------------------------------------------------------------- whole numbers, bits, and who is named


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
def test_shares_of_clients_who_do_not_come(kind):
    """One of six comes on the average, or nobody, and the noise is divided over five: the server adds the rest."""
    channel = f"clip:0.5,quantise:12:0.5,{kind}:4.0:5"
    run = private(channel=channel, clients_per_round=ua.sampling.Bernoulli(0.2), rounds=6)
    assert run.rounds_done == 6 and min(line["clients"] for line in run.history) == 0
    assert "(zero out one client; RDP)" in run.summary()["guarantee"]


def test_bytes_without_the_channel_are_those_of_a_plain_run():
    run = private(channel="adaptive-clip:0.1:0.5:0.2:0.4,noise:1.0", rounds=1)
    plain = small.run(UNIFORM, clients_per_round=1.0, rounds=1)
    assert run.history[0]["bytes_up_plain"] == plain.history[0]["bytes_up"] == run.history[0]["bytes_up"] - 6


@pytest.mark.parametrize("engine", ENGINES)
def test_who_diverged_is_not_named_under_noise(engine):
    local = ua.LocalTraining(epochs=5, batch_size=4, lr=1e38)
    with pytest.raises(ua.Diverged, match="of a client became NaN") as error:
        private(local=local, engine=engine)
    assert error.value.clients == []


# ---------------------------------------------------------------- an audit


@dc.dataclass(frozen=True)
class Canary(Method):
    """The client with 12 samples sends ten times a fixed direction, the others nothing."""

    sends = {"delta": Field(weight="one")}

    def setup(self, server, everyone):
        server.seen = []

    def client(self, me, s, m):
        return {}, {"delta": 10.0 * m.u * (me.n == 12)}

    def round(self, server, cohort):
        u = torch.zeros_like(server.w)
        u[3] = 1.0
        server.seen = [*server.seen, float(cohort.call(self.client, u=u).sum("delta") @ u)]


def seen(sizes, z, seed):
    run = private(
        Canary(), data=small.federation(sizes=sizes), rounds=500, channel=f"clip:2.0,noise:{z}", seed=seed,
        engine="batched", evaluate_every=1000, evaluate_clients="none",
    )  # fmt: skip
    return run.server.seen


@pytest.mark.slow
def test_an_audit_of_a_run_stays_below_what_is_stated_and_finds_half_the_noise():
    """500 rounds of no sampling, each a repeat of the first: the canary's direction is seen in every sum."""
    stated = Accountant([[*GaussianSum(1.0).row, 1]]).tight(1e-5).epsilon
    honest = audit(seen((8, 12), 1.0, 0), seen((8, 4), 1.0, 1), 1e-5, threshold=1.0)
    assert 0.3 * stated < honest.epsilon < stated
    broken = audit(seen((8, 12), 0.5, 0), seen((8, 4), 0.5, 1), 1e-5, threshold=1.0)
    assert broken.epsilon > 1.3 * stated


def test_a_round_without_anybody_is_noise_and_is_paid_for():
    run = private(clients_per_round=ua.sampling.Bernoulli(0.01), rounds=6, channel="clip:1.0,noise:2.0")
    assert [line["clients"] for line in run.history][:3] == [0, 0, 0]
    assert run.history[2]["epsilon"] == pytest.approx(epsilon(*[SampledGaussian(0.01, 2.0)] * 3))
    assert not torch.equal(run.server.w, small.run(UNIFORM, rounds=0).server.w)
