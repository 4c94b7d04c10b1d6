"""The channel in one exchange of a simulation: first every reply passes through it, then their sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.channel.channel import KEPT, Channel, kept_of, shared_draws
from unalike.channel.stage import Draw, Total, Way
from unalike.channel.summing import EXTRA, LOSS, OWN, TRAINED, Build, Slot, Summing
from unalike.channel.sums import Sums
from unalike.contract import Outcome

# key in the server's values: the secret for noise that the server must draw again
SECRET = KEPT + "secret"


class Kept(Protocol):
    """A store for what stages keep for clients (`unalike.client.ClientStore`)."""

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]: ...
    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None: ...


class Passage:
    """One exchange.

    draw: returns the draws of some clients; values: the server's values by name, among which the channel keeps its own;
    seed: for common draws and for the server's noise; secret: the server's noise comes from the operating system
    instead, because real clients know the seed; expected: the mean number of clients over all rounds; summing: for a
    channel that hides replies, makes the description of a sum over `clients` clients; sealed: fields that are for other
    clients.
    """

    def __init__(
        self,
        channel: Channel,
        kept: Kept | None,
        values: dict[str, Any],
        draw: Callable[[np.ndarray], Draw],
        seed: int,
        when: tuple[int, int],
        expected: float,
        secret: bool = False,
        summing: Build | None = None,
        clients: int = 0,
        sealed: frozenset[str] = frozenset(),
    ):
        self.channel, self.kept, self.values, self.draw = channel, kept, values, draw
        self.seed, self.when, self.expected, self.secret = seed, when, expected, secret
        self.told = channel.told(values)
        self.common = shared_draws(seed, *when)
        self.extra: dict[str, float] = dict.fromkeys(channel.extra, 0.0)
        self.sealed = sealed
        self.summing: Summing | None = None
        if summing is not None and clients:
            channel.hiding.check_clients(clients)  # refuses a sum over too few clients
            self.summing = summing(self.common, self.told, clients)
        self.slots: list[Slot] = []
        # sums of the numbers about replies themselves, as codes
        self.own: dict[str, int] = {}

    def send(self, outcome: Outcome) -> int:
        """Pass the replies of an outcome through the client half, in any thread, once; return the bytes that travelled
        for the fields concerned. Replies from other machines have passed through it there."""
        if outcome.sent is None:
            outcome.sent = self._client_half(outcome)
        return outcome.sent

    def take(self, outcome: Outcome) -> int:
        """Take in the replies of an outcome, as the server reads them; return the bytes that `send` counts."""
        sent = self.send(outcome)
        if self.summing is not None:
            self._take_own(outcome)
        for name, value in (outcome.extra or {}).items():
            self.extra[name] = self.extra.get(name, 0.0) + float(value.double().sum())
        return sent

    def _client_half(self, outcome: Outcome) -> int:
        """Pass simulated replies through the stages."""
        kept, _ = self.kept.read(outcome.ids) if self.kept is not None else ({}, None)
        up = {name: rows for name, rows in outcome.up.items() if name not in self.sealed}
        if self.summing is not None:
            up = self.summing.weighed(up, outcome.samples)
        way = self.channel.client(up, self.draw(outcome.ids), self.common, kept, self.told)
        if self.kept is not None:
            self.kept.stage(outcome.ids, way.kept)
        if self.summing is not None:
            return self._summed(self.summing, outcome, up, way)
        dense = {name: flight.dense().view_as(outcome.up[name]) for name, flight in way.flights.items()}
        outcome.up, outcome.extra = {**outcome.up, **dense}, way.extra
        each = sum(flight.form.bytes for flight in way.flights.values()) + len(way.extra)
        return each * len(outcome.ids)

    def _summed(self, summing: Summing, outcome: Outcome, up: dict[str, Tensor], way: Way) -> int:
        """Replace replies by the sums of their codes."""
        slots = outcome.slots = summing.slots({name: rows[0] for name, rows in up.items()})
        codes = summing.codes(slots, up, way, outcome.loss, outcome.samples)
        outcome.summed = {name: rows.sum(0) if len(rows) > 1 else rows[0] for name, rows in codes.items()}
        outcome.up = {name: rows for name, rows in outcome.up.items() if name in self.sealed}
        return summing.bytes(slots) * len(outcome.ids)

    def _take_own(self, outcome: Outcome) -> None:
        """Remove the slots that are not fields from an outcome's sums."""
        self.slots = outcome.slots or []
        outcome.summed = dict(outcome.summed or {})
        for slot in (slot for slot in self.slots if slot.name.startswith(OWN)):
            self.own[slot.name] = self.own.get(slot.name, 0) + int(outcome.summed.pop(slot.name))

    @property
    def losses(self) -> np.ndarray:
        """Return the mean training loss, repeated once per client that trained."""
        trained = self.own.get(TRAINED, 0)
        unit = 0.0 if self.summing is None else self.summing.unit
        return np.full(trained if LOSS in self.own else 0, self.own.get(LOSS, 0) * unit / max(trained, 1))

    def saved(self, sums: Sums) -> int:
        """Return the bytes that the stages took off the replies."""
        if self.summing is None:
            return self.channel.saved(sums.names) * len(sums.ids)
        plain = sum(form.bytes for form in self.channel.plain(sums.names).values())
        return (plain - self.summing.bytes(self.slots)) * len(sums.ids)

    def opening_bytes(self, came: int) -> tuple[int, int]:
        """Return the bytes, down and up, of opening the sum over this many clients, if that takes any beside the
        replies'."""
        return (0, 0) if self.summing is None else self.summing.opening_bytes(self.slots, came)

    def close(self, sums: Sums) -> None:
        """Pass the sums through the channel's server half."""
        own = kept_of(self.values)
        total = Total(
            {name: sums.total(name) for name in sums.names if sums.fields[name].read != "sealed"},
            len(sums.ids), self.expected, self.extra, own, self._normal, self._lasting, *self.when,
            hidden=self.summing is not None,
        )  # fmt: skip
        before = dict(total.sums)
        if self.summing is not None:
            total.sums |= {s.name: self.summing.decoded(s, before[s.name]) for s in self.slots if s.name in before}
            total.extra = {name: float(self.own.get(EXTRA + name, 0)) for name in self.extra}
        self.channel.server(total, [*before])
        for name, value in total.sums.items():
            if value is not before[name]:
                sums.replace(name, value)
        if self.channel.central:
            sums.expect(self.expected)
        self.values.update({KEPT + name: value for name, value in own.items()})

    def _normal(self, purpose: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw the server's standard normal numbers, float64."""
        if self.secret:
            return draws.SecretDraws(None, like.device, torch.float64).normal(purpose, shape)
        key = torch.tensor(draws.key(self.seed, "channel noise", *self.when, purpose), device=like.device)
        return draws.fine_normal(key, shape)

    def _lasting(self, purpose: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw standard normal numbers that depend on the purpose alone, the same in every exchange."""
        if self.secret:
            own = bytes.fromhex(self.values.setdefault(SECRET, draws.new_secret().hex()))
            return draws.lasting_normal(own, purpose, shape).to(like.device)
        key = torch.tensor(draws.key(self.seed, "channel lasting noise", purpose), device=like.device)
        return draws.fine_normal(key, shape)
