"""A reply between machines: packed at the client, read at the server.

A field that passed through stages travels in parts, "delta:codes", "delta:places" and so on (`packing.py`); a number
that a stage adds to the reply as ":name", one byte; everything else under its own name, unchanged. So a reply has
exactly the number of bytes that forms count.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Mapping

import torch
from torch import Tensor

from unalike.channel.channel import Channel
from unalike.channel.packing import pack, unpack
from unalike.channel.stage import Common, Way
from unalike.errors import UnalikeError

# between a field and its part; no method's field has it in its name
MARK = ":"


@dc.dataclass
class Received:
    """A reply as the server reads it, a stack of one. up: the fields; extra: the stages' own numbers; sent: the bytes
    that travelled for fields that passed through stages."""

    up: dict[str, Tensor]
    extra: dict[str, Tensor]
    sent: int


def packed(way: Way, reply: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that travel for one client's reply, whose fields have taken this way."""
    out = {name: value for name, value in reply.items() if name not in way.flights}
    for name, flight in way.flights.items():
        out |= {f"{name}{MARK}{part}": value for part, value in pack(flight).items()}
    return out | {MARK + name: value.to(torch.uint8) for name, value in way.extra.items()}


def received(channel: Channel, sent: Mapping[str, Tensor], common: Common, device: torch.device) -> Received:
    """Read one client's reply; refuse one that is not packed as the channel packs it."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in sent.items():
        field, mark, part = name.partition(MARK)
        if mark:
            parts.setdefault(field, {})[part] = value
        elif channel.touches(name, value):
            raise UnalikeError(f"its {name!r} did not go through the channel ({channel}).")
    extra = parts.pop("", {})
    up = {name: value[None].to(device) for name, value in sent.items() if MARK not in name}
    bytes_ = len(extra)
    for name, some in parts.items():
        if name not in channel.touched or name in sent:
            raise UnalikeError(f"its {name!r} comes in parts, which the channel ({channel}) does not send.")
        try:
            flight = unpack(channel.agreed(name, common, device), some)
        except UnalikeError as error:
            raise UnalikeError(f"its {name!r} is not packed as it should be: {error}") from None
        up[name] = flight.dense().view(1, *channel.dims[name])
        bytes_ += flight.form.bytes
    return Received(up, _numbers(channel, extra, {*parts}), bytes_)


def _numbers(channel: Channel, extra: Mapping[str, Tensor], fields: set[str]) -> dict[str, Tensor]:
    """Return the numbers that stages added to a reply with these fields; check that each is 0 or 1."""
    wanted = {
        n for stage, acts in zip(channel.stages, channel.acts, strict=True) if fields & {*acts} for n in stage.extra
    }
    if extra.keys() != wanted:
        names = ", ".join(sorted(extra.keys() ^ wanted))
        raise UnalikeError(f"its reply has not the numbers that the channel ({channel}) adds: {names}.")
    for name, value in extra.items():
        if value.dtype != torch.uint8 or tuple(value.shape) != (1,) or int(value) > 1:
            raise UnalikeError(f"its {name!r} must be one byte, 0 or 1.")
    return dict(extra)
