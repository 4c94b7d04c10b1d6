"""The server's part in sums under encryption: it adds ciphertexts, lets the clients in a sum vote for it, and asks two
of them to open it."""

from __future__ import annotations

import collections
import os
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.channel.stages.encrypted import OPENERS, Encrypted
from unalike.channel.summing import Slot, parted
from unalike.client.encrypted import WHO, sum_label
from unalike.client.secure import ATTEMPT, MASKED, PRESENT, as_bytes, bound, octets
from unalike.contract.call import Outcome
from unalike.crypto import ring
from unalike.crypto.encrypted_sum import Adder, CkksAdder, PaillierAdder, Vector
from unalike.crypto.paillier import PublicKey
from unalike.crypto.secure_sum import KEY, Void
from unalike.crypto.votes import ROW, Reply
from unalike.crypto.votes import needed as votes_needed
from unalike.engines.secure import (
    TRIES,
    Clients,
    Collected,
    HiddenSums,
    Read,
    Requests,
    Slots,
    When,
    check_hidden,
    in_rows,
    sizes_of,
    with_parts,
)
from unalike.errors import UnalikeError
from unalike.messages import wire

Ciphers = dict[int, list[Any]]  # a vector's, by the bits of its sums


class EncryptedSums(HiddenSums):
    """Sums under a key that all clients have in common, and the server has not."""

    def __init__(self, stage: Encrypted, clients: Clients, run: str, shares: int = 0):
        super().__init__(stage, clients, run, shares)
        self.stage = stage
        self.keys: dict[int, tuple[bytes, bytes]] = {}  # the fingerprint of each client's key, and its public part
        self._adder: tuple[bytes, Adder] | None = None  # with the public key that it adds under

    def _collected(
        self, when: When, ids: list[int], slots: Slots, asked: Requests, read: Read, least: int
    ) -> Collected:
        there, adder = self._group(ids)
        found, attempt = slots(len(there)), os.urandom(KEY)
        about = {PRESENT: torch.tensor(there), ATTEMPT: as_bytes(attempt)}
        requests = {client: with_parts(asked[client], about) for client in there}
        total, replies, rows = self._added(adder, found, requests, read)
        self._check_came(len(rows), len(there), least)
        self._opening = True
        told = bound(next(iter(requests.values())), self.clients.terms)
        label = sum_label(self.run, when, attempt, told, there, self.least, found)
        ciphers = {f"{MASKED}{bits}": as_bytes(adder.written(some)) for bits, some in total.items()}
        opened = self._voted_and_opened(when, label, rows, ciphers, sizes_of(found, len(there)))
        return Collected(sorted(rows), replies, parted(found, len(there), opened), found, len(there))

    def _voted_and_opened(
        self, when: When, label: bytes, rows: dict[int, bytes], ciphers: dict[str, Tensor], sizes: Mapping[int, int]
    ) -> list[np.ndarray]:
        """Let the clients in a sum vote for it, and return it as two of them open it. rows: each one's in the list of
        replies, which is in the order of their bytes."""
        order = sorted(rows, key=lambda client: rows[client])
        came = as_bytes(b"".join(rows[client] for client in order)).view(-1, ROW)
        header = {"kind": "sum", "run": self.run, "round": when[0], "exchange": when[1]}
        ballot = wire.encode({**header, "stage": "vote"}, {"came": came, "label": as_bytes(label)})
        votes = self._votes(ballot, sorted(rows))
        parts = {"came": came, "votes": in_rows(order, votes, KEY), **ciphers}
        # those who have just voted are there
        openers = [*shuffled([*votes]), *shuffled([client for client in order if client not in votes])]
        return self._opened(wire.encode({**header, "stage": "open"}, parts), openers, sizes)

    def _asked_again(self, ids: list[int]) -> list[int]:
        self.keys.clear()
        return ids

    def _group(self, ids: list[int]) -> tuple[list[int], Adder]:
        """Return those who have the same key as most, and what adds under it."""
        missing = [c for c in ids if c not in self.keys]
        header = {"kind": "sum", "stage": "key", "run": self.run}
        for client, parts in self._answers({c: (wire.encode(header, {}),) for c in missing}, "key"):
            with self._judging(client):
                public = octets(parts, "public", self.stage.key_bits // 8)
                self.keys[client] = octets(parts, "fingerprint", KEY), public
        known = {c: self.keys[c] for c in ids if c in self.keys}
        usual = collections.Counter(known.values()).most_common(1)
        there = [c for c, key in known.items() if key == usual[0][0]]
        for client in known.keys() - there:
            del self.keys[client]  # it may come back with the right one
            self.clients.refuse(client, "its common key is not that of the other clients (join --common).")
        try:
            self.stage.check_clients(len(there))
        except UnalikeError as error:
            raise Void(f"{error} The sum is void, nothing was learnt.") from None
        public = usual[0][0][1]
        if self._adder is None or self._adder[0] != public:
            self._adder = public, self._made(public)
        return there, self._adder[1]

    def _made(self, public: bytes) -> Adder:
        return PaillierAdder(PublicKey.from_bytes(public, least=self.stage.key_bits)) if public else CkksAdder()

    def _added(
        self, adder: Adder, slots: list[Slot], requests: Requests, read: Read
    ) -> tuple[Ciphers, list[Outcome], dict[int, bytes]]:
        """Send the requests, and add the encrypted answers; return the sum, the answers without their numbers, and each
        client's row in the list of replies."""
        total: Ciphers = {}
        replies, rows, clients = list[Outcome](), dict[int, bytes](), len(requests)
        sizes = sizes_of(slots, clients)
        for client, answer in self.clients.ask(requests):
            with self._judging(client):
                reply, parts = read(client, answer)
                row = _own_row(client, octets(parts, WHO, ROW), rows)
                check_hidden({name: value for name, value in parts.items() if name != WHO}, sizes)
                one = {bits: adder.read(_bytes(parts, bits), _vector(n, bits, clients)) for bits, n in sizes.items()}
                total = {bits: adder.plus(total[bits], some) for bits, some in one.items()} if total else one
                replies.append(reply)
                rows[client] = row
        return total, replies, rows

    def _votes(self, request: bytes, came: list[int]) -> dict[int, bytes]:
        """Return the votes of the clients in a sum for it. Clients that do not answer are asked again, as they may be
        back: nobody may vote for another list. Raise `Void` if too few vote."""
        votes, silent, needed = dict[int, bytes](), {*came}, votes_needed(len(came), self.least)
        for left in reversed(range(TRIES)):
            for client, answer in self.clients.ask({c: (request,) for c in sorted(silent)}):
                silent.discard(client)
                with self._judging(client):
                    votes[client] = octets(self._usable(answer, "vote"), "vote", KEY)
            if len(votes) >= needed:
                return votes
            few = f"{len(votes)} of the {len(came)} clients in the sum have agreed to it, and {needed} must"
            if not left or len(votes) + len(silent) < needed:
                raise Void(f"{few}: the sum is void, nothing was learnt.")
            self.clients.again(f"{few}.", needed - len(votes), silent)
        raise AssertionError("unreachable")

    def _opened(self, request: bytes, order: list[int], sizes: Mapping[int, int]) -> list[np.ndarray]:
        """Return the sum as two clients have opened it alike; with others in place of those who do not answer or do not
        agree. order: in which clients are asked."""
        answers: dict[int, tuple[bytes, ...]] = {}
        for some in (order[:OPENERS], order[OPENERS:]):
            for client, parts in self._answers({c: (request,) for c in some}, "open"):
                with self._judging(client):
                    check_hidden(parts, sizes)
                    answers[client] = tuple(_bytes(parts, bits) for bits in sizes)
            alike = collections.Counter(answers.values()).most_common(1)
            if alike and alike[0][1] >= OPENERS:
                return self._agreed(answers, alike[0][0], sizes)
        raise Void(
            f"{len(answers)} clients opened the sum, and no {OPENERS} of them alike: the sum is void, nothing was "
            "learnt of any one client."
        )

    def _agreed(
        self, answers: Mapping[int, tuple[bytes, ...]], found: tuple[bytes, ...], sizes: Mapping[int, int]
    ) -> list[np.ndarray]:
        """Return a sum that two clients opened alike; say who opened another."""
        for client, answer in answers.items():
            if answer != found:
                self.clients.refuse(client, "it opened another sum than the other clients.")
        packed = [np.frombuffer(part, dtype=np.uint8) for part in found]
        return [ring.unpack(part, n, bits) for part, (bits, n) in zip(packed, sizes.items(), strict=True)]


def shuffled(came: list[int]) -> list[int]:
    """Return clients in an order that nobody foresees."""
    return random.SystemRandom().sample(came, len(came))


def _own_row(client: int, row: bytes, others: Mapping[int, bytes]) -> bytes:
    """Return a client's row in the list of replies; refuse one under another number, or another client's identity."""
    own = Reply.from_bytes(row)
    if own.client != client:
        raise UnalikeError("its reply has another client's number.")
    if twins := [other for other, theirs in others.items() if Reply.from_bytes(theirs).identity == own.identity]:
        raise UnalikeError(f"it is the same client as client {twins[0]}: each needs a state folder of its own.")
    return row


def _bytes(parts: Mapping[str, Tensor], bits: int) -> bytes:
    value = parts[f"{MASKED}{bits}"]
    if value.dtype != torch.uint8 or value.dim() != 1:
        raise UnalikeError("its reply is not hidden as the run's channel hides it.")
    return value.numpy().tobytes()


def _vector(count: int, bits: int, clients: int) -> Vector:
    return Vector(count, bits - ring.carry_bits(clients), clients)
