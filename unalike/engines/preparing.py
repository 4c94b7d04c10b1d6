"""Prepare features from sums that the server learns only as totals over clients, where the run's channel hides replies.

The same two sums as in the open (`unalike/client/preparing.py`), each as one hidden sum over all clients. Totals are
exact, so the preparation has the same bits.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

import unalike
from unalike.channel.stages import Summed
from unalike.channel.summing import COUNT, SAMPLES
from unalike.client.encrypted import hiding_client, new_common_key
from unalike.client.preparing import (
    KIND,
    hidden_sums_for,
    prepared_from,
    right,
    slots_of,
    unlimbed,
    whole_of,
    widths_of,
)
from unalike.contract.call import Outcome
from unalike.crypto.secure_sum import Void
from unalike.data.columns import Columns
from unalike.data.federation import Federation
from unalike.data.joined import JoinedFederation
from unalike.data.preparation import Preparation, Recipe, Sums
from unalike.engines.hidden_calls import hidden_sums
from unalike.engines.secure import TRIES, Clients, Collected, Requests
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.request import asked as as_asked
from unalike.text import printable

# what clients know the preparation by: always the same, so that a client notices a second sum over other clients
RUN = "7072657061726174"
SUMS, BEGIN = "sums", "begin"  # stages of a hidden preparation


@dc.dataclass(frozen=True)
class HiddenPreparation:
    """The preparation of features from hidden sums. sizes: training samples by client; targets: how many numbers are
    predicted at once."""

    recipe: Recipe
    stage: Summed
    clients: Clients
    sizes: Mapping[int, int]
    targets: int

    def prepared(self) -> Preparation:
        """Return the preparation; raise `Void` if a sum is void."""
        return prepared_from(self.recipe, self._totals, sum(self.sizes.values()))

    def _totals(self, centers: Sums, names: Sequence[str]) -> Sums:
        widths = widths_of(names, self.recipe, self.targets)
        slots, round = slots_of(widths, self.stage.tags), int(bool(centers))
        header = {"kind": KIND, "stage": SUMS, "version": unalike.__version__, "run": RUN, "round": round}
        shared = wire.encode({**header, "recipe": self.recipe.plain()}, centers)
        requests = {client: (shared, wire.encode({}, {})) for client in self.sizes}
        # before the second sum nobody may be left out: the first was over all
        tries = TRIES if round else 1
        sums = hidden_sums(self.stage, self.clients, RUN)
        found = sums.collect((round, 0), [*self.sizes], lambda n: slots, requests, _read, len(self.sizes), tries)
        return self._checked(found, widths)

    def _checked(self, found: Collected, widths: dict[str, int]) -> Sums:
        """Return the totals as numbers; refuse what cannot be the sums of all clients."""
        samples = sum(self.sizes.values())
        totals = {name: unlimbed(found.totals[name]) for name in widths}
        if "present" in totals:
            totals["present"] = totals["present"].long()
        counted = int(found.totals[COUNT]), whole_of(found.totals[SAMPLES])
        if counted != (len(self.sizes), samples) or not right(totals, widths, samples):
            raise Void(
                f"The sums do not count {len(self.sizes)} clients and their samples, so one of them did not keep the "
                "rules: they are void."
            )
        return totals


def _read(client: int, answer: bytes) -> tuple[Outcome, dict[str, Tensor]]:
    header, parts = wire.decode(answer)
    if header.get("kind") != "reply":
        raise UnalikeError(printable(header.get("reason"), 500))
    return Outcome(np.array([client]), {}, np.empty(0), np.empty(0)), parts


# ---------------------------------------------------------------- clients in this process


class _InProcess:
    """The clients of a federation in this process, each with its own secrets."""

    run, public, terms, keys = RUN, list[str](), b"", None

    def __init__(self, data: Federation, stage: Summed):
        key = new_common_key(stage)
        self.data, self.stage = data, stage
        self.members = {k: hiding_client(RUN, k, stage, key) for k in range(len(data))}

    def ask(self, requests: Requests) -> Iterator[tuple[int, bytes]]:
        for client, parts in requests.items():
            request = as_asked(parts)
            member = self.members[client]
            if request.header["kind"] == "sum":
                yield client, member.answer(request.header, request.tensors)
            else:
                x, y = self.data.train.of(client)
                yield client, hidden_sums_for(request, Columns(x, y, [0, len(y)]), member)

    def refuse(self, client: int, reason: str) -> None:
        raise UnalikeError(f"Client {client}: {reason}")

    def again(self, reason: str, least: int, among: Collection[int]) -> None:
        raise Void(reason)


def by_hidden_messages(data: Federation, stage: Summed) -> Federation:
    """Prepare a federation as its clients would between machines under this stage; in a joined federation, each
    part."""
    if isinstance(data, JoinedFederation):
        parts = {name: by_hidden_messages(part, stage) for name, part in data.own.items()}
        return JoinedFederation(parts, data.architecture)
    if data.recipe is None:
        return data
    sizes, targets = dict(enumerate(data.train.sizes.tolist())), data.train.y[:1].numel()
    found = HiddenPreparation(data.recipe, stage, _InProcess(data, stage), sizes, targets)
    return data.prepared_by(found.prepared())
