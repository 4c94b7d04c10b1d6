"""What travels of a field, as tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from unalike.channel.stage import Flight, Form
from unalike.errors import UnalikeError


def pack(flight: Flight) -> dict[str, Tensor]:
    """Return the parts of a field that travel."""
    return {"values": flight.values}


def unpack(form: Form, parts: Mapping[str, Tensor]) -> Flight:
    """Return a field from the parts that came."""
    if parts.keys() != {"values"} or parts["values"].shape[1:] != (form.count,):
        raise UnalikeError("packed wrongly.")
    return Flight(form, parts["values"])
