"""Clip: no client's reply is longer than a bound, so that none counts for more than its share."""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unalike.channel.stage import Flight, Form, Sees, Stage, Total, Way, norms, refuse
from unalike.errors import UnalikeError
from unalike.nn.layout import Layout
from unalike.settings.knobs import knob

# in place of a norm of 0, which no factor changes
LEAST = 1e-30
SHORT = "no reply longer than {}: that bounds one client's influence and hides nothing"
# factors below 1, so that rounding does not lift a norm above its bound
SHADES = {torch.float64: 1 - 1e-14}
SHADE = 1 - 1e-6  # for narrower types


@dc.dataclass(frozen=True)
class Clip(Stage):
    """x · min(1, C / ‖x‖), with the norm over all fields of a reply together: the bound is one client's whole
    influence, however many fields a method sends. order=1 takes the sum of |x|, which Laplace noise needs."""

    name = "clip"
    wide = True
    stretch = 1.0

    norm: float = knob(1.0, "the largest norm of a reply", above=0)
    order: int = knob(2, "of the norm: 2, or 1 for the sum of absolute values", least=1, most=2)

    def bound(self, known: Mapping[str, Any]) -> float | None:
        return self.norm

    def check(self, before: Sequence[Stage], after: Sequence[Stage]) -> None:
        check_units(self, before)

    @property
    def sees(self) -> Sees:
        return Sees(server=SHORT.format(f"{self.norm:g}"))

    def client(self, way: Way) -> None:
        flights = [*way.flights.values()]
        long = norms(flights) if self.order == 2 else torch.stack([_sizes(flight) for flight in flights]).sum(0)
        for name, flight in way.flights.items():
            way.flights[name] = scaled(flight, factors(long, self.norm, flight))


@dc.dataclass(frozen=True)
class ClipLayers(Stage):
    """Every tensor of the model clipped by itself, to C / √L where L tensors travel: the whole reply is at most C long.
    A field that is not of the model's size counts as one tensor."""

    name = "clip-layers"
    wide = floats = True
    stretch = 1.0

    norm: float = knob(1.0, "the largest norm of a whole reply", above=0)

    def bound(self, known: Mapping[str, Any]) -> float | None:
        return self.norm

    @property
    def sees(self) -> Sees:
        return Sees(server=SHORT.format(f"{self.norm:g}"))

    def client(self, way: Way) -> None:
        pieces = {name: [*_pieces(flight, way.layout)] for name, flight in way.flights.items()}
        each = self.norm / math.sqrt(sum(map(len, pieces.values())))
        for name, flight in way.flights.items():
            if flight.at is not None:
                raise refuse(self, "what is left of some entries has no tensors any more: put it before.")
            parts = [flight.values[:, a:b] for a, b in pieces[name]]
            cut = [part * factors(part.double().norm(dim=1), each, flight) for part in parts]
            way.flights[name] = dc.replace(flight, values=torch.cat(cut, 1))


@dc.dataclass(frozen=True)
class AdaptiveClip(Stage):
    """A bound that follows a quantile of the replies' norms (Andrew et al. 2021). Each client sends one bit more,
    whether its norm is within the bound; with b̄ the noised share of such clients

        C ← C · exp(−rate · (b̄ − quantile)),   b̄ = ½ + (Σ (bit − ½) + noise) / expected cohort.

    The count's noise has the standard deviation std · expected cohort. Under `noise` after it, update and count
    together spend what z says: the updates get (z⁻² − (2 · std of the count)⁻²)^(−½) instead of z.
    """

    name = "adaptive-clip"
    wide = True
    stretch = 1.0

    first: float = knob(0.1, "the bound of the first exchange", above=0)
    quantile: float = knob(0.5, "the share of clients that the bound is to leave as they are", above=0, below=1)
    rate: float = knob(0.2, "how quickly the bound follows", above=0)
    std: float = knob(0.05, "of the noise on the count, relative to the expected cohort", least=0)

    @property
    def key(self) -> str:
        """Return the name of its bound, among the values that the server keeps and tells."""
        return " ".join(["clip", *self.fields])

    @property
    def bit(self) -> str:
        """Return the name of its number in a reply."""
        return " ".join(["within", *self.fields])

    @property
    def extra(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.bit,)

    @property
    def sees(self) -> Sees:
        return Sees(server=SHORT.format("a bound that all are told") + ", but for whether it was longer")

    def bound(self, known: Mapping[str, Any]) -> float | None:
        return float(known.get(self.key, self.first))

    def check(self, before: Sequence[Stage], after: Sequence[Stage]) -> None:
        check_units(self, before)

    def told(self, values: Mapping[str, Any]) -> dict[str, float]:
        return {self.key: float(values.get(self.key, self.first))}

    def client(self, way: Way) -> None:
        norm = float(way.told.get(self.key, self.first))
        long = norms([*way.flights.values()])
        way.extra[self.bit] = (long <= norm).to(long.dtype)
        for name, flight in way.flights.items():
            way.flights[name] = scaled(flight, factors(long, norm, flight))

    def server(self, total: Total) -> None:
        like = next(iter(total.sums.values()))
        noise = self.std * total.expected * float(total.normal(self.bit, (1,), like)) if self.std else 0.0
        more = total.extra.get(self.bit, 0.0) - total.came / 2  # a bit minus ½ moves the sum by only ½
        share = 0.5 + (more + noise) / total.expected
        total.values[self.key] = self.told(total.values)[self.key] * math.exp(-self.rate * (share - self.quantile))


def check_units(stage: Stage, before: Sequence[Stage]) -> None:
    """Refuse to clip what cannot be scaled: 16-bit numbers, and codes whose unit is agreed in advance. Codes with their
    own unit are clipped by scaling the unit."""
    for other in before:
        if other.codes and other.form(Form(8, 8, 32)).unit != "sent":
            raise refuse(stage, f"it comes after {other}, whose numbers cannot be scaled any more: put it before.")


def scaled(flight: Flight, factor: Tensor) -> Flight:
    """Return a field with each client's reply multiplied by a factor [c, 1]. Codes stay whole: their unit is scaled."""
    if flight.form.kind == "float":
        return dc.replace(flight, values=flight.values * factor)
    if not isinstance(flight.unit, Tensor):
        raise UnalikeError("channel: codes of a common unit cannot be clipped: put the clip before.")
    return dc.replace(flight, unit=flight.unit * factor.to(flight.unit.dtype))


def factors(norms: Tensor, bound: float, flight: Flight) -> Tensor:
    """Return min(1, C / norm) for each client, [c, 1]; slightly less for narrow types, because they round."""
    shade = SHADE if flight.form.kind == "codes" else SHADES.get(flight.values.dtype, SHADE)  # a unit is a float32
    cut = torch.where(norms > bound, shade * bound / norms.clamp_min(LEAST), torch.ones_like(norms))
    return cut[:, None].to(flight.values.dtype if flight.values.is_floating_point() else torch.float64)


def _sizes(flight: Flight) -> Tensor:
    """Return the sum of absolute values of each client's numbers, [c]."""
    return flight.worth().double().abs().sum(1)


def _pieces(flight: Flight, layout: Layout | None) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each tensor in a field."""
    if layout is None or flight.form.size != layout.size:
        yield 0, flight.form.size
        return
    for _, offset, size, _ in layout.places:
        yield offset, offset + size
