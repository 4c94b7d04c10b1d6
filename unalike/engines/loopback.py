"""A federation inside one process: every message becomes bytes, every client's state a file.

Slower than `sequential` and equal to it: what works here works between real machines.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unalike.client import FileStates, Job, Node, OneClient
from unalike.contract.call import Call, Evaluate, Outcome
from unalike.engines.engine import Engine
from unalike.engines.sequential import one
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.check import sent_loss
from unalike.messages.request import request_header, told_parts


class Loopback(Engine):
    name = "loopback"

    def __init__(self, job: Job):
        super().__init__(job)
        if not isinstance(job.states, FileStates):
            raise UnalikeError("The loopback engine keeps client state in files: give it FileStates.")
        self.states: FileStates = job.states
        self.one_client = OneClient(job)

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        # evaluation is the simulator's own look at a client's model: no message is made of it
        run = self._look if isinstance(call.function, Evaluate) else self._exchange
        for position, client in enumerate(ids):
            yield run(call, position, int(client))

    def _look(self, call: Call, position: int, client: int) -> Outcome:
        return one(self.job, self.one_client, call, position, client)

    def _exchange(self, call: Call, position: int, client: int) -> Outcome:
        message = {**call.message(position), **told_parts(call)}
        request = wire.encode(request_header(self.job.method, call), message)
        self.states.touched(client)
        node = Node(self.job, client, self.states.of(client), self.one_client)
        self.one_client.passes = 0
        answer, sent = wire.decode(node.handle(request))
        loss = sent_loss(sent)
        up, carried = self.read(call, sent)
        samples = np.array([answer.get("samples", self.sizes[client])])
        batches = np.array([answer.get("batches", 0)])
        one = np.array([client]), up, samples, np.array([loss]), answer["trained"]
        # the simulator's own count: no reply tells it
        return Outcome(*one, batches=batches, passes=self.one_client.passes, **carried)
