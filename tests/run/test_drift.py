"""Runs on data that drift: every engine trains and tests on the present, resumed or side by side with other runs."""

import dataclasses as dc

import pytest
import torch
from small import ENGINES, assert_same, federation, refused, run

import unalike as ua
from unalike.contract import Field, Method
from unalike.data.columns import Columns
from unalike.data.partition.pieces import Change
from unalike.data.skew import Drift
from unalike.engines.batched.lockstep import together
from unalike.metrics.lines import choose
from unalike.metrics.names import scores
from unalike.run.callbacks import Callback
from unalike.testing.toys import SharedBody


@dc.dataclass(frozen=True)
class Lift(Change):
    """Features that are higher by up to 1, all clients' alike."""

    name = "lift"

    def change(self, fed, seed):
        return fed.map(lambda c: Columns(c.x + self.strength, c.y, c.offsets))


@dc.dataclass(frozen=True)
class Looks(Method):
    """Clients train, and say the mean of their features, of their labels, and of public ones where there are any."""

    data: str = "train"
    sends = {"delta": Field(), "seen": Field((2,), read="each", weight="one")}

    @property
    def needs_public(self):
        return self.data != "train"

    def client(self, me, s, m):
        return me.train(m.w, data=self._data).then(self.trained)

    def trained(self, me, s, m, theta):
        return me.average(self.look, theta, data=self._data).then(self.done, delta=theta - m.w)

    @property
    def _data(self):
        return self.data if self.data == "train" else ("train", "public")

    def look(self, batch):
        return torch.stack([batch.x.mean(1), batch.y.to(batch.x.dtype)], 1)

    def done(self, me, s, m, seen, delta):
        return {}, {"delta": delta, "seen": seen}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        server.w = server.w + replies.mean("delta")
        server.seen = replies.each("seen")


class Note(Callback):
    """What clients said they saw, round by round."""

    def __init__(self):
        self.seen = []

    def on_round(self, run, line):
        self.seen.append(run.server.values["seen"].clone())


def drifting(text="drift:5:4:permute:2|stream:4", seed=0, **parts):
    """All kinds at once: features, labels, and which samples there are."""
    return federation(validation=True).replace(**parts).skewed(Drift(3, Lift(), 2)).skewed(text, seed=seed)


def by_hand(fed, round, public=None):
    out = []
    for k in range(len(fed)):
        x, y = fed.at(round).train.of(k)
        if public is not None:
            x, y = torch.cat([x, public[0]]), torch.cat([y, public[1]])
        out.append(torch.tensor([x.mean(), y.float().mean()]))
    return torch.stack(out)


GIVEN = {"rounds": 6, "clients_per_round": 1.0}


# ---------------------------------------------------------------- the present


def test_only_rounds_on_the_last_data_can_be_chosen():
    done = run(ua.FedAvg(), data=drifting(), rounds=7, clients_per_round=1.0)
    moved = [line["data_drift"] for line in done.history]
    assert moved == sorted(moved) and moved[3] < moved[4] == moved[5] == moved[6]  # all is through by round 5
    lines = [{**line, "validation_loss": float(line["round"])} for line in done.history]  # the first would be the best
    score = next(iter(scores(done.numbers)))
    assert choose(lines, score)["round"] == 5
    same = [{name: value for name, value in line.items() if name != "data_drift"} for line in lines]
    assert choose(same, score)["round"] == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_train_on_the_present(engine):
    fed, note = drifting(), Note()
    before = fed.fingerprint()
    run(Looks(), data=fed, engine=engine, callbacks=[note], **GIVEN)
    for round, seen in enumerate(note.seen, 1):
        torch.testing.assert_close(seen, by_hand(fed, round), rtol=1e-5, atol=1e-5, msg=str(round))
    assert not torch.allclose(by_hand(fed, 1), by_hand(fed, 2)) and len(note.seen) == 6
    assert fed.fingerprint() == before  # not written to


@pytest.mark.parametrize("engine", ENGINES)
def test_own_samples_beside_public_ones_are_the_present_too(engine):
    public = torch.full((3, 5), 2.0), torch.tensor([0, 1, 2])
    fed, note = drifting(public=public), Note()
    run(Looks("both"), data=fed, engine=engine, callbacks=[note], **GIVEN)
    for round, seen in enumerate(note.seen, 1):
        torch.testing.assert_close(seen, by_hand(fed, round, public), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", [ua.Scaffold(), ua.RFedAvgPlus(lam=0.3), SharedBody()], ids=lambda m: m.name)
def test_every_engine_gives_the_same(method):
    runs = [run(method, data=drifting(), engine=engine, rounds=6) for engine in ENGINES]
    plain = run(method, data=drifting().at(1), rounds=6)
    for other in runs[1:]:
        torch.testing.assert_close(other.server.w, runs[0].server.w, rtol=1e-4, atol=1e-5)
        for mine, yours in zip(runs[0].history, other.history, strict=True):
            for key in ("train_loss", "clients_loss", "validation_loss", "test_loss"):
                assert mine[key] == pytest.approx(yours[key], rel=1e-4)
    assert (runs[0].server.w - plain.server.w).abs().max() > 1e-3


@pytest.mark.slow
def test_compiled_stacks_see_it():
    compiled, note = Note(), Note()
    local = ua.LocalTraining(steps=2, batch_size=2, lr=0.1)
    given = {**GIVEN, "engine": "batched", "local": local}
    one = run(Looks(), data=drifting(), compile=True, callbacks=[compiled], **given)
    other = run(Looks(), data=drifting(), callbacks=[note], **given)
    torch.testing.assert_close(one.server.w, other.server.w, rtol=1e-5, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(compiled.seen, note.seen, strict=True))


@pytest.mark.parametrize("method", [ua.FedAvg(), SharedBody()], ids=["shared", "personal"])
@pytest.mark.parametrize("engine", ENGINES)
def test_clients_are_tested_on_the_present(method, engine):
    fed = drifting()
    done = run(method, data=fed, rounds=4, engine=engine)
    for k, loss in zip(done.client_values["client"], done.client_values["loss"], strict=True):
        x, y = fed.at(4).test.of(k)
        chance = done.predict(x, client=int(k)).probabilities[torch.arange(len(y)), y]
        assert loss == pytest.approx(float(-torch.as_tensor(chance).log().mean()), rel=1e-4)
    if engine != "workers":  # whose threads are gone
        assert done.evaluate()["clients_loss"] == done.history[-1]["clients_loss"]


def test_pooled_data_drift_as_the_clients_do():
    note = Note()

    @dc.dataclass(frozen=True)
    class Pool(Looks):
        pooled = True

    fed = drifting()
    run(Pool(), data=fed, callbacks=[note], **GIVEN)
    for round, seen in enumerate(note.seen, 1):
        assert seen[0, 0] == pytest.approx(float(fed.at(round).train.x.mean()), rel=1e-5)


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def test_clients_of_several_networks_see_the_present():
    public = torch.full((3, 5), 2.0), torch.tensor([0, 1, 2])
    fed, note = drifting(public=public), Note()
    given = {"module": {"one": net(), "two": net()}, "architecture": ["one", "two"] * 3}
    run(Looks("both"), data=fed, callbacks=[note], **given, **GIVEN)
    for round, seen in enumerate(note.seen, 1):
        torch.testing.assert_close(seen, by_hand(fed, round, public), rtol=1e-5, atol=1e-5)


def test_parts_of_joined_federations_drift():
    one, two = federation().skewed(Drift(3, Lift(), 2)), federation(seed=1).skewed("stream:4")
    note = Note()
    joined = ua.Federation.joined({"one": one, "two": two})
    run(Looks(), module={"one": net(), "two": net()}, data=joined, engine="batched", callbacks=[note], **GIVEN)
    for round, seen in enumerate(note.seen, 1):
        expected = torch.cat([by_hand(one, round), by_hand(two, round)])
        torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- resumed, side by side


@pytest.mark.parametrize("engine", ["sequential", "batched", "loopback"])
@pytest.mark.parametrize("at", [2, 3])
def test_resumed_is_uninterrupted(tmp_path, engine, at):
    """At round 2, in the middle of a phase of `Lift` (3 is its border), and at 3; labels and streams drift as well."""
    given = {"data": drifting("drift:5:2:permute:2"), "engine": engine}
    whole = run(ua.Scaffold(), rounds=6, folder=tmp_path / "whole", **given)
    first = run(ua.Scaffold(), rounds=at, folder=tmp_path / "run", **given)
    still = run(ua.Scaffold(), rounds=at, folder=tmp_path / "run", resume=True, **given)
    assert still.evaluate() == first.evaluate()
    again = run(ua.Scaffold(), rounds=6, folder=tmp_path / "run", resume=True, **given)
    assert_same(whole, again)


def test_another_drift_is_another_run(tmp_path):
    run(data=drifting("stream:4"), folder=tmp_path / "run")
    with refused("fingerprint"):
        run(data=drifting("stream:5"), folder=tmp_path / "run", resume=True)


@pytest.mark.parametrize("resumed", [None, 1])
def test_runs_in_one_stack_are_the_runs_alone(tmp_path, resumed):
    """Three runs with a drift each; one that is resumed at round 2 waits for the others there."""
    texts = ["drift:5:4:permute:2|stream:4", "stream:6:0.5:labels", "stream:3"]
    given = {"rounds": 6, "engine": "batched", "clients_per_round": 0.7, "dtype": "float64"}

    def one(k, **more):
        return run(ua.Scaffold(), data=drifting(texts[k]), seed=k, **{**given, **more})

    more = {} if resumed is None else {"folder": tmp_path / "run"}
    if resumed is not None:
        one(resumed, rounds=2, **more)
        more["resume"] = True
    both = together([lambda member, k=k: one(k, member=member, **(more if k == resumed else {})) for k in range(3)])
    assert "3 runs in one stack" in both[2].reason or resumed is not None
    for k, done in enumerate(both):
        alone = one(k)
        torch.testing.assert_close(done.server.w, alone.server.w, rtol=1e-10, atol=1e-10)
        assert done.history[-1]["clients_loss"] == pytest.approx(alone.history[-1]["clients_loss"], rel=1e-9)


# ---------------------------------------------------------------- without drift, and between machines


def test_without_drift_nothing_is_copied_or_told(monkeypatch):
    from unalike.client import Job

    monkeypatch.setattr(Job, "renew", lambda self: pytest.fail("told"))
    fed = federation()
    done = run(data=fed, rounds=2)
    assert done.data is fed and not done.engine.job.drifts


def test_real_clients_have_their_own_data():
    from unalike.network import one_machine

    with refused("drift as rounds pass, and real clients' data change by themselves"):
        one_machine.run({"run": {"rounds": 2}}, drifting())
