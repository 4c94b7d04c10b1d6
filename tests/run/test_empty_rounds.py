"""Rounds in which nobody takes part: what Bernoulli sampling gives, and what differential privacy counts."""

import dataclasses as dc
import tomllib

import numpy as np
import pytest
import torch
from small import federation, refused
from torch import nn

import unalike as ua
from unalike import config, report
from unalike.channel.stage import Stage
from unalike.run.run import Run
from unalike.run.sampling import Bernoulli, draw

EMPTY = Bernoulli(0.25, empty=True)
SEED = 19  # of four clients: the third and fifth of six rounds are empty
LOCAL = ua.LocalTraining(epochs=1, batch_size=4, lr=0.1)
SIZES = (8, 4, 6, 10)


def model(norm=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4) if norm else nn.Tanh(), nn.Linear(4, 3))


def run(method=None, rounds=6, engine="sequential", norm=False, **more):
    given = {"local": LOCAL, "clients_per_round": EMPTY, "seed": SEED, **more}
    return ua.simulate(
        model(norm), federation(sizes=SIZES), method or ua.FedAvg(), rounds=rounds, engine=engine, **given
    )


def empty_rounds(rounds=6):
    return [t for t in range(rounds) if not len(draw(EMPTY, SEED, t, np.array(SIZES)))]


# ---------------------------------------------------------------- the draw


def test_bernoulli_may_be_empty():
    """With probability 0.05 of 10 clients 59.9 % of the rounds are empty; the others are what they always were."""
    sizes = np.ones(10)
    found = [len(draw(Bernoulli(0.05, empty=True), 0, t, sizes)) for t in range(2000)]
    none = 0.95**10
    assert np.mean([n == 0 for n in found]) == pytest.approx(none, abs=4 * (none * (1 - none) / 2000) ** 0.5)
    assert np.mean(found) == pytest.approx(0.5, abs=4 * (10 * 0.05 * 0.95 / 2000) ** 0.5)
    for t, n in enumerate(found[:200]):
        if n:
            again = draw(Bernoulli(0.05), 0, t, sizes)
            assert draw(Bernoulli(0.05, empty=True), 0, t, sizes).tolist() == again.tolist()


def test_as_text():
    assert config.make_sampling("bernoulli:0.15:empty") == Bernoulli(0.15, empty=True)
    assert config.make_sampling("bernoulli:0.15") == Bernoulli(0.15)
    for wrong in ("bernoulli:0.15:none", "bernoulli::empty", "by-size:3:empty"):
        with refused("after the colon there must be a number"):
            config.make_sampling(wrong)


def test_only_what_differs_is_written_down(tmp_path):
    """A run that was begun before there were empty rounds goes on."""
    for how, wanted in ((Bernoulli(0.5), None), (Bernoulli(0.5, empty=True), True)):
        folder = tmp_path / str(wanted)
        run(rounds=0, clients_per_round=how, folder=folder)
        facts = tomllib.loads((folder / "config.toml").read_text())
        assert facts["participation"].get("empty") is wanted and facts["participation"]["kind"] == "Bernoulli"


# ---------------------------------------------------------------- the round


@pytest.mark.parametrize("engine", ["sequential", "batched", "loopback"])
@pytest.mark.parametrize("method", [ua.FedAvg(), ua.Scaffold(), ua.FedAdam()], ids=lambda m: m.name)
def test_a_round_of_nobody(method, engine):
    """The sums are zeros: FedAvg and SCAFFOLD stay where they are, FedAdam follows its momentum."""
    nobody = empty_rounds()
    assert nobody == [2, 4]
    for last in (2, 4):
        before, after = (run(method, rounds, engine) for rounds in (last, last + 1))
        line = after.history[-1]
        assert (line["clients"], line["train_loss"], line["batches"]) == (0, None, 0)
        assert line["bytes_up"] == line["bytes_down"] == 0 and line["test_loss"] is not None
        old, new = before.server, after.server
        if method.name == "fedadam":
            momentum, square = 0.9 * old.momentum, 0.99 * old.square
            torch.testing.assert_close(new.momentum, momentum)
            torch.testing.assert_close(new.w, old.w + 0.01 * momentum / (square.sqrt() + 1e-3))
        else:
            assert torch.equal(new.w, old.w)
        if method.name == "scaffold":
            assert torch.equal(new.control, old.control) and old.control.abs().max() > 0
            for client in range(4):
                assert torch.equal(after.clients[client]["control"], before.clients[client]["control"])


def test_what_nobody_sends_is_zeros_of_the_declared_kind():
    seen = {}

    class Kinds(ua.Method):
        sends = {"delta": ua.Field(), "count": ua.Field("classes", weight="one"), "one": ua.Field("scalar")}

        def done(self, me, s, m, theta):
            return {}, {"delta": theta - m.w, "count": torch.ones(3, dtype=torch.int64), "one": m.own.sum()}

        def round(self, server, cohort):
            rows = torch.ones(len(cohort), 2)
            replies = cohort.call(self.client, w=server.w, own=ua.PerClient(rows))
            seen[cohort.round] = {n: (replies.sum(n), replies.mean(n)) for n in self.sends} | {"replies": replies}

    run(Kinds())
    for t in empty_rounds():
        for name, shape in (("delta", (39,)), ("count", (3,)), ("one", ())):
            for found, somebody in zip(seen[t][name], seen[0][name], strict=True):
                assert found.shape == shape and found.dtype == somebody.dtype and not found.any()
        replies = seen[t]["replies"]
        assert replies.count == 0 and len(replies.ids) == 0 and len(replies.losses()) == 0
        with refused("The replies have no field 'drift'"):
            replies.sum("drift")


def test_statistics_stay_as_they_are():
    for engine in ("sequential", "batched"):
        before, after = (run(rounds=rounds, engine=engine, norm=True) for rounds in (2, 3))
        assert torch.equal(before.buffers, after.buffers) and torch.isfinite(after.buffers).all()


def test_a_resumed_run_has_the_same_empty_rounds(tmp_path):
    whole = run(ua.FedAdam())
    run(ua.FedAdam(), rounds=3, folder=tmp_path / "run")
    again = run(ua.FedAdam(), folder=tmp_path / "run", resume=True)
    assert torch.equal(whole.server.w, again.server.w)
    assert [line["clients"] == 0 for line in again.history] == [t in empty_rounds() for t in range(6)]
    assert "NaN" not in report.write(tmp_path / "run").read_text()


# ---------------------------------------------------------------- what cannot be


def test_methods_that_need_somebody_say_so():
    with refused("Nobody takes part in round 3, and RFedAvg reads 'mean' of each client by itself: draw again"):
        run(ua.RFedAvg())
    with refused(r"and FedAMP needs somebody \(tensors used as indices"):
        run(ua.FedAMP())

    class Divides(ua.FedAvg):
        def round(self, server, cohort):
            total = cohort.call(self.client, w=server.w).sum("delta")
            server.w = server.w + total / float(cohort.samples.sum())

    with refused(r"Nobody takes part in round 3, and Divides needs somebody \(its 'w' becomes NaN or infinite\)"):
        run(Divides())


def test_a_part_of_a_cohort_must_still_be_somebody():
    class Part(ua.FedAvg):
        def round(self, server, cohort):
            cohort.only([]).call(self.client, w=server.w)

    with refused("Part called a cohort of no clients in round 1"):
        run(Part(), clients_per_round=Bernoulli(1.0, empty=True))


def test_clients_of_different_networks_draw_again():
    with refused(r"Bernoulli\(empty=True\): clients have different networks"):
        ua.simulate(
            {"a": model(), "b": model()}, federation(sizes=SIZES), ua.FedProto(), rounds=1,
            clients_per_round=EMPTY, architecture=["a", "b", "a", "b"],
        )  # fmt: skip


def test_a_channel_that_protects_has_empty_rounds(monkeypatch):
    assert not run(rounds=0, clients_per_round=Bernoulli(0.25)).sampling.empty
    monkeypatch.setattr(Run, "private", property(lambda self: True))
    assert run(rounds=0, clients_per_round=Bernoulli(0.25)).sampling == EMPTY


@dc.dataclass(frozen=True)
class Ones(Stage):
    """Adds 6 to every sum: noise that can be checked by hand."""

    name = "ones"

    def server(self, total):
        total.sums |= {name: value + 6.0 for name, value in total.sums.items()}


def test_a_round_of_nobody_is_what_the_channel_adds():
    before, after = (run(rounds=rounds, channel=[Ones()]) for rounds in (2, 3))
    torch.testing.assert_close(after.server.w, before.server.w + 6.0)
