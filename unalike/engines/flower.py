"""A real federation over Flower's network: each client's half runs on its owner's machine, on data and with state that
never leave it.

The server has a `RemoteFederation` and sends the same bytes as `loopback`. A client that does not answer in time,
or not properly, is left out of the round. Its state is its own: with every request the server says which of the
client's rounds counted last, and the client keeps or forgets what is pending. A reply is checked and handed on when it
comes: the server holds one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from unalike.client import ClientStore, Job, Rehearsal, Shapes
from unalike.contract.call import Call, Evaluate, Outcome
from unalike.engines.engine import Engine
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.check import check_evaluation, check_reply, received_outcome, reply_fields
from unalike.messages.request import request_header

# What the server keeps of each client: the last of its rounds that counted, plus 2 (0: none; 1: the setting-up, -1).
ACKNOWLEDGED: Shapes = {"acknowledged": ((), torch.int64, "run")}


class Remote(Protocol):
    """The clients as the engine needs them (`unalike.network.server.Clients`)."""

    run: str

    def ask(self, requests: Mapping[int, tuple[bytes, bytes]]) -> Iterable[tuple[int, bytes]]:
        """Yield the answers that come in time, as they come."""
        ...

    def refuse(self, client: int, reason: str) -> None:
        """Say that an answer came and is of no use."""
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

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        return together(call, ids, [(self, call, ids)])

    def requests(self, call: Call, ids: np.ndarray) -> dict[int, tuple[bytes, bytes]]:
        """Return what is sent to each of these clients: what all of them get, and what is its own."""
        shared = wire.encode(request_header(self.job.method, call), call.shared)
        counted = self._counted(ids).tolist()
        requests = {}
        for position, client in enumerate(ids):
            last = counted[position] - 2 if counted[position] else None
            rows = {name: t[position] for name, t in call.rows.items()}
            requests[int(client)] = (shared, wire.encode({"run": self.remote.run, "acknowledged": last}, rows))
        return requests

    def judge(self, call: Call) -> Callable[[int, bytes], Outcome]:
        """Return the function that makes an outcome of a client's answer to this call, or raises what is wrong."""
        asked = {**request_header(self.job.method, call), "run": self.remote.run}
        sizes, sends = self.job.data.train.sizes, frozenset[str]()
        if isinstance(call.function, Evaluate):
            sizes = self.job.split(call.function.split).sizes
        else:
            sends = self.rehearsal.sends(call)

        def outcome(client: int, answer: bytes) -> Outcome:
            found = received_outcome(client, answer, asked, int(sizes[client]), self.job.task)
            self._check(found.up, sends, call)
            return found

        return outcome

    def acknowledge(self, ids: np.ndarray, answered: list[int], round: int) -> None:
        """Write down whose round counts."""
        counts = np.array(sorted(answered), dtype=np.int64)
        self.states.stage(counts, {"acknowledged": torch.full((len(counts),), round + 2)})
        silent = np.setdiff1d(ids, counts)
        if len(silent):  # also one that answered an earlier exchange of the round: its round does not count
            self.states.stage(silent, {"acknowledged": self._counted(silent)})

    def _check(self, up: dict[str, torch.Tensor], sends: frozenset[str], call: Call) -> None:
        if isinstance(call.function, Evaluate):
            check_evaluation(up, self.job.task, self.job.data.train.y)
            return
        check_reply(up, self.fields, self.job.task, self.job.method, call.function)
        if up.keys() != sends:
            raise UnalikeError(
                f"it sent {', '.join(sorted(up)) or 'nothing'}, and {call.function} sends {', '.join(sorted(sends))}."
            )

    def _counted(self, ids: np.ndarray) -> torch.Tensor:
        """Return what is acknowledged to these clients, before this round; 0 for none."""
        known = np.isin(ids, self.states.known())
        counted = torch.zeros(len(ids), dtype=torch.int64)
        if known.any():
            counted[torch.from_numpy(known)] = self.states.rows_of(ids[known])["acknowledged"].cpu()
        return counted


def together(call: Call, ids: np.ndarray, parts: Sequence[tuple[Flower, Call, np.ndarray]]) -> Iterator[Outcome]:
    """Ask clients of one or several architectures all at once, and yield the answers of use as they come.

    parts: each architecture's engine, its own form of the call, and its clients.
    """
    remote = parts[0][0].remote
    judges: dict[int, Callable[[int, bytes], Outcome]] = {}
    requests: dict[int, tuple[bytes, bytes]] = {}
    for engine, own, some in parts:
        judges |= dict.fromkeys(some.tolist(), engine.judge(own))
        requests |= engine.requests(own, some)
    answered: list[int] = []
    for client, answer in remote.ask(requests):
        try:
            outcome = judges[client](client, answer)
        except UnalikeError as error:
            remote.refuse(client, str(error))
        else:
            answered.append(client)
            yield outcome
    if isinstance(call.function, Evaluate):
        return
    parts[0][0].acknowledge(ids, answered, call.round)  # all write to one store
    if not answered:
        raise UnalikeError(
            f"Round {call.round + 1}: none of {len(ids)} clients gave an answer of use in time; see that they are "
            "there, then go on from the last checkpoint (--resume)."
        )
