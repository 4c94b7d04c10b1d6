"""The bytes of a reply's field as they travel: `pack` at the client, `unpack` at the server.

The parts of one client's flight are exactly `form.bytes` long together:

    values   numbers as they are: the model's dtype, float16 or bfloat16
    codes    whole numbers of `form.bits` bits, one after another, lowest bit first, in two's complement (with 1 bit:
             set means −1, else 1)
    places   ascending numbers of `form.place_bits` bits, packed likewise; or, if that is shorter, one bit per entry
    unit     the value of a code of 1

Unused bits at the end are 0. Everything that both ends know in advance (`Channel.agreed`: the form, a common unit,
drawn places) does not travel. The server checks everything: parts that were not packed in this way are refused in one
line.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unalike.channel.stage import Flight, Form
from unalike.errors import UnalikeError

KINDS = {"half": torch.float16, "bfloat": torch.bfloat16}


def pack(flight: Flight) -> dict[str, Tensor]:
    """Return the parts of one client's flight, on the CPU."""
    form, values = flight.form, flight.values[0].cpu()
    parts: dict[str, Tensor] = {}
    if form.kind == "codes":
        parts["codes"] = _packed((values < 0).numpy() if form.bits == 1 else values.to(torch.int64).numpy(), form.bits)
    else:
        parts["values"] = values.to(KINDS.get(form.kind, values.dtype))
    if form.positions == "sent" and flight.at is not None:
        parts["places"] = _packed_places(flight.at[0].cpu().numpy(), form)
    if form.unit == "sent" and isinstance(flight.unit, Tensor):
        parts["unit"] = flight.unit.reshape(1).cpu()
    return parts


def unpack(blank: Flight, parts: Mapping[str, Tensor]) -> Flight:
    """Return the flight that these parts encode; raise an error of one line if they are invalid.

    blank: what is known in advance (`Channel.agreed`); its values determine dtype and device.
    """
    form, dtype, device = blank.form, blank.values.dtype, blank.values.device
    shapes = layout(form, dtype)
    if set(parts) != set(shapes):
        raise UnalikeError(f"it has the parts {_names(parts)}; they must be {_names(shapes)}.")
    for name, (kind, count) in shapes.items():
        if parts[name].dtype != kind or tuple(parts[name].shape) != (count,):
            got = f"{tuple(parts[name].shape)} of {parts[name].dtype}"
            raise UnalikeError(f"its {name} have the shape {got}; it must be ({count},) of {kind}.")
    values = _codes(parts["codes"], form).to(dtype) if form.kind == "codes" else parts["values"].to(dtype)
    at, unit = blank.at, blank.unit
    if "places" in parts:
        at = _places(parts["places"], form).to(device)[None]
    if "unit" in parts:
        unit = parts["unit"].to(device, dtype)[None]
        if not (math.isfinite(float(unit)) and float(unit) >= 0):
            raise UnalikeError(f"its unit is {float(unit)}; it must be finite and at least 0.")
    return dc.replace(blank, values=values.to(device)[None], at=at, unit=unit)


def layout(form: Form, dtype: torch.dtype) -> dict[str, tuple[torch.dtype, int]]:
    """Return the parts of a flight of this form, with the dtype and count of each. dtype: the model's."""
    parts: dict[str, tuple[torch.dtype, int]] = {}
    if form.kind == "codes":
        parts["codes"] = torch.uint8, math.ceil(form.count * form.bits / 8)
    else:
        parts["values"] = KINDS.get(form.kind, dtype), form.count
    if form.positions == "sent":
        parts["places"] = torch.uint8, form.place_bytes
    if form.unit == "sent":
        parts["unit"] = dtype, 1
    return parts


def _names(parts: Mapping[str, object]) -> str:
    return ", ".join(parts) or "none"


# ---------------------------------------------------------------- numbers of a given number of bits


def _packed(numbers: np.ndarray, bits: int) -> Tensor:
    """Pack whole numbers one after another; of negative ones, the lowest bits."""
    octets = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    return _octets(np.unpackbits(octets, axis=1, count=bits, bitorder="little"))


def _octets(ones: np.ndarray) -> Tensor:
    return torch.from_numpy(np.packbits(ones.reshape(-1), bitorder="little"))


def _bits(packed: Tensor, count: int, name: str) -> np.ndarray:
    """Return the first `count` packed bits; check that the others are 0."""
    ones = np.unpackbits(packed.cpu().numpy(), bitorder="little")
    if ones[count:].any():
        raise UnalikeError(f"its {name} have bits behind the last number.")
    return ones[:count]


def _unpacked(packed: Tensor, count: int, bits: int, name: str) -> np.ndarray:
    """Return `count` whole numbers, not negative."""
    ones = _bits(packed, count * bits, name).reshape(count, bits)
    octets = np.zeros((count, 8), dtype=np.uint8)
    octets[:, : math.ceil(bits / 8)] = np.packbits(ones, axis=1, bitorder="little")
    return octets.view("<i8")[:, 0]


def _codes(packed: Tensor, form: Form) -> Tensor:
    codes = _unpacked(packed, form.count, form.bits, "codes")
    if form.bits == 1:
        return torch.from_numpy(1 - 2 * codes)
    codes = codes - ((codes >> (form.bits - 1)) << form.bits)  # restores the sign
    most = form.most or (1 << (form.bits - 1)) - 1
    if np.abs(codes).max(initial=0) > most:
        raise UnalikeError(f"its codes go to {np.abs(codes).max()}; they must lie in [-{most}, {most}].")
    return torch.from_numpy(codes)


# ---------------------------------------------------------------- places


def _packed_places(at: np.ndarray, form: Form) -> Tensor:
    if form.place_bits:
        return _packed(at, form.place_bits)
    ones = np.zeros(form.size, dtype=np.uint8)
    ones[at] = 1
    return _octets(ones)


def _places(packed: Tensor, form: Form) -> Tensor:
    if form.place_bits:
        at = _unpacked(packed, form.count, form.place_bits, "places")
        if (at >= form.size).any():
            raise UnalikeError(f"its places go to {at.max()}; they must lie below {form.size}.")
        if (np.diff(at) <= 0).any():
            raise UnalikeError("its places are not ascending, each once.")
    else:
        at = np.flatnonzero(_bits(packed, form.size, "places"))
        if len(at) != form.count:
            raise UnalikeError(f"it has {len(at)} places; they must be {form.count}.")
    return torch.from_numpy(at)
