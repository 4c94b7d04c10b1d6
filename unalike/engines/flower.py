"""A real federation over Flower's network: each client's half runs on its owner's machine, with data and state that
never leave it.

The server has a `RemoteFederation` and sends the same bytes as `loopback`. A client that does not answer in time, or
not properly, is left out of the round. Its state stays with it: with every request the server says which of the
client's rounds counted last, and the client keeps or forgets its pending state accordingly. A reply is checked and
passed on when it comes, so the server holds one at a time. Rows that clients seal for each other wait here, and are
passed on with a key that their sender has wrapped for the receiver: the server cannot open them.
"""

from __future__ import annotations

import contextlib
import dataclasses as dc
import functools
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np
import torch

from unalike.client import ClientStore, Job, Rehearsal, Shapes
from unalike.client.secure import Verifier
from unalike.contract.architectures import Architectures, remaining
from unalike.contract.call import Call, Evaluate, Outcome
from unalike.data.remote import RemoteFederation
from unalike.engines.engine import Engine
from unalike.engines.hidden_calls import HiddenCalls
from unalike.engines.norms import Norms
from unalike.engines.secure import Read
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.check import (
    LARGEST,
    check_evaluation,
    check_kinds,
    check_reply,
    received_outcome,
    reply_fields,
    unreadable,
)
from unalike.messages.request import request_header, told_parts
from unalike.messages.sealed import take_sealed, unsealed, wrapped_keys

# For each client the server keeps the last of its rounds that counted, plus 2 (0: none; 1: the set-up, round -1).
ACKNOWLEDGED: Shapes = {"acknowledged": ((), torch.int64, "run")}


class Remote(Protocol):
    """The clients, as this engine needs them (`unalike.network.server.Clients`)."""

    run: str
    public: list[str]  # the clients' public keys, by number
    terms: bytes  # a hash of the plan that all have got
    limits: Any  # `unalike.network.limits.Limits`
    times: Any  # `unalike.network.profile.Times`

    @property
    def keys(self) -> Verifier | None:
        """What looks at these keys."""
        ...

    def ask(self, requests: Mapping[int, Sequence[bytes]]) -> Generator[tuple[int, bytes], None, None]:
        """Yield the answers that come in time, as they come."""
        ...

    def post(self, requests: Mapping[int, Sequence[bytes]]) -> set[int]:
        """Send requests whose answers `arrival` gives; return to whom."""
        ...

    def arrival(self) -> tuple[int, bytes | None] | None:
        """Wait for the next of these answers, or for hearing that one is lost."""
        ...

    def accept(self, client: int, round: int) -> None:
        """Record that a client's answer is usable."""
        ...

    def refuse(self, client: int, reason: str, blame: bool = True) -> None:
        """Report that a client's answer is not usable; blame: whether it counts as the client's failure."""
        ...

    def again(self, reason: str, least: int, among: Collection[int]) -> None:
        """Called when a sum will be tried again; waits a while until `least` of these clients are there."""
        ...

    def welcome(self) -> Mapping[int, Mapping[str, int]]:
        """Send the plan to clients that have come since the start; return their samples in each split."""
        ...


class Flower(Engine):
    name = "flower"
    ordered = False

    def __init__(self, job: Job, remote: Remote | None = None):
        super().__init__(job)
        if remote is None or not isinstance(job.states, ClientStore):
            raise UnalikeError(
                "The flower engine runs between machines: use `unalike local-federation N run.toml` here, or "
                "`unalike serve` and `unalike join` there."
            )
        self.remote, self.states = remote, job.states
        self.fields = reply_fields(job.method, job.task)
        self.rehearsal = Rehearsal(job)
        self._judges: dict[int, Callable[[int, bytes], Outcome]] = {}  # by client, of an asynchronous run
        self._came: dict[int, Outcome] = {}

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        if isinstance(call.function, str) and self._came:
            return self._of_those_that_came(call, ids)
        return together(self, call, ids)

    def greet(self) -> None:
        """Send the plan to clients that have come since the start, and learn how many samples they have."""
        for client, sizes in self.remote.welcome().items():
            assert isinstance(self.job.data, RemoteFederation)
            self.job.data.learn(client, sizes)

    # ---- clients that arrive when they can

    def post(self, call: Call, ids: np.ndarray) -> np.ndarray:
        """Send a call to clients without waiting for them; return those that it was sent to."""
        bound = self.remote.limits.norm
        if math.isfinite(bound.most) or math.isfinite(bound.times):
            raise UnalikeError("A norm is judged beside those of a round: leave it out, or run synchronously.")
        self.greet()
        sent = self.remote.post(self.requests(call, ids, {}))
        judge = self.judge(call)
        self._judges |= dict.fromkeys(sent, judge)
        return np.array(sorted(sent), dtype=np.int64)

    def arrival(self) -> tuple[int, bool] | None:
        """Wait for the next client that was sent a call: which, and whether its answer is of use; None where nobody is
        at work. The answer is kept until `call` asks for it."""
        found = self.remote.arrival()
        if found is None:
            return None
        client, answer = found
        judge = self._judges.pop(client, None)
        if answer is None or judge is None:
            return client, False
        try:
            self._came[client] = judge(client, answer)
        except Exception as error:  # whatever its bytes are: they cost this client's work, and no more
            self.remote.refuse(client, unreadable(error))
            return client, False
        return client, True

    def _of_those_that_came(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        for client in ids.tolist():
            yield self._came.pop(client)
            self.remote.accept(client, call.round + 1)
        self.acknowledge(ids, ids.tolist(), call.round)

    def leave_out(self, client: int, reason: str) -> None:
        self.remote.refuse(client, reason, blame=False)

    def wrapped(
        self, call: Call, ids: np.ndarray, several: Architectures | None
    ) -> tuple[np.ndarray, Call, dict[int, dict[str, Any]]]:
        """Ask the senders of sealed rows to wrap their keys for the receivers. Return the clients that can be
        called, their call, and what each is told about its sealed parts. A receiver whose sender does not answer is
        left out."""
        rows: dict[int, list[dict[str, Any]]] = {}
        for part, some in call.parcels.items():
            for sender, receiver in zip(some.senders.tolist(), some.receivers.tolist(), strict=True):
                key = {"receiver": receiver, "key": self.remote.public[receiver], "part": part}
                rows.setdefault(sender, []).append({"field": some.field, "exchange": some.exchange, **key})
        told: dict[int, dict[str, Any]] = {int(client): {} for client in ids}
        header = {"run": self.remote.run, "round": call.round, "at": call.exchange}
        requests = {sender: (wire.encode({"kind": "wrap", **header, "rows": of}, {}),) for sender, of in rows.items()}
        for sender, answer in self.remote.ask(requests):
            try:
                found = wrapped_keys(answer, header, len(rows[sender]))
            # any error in decoding costs this client's round, and no more
            except Exception as error:
                self.remote.refuse(sender, unreadable(error))
                continue
            for row, wrapped in zip(rows[sender], found, strict=True):
                whose = {"sender": sender, "key": self.remote.public[sender], "wrapped": wrapped}
                about = {"field": row["field"], "exchange": row["exchange"], **whose}
                told[row["receiver"]][row["part"]] = about
        there = np.array([told[int(client)].keys() == call.parcels.keys() for client in ids])
        for client in ids[~there]:
            self.leave_out(int(client), "the client that sends it a row did not give the key.")
        return ids[there], dc.replace(call, rows=remaining(call.rows, ids, there, several)), told

    def requests(
        self, call: Call, ids: np.ndarray, sealed: Mapping[int, dict[str, Any]]
    ) -> dict[int, tuple[bytes, bytes]]:
        """Return the request for each of these clients: the part that is the same for all, and its own part; sealed:
        what each is told about sealed parts."""
        shared = wire.encode(request_header(self.job.method, call), {**call.shared, **told_parts(call)})
        counted = self._counted(ids).tolist()
        requests = {}
        for position, client in enumerate(ids):
            last = counted[position] - 2 if counted[position] else None
            rows = {name: t[position] for name, t in call.rows.items()}
            own = {"run": self.remote.run, "acknowledged": last}
            if sealed:
                own["sealed"] = sealed[int(client)]
            requests[int(client)] = (shared, wire.encode(own, rows))
        return requests

    def judge(self, call: Call) -> Callable[[int, bytes], Outcome]:
        """Return a function that turns a client's answer to this call into an outcome, or raises what is wrong with
        it."""
        job, asked = self.job, {**request_header(self.job.method, call), "run": self.remote.run}
        sizes, like = job.data.train.sizes, dict[str, torch.Tensor]()
        if isinstance(call.function, Evaluate):
            sizes = job.split(call.function.split).sizes
        else:
            like = self.rehearsal.sent(unsealed(call, self.fields, job.task, job.method))
        most = LARGEST * max(1.0, *(float(v.abs().max()) for v in floats(call.shared)), 1.0)

        def outcome(client: int, answer: bytes) -> Outcome:
            read = functools.partial(self.read, call)
            hidden = job.hidden and isinstance(call.function, str)
            found = received_outcome(client, answer, asked, int(sizes[client]), job.task, read, hidden)
            names = found.up.keys() | ()
            if isinstance(call.function, str):
                found.sealed = take_sealed(found.up, self.fields, job.task, job.method)
                check_kinds(found.up, like, most, int(sizes[client]) * len(sizes))
            self._check(found.up, names, frozenset(like), call)
            return found

        return outcome

    @functools.cached_property
    def sums(self) -> HiddenCalls:
        """Return the run's calls as sums."""
        return HiddenCalls(self.job, self.remote)

    def judge_masked(self, call: Call) -> tuple[Read, dict[str, torch.Tensor]]:
        """Return a function that reads a client's masked answer to this call, and the tensors that are in the sum."""
        job, asked = self.job, {**request_header(self.job.method, call), "run": self.remote.run}
        sent = self.rehearsal.sent(unsealed(call, self.fields, job.task, job.method))
        sealed = [name for name in sent if self.fields[name].read == "sealed"]

        def read(client: int, answer: bytes) -> tuple[Outcome, dict[str, torch.Tensor]]:
            parts: dict[str, torch.Tensor] = {}

            def take(found: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
                parts.update({name: value for name, value in found.items() if name not in sealed})
                return {name: found[name][None] for name in sealed if name in found}, {}

            size = int(job.data.train.sizes[client])
            reply = received_outcome(client, answer, asked, size, job.task, take, hidden=True)
            names = {*reply.up}
            reply.sealed = take_sealed(reply.up, self.fields, job.task, job.method)
            if names != {*sealed}:
                raise UnalikeError(f"its reply lacks what {call.function} seals for other clients.")
            return reply, parts

        return read, {name: value for name, value in sent.items() if name not in sealed}

    def acknowledge(self, ids: np.ndarray, answered: list[int], round: int) -> None:
        """Record whose round counts."""
        counts = np.array(sorted(answered), dtype=np.int64)
        self.states.stage(counts, {"acknowledged": torch.full((len(counts),), round + 2)})
        silent = np.setdiff1d(ids, counts)
        # also a client that answered an earlier exchange of the round: its round does not count
        if len(silent):
            self.states.stage(silent, {"acknowledged": self._counted(silent)})

    def _check(self, up: dict[str, torch.Tensor], names: Set[str], sends: frozenset[str], call: Call) -> None:
        if isinstance(call.function, Evaluate):
            check_evaluation(up, self.job.task, self.job.data.train.y)
            return
        check_reply(up, self.fields, self.job.task, self.job.method, call.function)
        if names != sends:
            sent = ", ".join(sorted(names)) or "nothing"
            raise UnalikeError(f"it sent {sent}, and {call.function} sends {', '.join(sorted(sends))}.")

    def _counted(self, ids: np.ndarray) -> torch.Tensor:
        """Return the round acknowledged to each of these clients before this one; 0 for none."""
        known = np.isin(ids, self.states.known())
        counted = torch.zeros(len(ids), dtype=torch.int64)
        if known.any():
            counted[torch.from_numpy(known)] = self.states.rows_of(ids[known])["acknowledged"].cpu()
        return counted


# an architecture's engine, its own form of a call, its clients
Parts = Sequence[tuple[Flower, Call, np.ndarray]]


def _secure(engine: Flower, call: Call, ids: np.ndarray, sealed: Mapping[int, dict[str, Any]]) -> Iterator[Outcome]:
    """Ask clients for the secure sum of their answers."""
    norm = engine.remote.limits.norm
    if math.isfinite(norm.most) or math.isfinite(norm.times):
        raise UnalikeError("A norm of single replies cannot be seen in a secure sum: leave it out, and clip instead.")
    judge, masked = engine.judge_masked(call)
    requests = engine.requests(call, ids, sealed)
    for outcome in engine.sums.exchange(call, ids, lambda summing: summing.slots(masked), requests, judge):
        engine.acknowledge(ids, outcome.ids.tolist(), call.round)
        for client in outcome.ids.tolist():
            engine.remote.accept(client, call.round + 1)
        yield outcome


def together(
    first: Flower,
    call: Call,
    ids: np.ndarray,
    several: Architectures | None = None,
    divide: Callable[[Call, np.ndarray], Parts] | None = None,
) -> Iterator[Outcome]:
    """Ask clients of one or several architectures at the same time, and yield the usable answers as they come.

    first: one of the engines; divide: returns the parts of a call, if there are several architectures.
    """
    sealed: Mapping[int, dict[str, Any]] = {}
    if call.parcels:
        ids, call, sealed = first.wrapped(call, ids, several)
    if not len(ids):  # no client has its row, and all were told
        return
    remote = first.remote
    hides = first.job.channel is not None and first.job.channel.hides and isinstance(call.function, str)
    if call.exchange == 0 and not hides:  # else they were greeted before it was told whose samples are the most
        first.greet()
    if hides:
        yield from _secure(first, call, ids, sealed)
        return
    judges: dict[int, Callable[[int, bytes], Outcome]] = {}
    requests: dict[int, tuple[bytes, bytes]] = {}
    with remote.times.spent("serialisation"):
        for engine, own, some in [(first, call, ids)] if divide is None else divide(call, ids):
            judges |= dict.fromkeys(some.tolist(), engine.judge(own))
            requests |= engine.requests(own, some, sealed)
    answered: list[int] = []
    enough = remote.limits.sufficient(len(ids)) if call.round >= 0 else len(ids)
    norms = Norms(remote.limits.norm)
    with contextlib.closing(remote.ask(requests)) as answers:
        for client, answer in answers:
            try:
                with remote.times.spent("serialisation"):
                    outcome = judges[client](client, answer)
            # any error in decoding costs this client's round, and no more
            except Exception as error:
                remote.refuse(client, unreadable(error))
                continue
            for kept in norms.take(outcome):
                answered.append(_taken(remote, kept, call))
                yield kept
            if len(answered) + norms.waiting >= enough:
                break
    for kept in norms.rest():
        answered.append(_taken(remote, kept, call))
        yield kept
    for client, reason in norms.beyond.items():
        remote.refuse(client, reason)
    if isinstance(call.function, Evaluate):
        return
    first.acknowledge(ids, answered, call.round)  # all engines write to one store
    if not answered:
        raise UnalikeError(
            f"Round {call.round + 1}: none of {len(ids)} clients gave an answer of use in time; see that they are "
            "there, then go on from the last checkpoint (--resume)."
        )


def _taken(remote: Remote, outcome: Outcome, call: Call) -> int:
    """Record that a client's answer is usable; return the client."""
    client = int(outcome.ids[0])
    remote.accept(client, call.round + 1)
    return client


def floats(fields: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the float tensors of a message that are not empty."""
    for value in fields.values():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            yield value
