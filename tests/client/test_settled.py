"""What a client has agreed to is on its disk: a restart forgets nothing, and half a line is no vote."""

import os

import pytest
from small import refused

from unalike.client.settled import Settled
from unalike.crypto.votes import NONCE, Reply
from unalike.errors import Withheld

ROUND = ("0123456789abcdef", 4, 0)
FIRST, SECOND = bytes(32), b"\1" * 32


def replies(*clients, nonce=bytes(NONCE)):
    return [Reply(k, bytes([k]) * 32, nonce) for k in clients]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "sums.jsonl"


def again(file):
    """The same record, and that of a client which was started again."""
    first = Settled(file)
    first.settle(ROUND, FIRST, replies(0, 1, 2))
    second = Settled(file)
    assert second.identity == first.identity and len(first.identity) == 32
    return first, second


def test_one_set_of_clients_in_an_exchange_and_one_list_under_a_label(file):
    for record in again(file):
        record.settle(ROUND, FIRST, replies(0, 1, 2))
        with pytest.raises(Withheld, match="a second sum of it, over other clients") as told:
            record.settle(ROUND, SECOND, replies(0, 1))
        assert str(file) not in str(told.value) and f"remove {file}" in str(told.value.__cause__)
        with refused("over other replies, whose difference"):
            record.settle(ROUND, FIRST, replies(0, 1, 2, nonce=b"\1" * NONCE))
        record.settle(ROUND, SECOND, replies(0, 1, 2, nonce=b"\1" * NONCE))  # all anew
        record.settle((ROUND[0], 4, 1), FIRST, replies(0, 1))
        record.settle(("other", 4, 0), FIRST, replies(0, 1))


def test_sums_of_an_exchange_are_about_the_same(file):
    for record in again(file):
        record.settle(ROUND, SECOND, replies(0, 1, 2), b"means")
        with refused("whose difference"):
            record.settle(ROUND, b"\2" * 32, replies(0, 1, 2), b"other means")
        record.settle(ROUND, b"\3" * 32, replies(0, 1, 2))


def test_the_same_vote_once_more_is_not_written_again(file):
    record, _ = again(file)
    size = file.stat().st_size
    record.settle(ROUND, FIRST, replies(0, 1, 2))
    assert file.stat().st_size == size and file.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_being_written_is_dropped(file):
    again(file)
    whole = file.read_bytes()
    with open(file, "ab") as more:
        more.write(whole.splitlines()[-1][:-7])
    Settled(file).settle((ROUND[0], 5, 0), FIRST, replies(0, 1, 2))
    assert file.read_bytes().startswith(whole) and len(file.read_bytes().splitlines()) == 3
    with refused("other clients"):
        Settled(file).settle((ROUND[0], 5, 0), SECOND, replies(0, 1))


def test_a_changed_file_is_refused(file):
    again(file)
    file.write_bytes(file.read_bytes().replace(b'"round": 4', b'"round": 7'))
    with refused("is not what this client wrote"):
        Settled(file)
    file.write_bytes(b"{}\n")
    with refused("is not what this client wrote"):
        Settled(file)


def test_without_its_file_a_client_agrees_to_nothing(file, monkeypatch):
    record = Settled(file)
    size = file.stat().st_size

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused("No space left on device.*agrees to no sum"):
        record.settle(ROUND, FIRST, replies(0, 1, 2))
    assert file.stat().st_size == size
    monkeypatch.undo()
    record.settle(ROUND, FIRST, replies(0, 1, 2))
    with refused("other clients"):
        Settled(file).settle(ROUND, FIRST, replies(0, 1))


def test_in_memory(tmp_path):
    one, other = Settled(), Settled()
    assert one.identity != other.identity
    one.settle(ROUND, FIRST, replies(0, 1, 2))
    with refused("too much: refused.$"):
        one.settle(ROUND, SECOND, replies(0, 1))
