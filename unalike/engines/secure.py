"""The server's part in secure sums: one exchange of a run as three or four with its clients.

What comes out is one outcome, the sums of codes over all clients that came, or one clear line. Used by engines whose
clients are asked by messages: `loopback`, and `flower` between machines.
"""

from __future__ import annotations

import dataclasses as dc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike.channel.channel import Channel, shared_draws
from unalike.channel.stages.secure_sum import SIGNATURE
from unalike.channel.summing import COUNT, SAMPLES, Slot, Summing
from unalike.client.job import Job
from unalike.client.secure import MASKED, PRESENT, SHARES, as_bytes, bound, label, octets, rows
from unalike.contract.call import Call, Outcome
from unalike.crypto import ring
from unalike.crypto.secure_sum import KEY, SEALED, Collector, Dealt, Group, Void
from unalike.crypto.shamir import BYTES
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.check import unreadable

Requests = Mapping[int, Sequence[bytes]]
Slots = Callable[[Summing], list[Slot]]  # what is summed
Read = Callable[[int, bytes], tuple[Outcome, dict[str, Tensor]]]  # a client's reply: what it says of itself, its parts


class Clients(Protocol):
    """The clients of a run, as sums ask them."""

    run: str
    public: list[str]  # their signing keys, by number; empty where nobody signs

    def ask(self, requests: Requests) -> Iterable[tuple[int, bytes]]: ...
    def refuse(self, client: int, reason: str) -> None: ...


@dc.dataclass(frozen=True)
class Key:
    """A client's key for the run, and its signature."""

    key: bytes
    signature: bytes


class SecureSums:
    """The secure sums of a run."""

    def __init__(self, job: Job, clients: Clients):
        self.job, self.clients = job, clients
        self.keys: dict[int, Key] = {}

    @property
    def channel(self) -> Channel:
        """The run's, which hides replies."""
        assert self.job.channel is not None
        return self.job.channel

    def exchange(self, call: Call, ids: np.ndarray, slots: Slots, asked: Requests, read: Read) -> Iterator[Outcome]:
        """Yield one outcome: the sums of codes over those who came.

        slots: what is summed; asked: the requests, whose first part is the same for all; read: reads a reply.
        """
        try:
            yield self._summed(call, [int(c) for c in ids], slots, asked, read)
        except Void as void:
            raise UnalikeError(
                f"Round {call.round + 1}: {void} See that clients are there, then go on from the last checkpoint "
                "(--resume)."
            ) from None

    def _summed(self, call: Call, ids: list[int], slots: Slots, asked: Requests, read: Read) -> Outcome:
        job, stage, channel = self.job, self.job.secure_stage, self.channel
        group, attempt = self._group(call, ids)
        header = {"run": self.clients.run, "round": call.round, "exchange": call.exchange}
        one = next(iter(asked.values()))
        collector = Collector(group, bound(one))
        self._deal(collector, {**header, "attempt": attempt})
        common = shared_draws(job.seed, call.round, call.exchange)
        summing = Summing(channel, job.summed_fields, job.method, common, call.told, len(group.keys))
        found = slots(summing)
        replies = self._mask(collector, summing, found, asked, read)
        least = max(stage.least, channel.shares)
        if len(collector.came) < least:
            raise Void(
                f"{len(collector.came)} of {len(group.keys)} clients answered, and {least} must: the sum is void, "
                "nothing was learnt."
            )
        opened = self._open(collector, header)
        for silent in group.keys.keys() - opened:
            self.keys.pop(silent, None)  # it may have been started again, with another key
        totals = summing.split(found, collector.total())
        for liar in collector.liars:
            self.clients.refuse(
                liar, "its share of another client's secret did not fit; the sum was opened without it."
            )
        came = np.array(sorted(collector.came))
        self._check(came, totals)
        sent = summing.bytes(found) * len(came)
        trained = max(reply.trained for reply in replies)
        losses = np.full(len(came), np.nan)
        return Outcome(
            came, {}, job.data.train.sizes[came], losses, trained, finite=np.ones(len(came), dtype=bool),
            sealed=_sealed(replies, came), sent=sent, summed=totals, slots=found,
        )  # fmt: skip

    # ---- stages

    def _group(self, call: Call, ids: list[int]) -> tuple[Group, str]:
        """Return those who can take part in this sum: whose key is known."""
        missing = [c for c in ids if c not in self.keys]
        header = {"kind": "sum", "stage": "key", "run": self.clients.run}
        for client, parts in self._answers({c: (wire.encode(header, {}),) for c in missing}, "key"):
            with self._judging(client):
                key, signature = octets(parts, "key", KEY), octets(parts, "signature", SIGNATURE)
                self.keys[client] = Key(key, signature)
        there, stage, attempt = [c for c in ids if c in self.keys], self.job.secure_stage, os.urandom(8).hex()
        try:
            degree, opening = stage.degree(len(there)), stage.opening(len(there))
        except UnalikeError as error:
            raise Void(str(error)) from None
        name = label(self.clients.run, call.round, call.exchange, attempt)
        return Group(name, {c: self.keys[c].key for c in there}, degree, opening), attempt

    def _deal(self, collector: Collector, header: dict[str, Any]) -> None:
        """Let clients deal shares."""
        group = collector.group
        clients = sorted(group.keys)
        parts = {
            "clients": torch.tensor(clients),
            "keys": as_bytes(b"".join(group.keys[c] for c in clients)).view(-1, KEY),
            "signatures": self._signatures(clients, {c: self.keys[c].signature for c in clients}),
        }
        shared = wire.encode({"kind": "sum", "stage": "deal", **header}, parts)
        requests = {}
        for client in clients:
            neighbours = group.lattice.of(client)
            names = {str(v): self.clients.public[v] for v in neighbours} if self.clients.public else {}
            requests[client] = (shared, wire.encode({"public": names}, {}))
        for client, answer in self._answers(requests, "deal"):
            neighbours = group.lattice.of(client)
            with self._judging(client):
                sealed = dict(zip(neighbours, rows(answer, "sealed", len(neighbours), SEALED), strict=True))
                public, commitment = octets(answer, "public", KEY), octets(answer, "commitment", KEY)
                collector.take_dealt(client, Dealt(public, commitment, sealed))

    def _mask(
        self, collector: Collector, summing: Summing, slots: list[Slot], asked: Requests, read: Read
    ) -> list[Outcome]:
        """Send the requests with the shares, and add the masked answers."""
        present = torch.tensor(collector.present)
        requests, replies = {}, []
        for client in collector.present:
            shared, own = asked[client]
            header, tensors = wire.decode(own)
            header.pop("format")
            delivered = collector.delivery(client)
            sealed = as_bytes(b"".join(delivered[v] for v in sorted(delivered))).view(-1, SEALED)
            requests[client] = (shared, wire.encode(header, {**tensors, PRESENT: present, SHARES: sealed}))
        sizes = {bits: sum(s.count for s in some) for bits, some in summing.groups(slots).items()}
        for client, answer in self.clients.ask(requests):
            with self._judging(client):
                reply, parts = read(client, answer)
                if parts.keys() != {f"{MASKED}{bits}" for bits in sizes}:
                    raise UnalikeError("its reply is not masked as the run's channel masks it.")
                words = [ring.unpack(parts[f"{MASKED}{bits}"].numpy(), n, bits) for bits, n in sizes.items()]
                collector.take_masked(client, words)
                replies.append(reply)
        return replies

    def _open(self, collector: Collector, header: dict[str, Any]) -> set[int]:
        """Let those who came give their shares, after they have agreed on who came where the run wants it; return who
        did."""
        came, opened = sorted(collector.came), set[int]()
        parts = {"came": torch.tensor(came)}
        if self.job.secure_stage.agree:
            request = wire.encode({"kind": "sum", "stage": "agree", **header}, parts)
            signed: dict[int, bytes] = {}
            for client, answer in self._answers({c: (request,) for c in came}, "agree"):
                with self._judging(client):
                    signed[client] = octets(answer, "signature", SIGNATURE)
            parts["signatures"] = self._signatures(came, signed)
        request = wire.encode({"kind": "sum", "stage": "open", **header}, parts)
        for client, answer in self._answers({c: (request,) for c in came}, "open"):
            there = [v for v in collector.group.lattice.of(client) if v in {*collector.present}]
            with self._judging(client):
                shares = rows(answer, "shares", len(there), BYTES)
                collector.take_opened(client, dict(zip(there, shares, strict=True)))
                opened.add(client)
        return opened

    # ---- parts

    def _check(self, came: np.ndarray, totals: dict[str, Tensor]) -> None:
        """Refuse a sum that is not of those who came: clients were told different things, or one lied."""
        wanted = {COUNT: len(came), SAMPLES: int(self.job.data.train.sizes[came].sum())}
        if any(int(totals[name]) != value for name, value in wanted.items()):
            raise Void(
                f"The sum of {len(came)} clients does not count {len(came)} clients and their samples, so one of them "
                "did not keep the rules: the sum is void."
            )

    def _signatures(self, clients: list[int], signatures: Mapping[int, bytes]) -> Tensor:
        return as_bytes(b"".join(signatures.get(c, bytes(SIGNATURE)) for c in clients)).view(len(clients), SIGNATURE)

    def _answers(self, requests: Requests, stage: str) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the parts of the answers of use."""
        for client, answer in self.clients.ask(requests) if requests else ():
            with self._judging(client):
                header, parts = wire.decode(answer)
                if header.get("kind") != "reply" or header.get("stage") != stage:
                    raise UnalikeError(str(header.get("reason", "its answer is no reply"))[:500])
                yield client, parts

    def _judging(self, client: int) -> _Judging:
        return _Judging(self.clients, client)


def _sealed(replies: Sequence[Outcome], came: np.ndarray) -> dict[str, Tensor] | None:
    """Return the rows that clients sealed for each other, in the clients' order."""
    by_client = {int(reply.ids[0]): reply.sealed for reply in replies if reply.sealed}
    if not by_client:
        return None
    rows_of = [by_client[int(client)] for client in came]
    return {name: torch.cat([some[name] for some in rows_of]) for name in rows_of[0]}


class _Judging:
    """Leaves a client out whose answer is of no use."""

    def __init__(self, clients: Clients, client: int):
        self.clients, self.client = clients, client

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception) or isinstance(error, Void):
            return False
        self.clients.refuse(self.client, unreadable(error))  # whatever its bytes are: they cost this client's round
        return True
