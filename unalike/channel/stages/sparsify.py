"""Sparsify: a share of a reply's entries travels; with error feedback the rest is kept and added to the next update.

    v = update + error,   sent = C(v),   error ← v − sent

    top-k    C keeps the k largest |v|; their places travel with them          (Aji & Heafield, EMNLP 2017)
    random-k C keeps k entries that all clients draw alike, so that no places travel
    STC      C keeps the k largest |v| and sends mean|kept| · sign: one bit each  (Sattler et al., TNNLS 2020)

k = share · P, at least 1. The error is the client's own and stays with it (`way.kept`).

Practical truth: top-k without feedback loses what is always small, and can stand still; with it 1 % is often enough.
A client that comes rarely holds an old error. Quantising after top-k is fine (its rounding is right on the average,
and is not fed back); clipping after it bounds what is sent, and what was cut is lost.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.channel.stage import Common, Flight, Form, Stage, Way, refuse
from unalike.settings.knobs import knob
from unalike.training.transfer import to_device

SAMPLE = 1 << 13  # entries that tell how large the largest are


@dc.dataclass(frozen=True)
class Sparsifier(Stage):
    """Base class of stages that send a share of the entries."""

    floats = True

    share: float = knob(0.01, "of the entries that travel", above=0, most=1)
    feedback: bool = knob(True, "whether what does not travel is added to the client's next update")

    def form(self, form: Form) -> Form:
        return dc.replace(form, count=self.count(form.size), positions="sent")

    def count(self, size: int) -> int:
        """Return how many of `size` entries travel."""
        return min(size, max(1, round(self.share * size)))

    def keeps(self, fields: Sequence[str]) -> dict[str, str]:
        return {f"error-{name}": name for name in fields} if self.feedback else {}

    def check(self, before: Sequence[Stage], after: Sequence[Stage]) -> None:
        for other in before:
            if isinstance(other, Sparsifier) and self.meets(other):
                raise refuse(self, f"{other} comes before it and chooses what travels: leave one of them out.")
        super().check(before, after)

    def one(self, flight: Flight, name: str, way: Way) -> Flight:
        error = f"error-{name}"
        v = flight.values + way.kept[error] if self.feedback else flight.values
        at = self.places(v, name, way.common)
        kept = v.gather(1, at)
        sent = self.sent(dc.replace(flight, form=self.form(flight.form), values=kept, at=at))
        if self.feedback:
            way.kept[error] = v.scatter_(1, at, kept - sent.worth())
        return sent

    def places(self, v: Tensor, name: str, common: Common) -> Tensor:
        """Return the places of the entries of [c, P] that travel: [c, k], ascending."""
        return largest(v, self.count(v.shape[1]))

    def sent(self, flight: Flight) -> Flight:
        """Return the chosen entries as they travel."""
        return flight


@dc.dataclass(frozen=True)
class TopK(Sparsifier):
    """The k largest entries by magnitude; of equal ones those with lower places."""

    name = "topk"
    stretch = 1.0


@dc.dataclass(frozen=True)
class RandomK(Sparsifier):
    """k entries, drawn anew for each exchange and alike by all, so that replies can be summed without their places.
    Without feedback they are multiplied by P/k, which makes them right on the average; with it they travel as they are
    (scaled ones would feed back more than was left out)."""

    name = "randomk"

    feedback: bool = knob(False, "whether what does not travel is added to the client's next update")

    def form(self, form: Form) -> Form:
        return dc.replace(form, count=self.count(form.size), positions="drawn")

    def agreed(self, blank: Flight, name: str, common: Common) -> Flight:
        return dc.replace(super().agreed(blank, name, common), at=self.places(blank.values, name, common))

    def places(self, v: Tensor, name: str, common: Common) -> Tensor:
        size = v.shape[1]
        at = _drawn(int(common(f"places {name}").integers(1 << 63)), size, self.count(size))
        return to_device(v.device, at)[0].expand(len(v), -1)

    def sent(self, flight: Flight) -> Flight:
        scale = 1.0 if self.feedback else flight.form.size / max(1, flight.form.count)
        return dc.replace(flight, values=flight.values * scale)


@dc.dataclass(frozen=True)
class STC(Sparsifier):
    """Sparse ternary compression, upwards: the k largest entries as ±μ, with their mean magnitude μ. The authors'
    program codes the gaps between places (Golomb); places are a list or a bitmap here, whichever is shorter."""

    name = "stc"
    codes = True

    def form(self, form: Form) -> Form:
        return dc.replace(super().form(form), bits=1, kind="codes", unit="sent", unit_bits=form.bits, most=1)

    def sent(self, flight: Flight) -> Flight:
        kept = flight.values
        total = kept.abs().sum(1, keepdim=True, dtype=torch.float64)
        mean = (total / max(1, flight.form.count)).to(kept.dtype)
        return dc.replace(flight, values=torch.where(kept < 0, -1.0, 1.0).to(kept.dtype), unit=mean)


def largest(v: Tensor, count: int) -> Tensor:
    """Return the places of the largest magnitudes of each row, ascending; ties go to lower places on every device,
    alone and in a stack (`topk` on the numbers themselves does not promise that)."""
    size, magnitude = v.shape[1], v.abs()
    if v.device.type == "cpu" and v.numel() and math.isfinite(magnitude.amax()):
        return torch.from_numpy(np.stack([_largest(row, count) for row in magnitude.numpy()]))
    if v.dtype == torch.float32:
        # the bit patterns of positive floats are ordered like the floats; appending the place breaks ties
        rank = magnitude.view(torch.int32).to(torch.int64).bitwise_left_shift_(32)
        rank.bitwise_or_(torch.arange(size - 1, -1, -1, device=v.device))
        at = rank.topk(count, dim=1, sorted=False).indices
    else:
        at = magnitude.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return at.sort(dim=1).values


def _largest(row: np.ndarray, count: int) -> np.ndarray:
    """Do so for one row on a CPU. A sample of it tells from which magnitude on an entry may be among the largest, so
    that few entries have to be put in order."""
    sample = np.sort(row[:: len(row) // SAMPLE + 1])
    least = sample[int(len(sample) * max(0.0, 1 - 2 * count / len(row) - 0.005))]
    some = np.flatnonzero(row >= least)
    if len(some) < count:
        some = np.arange(len(row))
    values = row[some]
    last = np.partition(values, len(values) - count)[len(values) - count]
    chosen = values > last
    chosen[np.flatnonzero(values == last)[: count - np.count_nonzero(chosen)]] = True
    return some[chosen]


# clients of an exchange that come one by one ask for the same
@functools.lru_cache(maxsize=16)
def _drawn(key: int, size: int, count: int) -> np.ndarray:
    at = np.random.Generator(np.random.Philox(key=key)).choice(size, count, replace=False, shuffle=False)
    return np.sort(at).astype(np.int64)
