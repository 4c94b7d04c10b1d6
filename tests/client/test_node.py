"""A client's answers to requests: which of them are the same request, and what it evaluates."""

import dataclasses as dc

import numpy as np
import pytest
import small
import torch
from small import refused

import unalike as ua
from unalike.client import FileStates, Job, Node, OneClient, StateFolder, state_shapes
from unalike.contract.call import EVALUATION, Call, Evaluate
from unalike.messages import wire
from unalike.messages.request import request_header
from unalike.nn.task import Task


@dc.dataclass(frozen=True)
class Scaled(ua.Method):
    """A client counts how often it was asked, and answers with its own row times that."""

    keeps = {"asked": ua.Field("scalar"), "passing": ua.Field("scalar", life="round")}
    sends = {"row": ua.Field("scalar"), "passing": ua.Field("scalar")}

    def client(self, me, s, m):
        asked, passing = s.asked + 1, s.passing + 1
        return {"asked": asked, "passing": passing}, {"row": asked * m.row, "passing": passing}


@pytest.fixture
def node(tmp_path):
    method, task, data = Scaled(), Task(small.model()), small.federation(validation=True)
    task.check(data.train.x, data.train.y)
    shapes = state_shapes(method, task, small.LOCAL)
    job = Job(method, task, data, small.LOCAL, 0, FileStates(shapes, tmp_path), float(np.mean(small.SIZES)))
    return Node(job, 2, StateFolder(tmp_path / "client", shapes, real=True), OneClient(job))


def asked(node, row, round=0, exchange=0, **own):
    """Ask in two parts, what all get and what is this client's: (row, passing) of the answer."""
    shared = wire.encode(request_header(node.job.method, Call("client", {}, {}, round, exchange)), {})
    _, sent = wire.decode(node.handle(shared, wire.encode(own, {"row": torch.tensor(float(row))})))
    return float(sent["row"]), float(sent["passing"])


def test_a_request_is_the_same_if_all_its_parts_are(node):
    assert asked(node, 5.0) == asked(node, 5.0) == (5.0, 1.0)
    assert asked(node, 7.0) == (7.0, 1.0)  # the same for all, another row: begun anew, as round 0 was not acknowledged


def test_a_round_that_is_asked_for_anew_begins_from_what_is_kept(node):
    """Exchange 1 goes on from exchange 0; when the server begins the round again, nothing of it counts."""
    assert asked(node, 5.0) == (5.0, 1.0)
    assert asked(node, 5.0, exchange=1) == (10.0, 2.0)
    assert asked(node, 6.0) == (6.0, 1.0)


def test_what_is_for_a_round_alone_ends_with_it(node):
    assert asked(node, 5.0, acknowledged=None) == (5.0, 1.0)
    assert asked(node, 5.0, round=1, acknowledged=0) == (10.0, 1.0)
    assert asked(node, 5.0, round=2, acknowledged=0) == (10.0, 1.0)  # round 1 never counted


def test_a_round_is_not_gone_on_with_after_another_was_asked_for(node):
    """It would be answered from other state than is meant."""
    assert asked(node, 5.0) == (5.0, 1.0)
    assert asked(node, 5.0, round=1, exchange=1) == (
        5.0,
        1.0,
    )  # nothing is pending for it: it may be the first for this client
    with refused("Another round was asked for in the middle of round 1, .* from its beginning"):
        asked(node, 5.0, exchange=1)
    assert asked(node, 6.0) == (6.0, 1.0)  # from its beginning
    assert asked(node, 6.0, exchange=1) == (12.0, 2.0)


def evaluation(node, split, **more):
    header = request_header(node.job.method, Call(Evaluate(split), {}, {}, 0, EVALUATION))
    return wire.decode(node.handle(wire.encode({**header, **more}, {"w": node.job.task.start})))


@pytest.mark.parametrize(("split", "samples"), [("test", 5), ("validation", 4)])
def test_an_evaluation_is_on_the_clients_own_samples_of_the_split(node, split, samples):
    header, sent = evaluation(node, split)
    x, y = node.job.data.splits[split].of(2)
    loss = torch.nn.functional.cross_entropy(small.model()(x), y)
    assert header["samples"] == samples == len(y)
    torch.testing.assert_close(sent["loss"], loss.detach())


@pytest.mark.parametrize("split", ["train", "everything"])
def test_training_data_are_evaluated_for_nobody(node, split):
    with refused(f"The request is to evaluate on '{split}': it must be 'test' or 'validation'"):
        evaluation(node, split)


def test_an_evaluation_keeps_nothing(node):
    """It comes between a round's answer and its acknowledgement: the server may yet fail."""
    asked(node, 5.0, acknowledged=None)
    files = {f: f.read_bytes() for f in node.state.path.iterdir()}
    evaluation(node, "test", acknowledged=0)
    assert {f: f.read_bytes() for f in node.state.path.iterdir()} == files
