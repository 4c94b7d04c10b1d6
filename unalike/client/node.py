"""A client on its own: its state in a folder, its answers as bytes. What a real federation runs at each owner's.

`loopback` runs it in one process; a network only has to carry the bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from unalike.client.job import Job
from unalike.client.one_client import OneClient
from unalike.client.state_on_disk import REPLY, REQUEST, ROUND, StateFolder
from unalike.contract import LOSS, Call, Evaluate, Fields
from unalike.messages import wire
from unalike.messages.check import asked_call, check_fields
from unalike.messages.request import united


class Node:
    """Answers requests for one client."""

    def __init__(self, job: Job, client: int, state: StateFolder, one_client: OneClient):
        self.job, self.client, self.state, self.one_client = job, client, state, one_client

    def handle(self, *parts: bytes) -> bytes:
        """Answer a request, which may come in parts: what all clients get, and what is this client's own. A request
        that came before gets the answer it got then."""
        header, tensors = united(parts)
        call = asked_call(header, self.job.method)
        check_fields(tensors, self.job.task)
        if isinstance(call.function, Evaluate):
            return self._evaluate(header, call, call.function.split, tensors)
        sha = hashlib.sha256()
        for part in parts:
            sha.update(part)
        again = self.state.answered(sha.digest())
        if again is not None:
            return again
        networked = "acknowledged" in header
        if networked:
            self.state.settle(header["acknowledged"])
        self.state.begin(call.round, call.exchange)
        kept, sent, loss = self._run(call, tensors)
        reply = self._reply(header, sent, int(self.job.data.train.sizes[self.client]), loss, self.one_client.trained)
        if kept or networked:
            kept |= {REQUEST: _as_tensor(sha.digest()), REPLY: _as_tensor(reply), ROUND: torch.tensor(call.round)}
            self.state.stage(kept)
        return reply

    def _evaluate(self, header: dict[str, Any], call: Call, split: str, tensors: dict[str, Tensor]) -> bytes:
        """Answer the loss and metrics of this client's own model on its own data; nothing is kept."""
        columns = self.job.split(split)
        self.state.settle(header.get("acknowledged"), commit=False)
        _, scores, _ = self._run(call, tensors)
        defined = self.job.task.metrics_for(columns.y)
        scores = {n: v for n, v in scores.items() if n not in defined or defined[n].always or not v.isnan()}
        return self._reply(header, scores, int(columns.sizes[self.client]), float("nan"), 0)

    def _run(self, call: Call, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
        device = self.job.task.device
        state, first = self.state.read()
        message = Fields({k: v.to(device) for k, v in tensors.items()})
        state = {k: v.to(device) for k, v in state.items()}
        return self.one_client.run(call, self.client, state, torch.tensor(first, device=device), message)

    def _reply(self, header: dict[str, Any], sent: dict[str, Tensor], samples: int, loss: float, trained: int) -> bytes:
        """Return the reply's bytes; the training loss is one of its fields, where the client trained."""
        answer = {**header, "kind": "reply", "samples": samples, "trained": trained}
        answer.pop("acknowledged", None)
        if loss == loss:
            sent = {**sent, LOSS: torch.tensor(loss, dtype=torch.float64)}
        return wire.encode(answer, sent)


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
