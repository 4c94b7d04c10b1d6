"""Votes for the one sum of an exchange that clients with a common key open.

Whoever has the key could open any sum, and a server could have the sum of all opened by one client, and that of all but
one by another: the difference is one client's reply. So each client whose reply is in a sum votes for the list of its
replies, for one list in an exchange, and a client opens a sum only with enough votes of clients in it.

A list of m replies needs ⌈(2m + k) / 4⌉ votes, k being the fewest clients of a sum. Then, whatever lists are opened in
an exchange and however many, no combination of their sums is of fewer than k clients; so neither is the difference of
two. For let lists L be opened by the votes of S ⊆ L: nobody votes twice, so all S are disjoint, and S has at least k/2
clients more than L∖S. Of the sum of all lists with factors c, let W be the clients whose replies do not cancel. If one
of S cancels, other lists that it is in have factors of |c| together at least. Added up over all that cancel,
Σ|c|·|S∖W| ≤ Σ|c|·|(L∖S)∖W|, and so Σ|c|·|S∩W| ≥ Σ|c|·k/2. But it is at most max|c|·|W|. So |W| ≥ k, unless one |c| is
more than all others together: then nothing of its list cancels, and the list has k clients.

A vote is a code that only a client with the common secret can make: it needs no key of a single client. (Who has the
secret and lies has the key too, and opens everything.) A client's identity is drawn once and stays with it: two clients
that a server gives one number remain two, and one client under two numbers is one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unalike.crypto.masks import derived
from unalike.crypto.secure_sum import KEY
from unalike.errors import UnalikeError

NUMBER, NONCE = 8, 16
ROW = NUMBER + KEY + NONCE  # bytes of a reply's row in a list


class Reply(NamedTuple):
    """One reply of a list: the client's number in the run, its identity, and what tells this reply from its others."""

    client: int
    identity: bytes
    nonce: bytes

    @classmethod
    def new(cls, client: int, identity: bytes) -> Reply:
        """Return the row of a new reply."""
        return cls(client, identity, os.urandom(NONCE))

    def to_bytes(self) -> bytes:
        """Return the row as `ROW` bytes."""
        return self.client.to_bytes(NUMBER, "big") + self.identity + self.nonce

    @classmethod
    def from_bytes(cls, row: bytes) -> Reply:
        """Return the row that `to_bytes` wrote."""
        return cls(int.from_bytes(row[:NUMBER], "big"), row[NUMBER:-NONCE], row[-NONCE:])


def listed(rows: Sequence[bytes]) -> list[Reply]:
    """Return the replies of a list; refuse one in which a client is twice, or whose order is not that of its bytes."""
    replies = [Reply.from_bytes(row) for row in rows]
    twice = any(len({*some}) < len(rows) for some in zip(*((r.client, r.identity) for r in replies), strict=True))
    if twice or list(rows) != sorted(rows):
        raise UnalikeError("In the server's list of those who came a client is twice, or not in its place.")
    return replies


def needed(clients: int, least: int) -> int:
    """Return how many votes open a sum over `clients` clients. least: the fewest clients of a sum."""
    return -(-(2 * clients + least) // 4)


def statement(run: str, round: int, exchange: int, label: bytes, rows: Sequence[bytes]) -> bytes:
    """Return a hash of what is voted for: a list of replies to what the label stands for, in an exchange of a run."""
    where = f"{run} {round} {exchange} {len(rows)} ".encode()
    return hashlib.sha256(where + label + b"".join(rows)).digest()


def vote(secret: bytes, text: bytes, identity: bytes) -> bytes:
    """Return a client's vote for a statement."""
    return derived(secret, b"unalike sum, vote " + text + identity, KEY)


def counted(secret: bytes, text: bytes, votes: Mapping[bytes, bytes]) -> int:
    """Return how many of these votes, by identity, are votes for the statement."""
    return sum(hmac.compare_digest(vote(secret, text, identity), given) for identity, given in votes.items())
