"""A real federation over Flower's network: each client's half runs on its owner's machine, on data and with state that
never leave it.

The server has a `RemoteFederation` and sends the same bytes as `loopback`. A client that does not answer in time,
or not properly, is left out of the round. Its state is its own: with every request the server says which of the
client's rounds counted last, and the client keeps or forgets what is pending.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from unalike import wire
from unalike.engines.base import Call, Engine, Job, Outcome
from unalike.errors import UnalikeError
from unalike.exchange import check_reply, reply_fields, sizes_of
from unalike.node import check_function, request_header
from unalike.store import ClientStore, Shapes

# What the server keeps of each client: the last of its rounds that counted, plus 2 (0: none; 1: the setting-up, -1).
ACKNOWLEDGED: Shapes = {"acknowledged": ((), torch.int64, "run")}


class Remote(Protocol):
    """The clients as the engine needs them (`unalike.network.server.Clients`)."""

    run: str

    def ask(self, requests: Mapping[int, tuple[bytes, bytes]]) -> dict[int, bytes]:
        """The answers that came in time, by client."""
        ...

    def refuse(self, client: int, reason: str) -> None:
        """An answer came and is of no use."""
        ...


class Flower(Engine):
    name = "flower"

    def __init__(self, job: Job, remote: Remote | None = None):
        super().__init__(job)
        if remote is None or not isinstance(job.states, ClientStore):
            raise UnalikeError(
                "The flower engine runs between machines: use `unalike local-federation N run.toml` here, or "
                "`unalike serve` and `unalike join` there."
            )
        self.remote, self.states = remote, job.states

    def evaluator(self) -> Engine:
        return Evaluator(self.job, self.remote)

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        check_function(self.job, call)
        outcomes = self._exchange(call, ids, request_header(self.job, call))
        answered = np.array([int(o.ids[0]) for o in outcomes], dtype=np.int64)
        silent = np.setdiff1d(ids, answered)
        self.states.stage(answered, {"acknowledged": torch.full((len(answered),), call.round + 2)})
        if len(silent):  # also one that answered an earlier exchange of the round: its round does not count
            self.states.stage(silent, {"acknowledged": self._counted(silent)})
        if not outcomes:
            raise UnalikeError(
                f"Round {call.round + 1}: none of {len(ids)} clients gave an answer of use in time; see that they are "
                "there, then go on from the last checkpoint (--resume)."
            )
        yield from outcomes

    def _exchange(self, call: Call, ids: np.ndarray, header: dict[str, Any]) -> list[Outcome]:
        """Ask these clients; the answers of use, in the clients' order."""
        shared = wire.encode(header, call.shared)
        counted = self._counted(ids).tolist()
        requests = {}
        for position, client in enumerate(ids):
            told = counted[position] - 2 if counted[position] else None
            rows = {name: t[position] for name, t in call.rows.items()}
            requests[int(client)] = (shared, wire.encode({"run": self.remote.run, "acknowledged": told}, rows))
        answers = self.remote.ask(requests)
        outcomes: dict[int, Outcome] = {}
        for client in sorted(answers):
            try:
                outcomes[client] = self._outcome(client, answers[client], {**header, "run": self.remote.run})
            except UnalikeError as error:
                self.remote.refuse(client, str(error))
        for client in odd_ones({k: o.up.keys() for k, o in outcomes.items()}):
            self.remote.refuse(client, f"it sent {', '.join(outcomes[client].up) or 'nothing'}, unlike the others.")
            del outcomes[client]
        return list(outcomes.values())

    def _counted(self, ids: np.ndarray) -> torch.Tensor:
        """What is acknowledged to these clients, before this round; 0 for none."""
        known = np.isin(ids, self.states.known())
        counted = torch.zeros(len(ids), dtype=torch.int64)
        if known.any():
            counted[torch.from_numpy(known)] = self.states.rows_of(ids[known])["acknowledged"].cpu()
        return counted

    def _outcome(self, client: int, answer: bytes, asked: dict[str, Any]) -> Outcome:
        """A reply, checked: to this request, of this client's size, with declared fields of finite numbers."""
        header, sent = wire.decode(answer)
        if header.get("kind") == "error":
            raise UnalikeError(str(header.get("reason"))[:500])
        for key, value in asked.items():
            if header.get(key) != value and key not in ("kind", "trained"):
                raise UnalikeError(f"its reply is to another request: {key} is not {value!r}.")
        if header.get("kind") != "reply":
            raise UnalikeError("its answer is no reply.")
        samples, loss, trained = header.get("samples"), header.get("loss"), header.get("trained")
        if type(samples) is not int or samples != self._samples(client):
            raise UnalikeError(f"it has {samples!r} samples now and had {self._samples(client)} at the beginning.")
        if type(trained) is not int or not 0 <= trained < 1000:
            raise UnalikeError("its reply does not say how often it trained.")
        if not isinstance(loss, int | float) or isinstance(loss, bool) or math.isinf(loss):
            raise UnalikeError("its loss became infinite, or is no number.")
        model = self.job.model
        up = {name: value[None].to(model.device) for name, value in sent.items()}
        self._check_fields(up, asked["function"])
        for name, value in up.items():
            if value.is_floating_point() and value.dtype != model.dtype:
                raise UnalikeError(f"its {name!r} is {value.dtype}: it must be {model.dtype}.")
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise UnalikeError(f"its {name!r} has a value that is NaN or infinite.")
        return Outcome(np.array([client]), up, np.array([samples]), np.array([float(loss)]), trained)

    def _samples(self, client: int) -> int:
        return int(self.job.data.train.sizes[client])

    def _check_fields(self, up: dict[str, torch.Tensor], function: str) -> None:
        method, model = self.job.method, self.job.model
        check_reply(up, reply_fields(method, model), sizes_of(model), method, function)


class Evaluator(Flower):
    """Asks for the loss and metrics of clients' own models on their own data."""

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        self.split: str = call.fn.split  # type: ignore[attr-defined]
        header = request_header(self.job, call) | {"kind": "evaluate", "split": self.split}
        yield from self._exchange(call, ids, header)

    def _samples(self, client: int) -> int:
        return int(self.job.split(self.split).sizes[client])

    def _check_fields(self, up: dict[str, torch.Tensor], function: str) -> None:
        wanted = {"loss", *self.job.model.metrics_for(self.job.data.train.y)}
        if up.keys() != wanted or any(v.numel() != 1 for v in up.values()):
            raise UnalikeError(f"its evaluation must be one number each of {', '.join(sorted(wanted))}.")


def odd_ones(fields: Mapping[int, Any]) -> list[int]:
    """The clients whose fields are not those that most sent."""
    sets = {client: frozenset(names) for client, names in fields.items()}
    usual = collections.Counter(sets.values()).most_common(1)
    return [client for client, names in sets.items() if names != usual[0][0]]
