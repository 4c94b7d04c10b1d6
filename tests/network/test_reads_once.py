"""A client reads a request once, its state once, and writes its state once; a state that was changed is noticed; a
server that shows another certificate is waited for."""

import pytest
import torch
from asked import RUN, P, ask, client, judge, told
from small import refused

import unalike as ua
from unalike.client import state_on_disk
from unalike.messages import wire
from unalike.network.client import LONGEST, attend
from unalike.network.link import Away, Untrusted

SCAFFOLD = ua.Scaffold()


@pytest.fixture
def counted(monkeypatch):
    """How often messages are decoded, state files read and written."""
    counts = {"decode": 0, "read": 0, "write": 0}

    def count(place, name, what):
        plain = getattr(place, name)

        def spy(*args, **options):
            counts[what] += 1
            return plain(*args, **options)

        monkeypatch.setattr(place, name, spy)

    count(wire, "decode", "decode")
    count(state_on_disk, "_decoded", "read")
    count(state_on_disk, "replace", "write")
    return counts


def request(here, round, acknowledged):
    return ask(here, round, method=SCAFFOLD, control=torch.zeros(P), acknowledged=acknowledged)


def test_a_request_is_read_once_and_the_state_read_and_written_once(tmp_path, counted):
    here = client(tmp_path)
    assert not told(here, method={"name": "scaffold"})
    assert request(here, 0, None)[0]["kind"] == "reply"
    for round in (1, 2):
        counted.update(decode=0, read=0, write=0)
        assert request(here, round, round - 1)[0]["kind"] == "reply"
        assert counted == {"decode": 2, "read": 1, "write": 1}  # one of the decodes is the test's own, of the answer
    counted.update(decode=0, read=0, write=0)
    request(here, 2, 1)  # again
    assert counted == {"decode": 2, "read": 1, "write": 0}


def test_an_evaluation_writes_nothing(tmp_path, counted):
    here = client(tmp_path)
    told(here)
    ask(here)
    counted.update(decode=0, read=0, write=0)
    judge(here)
    assert counted == {"decode": 2, "read": 1, "write": 0}


@pytest.mark.parametrize("place", [9, 40, 150, -1, -200])
def test_a_byte_of_the_state_that_was_changed_is_noticed(place, tmp_path):
    here = client(tmp_path)
    told(here, method={"name": "scaffold"})
    request(here, 0, None)
    file = tmp_path / RUN / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    reason = request(here, 1, 0)[0]["reason"]
    assert f"The client state {file} cannot be read: " in reason and len(reason.splitlines()) == 1


def test_a_byte_of_the_plan_that_was_changed_is_noticed(tmp_path):
    here = client(tmp_path)
    told(here)
    here.close()
    file = tmp_path / RUN / "plan.json"
    file.write_text(file.read_text().replace('"batch_size": 8', '"batch_size": 9'))
    assert "plan.json is not what was written" in ask(client(tmp_path))[0]["reason"]


# ---------------------------------------------------------------- a server that is not the one it knows


class Line:
    """A link that brings what it is told to: requests, None, or troubles."""

    def __init__(self, *events, joins=()):
        self.events, self.joins, self.replies = list(events), [None, *joins], []

    def join(self):
        self._next(self.joins)

    def receive(self):
        return self._next(self.events)

    def _next(self, events):
        event = events.pop(0) if events else KeyboardInterrupt()
        if isinstance(event, BaseException):
            raise event
        return event

    def reply(self, answer):
        self.replies.append(answer)

    def leave(self):
        pass


def attended(tmp_path, line):
    said, pauses = [], []
    with pytest.raises(KeyboardInterrupt):
        attend(line, client(tmp_path, said=said), pause=pauses.append)
    return said, pauses


HELLO = [wire.encode({"kind": "hello", "version": ua.__version__}, {})]


def test_another_authority_is_said_once_and_waited_for(tmp_path):
    other = Untrusted("The server's certificate is not to be trusted.")
    line = Line(*[other] * 12, None, HELLO)
    said, pauses = attended(tmp_path, line)
    assert [text for text in said if "not to be trusted" in text] == [
        "The server's certificate is not to be trusted. Waiting for the server that this client knows."
    ]
    assert pauses[:5] == [0.2, 0.4, 0.8, 1.6, 3.2] and max(pauses) == LONGEST and len(pauses) == 13
    assert len(line.replies) == 1  # and then it answers


def test_another_authority_when_it_joins_again_is_waited_for_too(tmp_path):
    other = Untrusted("The server's certificate is not to be trusted.")
    line = Line(Away("Gone."), HELLO, joins=[other, other, None])
    said, pauses = attended(tmp_path, line)
    assert said[:4] == [
        "joined",
        "Gone. Joining again.",
        "The server's certificate is not to be trusted. Waiting for the server that this client knows.",
        "joined",
    ]
    assert pauses == [0.2, 0.4] and len(line.replies) == 1


def test_another_authority_at_the_start_ends_it(tmp_path):
    line = Line()
    line.joins = [Untrusted("not to be trusted")]
    with refused("not to be trusted"):
        attend(line, client(tmp_path), pause=lambda seconds: None)


def test_requests_that_cannot_be_read_are_said_once(tmp_path):
    said, pauses = attended(tmp_path, Line(*[ua.UnalikeError("A request cannot be read.")] * 20))
    assert said.count("A request cannot be read.") == 1 and pauses[-1] == LONGEST
