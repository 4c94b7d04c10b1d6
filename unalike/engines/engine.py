"""The interface of every engine: it runs a client function on some clients and stages the state they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from unalike.channel.channel import shared_draws
from unalike.channel.travel import received
from unalike.client.job import Job
from unalike.client.rehearsal import Rehearsal
from unalike.contract.architectures import Architectures
from unalike.contract.call import Call, Evaluate, Outcome
from unalike.messages.check import reply_fields
from unalike.messages.sealed import unsealed
from unalike.settings.typed import Known, hints


class Engine:
    """Runs calls for a job."""

    name = "engine"
    ordered = True  # whether outcomes come in client order
    architectures: Architectures | None = None  # set if clients have different networks (families.py)
    # seconds spent so far in calls for other runs of the same stack (batched/lockstep.py)
    planned = 0  # rounds of the whole run; 0: not known
    others_seconds = 0.0

    def __init__(self, job: Job):
        self.job = job

    @classmethod
    def options(cls) -> Known:
        """Return the options of this engine by name; an option without a description cannot be written into a file."""
        return {name: setting for name, setting in hints(cls).items() if name != "job"}

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        """Run a call on these clients and yield their outcomes."""
        raise NotImplementedError

    def call_and_send(self, call: Call, ids: np.ndarray, send: Callable[[Outcome], None]) -> Iterator[Outcome]:
        """Run a call on these clients and yield their outcomes, each passed through `send`. An engine with threads of
        its own does this there, where the reply still lies in the cache of a processor."""
        for outcome in self.call(call, ids):
            send(outcome)
            yield outcome

    def read(self, call: Call, sent: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the fields of one client's reply as a stack of one, and the channel's part of an `Outcome`; refuse a
        reply that is not packed as the run's channel packs it."""
        channel, device = self.job.channel, self.job.task.device
        if channel is None or isinstance(call.function, Evaluate):
            return {name: value[None].to(device) for name, value in sent.items()}, {}
        found = received(channel, sent, shared_draws(self.job.seed, call.round, call.exchange), device)
        return found.up, {"sent": found.sent, "extra": found.extra}

    def greet(self) -> None:
        """Called before the first exchange of a round whose replies are hidden: whoever has come since takes part in it
        with the samples that it has."""

    def renew(self) -> None:
        """Called between two calls, after the clients' samples were changed in place (data that drift)."""
        self.job.renew()

    def leave_out(self, client: int, reason: str) -> None:
        """Called when a client is left out, with the reason; never in a simulation."""

    @functools.cached_property
    def rehearsal(self) -> Rehearsal:
        """Return the rehearsal, which tells without a client which fields a function sends."""
        return Rehearsal(self.job)

    def passes(self, call: Call, ids: np.ndarray) -> np.ndarray:
        """Return for each of these clients how often a call uses any one of its own samples in a step of training. It
        follows from the method and the clients' sizes, so that no reply has to tell it."""
        fields = reply_fields(self.job.method, self.job.task)
        call = unsealed(call, fields, self.job.task, self.job.method)
        return self.rehearsal.passes(call, ids, self.sizes[ids])

    @property
    def sizes(self) -> np.ndarray:
        """Return each client's number of training samples."""
        return self.job.data.train.sizes

    @property
    def remark(self) -> str:
        """Return a remark to go with the reason for the engine's choice, once it is known."""
        return ""

    @property
    def waits(self) -> str:
        """Return what the first round waits for, a line for the user; empty where it does not wait."""
        return ""

    @property
    def notes(self) -> list[str]:
        """Return remarks for the user on how the engine ran."""
        return []

    def close(self) -> None:
        """Release threads and files."""
