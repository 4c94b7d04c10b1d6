"""The server's part in masked sums: three or four exchanges with clients, and the sum over those that came.

`HiddenSums` is the part shared with sums under encryption (`encrypted.py`). `hidden_calls.py` uses them in a run.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from unalike.channel.stages.secure_sum import SIGNATURE, SecureSum, Summed
from unalike.channel.summing import Slot, grouped, parted
from unalike.client.secure import (
    MASKED,
    PRESENT,
    SHARES,
    Verifier,
    as_bytes,
    bound,
    identity,
    key_statement,
    label,
    octets,
    rows,
)
from unalike.contract.call import Outcome
from unalike.crypto import ring
from unalike.crypto.masks import agreement
from unalike.crypto.secure_sum import KEY, SEALED, Collector, Dealt, Group, Void
from unalike.crypto.shamir import BYTES
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.check import unreadable

Requests = Mapping[int, Sequence[bytes]]
When = tuple[int, int]  # round, exchange
Slots = Callable[[int], list[Slot]]  # the slots of a sum over this many clients
Read = Callable[[int, bytes], tuple[Outcome, dict[str, Tensor]]]  # a client's reply: its outcome, and its parts
# attempts at a sum that becomes void before any client was asked to open it
TRIES = 3
NOBODY = wire.encode({"public": {}}, {})


class Clients(Protocol):
    """The clients of a run, as sums call them."""

    run: str
    public: list[str]  # their signing keys, by number; empty where nobody signs
    terms: bytes  # a hash of the run's plan (`plan_digest`), to which sums are bound; empty where there is none

    @property
    def keys(self) -> Verifier | None:
        """What looks at these keys; None where nobody signs."""
        ...

    def ask(self, requests: Requests) -> Iterable[tuple[int, bytes]]: ...
    def refuse(self, client: int, reason: str) -> None: ...
    def again(self, reason: str, least: int, among: Collection[int]) -> None:
        """Called when a sum will be tried again; waits a while until `least` of these clients are there."""
        ...


@dc.dataclass(frozen=True)
class Collected:
    """The sum over the clients that came: each one's reply without its numbers, and the sums of codes by slot."""

    came: list[int]
    replies: list[Outcome]
    totals: dict[str, Tensor]
    slots: list[Slot]
    clients: int  # number of clients that were asked


class HiddenSums:
    """Sums of vectors of clients whose single vectors the server does not learn.

    run: the run's name, as clients know it; shares: of noise that a sum must have.
    """

    def __init__(self, stage: Summed, clients: Clients, run: str, shares: int = 0):
        self.clients, self.run, self.least = clients, run, max(stage.least, shares)
        self._opening = False  # whether clients were asked to open the present sum

    def collect(
        self, when: When, ids: list[int], slots: Slots, asked: Requests, read: Read, least: int = 0, tries: int = TRIES
    ) -> Collected:
        """Return the sums over the clients that came. when: round and exchange; slots: returns the slots of a sum over
        a number of clients; asked: the requests, whose first part is the same for all; read: reads a reply; least: how
        many must come.

        A sum that becomes void before any client was asked to open it is repeated with new secrets, up to `tries` times
        in all: nothing of the first can have been learnt. Later it is not repeated, because two sums over nearly the
        same clients reveal too much.
        """
        least = max(self.least, least)
        for left in reversed(range(tries)):
            self._opening = False
            try:
                return self._collected(when, ids, slots, asked, read, least)
            except Void as void:
                if self._opening or not left:
                    raise
                ids = self._asked_again(ids)
                self.clients.again(str(void), least, ids)
        raise AssertionError("unreachable")

    def _collected(
        self, when: When, ids: list[int], slots: Slots, asked: Requests, read: Read, least: int
    ) -> Collected:
        raise NotImplementedError

    def _asked_again(self, ids: list[int]) -> list[int]:
        """Forget what clients told about themselves, as some may have been restarted; return who is asked again."""
        raise NotImplementedError

    def _check_came(self, came: int, asked: int, least: int) -> None:
        """Refuse to open a sum over too few clients."""
        if came < least:
            raise Void(f"{came} of {asked} clients answered, and {least} must: the sum is void, nothing was learnt.")

    def _answers(self, requests: Requests, stage: str) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the parts of the usable answers."""
        for client, answer in self.clients.ask(requests) if requests else ():
            with self._judging(client):
                yield client, self._usable(answer, stage)

    def _usable(self, answer: bytes, stage: str) -> dict[str, Tensor]:
        """Return the parts of an answer; refuse one that is no reply in this stage."""
        header, parts = wire.decode(answer)
        if header.get("kind") != "reply" or header.get("stage") != stage:
            raise UnalikeError(str(header.get("reason", "its answer is no reply"))[:500])
        return parts

    def _judging(self, client: int) -> _Judging:
        return _Judging(self.clients, client)


def with_parts(asked: Sequence[bytes], about: Mapping[str, Tensor]) -> tuple[bytes, bytes]:
    """Return a request with a client's information about the sum added to its own part."""
    shared, own = asked
    header, tensors = _read(own)
    return shared, wire.encode(header, {**tensors, **about})


@functools.lru_cache(maxsize=1)  # mostly empty, and the same for all clients
def _read(own: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return wire.decode(own)


@dc.dataclass(frozen=True)
class Key:
    """A client's key for the run, and its signature."""

    key: bytes
    signature: bytes


class MaskedSums(HiddenSums):
    """Sums under masks that cancel."""

    def __init__(self, stage: SecureSum, clients: Clients, run: str, shares: int = 0):
        super().__init__(stage, clients, run, shares)
        self.stage = stage
        self.keys: dict[int, Key] = {}
        self._blamed: dict[int, set[int]] = {}  # who says of whom that it did not keep the rules

    def _collected(
        self, when: When, ids: list[int], slots: Slots, asked: Requests, read: Read, least: int
    ) -> Collected:
        group, attempt = self._group(when, ids)
        header = {"run": self.run, "round": when[0], "exchange": when[1]}
        collector = Collector(group, bound(next(iter(asked.values())), self.clients.terms))
        self._deal(collector, {**header, "attempt": attempt})
        found = slots(len(group.keys))
        replies = self._mask(collector, found, asked, read)
        self._check_came(len(collector.came), len(group.keys), least)
        collector.check_openable()
        self._opening = True
        opened = self._open(collector, header)
        for silent in group.keys.keys() - opened:
            # it may have been restarted, with another key
            self.keys.pop(silent, None)
        totals = parted(found, len(group.keys), collector.total())
        for client, other in collector.misfits.items():
            self.clients.refuse(
                client, f"its share of client {other}'s secret did not fit, so one of the two did not keep the rules; "
                "the sum was opened without it."
            )  # fmt: skip
        return Collected(sorted(collector.came), replies, totals, found, len(group.keys))

    def _asked_again(self, ids: list[int]) -> list[int]:
        """Leave out whom most of its neighbours blame, too: nobody can add up with a client that deals nonsense."""
        most, blamed = self.stage.degree(len(ids)) / 2, self._blamed
        left_out = [client for client in ids if len(blamed.get(client, set()) - {client}) > most]
        for client in left_out:
            self.clients.refuse(client, f"{len(blamed[client])} clients cannot use what it dealt.")
        self.keys.clear()
        self._blamed = {}
        return [client for client in ids if client not in left_out]

    # ---- stages

    def _group(self, when: When, ids: list[int]) -> tuple[Group, str]:
        """Return the group of clients that can take part in this sum: those whose key is known."""
        missing = [c for c in ids if c not in self.keys]
        header = {"kind": "sum", "stage": "key", "run": self.run}
        for client, parts in self._answers({c: (wire.encode(header, {}),) for c in missing}, "key"):
            with self._judging(client):
                key, signature = octets(parts, "key", KEY), octets(parts, "signature", SIGNATURE)
                self._check_key(client, key, signature)
                self.keys[client] = Key(key, signature)
        there, attempt = [c for c in ids if c in self.keys], os.urandom(8).hex()
        try:
            degree, opening = self.stage.degree(len(there)), self.stage.opening(len(there))
        except UnalikeError as error:
            raise Void(f"{error} The sum is void, nothing was learnt.") from None
        name, keys = label(self.run, *when, attempt), {c: self.keys[c].key for c in there}
        return Group(name, keys, degree, opening, {c: self._identity(c) for c in there}), attempt

    def _check_key(self, client: int, key: bytes, signature: bytes) -> None:
        """Refuse a key that the other clients would refuse."""
        agreement(os.urandom(KEY), key)  # raises for a key that is none
        public, keys = self.clients.public, self.clients.keys
        if keys is not None and not keys.verify(public[client], key_statement(self.run, client, key), signature):
            raise UnalikeError("the key for this run is not signed by it.")

    def _identity(self, client: int) -> bytes:
        """Return who a client is, in all sums and runs; its number where nobody signs."""
        public, keys = self.clients.public, self.clients.keys
        return client.to_bytes(KEY, "big") if keys is None else identity(keys, public[client])

    def _deal(self, collector: Collector, header: dict[str, Any]) -> None:
        """Let clients deal shares."""
        group = collector.group
        clients = sorted(group.keys)
        parts = {
            "clients": torch.tensor(clients),
            "keys": as_bytes(b"".join(group.keys[c] for c in clients)).view(-1, KEY),
            "signatures": in_rows(clients, {c: self.keys[c].signature for c in clients}, SIGNATURE),
            "identities": in_rows(clients, group.identities, KEY),
        }
        shared = wire.encode({"kind": "sum", "stage": "deal", **header}, parts)
        requests = {client: (shared, self._names(group.lattice.of(client))) for client in clients}
        for client, answer in self._answers(requests, "deal"):
            neighbours = group.lattice.of(client)
            with self._judging(client):
                sealed = dict(zip(neighbours, rows(answer, "sealed", len(neighbours), SEALED), strict=True))
                public, commitment = octets(answer, "public", KEY), octets(answer, "commitment", KEY)
                collector.take_dealt(client, Dealt(public, commitment, sealed))

    def _mask(self, collector: Collector, slots: list[Slot], asked: Requests, read: Read) -> list[Outcome]:
        """Send the requests with the shares, and add the masked answers."""
        present = torch.tensor(collector.present)
        requests, replies = {}, []
        for client in collector.present:
            delivered = collector.delivery(client)
            sealed = as_bytes(b"".join(delivered.values())).view(-1, SEALED)
            requests[client] = with_parts(asked[client], {PRESENT: present, SHARES: sealed})
        sizes = sizes_of(slots, len(collector.group.keys))
        for client, answer in self.clients.ask(requests):
            with self._judging(client):
                self._note_blame(client, answer)
                reply, parts = read(client, answer)
                check_hidden(parts, sizes)
                words = [ring.unpack(parts[f"{MASKED}{bits}"].numpy(), n, bits) for bits, n in sizes.items()]
                collector.take_masked(client, words)
                replies.append(reply)
        return replies

    def _note_blame(self, client: int, answer: bytes) -> None:
        """Note whom a client blames for that it cannot answer."""
        header = wire.header_of(answer)
        about = header.get("about")
        if header.get("kind") == "error" and type(about) is int:
            self._blamed.setdefault(about, set()).add(client)

    def _open(self, collector: Collector, header: dict[str, Any]) -> set[int]:
        """Let the clients that came give their shares, after they have agreed on who came if the run requires it;
        return which did."""
        came, opened = sorted(collector.came), set[int]()
        parts = {"came": torch.tensor(came)}
        if self.stage.agree:
            parts["signatures"] = self._agree(came, header)
        request = wire.encode({"kind": "sum", "stage": "open", **header}, parts)
        for client, answer in self._answers({c: (request,) for c in came}, "open"):
            there = collector.given_by(client)
            with self._judging(client):
                shares = rows(answer, "shares", len(there), BYTES)
                collector.take_opened(client, dict(zip(there, shares, strict=True)))
                opened.add(client)
        return opened

    def _agree(self, came: list[int], header: dict[str, Any]) -> Tensor:
        """Return the signatures of the list of those who came, in rows."""
        request, signed = wire.encode({"kind": "sum", "stage": "agree", **header}, {"came": torch.tensor(came)}), {}
        for client, answer in self._answers({c: (request,) for c in came}, "agree"):
            with self._judging(client):
                signed[client] = octets(answer, "signature", SIGNATURE)
        return in_rows(came, signed, SIGNATURE)

    def _names(self, neighbours: Sequence[int]) -> bytes:
        """Return the part of a request that says whose keys the neighbours' are."""
        known = self.clients.public
        return wire.encode({"public": {str(v): known[v] for v in neighbours}}, {}) if known else NOBODY


def in_rows(clients: Sequence[int], given: Mapping[int, bytes], size: int) -> Tensor:
    """Return what clients gave as rows of `size` bytes, in this order; zeros for those that gave nothing."""
    return as_bytes(b"".join(given.get(c, bytes(size)) for c in clients)).view(len(clients), size)


def sizes_of(slots: Sequence[Slot], clients: int) -> dict[int, int]:
    """Return how many numbers each vector of a sum has, by the bits of its modulus."""
    return {bits: sum(slot.count for slot in some) for bits, some in grouped(slots, clients).items()}


def check_hidden(parts: Mapping[str, Tensor], sizes: Mapping[int, int]) -> None:
    """Refuse a reply that has other parts than the vectors of the sum."""
    if parts.keys() != {f"{MASKED}{bits}" for bits in sizes}:
        raise UnalikeError("its reply is not hidden as the run's channel hides it.")


class _Judging:
    """Leaves out a client whose answer is not usable."""

    def __init__(self, clients: Clients, client: int):
        self.clients, self.client = clients, client

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception) or isinstance(error, Void):
            return False
        self.clients.refuse(self.client, unreadable(error))  # whatever its bytes are: they cost this client's round
        return True
