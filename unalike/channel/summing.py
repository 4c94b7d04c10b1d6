"""The content of a sum in one exchange of a channel that hides replies: a reply as whole codes, and a sum as numbers
again.

A reply is a row of slots, one after another: its fields, BatchNorm's statistics, the stages' own numbers, and some
numbers about itself (`:loss`, `:trained`, `:samples`, `:count`, and under encryption tags). A code of b bits is summed
over n clients modulo 2^(b + log2 n): slots with the same modulus are one vector, which is masked or encrypted.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.channel.channel import Channel
from unalike.channel.stage import Common, Form, Way
from unalike.channel.stages.secure_sum import LARGEST
from unalike.contract import Field
from unalike.crypto import ring, tags
from unalike.errors import UnalikeError

OWN = ":"  # prefix of slots that are not fields
WHOLE = 62  # bits of the modulus in which fields of whole numbers are summed
LOSS, TRAINED, SAMPLES, COUNT, EXTRA = ":loss", ":trained", ":samples", ":count", ":extra "
TAG = ":tag "  # and its place: numbers that only clients make and look at, zero in a simulation


class BeyondLimit(UnalikeError):
    """Raised when a number of a reply does not fit into its slot; the message quotes it."""


@dc.dataclass(frozen=True)
class Slot:
    """A part of a sum. count: number of values; bits: of a client's code; unit: the value of a code of 1; at: the
    positions of the values in the field, if not all travel; shape: of the field; whole: it is a field of whole numbers,
    whose sum is read directly."""

    name: str
    count: int
    bits: int
    unit: float = 1.0
    at: Tensor | None = None
    shape: tuple[int, ...] = ()
    whole: bool = False


def grouped(slots: Sequence[Slot], clients: int) -> dict[int, list[Slot]]:
    """Return the slots by the bits of the modulus in which they are summed over `clients` clients."""
    out: dict[int, list[Slot]] = {}
    for slot in slots:
        out.setdefault(slot.bits + ring.carry_bits(clients), []).append(slot)
    return out


def gathered(slots: Sequence[Slot], clients: int, codes: Mapping[str, Tensor]) -> dict[int, np.ndarray]:
    """Return one client's codes as one int64 vector per modulus, by its bits."""
    return {
        bits: np.concatenate([codes[slot.name].reshape(-1).cpu().numpy() for slot in some])
        for bits, some in grouped(slots, clients).items()
    }


def parted(slots: Sequence[Slot], clients: int, totals: Sequence[np.ndarray]) -> dict[str, Tensor]:
    """Return sums of residues, one vector per modulus, as codes by slot, int64."""
    out: dict[str, Tensor] = {}
    for (bits, some), total in zip(grouped(slots, clients).items(), totals, strict=True):
        codes = torch.from_numpy(ring.signed(ring.reduced(total, bits), bits))
        out |= dict(zip((s.name for s in some), codes.split([s.count for s in some]), strict=True))
    return out


def tag_slots(count: int, bits: int = 0) -> list[Slot]:
    """Return the slots of `count` tags. bits: of other slots, whose vector tags join if they fit."""
    return [Slot(f"{TAG}{place}", 1, max(bits, tags.BITS)) for place in range(count)]


class Summing:
    """One exchange. fields: of replies, with the server's weights; common: common draws; told: values that the server
    tells all; clients: how many take part in the sum."""

    def __init__(
        self,
        channel: Channel,
        fields: Mapping[str, Field],
        method: object,
        common: Common,
        told: Mapping[str, float],
        clients: int,
    ):
        self.channel, self.fields, self.method, self.common = channel, fields, method, common
        self.largest, self.clients, self.stage = told[LARGEST], clients, channel.hiding
        self.most = (1 << (self.stage.bits - 1)) - 1
        self.unit = self.stage.limit / self.most

    # ---- slots

    def slots(self, sent: Mapping[str, Tensor]) -> list[Slot]:
        """Return the slots of replies with these fields; only shapes and dtypes of the tensors matter."""
        found = [self._slot(name, value) for name, value in sent.items()]
        own = [TRAINED, SAMPLES, COUNT, *(EXTRA + name for name in self.channel.extra)]
        # as long as whole numbers, where a reply has them: one vector to mask or encrypt instead of two
        bits = max([self.stage.bits, *(slot.bits for slot in found if slot.whole)])
        loss = [] if self.channel.private else [Slot(LOSS, 1, bits, self.unit)]
        about = [*loss, *(Slot(name, 1, bits) for name in own), *tag_slots(self.stage.tags, bits)]
        for slot in (*found, *about):
            self.stage.check_codes(slot.name, slot.bits, self.clients, slot.whole)
        return [*found, *about]

    def _slot(self, name: str, value: Tensor) -> Slot:
        shape = tuple(value.shape)
        if not value.is_floating_point():
            wide = max(self.stage.bits, WHOLE - ring.carry_bits(self.clients))
            return Slot(name, value.numel(), wide, shape=shape, whole=True)
        if name not in self.channel.touched:  # BatchNorm's statistics
            return Slot(name, value.numel(), self.stage.bits, self.unit, shape=shape)
        blank = self.channel.agreed(name, self.common, value.device)
        at = None if blank.at is None else blank.at[0]
        if blank.form.kind == "codes" and isinstance(blank.unit, float):
            return Slot(name, blank.form.count, _code_bits(blank.form), blank.unit, at, shape)
        return Slot(name, blank.form.count, self.stage.bits, self.unit, at, shape)

    def ring_bits(self, slot: Slot) -> int:
        """Return the bits of the modulus in which a slot is summed."""
        return slot.bits + ring.carry_bits(self.clients)

    def bytes(self, slots: Sequence[Slot]) -> int:
        """Return the bytes that one client sends for a sum of these slots."""
        return self._vectors(slots) + self.stage.side(self.clients)

    def _vectors(self, slots: Sequence[Slot]) -> int:
        groups = grouped(slots, self.clients).values()
        return sum(self.stage.vector_bytes(sum(s.count for s in some), some[0].bits, self.clients) for some in groups)

    def opening_bytes(self, slots: Sequence[Slot], came: int) -> tuple[int, int]:
        """Return the bytes, down and up, of opening the sum over `came` clients, beside those of its replies."""
        groups = grouped(slots, self.clients).items()
        opened = sum(ring.packed_bytes(sum(s.count for s in some), bits) for bits, some in groups)
        return self.stage.opening_bytes(self._vectors(slots), opened, came) if slots else (0, 0)

    # ---- at the client

    def weighed(self, up: Mapping[str, Tensor], samples: np.ndarray) -> dict[str, Tensor]:
        """Return a stack of replies with the clients' weights in them."""
        return {name: self._weighed(name, rows, samples) for name, rows in up.items()}

    def _weighed(self, name: str, rows: Tensor, samples: np.ndarray) -> Tensor:
        if self.fields[name].weighting(self.method) != "samples":
            return rows
        whole = not rows.is_floating_point()
        weights = torch.as_tensor(samples.astype(np.int64) if whole else samples / self.largest, device=rows.device)
        return rows * weights.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))

    def codes(
        self, slots: Sequence[Slot], up: Mapping[str, Tensor], way: Way, loss: np.ndarray, samples: np.ndarray
    ) -> dict[str, Tensor]:
        """Return the codes of a stack of replies, int64 [c, count] by slot. up: as `weighed` returns them; way: their
        way through the stages."""
        device = next(iter(up.values())).device if up else torch.device("cpu")
        trained = ~np.isnan(loss)
        own = {
            LOSS: np.where(trained, loss, 0.0), TRAINED: trained, SAMPLES: samples, COUNT: np.ones(len(loss)),
            **{slot.name: np.zeros(len(loss)) for slot in tag_slots(self.stage.tags)},
        }  # fmt: skip
        numbers = {name: torch.as_tensor(np.asarray(value, dtype=np.float64)) for name, value in own.items()}
        numbers |= {EXTRA + name: value for name, value in way.extra.items()}
        out = {}
        for slot in slots:
            flight = way.flights.get(slot.name)
            if slot.name in numbers:
                out[slot.name] = self._coded(slot, numbers[slot.name].reshape(-1, 1).to(device))
            elif flight is None:
                out[slot.name] = self._coded(slot, up[slot.name].reshape(len(loss), -1))
            else:
                out[slot.name] = self._coded(slot, flight.values, flight.form.kind == "codes")
        return out

    def _coded(self, slot: Slot, values: Tensor, coded: bool = False) -> Tensor:
        """Return values as whole multiples of the slot's unit; refuse values that do not fit."""
        if not values.is_floating_point() or coded or slot.unit == 1.0:
            codes = values.to(torch.int64)
        else:
            codes = values.double().div(slot.unit).round_().to(torch.int64)
        most = (1 << (slot.bits - 1)) - 1
        if codes.numel() and _largest(codes) > most:
            raise BeyondLimit(
                f"{self.stage.name}: {slot.name.strip(':')!r} goes to {float(values.abs().max()):g}, beyond "
                f"{most * slot.unit:g}: give {self.stage.name} a larger limit."
            )
        return codes

    # ---- at the server

    def decoded(self, slot: Slot, total: Tensor) -> Tensor:
        """Return a sum of codes as the server reads it: float64 in the field's shape, whole numbers as they are."""
        shift = 64 - self.ring_bits(slot)
        total = (total << shift) >> shift  # modulo the ring, with its sign
        if slot.whole or (slot.unit == 1.0 and slot.name not in self.channel.touched):
            return total.view(slot.shape)
        worth = total.double() * slot.unit
        if slot.at is not None:
            size = self.channel.sizes[slot.name]
            worth = worth.new_zeros(size).scatter_(0, slot.at.to(worth.device), worth)
        by_samples = slot.name in self.fields and self.fields[slot.name].weighting(self.method) == "samples"
        return (worth * self.largest if by_samples else worth).view(slot.shape)


Build = Callable[[Common, Mapping[str, float], int], Summing]  # a sum over so many clients


def _largest(codes: Tensor) -> int:
    low, high = codes.aminmax()
    return max(-int(low), int(high))


def _code_bits(form: Form) -> int:
    return (2 * form.most).bit_length() if form.most else max(2, form.bits)
