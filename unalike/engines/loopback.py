"""A federation inside one process: every message becomes bytes, every client's state a file.

Slower than `sequential`, with the same results; a method that works here works between real machines.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from unalike.client import FileStates, Job, Node, OneClient
from unalike.client.encrypted import hiding_client, new_common_key
from unalike.client.secure import HidingClient
from unalike.contract.call import Call, Evaluate, Outcome
from unalike.crypto.common_key import CommonKey
from unalike.crypto.secure_sum import Void
from unalike.engines.engine import Engine
from unalike.engines.hidden_calls import HiddenCalls
from unalike.engines.sequential import one
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.check import sent_loss
from unalike.messages.request import request_header, told_parts, united


class Loopback(Engine):
    name = "loopback"

    def __init__(self, job: Job):
        super().__init__(job)
        if not isinstance(job.states, FileStates):
            raise UnalikeError("The loopback engine keeps client state in files: give it FileStates.")
        self.states: FileStates = job.states
        self.one_client = OneClient(job)
        self._members: dict[int, HidingClient] = {}

    @functools.cached_property
    def sums(self) -> HiddenCalls:
        """Return the run's calls as sums, with clients in this process."""
        return HiddenCalls(self.job, self)

    @functools.cached_property
    def common_key(self) -> CommonKey | None:
        """Return the key that all clients have in common, if the channel encrypts."""
        return new_common_key(self.job.secure_stage)

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        if self.job.channel is not None and self.job.channel.hides and isinstance(call.function, str):
            yield from self._secure(call, ids)
            return
        # in evaluation the simulator itself looks at a client's model: there is no message
        run = self._look if isinstance(call.function, Evaluate) else self._exchange
        for position, client in enumerate(ids):
            yield run(call, position, int(client))

    def _look(self, call: Call, position: int, client: int) -> Outcome:
        return one(self.job, self.one_client, call, position, client)

    # ---- secure sums

    run, public, terms, keys = "loopback", list[str](), b"", None

    def _secure(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        shared = wire.encode(request_header(self.job.method, call), {**call.shared, **told_parts(call)})
        rows = [{name: some[k] for name, some in call.rows.items()} for k in range(len(ids))]
        nothing = wire.encode({}, {})
        own = [wire.encode({}, some) if some else nothing for some in rows]
        requests = {int(client): (shared, part) for client, part in zip(ids, own, strict=True)}
        self.one_client.passes = 0
        slots = self.rehearsal.sent(call)
        for outcome in self.sums.exchange(call, ids, lambda summing: summing.slots(slots), requests, self._read):
            outcome.passes = self.one_client.passes
            yield outcome

    def _read(self, client: int, answer: bytes) -> tuple[Outcome, dict[str, Tensor]]:
        header, parts = wire.decode(answer)
        none = np.empty(0)
        return Outcome(np.array([client]), {}, none, none, header["trained"]), parts

    def ask(self, requests: Mapping[int, Sequence[bytes]]) -> Iterator[tuple[int, bytes]]:
        """Yield the clients' answers, computed in this process."""
        for client, parts in requests.items():
            self.states.touched(client)
            if client not in self._members:
                channel = self.job.channel
                assert channel is not None
                stage, key = self.job.secure_stage, self.common_key
                self._members[client] = hiding_client(self.run, client, stage, key, channel.shares)
            member = self._members[client]
            header, tensors = united(parts)
            if header.get("kind") == "sum":
                yield client, member.answer(header, tensors)
            else:
                node = Node(self.job, client, self.states.of(client), self.one_client, secure=member)
                yield client, node.handle(*parts)

    def again(self, reason: str, least: int, among: Collection[int]) -> None:
        raise Void(reason)  # nobody comes back here

    def refuse(self, client: int, reason: str) -> None:
        raise UnalikeError(f"Client {client}: {reason}")

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
        # counted by the simulator, as no reply tells it
        return Outcome(*one, batches=batches, passes=self.one_client.passes, **carried)
