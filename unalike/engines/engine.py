"""What every engine is: it runs a client function on some clients and stages the state they return."""

from __future__ import annotations

import functools
from collections.abc import Iterator
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
    architectures: Architectures | None = None  # where clients have different networks (families.py)
    others_seconds = 0.0  # spent in calls so far for other runs of the same stack (batched/lockstep.py)

    def __init__(self, job: Job):
        self.job = job

    @classmethod
    def options(cls) -> Known:
        """Return the options of this engine by name; one without words cannot be written into a file."""
        return {name: setting for name, setting in hints(cls).items() if name != "job"}

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        """Run a call on these clients and yield their outcomes."""
        raise NotImplementedError

    def read(self, call: Call, sent: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the fields of one client's reply as a stack of one, and what an `Outcome` says of the channel that it
        went through at the client; refuse one that is not packed as the run's channel packs it."""
        channel, device = self.job.channel, self.job.task.device
        if channel is None or isinstance(call.function, Evaluate):
            return {name: value[None].to(device) for name, value in sent.items()}, {}
        found = received(channel, sent, shared_draws(self.job.seed, call.round, call.exchange), device)
        return found.up, {"sent": found.sent, "extra": found.extra}

    def renew(self) -> None:
        """Hear that the clients' samples were changed in place (data that drift), between two calls."""
        self.job.renew()

    def leave_out(self, client: int, reason: str) -> None:
        """Hear that a client is not called, and why; in a simulation this does not happen."""

    @functools.cached_property
    def rehearsal(self) -> Rehearsal:
        """What tells, without a client, which fields a function sends."""
        return Rehearsal(self.job)

    def passes(self, call: Call, ids: np.ndarray) -> np.ndarray:
        """Return how often a call has any one of a client's own samples in a step of training, for each of these
        clients. It follows from the method and the clients' sizes, so that no reply has to tell it."""
        fields = reply_fields(self.job.method, self.job.task)
        call = unsealed(call, fields, self.job.task, self.job.method)
        return self.rehearsal.passes(call, ids, self.sizes[ids])

    @property
    def sizes(self) -> np.ndarray:
        """Return each client's training samples."""
        return self.job.data.train.sizes

    @property
    def remark(self) -> str:
        """What belongs beside the reason for its choice, once that is known."""
        return ""

    @property
    def notes(self) -> list[str]:
        """What a user may want to know of how it ran."""
        return []

    def close(self) -> None:
        """Give back threads and files."""
