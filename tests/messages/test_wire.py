"""Messages as bytes: what goes in comes out, what was not made here is refused, and bytes are counted rightly."""

import dataclasses as dc
import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import LOCAL, federation, logged, model, refused, run

import unalike as ua
from unalike.client import FileStates, Job, Node, OneClient, StateFolder, state_shapes
from unalike.contract import LOSS, Call
from unalike.messages import wire
from unalike.messages.request import request_header
from unalike.nn.task import Task

# ---------------------------------------------------------------- there and back

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
w = torch.arange(6, dtype=torch.float32)
SHAPES = {
    "vector": w,
    "0-dimensional": torch.tensor(2.5),
    "empty": torch.empty(0),
    "empty in the middle": torch.empty(2, 0, 3),
    "expanded": torch.tensor(1.5).expand(4),
    "expanded rows": w.expand(3, 6),
    "a slice": w[2:5],
    "every other": w[::2],
    "transposed": w.reshape(2, 3).T,
    "with a gradient": torch.ones(2, requires_grad=True),
    "not a number": torch.tensor([float("nan"), float("inf"), -0.0]),
}


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(dtype):
    value = torch.tensor([0, 1, 3, 0]).to(dtype)
    _, tensors = wire.decode(wire.encode({}, {"x": value}))
    assert tensors["x"].dtype == dtype and torch.equal(tensors["x"], value)


def test_every_shape_comes_back_in_one_message():
    header, tensors = wire.decode(wire.encode({"round": 3, "loss": float("nan"), "text": 'ü"\n'}, SHAPES))
    assert header["round"] == 3 and header["text"] == 'ü"\n' and np.isnan(header["loss"])
    assert tensors.keys() == SHAPES.keys()
    assert all(same_bits(tensors[name], value.detach().contiguous()) for name, value in SHAPES.items())


def test_one_tensor_under_two_names():
    _, tensors = wire.decode(wire.encode({}, {"w": w, "anchor": w, "half": w[:3]}))
    assert torch.equal(tensors["w"], w) and torch.equal(tensors["anchor"], w) and torch.equal(tensors["half"], w[:3])


def test_a_message_of_nothing():
    assert wire.decode(wire.encode({"kind": "ping"}, {})) == ({"format": 1, "kind": "ping"}, {})


def test_payload_counts_the_numbers_only():
    assert wire.payload({"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64), "c": w[0].expand(5)}) == 64


# ---------------------------------------------------------------- what was not made here

GOOD = wire.encode({"kind": "request", "round": 1}, {"w": w, "n": torch.tensor(3)})


def packed(header, body=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


OURS = {"unalike": json.dumps({"format": 1})}


def tensor(**changes):
    return {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}


FOREIGN = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "a header longer than the message": struct.pack("<Q", 1 << 40) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"abcd",
    "no UTF-8": struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
    "nested beyond measure": struct.pack("<Q", 1 << 20) + b"[" * (1 << 20),
    "a number beyond measure": struct.pack("<Q", 9999) + b"9" * 9999,
    "another program's safetensors": packed({"a": tensor()}, bytes(4)),
    "a list": packed([1, 2]),
    "metadata that is text": packed({"__metadata__": "unalike"}),
    "a header that is a number": packed({"__metadata__": {"unalike": 5}}),
    "a header that is a list": packed({"__metadata__": {"unalike": "[1]"}}),
    "no version": packed({"__metadata__": {"unalike": "{}"}}),
    "another version": packed({"__metadata__": {"unalike": '{"format": 2}'}}),
    "a version that is text": packed({"__metadata__": {"unalike": json.dumps({"format": "\n" * 9999})}}),
    "an unknown dtype": packed({"__metadata__": OURS, "a": tensor(dtype="F33")}, bytes(4)),
    "a dtype that torch lacks": packed({"__metadata__": OURS, "a": tensor(dtype="F4", shape=[8])}, bytes(4)),
    "a negative shape": packed({"__metadata__": OURS, "a": tensor(shape=[-1])}, bytes(4)),
    "a shape beyond measure": packed(
        {"__metadata__": OURS, "a": tensor(shape=[0, 1 << 62, 1 << 62], data_offsets=[0, 0])}
    ),
    "offsets beyond the end": packed({"__metadata__": OURS, "a": tensor(data_offsets=[0, 8], shape=[2])}, bytes(4)),
    "bytes left over": packed({"__metadata__": OURS, "a": tensor()}, bytes(9)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_bytes_are_refused(name):
    with refused(r"^A message .{20,500}\.$"):
        wire.decode(FOREIGN[name])


def test_a_message_cut_short_anywhere_is_refused():
    for length in range(len(GOOD)):
        with refused("^A message "):
            wire.decode(GOOD[:length])
    assert wire.decode(GOOD)[0]["round"] == 1


def decodes_or_refuses(data):
    try:
        header, tensors = wire.decode(data)
    except ua.UnalikeError as error:
        assert "\n" not in str(error)
    else:
        assert header["format"] == wire.FORMAT and all(isinstance(t, torch.Tensor) for t in tensors.values())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_never_crash(data):
    decodes_or_refuses(data)
    decodes_or_refuses(struct.pack("<Q", len(data)) + data)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_never_crash(changes):
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    decodes_or_refuses(bytes(data))


# ---------------------------------------------------------------- a client's door


@pytest.fixture
def job(tmp_path):
    method, whole, data = ua.Scaffold(), Task(model()), federation()
    whole.check(data.train.x, data.train.y)
    shapes = state_shapes(method, whole, LOCAL)
    return Job(method, whole, data, LOCAL, 0, FileStates(shapes, tmp_path), float(data.train.sizes.mean()))


@pytest.fixture
def node(job, tmp_path):
    return Node(job, 2, StateFolder(tmp_path / "client", job.states.shapes), OneClient(job))


def request(node, **changes):
    header = request_header(node.job.method, Call("client", {}, {}, 0, 0)) | changes
    vector = node.job.task.start
    tensors = {"w": vector, "control": torch.zeros_like(vector)}
    return wire.encode({k: v for k, v in header.items() if v is not None}, tensors)


def test_a_node_answers(node):
    header, sent = wire.decode(node.handle(request(node)))
    assert header["kind"] == "reply" and header["samples"] == 12 and header["function"] == "client"
    assert sent.keys() == {"delta", "control", LOSS} and sent["delta"].abs().sum() > 0


STRANGE = {
    "another method": ({"method": "FedAvg"}, "The request is for method 'FedAvg'; this client runs 'Scaffold'"),
    "no method": ({"method": None}, "method None"),
    "another version": ({"version": "0.0.1"}, f"version '0.0.1'; this client runs '{ua.__version__}'"),
    "a reply": ({"kind": "reply"}, "kind 'reply'"),
    "a private function": ({"function": "__init__"}, "Scaffold has no function '__init__' to call"),
    "another private function": ({"function": "_key"}, "Scaffold has no function '_key' to call"),
    "an attribute": ({"function": "scaling"}, "Scaffold has no function 'scaling' to call"),
    "an unknown function": ({"function": "cleint"}, "has no function 'cleint' to call. Did you mean 'client'"),
    "no function": ({"function": None}, "has no function None"),
    "a function that is a list": ({"function": ["client"]}, r"has no function \['client'\]"),
    "a long name": ({"function": "client\n" * 1000}, "has no function 'client"),
    "a round as text": ({"round": "1"}, "The request has round '1': it must be a whole number of at least -1"),
    "half a round": ({"round": 1.5}, "round 1.5"),
    "a true round": ({"round": True}, "round True"),
    "no round": ({"round": None}, "round None"),
    "a round before all": ({"round": -2}, "round -2"),
    "a round beyond measure": ({"round": 1 << 70}, "round 1180591620717411303424"),
    "no exchange": ({"exchange": None}, "exchange None"),
    "an exchange before all": ({"exchange": -1}, "exchange -1"),
    "an exchange that is a list": ({"exchange": [0]}, r"exchange \[0\]"),
    "trainings as text": ({"trained": "0"}, "trained '0'"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_node_refuses(name, node):
    changes, message = STRANGE[name]
    with refused(message):
        node.handle(request(node, **changes))
    assert not node.state.path.exists()  # nothing was begun


def test_a_node_names_what_the_message_lacks(node):
    header = request_header(node.job.method, Call("client", {}, {}, 0, 0))
    with refused("There is no field 'control' here"):
        node.handle(wire.encode(header, {"w": node.job.task.start}))


def test_a_repeated_request_gets_the_stored_answer(node):
    """A reply was lost and the server asks again: the control variate must not move twice."""
    asked = request(node)
    first = node.handle(asked)
    pending, _ = node.state.read()
    again = Node(node.job, node.client, StateFolder(node.state.path, node.state.shapes), OneClient(node.job))
    assert again.handle(asked) == first  # also by a client that was started anew
    assert torch.equal(again.state.read()[0]["control"], pending["control"])
    later = again.handle(request(node, round=1))
    assert later != first
    assert again.state.commit()
    assert again.handle(request(node, round=1)) != later  # acknowledged: the same request is a new one


def test_state_counts_from_the_acknowledgement_on(node):
    node.handle(request(node))
    kept, first = node.state.read()
    assert kept["control"].abs().sum() > 0 and not first  # a later exchange of the round reads it
    node.state.discard()  # the round failed at the server
    assert node.state.read()[0]["control"].abs().sum() == 0 and node.state.read()[1]
    node.handle(request(node))
    assert node.state.commit() and not node.state.commit()
    assert torch.equal(node.state.read()[0]["control"], kept["control"]) and not node.state.read()[1]


def test_a_reply_that_was_never_acknowledged_is_forgotten_in_the_next_round(node, job, tmp_path):
    """Round 0's reply was lost: round 1 starts from what is kept, as if round 0 had not been."""
    node.handle(request(node))
    node.handle(request(node, exchange=1))  # the same round: what was staged counts
    later = node.handle(request(node, round=1))
    fresh = Node(job, 2, StateFolder(tmp_path / "fresh", job.states.shapes), OneClient(job))
    assert later == fresh.handle(request(fresh, round=1))
    assert torch.equal(node.state.read()[0]["control"], fresh.state.read()[0]["control"])
    assert node.handle(request(node, round=1)) == later


def test_a_broken_state_file_is_named(node):
    node.handle(request(node))
    node.state.commit()
    (node.state.path / "state.safetensors").write_bytes(b"12345")
    with refused("state.safetensors cannot be read"):
        node.handle(request(node, round=1))


# ---------------------------------------------------------------- bytes


@dc.dataclass(frozen=True)
class Chatty(ua.Method):
    """Two exchanges, a row for each client, a number for all, and a reply of two kinds."""

    sends = {"delta": ua.Field(), "loss": ua.Field("scalar", read="each")}

    def ask(self, me, s, m):
        return me.losses(m.w).then(self.answer)

    def answer(self, me, s, m, loss):
        return {}, {"loss": loss}

    def client(self, me, s, m):
        return me.train(m.w + 0 * m.own, lr=m.rate).then(self.done)

    def round(self, server, cohort):
        losses = cohort.call(self.ask, w=server.w).each("loss")
        own = ua.PerClient(losses[:, None].expand(-1, 39))
        server.w = server.w + cohort.call(self.client, w=server.w, own=own, rate=0.1, count=3).mean("delta")


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (ua.FedAvg(), {}),
        (ua.Scaffold(), {}),
        (ua.Scaffold(), {"dtype": "float64"}),
        (ua.FedAvg(), {"module": model(batch_norm=True)}),
        (ua.FedAvg(), {"module": model(batch_norm=True), "buffers": "local"}),
        (Chatty(), {}),
    ],
)
def test_bytes_are_those_that_pass_through_the_wire(method, changes, monkeypatch, tmp_path):
    passed = {"request": 0, "reply": 0}
    encode = wire.encode

    def spy(header, tensors):
        data = encode(header, tensors)
        _, read = wire.decode(data)
        read.pop(LOSS, None)  # the program's own, not the method's
        passed[header["kind"]] += sum(t.numpy().nbytes for t in read.values())
        return data

    monkeypatch.setattr(wire, "encode", spy)
    done = run(method, engine="loopback", folder=tmp_path / "run", **changes)
    assert passed["request"] > 0 < passed["reply"]
    lines = logged(tmp_path / "run")
    assert sum(line["bytes_down"] for line in lines) == passed["request"] == done.summary()["bytes_down"]
    assert sum(line["bytes_up"] for line in lines) == passed["reply"] == done.summary()["bytes_up"]
    other = run(method, engine="batched", **changes)
    assert [(r["bytes_up"], r["bytes_down"]) for r in other.history] == [
        (r["bytes_up"], r["bytes_down"]) for r in lines
    ]


def test_bytes_by_hand():
    """39 numbers of 4 bytes to and from each of 3 clients; SCAFFOLD sends twice as much."""
    for method, factor in ((ua.FedAvg(), 1), (ua.Scaffold(), 2)):
        for line in run(method).history:
            assert line["bytes_up"] == line["bytes_down"] == 39 * 4 * 3 * factor


def test_both_ends_must_agree_on_hyper_parameters():
    from unalike.contract.method import client_functions, fingerprint

    assert fingerprint(ua.FedProx(mu=1.0)) != fingerprint(ua.FedProx(mu=0.01))
    assert fingerprint(ua.FedProx(mu=1.0)) == fingerprint(ua.FedProx(mu=1.0))
    assert not {"round", "setup", "models", "published"} & set(client_functions(ua.Scaffold()))
