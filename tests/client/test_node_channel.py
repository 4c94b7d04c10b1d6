"""A client's reply through the run's channel: what travels, what is kept, and what a server may tell it."""

import dataclasses as dc

import numpy as np
import pytest
import small
import torch
from following import Follow
from small import refused

import unalike as ua
from unalike.channel import Channel, parse
from unalike.client import FileStates, Job, Node, OneClient, StateFolder, state_shapes
from unalike.client.state_on_disk import with_channel
from unalike.contract.call import Call
from unalike.errors import Diverged
from unalike.messages import wire
from unalike.messages.request import request_header
from unalike.nn.task import Task

SIZE = 39  # numbers in the model
ERROR = "channel.error-delta"


@dc.dataclass(frozen=True)
class Row(ua.Method):
    """A client answers the row it is sent, and keeps something from its second round on."""

    keeps = {"seen": ua.Field("scalar")}
    sends = {"delta": ua.Field(), "count": ua.Field("scalar"), "first": ua.Field("scalar")}

    def client(self, me, s, m):
        seen = {"seen": s.seen + 1} if me.round else {}
        return seen, {"delta": m.row, "count": torch.ones((), dtype=torch.int64), "first": me.first.to(m.row.dtype)}


def make(folder, channel):
    method, task, data = Row(), Task(small.model()), small.federation()
    task.check(data.train.x, data.train.y)
    fitted = Channel(parse(channel), method, task) if channel else None
    shapes = state_shapes(method, task, small.LOCAL)
    states = FileStates(shapes, folder)
    job = Job(method, task, data, small.LOCAL, 0, states, float(np.mean(small.SIZES)), channel=fitted)
    kept = with_channel(shapes, fitted.shapes if fitted else {})
    return Node(job, 2, StateFolder(folder / "client", kept, real=True), OneClient(job))


ROW = torch.linspace(-1, 1, SIZE) ** 3


def answer(node, round=0, row=ROW, told=(), **own):
    shared = wire.encode(request_header(node.job.method, Call("client", {}, {}, round, 0)), dict(told))
    return node.handle(shared, wire.encode(own, {"row": row}))


def parts(node, **given):
    return wire.decode(answer(node, **given))[1]


def kept(node, name="state"):
    with node.state.open() as content:
        return dict(content.kept if name == "state" else content.pending)


@pytest.mark.parametrize("channel", ["topk:0.1,quantise:7", "stc:0.2", "randomk:0.3,qsgd:3", "half", "clip:0.1"])
def test_a_reply_has_the_bytes_of_its_form(channel, tmp_path):
    node = make(tmp_path, channel)
    sent = parts(node)
    form = node.job.channel.forms(["delta"])["delta"]
    assert sum(v.numel() * v.element_size() for n, v in sent.items() if n.startswith("delta:")) == form.bytes
    assert "delta" not in sent and sent["count"].dtype == torch.int64  # whole numbers go as they are


def test_without_a_channel_a_reply_is_what_it_was(tmp_path):
    node = make(tmp_path, None)
    sent = parts(node, acknowledged=None)
    assert {*sent} == {"delta", "count", "first"} and torch.equal(sent["delta"], ROW)
    assert {*kept(node, "pending")} == {"__request__", "__reply__", "__round__"}


def test_the_error_is_the_clients_own_and_is_kept_with_its_round(tmp_path):
    node = make(tmp_path, "topk:0.1")
    for round, before in enumerate((None, 0, 1)):
        parts(node, round=round, acknowledged=before)
        error = kept(node, "pending")[ERROR]
        assert torch.count_nonzero(error) == SIZE - 4 - (ROW == 0).sum()
        assert (error - ROW * (round + 1)).count_nonzero() <= 4 * (round + 1)
    node.state.settle(2)
    assert torch.equal(kept(node)[ERROR], error) and not kept(node, "pending")


def test_what_a_server_did_not_count_leaves_no_error(tmp_path):
    node = make(tmp_path, "topk:0.1")
    parts(node, acknowledged=None)
    first = kept(node, "pending")[ERROR]
    parts(node, round=1, acknowledged=None)  # round 0 was lost
    assert torch.equal(kept(node, "pending")[ERROR], first)


def test_a_request_that_is_repeated_gets_the_answer_it_got(tmp_path):
    node = make(tmp_path, "topk:0.1,quantise:4")
    one, error = answer(node, acknowledged=None), kept(node, "pending")[ERROR]
    assert answer(node, acknowledged=None) == one and torch.equal(kept(node, "pending")[ERROR], error)


def test_what_stages_keep_is_not_the_methods(tmp_path):
    """`me.first` is of the method's state: this one keeps nothing in round 0, and the channel does."""
    node = make(tmp_path, "topk:0.1")
    found = [float(parts(node, round=t, acknowledged=t - 1 if t else None)["first"]) for t in range(4)]
    assert found == [1.0, 1.0, 0.0, 0.0]


def test_the_state_is_read_once(tmp_path, monkeypatch):
    node, reads = make(tmp_path, "topk:0.1"), []
    read = StateFolder.read
    monkeypatch.setattr(StateFolder, "read", lambda self: reads.append(self) or read(self))
    parts(node)
    assert len(reads) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reply_that_is_not_finite_is_not_packed(bad, tmp_path):
    for channel, named in (("quantise:8", "client 2"), ("clip:1.0,local-noise:1.0", "a client")):
        node = make(tmp_path / channel, channel)
        with refused(f"Round 1: 'delta' of {named} became NaN or infinite", Diverged):
            node._through(Call("client", {}, {}, 0, 0), {"delta": torch.full((SIZE,), bad)}, {})


def test_whole_numbers_do_not_go_past_the_noise(tmp_path):
    with refused("channel: 'count' is of whole numbers, which noise does not cover"):
        parts(make(tmp_path, "clip:1.0,local-noise:1.0"))


def bound(value, dtype=torch.float64, name=":bound"):
    return {name: torch.tensor(value, dtype=dtype)}


TOLD = {
    "nothing": ({}, "tells of the channel nothing; this client's channel is told bound"),
    "something else": (bound(0.1, name=":other"), "tells of the channel other"),
    "more": ({**bound(0.1), **bound(0.1, name=":other")}, "tells of the channel bound, other"),
    "zero": (bound(0.0), "'bound', of the channel, must be a number above 0"),
    "below zero": (bound(-1.0), "must be a number above 0"),
    "NaN": (bound(float("nan")), "must be a number above 0"),
    "infinity": (bound(float("inf")), "must be a number above 0, and finite"),
    "another kind": (bound(1, torch.int64), "must be a number above 0"),
    "two": (bound([0.1, 0.2]), "must be a number above 0"),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_a_server_may_not_tell(name, tmp_path):
    told, words = TOLD[name]
    with refused(words):
        parts(make(tmp_path, [Follow()]), told=told)


def test_a_client_without_a_channel_is_told_nothing_of_one(tmp_path):
    with refused("tells of the channel bound; this client's channel is told nothing"):
        parts(make(tmp_path, None), told=bound(0.1))


def test_a_number_of_a_stage_is_one_byte(tmp_path):
    node = make(tmp_path, [Follow()])
    for value, within in ((0.01, 0), (100.0, 1)):
        sent = parts(node, told=bound(value))
        assert sent[":within"].tolist() == [within] and sent[":within"].dtype == torch.uint8
        reply = torch.cat([sent["delta:values"], sent["first:values"]])  # the bound is of all fields together
        assert float(reply.norm()) == pytest.approx(min(value, float(ROW.square().sum() + 1) ** 0.5), rel=1e-5)
