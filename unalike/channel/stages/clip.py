"""Clip: no client's reply is longer than a bound, so that none counts for more than its share."""

from __future__ import annotations

import dataclasses as dc

from unalike.channel.stage import Sees, Stage, Way, norms
from unalike.settings.knobs import knob


@dc.dataclass(frozen=True)
class Clip(Stage):
    """x · min(1, C / ‖x‖), with the norm over all fields of a reply together: the bound is one client's whole
    influence, however many fields a method sends."""

    name = "clip"
    wide = floats = True

    norm: float = knob(1.0, "the largest norm of a reply", above=0)

    @property
    def sees(self) -> Sees:
        return Sees(server=f"no reply longer than {self.norm:g}: that bounds one client's influence and hides nothing")

    def client(self, way: Way) -> None:
        # a shade below the bound, so that rounding cannot lift a norm above it
        scale = (self.norm / norms([*way.flights.values()]).clamp_min(1e-30)).clamp_max(1.0)
        for name, flight in way.flights.items():
            way.flights[name] = dc.replace(flight, values=flight.values * scale[:, None].to(flight.values.dtype))
