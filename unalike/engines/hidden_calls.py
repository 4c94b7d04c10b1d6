"""The calls of a run whose channel leaves the server sums alone: one outcome each, the sum over those who came.

Used by engines whose clients are asked by messages: `loopback`, and `flower` between machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.channel.channel import shared_draws
from unalike.channel.stages import Encrypted, SecureSum, Summed
from unalike.channel.summing import COUNT, SAMPLES, Slot, Summing
from unalike.client.job import Job
from unalike.contract.call import Call, Outcome
from unalike.crypto.secure_sum import Void
from unalike.engines.encrypted import EncryptedSums
from unalike.engines.secure import TRIES, Clients, HiddenSums, MaskedSums, Read, Requests
from unalike.errors import UnalikeError


def hidden_sums(stage: Summed, clients: Clients, run: str, shares: int = 0) -> HiddenSums:
    """Return the sums that a stage makes."""
    if isinstance(stage, Encrypted):
        return EncryptedSums(stage, clients, run, shares)
    assert isinstance(stage, SecureSum)
    return MaskedSums(stage, clients, run, shares)


class HiddenCalls:
    """The calls of a run, as sums."""

    def __init__(self, job: Job, clients: Clients):
        assert job.channel is not None
        self.job, self.channel = job, job.channel
        self.sums = hidden_sums(job.secure_stage, clients, clients.run, job.channel.shares)

    def exchange(
        self, call: Call, ids: np.ndarray, slots: Callable[[Summing], list[Slot]], asked: Requests, read: Read
    ) -> Iterator[Outcome]:
        """Yield one outcome: the sums of codes over those who came.

        slots: what is summed; asked: the requests, whose first part is the same for all; read: reads a reply.
        """
        try:
            yield self._summed(call, ids, slots, asked, read)
        except Void as void:
            raise UnalikeError(
                f"Round {call.round + 1}: {void} See that clients are there, then go on from the last checkpoint "
                "(--resume)."
            ) from None

    def _summed(
        self, call: Call, ids: np.ndarray, slots: Callable[[Summing], list[Slot]], asked: Requests, read: Read
    ) -> Outcome:
        job, when = self.job, (call.round, call.exchange)

        def summing(clients: int) -> Summing:
            common = shared_draws(job.seed, *when)
            return Summing(self.channel, job.summed_fields, job.method, common, call.told, clients)

        # a later exchange is not asked for again: the first try has changed what clients keep of this round
        tries = TRIES if call.exchange == 0 else 1
        clients = [int(c) for c in ids]
        found = self.sums.collect(when, clients, lambda n: slots(summing(n)), asked, read, tries=tries)
        came = np.array(found.came)
        self._check(came, found.totals)
        return Outcome(
            came, {}, job.data.train.sizes[came], np.full(len(came), np.nan),
            max(reply.trained for reply in found.replies), finite=np.ones(len(came), dtype=bool),
            sealed=_sealed(found.replies, came), sent=summing(found.clients).bytes(found.slots) * len(came),
            summed=found.totals, slots=found.slots,
        )  # fmt: skip

    def _check(self, came: np.ndarray, totals: dict[str, Tensor]) -> None:
        """Refuse a sum that is not of those who came: clients were told different things, or one lied."""
        wanted = {COUNT: len(came), SAMPLES: int(self.job.data.train.sizes[came].sum())}
        if any(int(totals[name]) != value for name, value in wanted.items()):
            raise Void(
                f"The sum of {len(came)} clients does not count {len(came)} clients and their samples, so one of them "
                "did not keep the rules: the sum is void."
            )


def _sealed(replies: Sequence[Outcome], came: np.ndarray) -> dict[str, Tensor] | None:
    """Return the rows that clients sealed for each other, in the clients' order."""
    by_client = {int(reply.ids[0]): reply.sealed for reply in replies if reply.sealed}
    if not by_client:
        return None
    rows_of = [by_client[int(client)] for client in came]
    return {name: torch.cat([some[name] for some in rows_of]) for name in rows_of[0]}
