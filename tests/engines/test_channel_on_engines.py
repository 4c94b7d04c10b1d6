"""A channel gives the same run on every engine, to the byte; a checkpoint of one goes on in another."""

import dataclasses as dc
import threading

import pytest
import small
import torch
from following import Follow
from small import ENGINES, assert_same, equal, refused, states, timeless

import unalike as ua
from unalike.engines.loopback import Loopback
from unalike.errors import Diverged
from unalike.messages import wire
from unalike.testing.toys import ScalarsFirst

CHANNELS = {
    "clip, top-k, quantise": "clip:0.05,topk:0.1,quantise:8",
    "drawn places": "randomk:0.3:true,qsgd:7",
    "signs": "stc:0.2",
    "16 bits": "topk:0.5,half",
    "told": [Follow(), ua.channel.TopK(0.2)],
}
METHODS = {"fedavg": ua.FedAvg(), "scaffold": ua.Scaffold(), "two exchanges": ScalarsFirst()}
PAIRED = ("fedavg", "two exchanges", "scaffold", "scaffold", "fedavg")


def run(engine, channel, method="scaffold", **more):
    return small.run(METHODS[method], engine=engine, channel=channel, **more)


@pytest.mark.parametrize(("channel", "method"), [*zip(CHANNELS, PAIRED, strict=True)])
def test_neither_a_message_of_bytes_nor_a_thread_changes_a_bit(channel, method):
    one = run("sequential", CHANNELS[channel], method)
    for engine in ("loopback", "workers"):
        assert_same(one, run(engine, CHANNELS[channel], method))


@pytest.mark.parametrize(
    "channel",
    [
        "clip:0.1,local-noise:0.5",
        "adaptive-clip:0.1:0.5:0.2:0.3,noise:1",
        "clip:0.1,quantise:12:0.1,skellam:1:4",
        "clip:0.1,quantise:12:0.1,discrete-gaussian:1:4",
    ],
)
def test_a_message_changes_no_bit_of_noise(channel):
    given = {"channel": channel, "clients_per_round": 1.0, "rounds": 2}
    assert_same(*(small.run(ua.FedAvg(weights="uniform"), engine=name, **given) for name in ("sequential", "loopback")))


@dc.dataclass(frozen=True)
class Where(ua.channel.Stage):
    """Writes down the thread and the number of replies whenever it acts."""

    def one(self, flight, name, way):
        WHERE.append((threading.current_thread(), len(flight.values)))
        return flight


WHERE = []


@dc.dataclass(frozen=True)
class Trainer(ua.FedAvg):
    """Writes down the thread in which a client trained."""

    def client(self, me, s, m):
        WHERE.append(threading.current_thread())
        return super().client(me, s, m)


@pytest.mark.parametrize("engine", ["workers", "sequential"])
def test_a_reply_passes_through_the_stages_where_it_was_computed_and_once(engine):
    WHERE.clear()
    small.run(Trainer(), engine=engine, channel=[Where()], rounds=1)
    acted = [entry for entry in WHERE if isinstance(entry, tuple)]
    assert len(acted) == 3 and {count for _, count in acted} == {1}
    assert ({thread for thread, _ in acted} == {threading.main_thread()}) == (engine == "sequential")
    assert {thread for thread, _ in acted} <= {entry for entry in WHERE if not isinstance(entry, tuple)}


@dc.dataclass(frozen=True)
class Misshapen(ua.FedAvg):
    def client(self, me, s, m):
        return me.train(m.w).then(lambda me, s, m, theta: ({}, {"delta": theta[:5]}))


@pytest.mark.parametrize("engine", ["workers", "sequential"])
def test_a_reply_of_the_wrong_shape_reaches_no_stage(engine):
    WHERE.clear()
    with refused(r"Misshapen.client sends 'delta' with shape \[5\]; `sends` declares \[39\]"):
        small.run(Misshapen(), engine=engine, channel=[Where()], rounds=1)
    assert not WHERE


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("engine", sorted({*ENGINES} - {"sequential", "loopback"}))
def test_engines_agree(engine, channel):
    one, other = run("sequential", CHANNELS[channel]), run(engine, CHANNELS[channel])
    for name, value in states(one).items():
        torch.testing.assert_close(states(other)[name], value, rtol=1e-4, atol=1e-5)
    for line, wanted in zip(other.history, one.history, strict=True):
        assert [line[f"bytes_{way}"] for way in ("up", "down")] == [wanted[f"bytes_{way}"] for way in ("up", "down")]


def test_bytes_by_hand():
    """39 numbers: top-k of a tenth are 4, in 8 bits, with places of 6 bits and a unit; FedAvg sends one such field."""
    lines = run("loopback", "topk:0.1,quantise:8", "fedavg").history
    assert [line["bytes_up"] for line in lines] == [3 * (4 + 3 + 4)] * 3
    told = run("loopback", [Follow()], "fedavg").history
    assert [line["bytes_up"] for line in told] == [3 * (4 * 39 + 1)] * 3
    assert [line["bytes_down"] for line in told] == [3 * (4 * 39 + 8)] * 3


@pytest.mark.parametrize("engines", [("loopback", "sequential"), ("sequential", "loopback"), ("loopback", "loopback")])
def test_a_run_goes_on_in_another_engine(engines, tmp_path):
    channel = CHANNELS["clip, top-k, quantise"]
    run(engines[0], channel, folder=tmp_path / "run", rounds=2)
    done = run(engines[1], channel, folder=tmp_path / "run", rounds=4, resume=True)
    whole = run("sequential", channel, rounds=4)
    assert timeless(done.history) == timeless(whole.history)
    mine, theirs = states(done), states(whole)
    assert mine.keys() == theirs.keys() and all(equal(value, theirs[name]) for name, value in mine.items())


@dc.dataclass(frozen=True)
class Late(ua.Method):
    """Keeps something from its second round on, and trains from zero as long as it has kept nothing."""

    keeps = {"seen": ua.Field("scalar")}

    def client(self, me, s, m):
        return me.train(torch.where(me.first, 0.0 * m.w, m.w)).then(self.trained)

    def trained(self, me, s, m, theta):
        return ({"seen": s.seen + 1} if me.round else {}), {"delta": theta - m.w}


def test_what_stages_keep_is_not_the_methods(tmp_path):
    given = {"channel": "topk:0.2", "clients_per_round": 2}
    one = small.run(Late(), rounds=4, **given)
    small.run(Late(), rounds=2, engine="loopback", folder=tmp_path / "run", **given)
    other = small.run(Late(), rounds=4, engine="loopback", folder=tmp_path / "run", resume=True, **given)
    assert torch.equal(one.server.w, other.server.w)
    assert one.clients.known().tolist() == other.clients.known().tolist()
    assert {*one._channel_store.known()} == {*other._channel_store.known()} > {*other.clients.known()}


def test_a_run_that_diverges_says_so():
    local = dc.replace(small.LOCAL, lr=1e30, epochs=8)
    for engine in ("sequential", "loopback", "workers"):
        with refused("became NaN or infinite", Diverged):
            small.run(engine=engine, channel="topk:0.2,quantise:8", local=local)
    with refused("became NaN or infinite", Diverged):  # before the whole codes of a sum hide it
        small.run(engine="workers", channel="secure-sum", local=dc.replace(small.LOCAL, lr=1e42))


def test_a_message_without_a_channel_has_its_old_names(monkeypatch):
    names = set()
    encode = wire.encode
    monkeypatch.setattr(wire, "encode", lambda header, fields: names.update(fields, header) or encode(header, fields))
    small.run(engine="loopback")
    assert names == {
        "w", "delta", "training_loss", "kind", "function", "method", "settings", "version", "round", "exchange",
        "trained", "samples", "batches",
    }  # fmt: skip


def test_evaluation_goes_through_no_channel():
    """Personal models' metrics are the simulator's own look: no stage acts on them."""
    seen = small.run(ua.Ditto(), engine="loopback", channel="clip:1e-3,topk:0.1")
    plain = small.run(ua.Ditto(), engine="sequential", channel="clip:1e-3,topk:0.1")
    assert seen.history[-1]["clients_accuracy_mean"] == plain.history[-1]["clients_accuracy_mean"]


def test_loopback_reads_what_came_and_not_what_was_meant(monkeypatch):
    """The server's rows are those of the bytes: with every reply's codes turned round, the model goes the other way."""
    read = Loopback.read

    def turned(self, call, sent):
        return read(self, call, {n: -v if n == "delta:values" else v for n, v in sent.items()})

    there = small.run(engine="loopback", channel="clip:0.1", rounds=1).server.w
    monkeypatch.setattr(Loopback, "read", turned)
    back = small.run(engine="loopback", channel="clip:0.1", rounds=1).server.w
    start = small.run(engine="loopback", channel="clip:0.1", rounds=0).server.w
    torch.testing.assert_close(there - start, start - back)
