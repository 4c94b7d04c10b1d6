"""The guest's view of the other parties: `hosts.call(self.partial, rows=rows).sum("z")`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unalike.contract import Fields
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.vertical.fields import check, numbers_in
from unalike.vertical.links import Link, answered
from unalike.vertical.method import Me, Vertical
from unalike.vertical.noise import Noise
from unalike.vertical.sums import opened


class PerParty:
    """A field that differs between parties: one value each, in the order of the hosts."""

    def __init__(self, values: Sequence[Tensor]):
        self.values = list(values)


class Traffic:
    """Everything that has crossed in this run: bytes up (to the guest) and down, exchanges, and how often a row's
    numbers did."""

    def __init__(self) -> None:
        self.up = self.down = self.exchanges = 0
        self.releases: Counter[str] = Counter()  # for each field, how often a batch's rows crossed


class Replies:
    """The hosts' answers. hidden: fields of which only the sum can be read."""

    def __init__(self, method: Vertical, replies: list[dict[str, Tensor]], hidden: Sequence[str] = ()):
        self._method, self._replies, self._hidden = method, replies, hidden

    def each(self, name: str) -> list[Tensor]:
        """Return every host's value, in their order; only for fields that declare it."""
        if self._method.sends[name].read == "sum":
            raise UnalikeError(f"{type(self._method).__name__} declares {name!r} to be read as a sum.")
        return [reply[name] for reply in self._replies]

    def sum(self, name: str) -> Tensor:
        """Return the sum of the hosts' values."""
        parts = [reply[name] for reply in self._replies]
        return opened(parts) if name in self._hidden else torch.stack(parts).sum(0)


class Hosts:
    """Some parties that can be called together.

    away: hosts that do not take part now: their numbers count as zero. hidden: fields of which the guest can read only
    the sum. own: the guest, if it answers too.
    """

    def __init__(
        self,
        links: Sequence[Link],
        method: Vertical,
        columns: dict[str, int],
        outputs: int,
        noise: Noise | None = None,
        traffic: Traffic | None = None,
        draws: Callable[[int, int], Any] | None = None,
        coordinator: Hosts | None = None,
        away: Sequence[str] = (),
        hidden: Sequence[str] = (),
    ):
        self.links, self.method, self.columns, self.outputs = list(links), method, columns, outputs
        self.noise, self.traffic, self.draws = noise or Noise(), traffic or Traffic(), draws
        self._coordinator, self.away, self.hidden = coordinator, {*away}, hidden
        self.epoch = self.step = 0
        self.places = {link.name: k for k, link in enumerate(self.links, 1)}
        self._own: Me | None = None

    def __len__(self) -> int:
        return len(self.links)

    @property
    def names(self) -> list[str]:
        """Return the hosts' names."""
        return [link.name for link in self.links]

    @property
    def coordinator(self) -> Hosts:
        """Return the third party that holds the key."""
        if self._coordinator is None:
            raise UnalikeError(f"{type(self.method).__name__} needs a coordinator.")
        self._coordinator.epoch, self._coordinator.step = self.epoch, self.step
        return self._coordinator

    def also(self, guest: Me) -> Hosts:
        """Return these hosts together with the guest, which runs the same function on its own columns."""
        both = self._some(self.links)
        both._own = guest
        return both

    def only(self, which: int) -> Hosts:
        """Return one host alone."""
        return self._some([self.links[which]])

    def _some(self, links: Sequence[Link]) -> Hosts:
        some = Hosts(
            links, self.method, self.columns, self.outputs, self.noise, self.traffic, self.draws, self._coordinator,
            [*self.away], self.hidden,
        )  # fmt: skip
        some.epoch, some.step, some.places = self.epoch, self.step, self.places
        return some

    def call(self, function: Callable, **fields: Tensor | PerParty) -> Replies:
        """Ask every host to run a function of the method with these fields; they compute side by side."""
        name, takes, gives = function.__name__, function.takes, function.gives  # type: ignore[attr-defined]
        if set(fields) != set(takes):
            raise UnalikeError(
                f"{type(self.method).__name__}.{name} takes {', '.join(takes)}; got {', '.join(fields)}."
            )
        sent = self._noised(fields)
        asked = [link for link in self.links if link.name not in self.away]
        for link in asked:
            message = {key: _of(value, self.links.index(link)) for key, value in sent.items()}
            self.traffic.down += wire.payload(message)
            link.send({"kind": "call", "function": name, "epoch": self.epoch, "step": self.step}, message)
        if self._own is not None:
            function(self._own, Fields({key: _of(value, -1) for key, value in fields.items()}))
        count = len(fields["rows"]) if isinstance(fields.get("rows"), Tensor) else 0  # type: ignore[arg-type]
        self.traffic.exchanges += bool(asked)
        self._count([*takes, *gives])
        replies = [self._answer(link, gives, count) for link in self.links]
        return Replies(self.method, replies, self.hidden)

    def _answer(self, link: Link, gives: tuple[str, ...], rows: int) -> dict[str, Tensor]:
        sizes = {"rows": rows, "outputs": self.outputs, "columns": self.columns.get(link.name, 0)}
        sizes |= self.method.sizes(self.places[link.name])
        if link.name in self.away:
            return {
                g: torch.zeros(self.method.sends[g].resolve(sizes, self.method), dtype=torch.float64) for g in gives
            }
        header, tensors = answered(link)
        if header.get("kind") != "reply":
            raise UnalikeError(f"{link.name} answered with something else than a reply.")
        check(tensors, gives, self.method, sizes, link.name, [name for name in gives if name in self.hidden])
        self.traffic.up += wire.payload(tensors)
        return tensors

    def _noised(self, fields: dict[str, Tensor | PerParty]) -> dict[str, Tensor | PerParty]:
        """Noise what the guest sends of single people, once: hosts that put their copies together gain nothing."""
        if not self.noise.noise or self.draws is None:
            return fields
        draws, out = self.draws(self.epoch, self.step), dict(fields)
        for name, value in fields.items():
            field = self.method.sends.get(name)
            if field is None or not field.per_row:
                continue
            values = value.values if isinstance(value, PerParty) else [value]
            noised = [self.noise.over({name: v}, self.method, draws.at(k))[name] for k, v in enumerate(values)]
            out[name] = PerParty(noised) if isinstance(value, PerParty) else noised[0]
        return out

    def _count(self, names: Sequence[str]) -> None:
        self.traffic.releases.update(n for n in names if n in self.method.sends and self.method.sends[n].per_row)

    def numbers(self, name: str, which: int) -> int:
        """Return how many numbers a field of one host holds."""
        sizes = {"outputs": self.outputs, "columns": self.columns[self.links[which].name]}
        return numbers_in(self.method.sends[name], self.method, sizes)


def _of(value: Tensor | PerParty, which: int) -> Tensor:
    return value.values[which] if isinstance(value, PerParty) else value
