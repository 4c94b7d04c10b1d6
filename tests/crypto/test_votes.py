"""Votes for a sum: whatever lists gather enough of them, no combination of their sums is of few clients."""

import itertools

import numpy as np
import pytest
from small import refused

from unalike.crypto.votes import NONCE, ROW, Reply, counted, listed, needed, statement, vote

SECRET = bytes(range(32))


def lists(clients, least):
    """Return all lists that clients could be told of."""
    sizes = range(least, clients + 1)
    return [frozenset(some) for size in sizes for some in itertools.combinations(range(clients), size)]


def votable(family, quorum):
    """Return whether all these lists can have enough votes where nobody votes twice (Hall's condition)."""
    parts = itertools.chain.from_iterable(itertools.combinations(family, n) for n in range(1, len(family) + 1))
    return all(len(frozenset.union(*part)) >= sum(quorum(len(one)) for one in part) for part in parts)


def told(family, clients, few):
    """Return whether some combination of these lists' sums is of so few clients, and of at least one."""
    matrix = np.array([[client in one for client in range(clients)] for one in family], dtype=float)
    rank = np.linalg.matrix_rank(matrix)
    for some in itertools.combinations(range(clients), few):
        others = [client for client in range(clients) if client not in some]
        if np.linalg.matrix_rank(matrix[:, others]) < rank:
            return True
    return False


@pytest.mark.parametrize(("clients", "least", "together"), [(6, 2, 2), (7, 3, 2), (7, 4, 2), (6, 2, 3)])
def test_no_combination_of_sums_is_of_fewer_than_the_least(clients, least, together):
    """All families of lists that clients could vote for. One vote fewer, and some family tells too much."""
    quorums = [lambda size: needed(size, least), lambda size: needed(size, least) - 1]
    families = [*itertools.combinations(lists(clients, least), together)]
    safe, unsafe = ([family for family in families if votable(family, quorum)] for quorum in quorums)
    assert safe and not any(told(family, clients, least - 1) for family in safe)
    assert any(told(family, clients, least - 1) for family in unsafe)


def test_how_many_votes():
    assert [needed(n, 3) for n in (3, 4, 5, 6, 8, 10, 100)] == [3, 3, 4, 4, 5, 6, 51]
    assert [needed(n, n) for n in (2, 3, 50)] == [2, 3, 38]
    assert all(n // 2 < needed(n, k) <= n for n in range(2, 60) for k in range(2, n + 1))


def replies(*clients):
    return sorted(Reply(k, bytes([k]) * 32, bytes(NONCE)).to_bytes() for k in clients)


def test_a_vote_is_one_client_s_for_one_list_in_one_place():
    rows = replies(0, 1, 2)
    text = statement("run", 1, 2, bytes(32), rows)
    voter = listed(rows)[1].identity
    good = vote(SECRET, text, voter)
    assert counted(SECRET, text, {voter: good}) == 1
    others = [
        statement("other", 1, 2, bytes(32), rows), statement("run", 2, 2, bytes(32), rows),
        statement("run", 1, 1, bytes(32), rows), statement("run", 1, 2, b"\1" * 32, rows),
        statement("run", 1, 2, bytes(32), replies(0, 1)), statement("run", 1, 2, bytes(32), replies(0, 1, 3)),
    ]  # fmt: skip
    assert not any(counted(SECRET, other, {voter: good}) for other in others)
    assert not counted(SECRET, text, {listed(rows)[0].identity: good}) and not counted(bytes(32), text, {voter: good})
    assert not counted(SECRET, text, {voter: bytes(32)})


def test_a_list_has_each_client_once_and_in_its_place():
    rows = replies(0, 1, 2)
    assert [reply.client for reply in listed(rows)] == [0, 1, 2] and {len(row) for row in rows} == {ROW}
    again = Reply(3, bytes([1]) * 32, bytes(NONCE)).to_bytes()  # client 1 under another number
    other = Reply(1, bytes([7]) * 32, bytes(NONCE)).to_bytes()  # another client under its number
    second = Reply(1, bytes([1]) * 32, b"\1" * NONCE).to_bytes()  # another reply of client 1
    for wrong in ([*rows, again], sorted([*rows, other]), sorted([*rows, second]), rows[::-1]):
        with refused("a client is twice, or not in its place"):
            listed(wrong)
