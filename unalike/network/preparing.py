"""Prepare features between machines from sums that the server learns only as totals over clients.

Before there is a plan, clients have no number and no channel. So the server first tells each of them both, and a client
looks at them as it looks at a plan's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import unalike
from unalike.channel.channel import tables
from unalike.channel.stages import Summed
from unalike.client.preparing import KIND, NoSums
from unalike.crypto.secure_sum import Void
from unalike.data.preparation import Preparation, Recipe
from unalike.engines.preparing import BEGIN, RUN, HiddenPreparation
from unalike.engines.secure import Requests
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.text import named

if TYPE_CHECKING:
    from unalike.network.server import Clients


def beginning(stage: Summed, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the message with which each client is told its number and the stage that hides its sums."""
    message = {"kind": KIND, "stage": BEGIN, "version": unalike.__version__, "run": RUN, "channel": tables([stage])}
    return {client: {**message, "client": client} for client in ids}


class Asking:
    """The clients of a federation, as hidden sums ask them before there is a plan."""

    run, terms = RUN, b""  # before there is a plan

    def __init__(self, clients: Clients):
        self.clients, self.public, self.keys = clients, clients.public, clients.keys
        self.wrong: dict[int, str] = {}
        self.opening = False  # whether clients were asked to open a sum, or to agree to it

    def ask(self, requests: Requests) -> Iterator[tuple[int, bytes]]:
        """Yield the answers, and write down why others do not come."""
        silent = set(requests)
        self.opening = self.opening or any(
            wire.decode(parts[0])[0].get("stage") in ("vote", "open") for parts in requests.values()
        )
        for client, answer in self.clients.quiet(requests, self.wrong):
            silent.discard(client)
            yield client, answer
        for client in silent:
            self.wrong.setdefault(client, "it does not answer, and features are prepared from all clients' sums.")

    def refuse(self, client: int, reason: str) -> None:
        self.wrong.setdefault(client, reason)

    def again(self, reason: str, least: int, among: Collection[int]) -> None:
        self.clients.again(reason, least, among)


def prepared_in_sums(
    clients: Clients, recipe: Recipe, stage: Summed, sizes: Mapping[int, int], targets: int
) -> Preparation:
    """Return the preparation from hidden sums over all of these clients; raise `NoSums` with a client that keeps the
    first sum from being one, while nothing of it was opened."""
    asking = Asking(clients)
    try:
        return HiddenPreparation(recipe, stage, asking, sizes, targets).prepared()
    except Void as void:
        wrong = sorted(asking.wrong.items())
        if wrong and not asking.opening:
            raise NoSums(*wrong[0]) from None
        why = [named(clients.names[client], reason) for client, reason in wrong[:1]]
        raise UnalikeError(" ".join([str(void), *why])) from None
