"""Quantise: each number travels in a few bits, as a code and a unit that all codes of a reply share.

    grid     code = floor(x/m · h + u), h = 2^(bits−1) − 1, m = max|x| or a limit common to all; worth code · m/h
    QSGD     code = ±(⌊a⌋ + [u < a − ⌊a⌋]), a = |x| s/‖x‖; worth code · ‖x‖/s             (Alistarh et al., NIPS 2017)
    TernGrad code = ±[u < |x|/m], m = max|x|; worth code · m                               (Wen et al., NIPS 2017)

u is uniform in [0, 1), each client's and each entry's own: what arrives is right on the average, E[decoded] = x.

Practical truth: 8 bits cost nothing that can be seen; from 4 bits on the noise of rounding is felt, and QSGD's norm,
much longer than the largest entry, needs far more levels than max|x| for the same noise. A secure sum adds codes, so
it needs a unit that is common to all: `limit`. Entries beyond the limit are cut, and are then no longer right on the
average.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unalike.channel.stage import Common, Flight, Form, Stage, Way
from unalike.draws import Place
from unalike.settings.knobs import knob

# numbers in [0, 1), of the shape of the values, in parts: each with the rows and columns to which it belongs
Uniforms = Callable[[], Iterator[tuple[Place, Tensor]]]


@dc.dataclass(frozen=True)
class Quantiser(Stage):
    """Base class of stages that turn numbers into codes. most: the largest code."""

    codes = floats = True

    @property
    def most(self) -> int:
        raise NotImplementedError

    @property
    def limit_unit(self) -> float | None:
        """Return the value of a code of 1, if it is agreed in advance."""
        return None

    def form(self, form: Form) -> Form:
        unit = "sent" if self.limit_unit is None else "common"
        bits = (2 * self.most).bit_length()
        return dc.replace(form, bits=bits, kind="codes", unit=unit, unit_bits=form.bits, most=self.most)

    def agreed(self, blank: Flight, name: str, common: Common) -> Flight:
        return dc.replace(super().agreed(blank, name, common), unit=self.limit_unit)

    def one(self, flight: Flight, name: str, way: Way) -> Flight:
        count = flight.form.count
        codes, unit = flight.values, flight.values.new_zeros(len(flight.values), 1)
        if count:
            codes, unit = self.coded(codes, lambda: way.draw.uniform_blocks(f"{self.name} {name}", count))
        common = self.limit_unit
        return dc.replace(flight, form=self.form(flight.form), values=codes, unit=unit if common is None else common)

    def coded(self, x: Tensor, uniforms: Uniforms) -> tuple[Tensor, Tensor]:
        """Return the codes of numbers [c, n], as floats, and the unit of each row, [c, 1]."""
        raise NotImplementedError


@dc.dataclass(frozen=True)
class Quantise(Quantiser):
    """An even grid of 2^bits − 1 codes from −m to m."""

    name = "quantise"

    bits: int = knob(8, "bits of each number", least=2, most=16)
    limit: float | None = knob(None, "m, the same for all clients; none: max|x| of each", above=0)
    rounding: str = knob("stochastic", "up or down by chance, or to the nearest", choices=("stochastic", "nearest"))

    @property
    def most(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def limit_unit(self) -> float | None:
        return None if self.limit is None else self.limit / self.most

    def coded(self, x: Tensor, uniforms: Uniforms) -> tuple[Tensor, Tensor]:
        largest = _largest(x) if self.limit is None else x.new_zeros(1, 1)  # with a limit the unit is agreed
        divisor = _divisor(largest)

        def steps(x: Tensor, rows: slice, out: Tensor) -> Tensor:
            if self.limit is None:
                return torch.div(x, divisor[rows], out=out).mul_(self.most)
            return torch.clamp(x, -self.limit, self.limit, out=out).div_(self.limit).mul_(self.most)

        def code(x: Tensor, u: Tensor, rows: slice, out: Tensor) -> None:
            steps(x, rows, out).add_(u).floor_().clamp_(-self.most, self.most)

        if self.rounding == "nearest":
            codes = steps(x, slice(None), torch.empty_like(x)).round_().add_(0.0)  # -0 becomes 0
            return codes, largest / self.most
        return _coded(x, uniforms, code), largest / self.most


@dc.dataclass(frozen=True)
class QSGD(Quantiser):
    """s levels up to the norm. A code has ⌈log2(2s + 1)⌉ bits here; the authors count an Elias code's, fewer for small
    s."""

    name = "qsgd"

    levels: int = knob(127, "s, levels between 0 and the norm", least=1, most=32767)

    @property
    def most(self) -> int:
        return self.levels

    def coded(self, x: Tensor, uniforms: Uniforms) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64).to(x.dtype)
        divisor = _divisor(norm)

        def code(x: Tensor, u: Tensor, rows: slice, out: Tensor) -> None:
            steps = x.abs().div_(divisor[rows]).mul_(self.levels)
            low = torch.floor(steps, out=out)
            low.add_(u < steps - low).clamp_max_(self.levels).mul_(x.sign()).add_(0.0)

        return _coded(x, uniforms, code), norm / self.levels


@dc.dataclass(frozen=True)
class TernGrad(Quantiser):
    """Three codes, −1, 0 and 1, in two bits. With `clip_sigmas` entries beyond so many standard deviations are cut
    first, as the authors do: less noise, and no longer right on the average."""

    name = "ternary"

    clip_sigmas: float | None = knob(None, "entries are cut at this many standard deviations", above=0, values="2.5")

    @property
    def most(self) -> int:
        return 1

    def coded(self, x: Tensor, uniforms: Uniforms) -> tuple[Tensor, Tensor]:
        if self.clip_sigmas is not None:
            bound = (self.clip_sigmas * x.double().std(1, correction=0, keepdim=True)).to(x.dtype)
            x = torch.maximum(torch.minimum(x, bound), -bound)
        largest = _largest(x)
        divisor = _divisor(largest)

        def code(x: Tensor, u: Tensor, rows: slice, out: Tensor) -> None:
            out.copy_(u < x.abs().div_(divisor[rows])).mul_(x.sign()).add_(0.0)

        return _coded(x, uniforms, code), largest


@dc.dataclass(frozen=True)
class Half(Stage):
    """16-bit floats: 11 significant bits, up to 65,504, below 6e-8 nothing."""

    name = "half"
    codes = floats = True
    dtype = torch.float16

    def form(self, form: Form) -> Form:
        return dc.replace(form, bits=16, kind=self.name)

    def one(self, flight: Flight, name: str, way: Way) -> Flight:
        values = flight.values.to(self.dtype).to(flight.values.dtype)
        return dc.replace(flight, form=self.form(flight.form), values=values)


@dc.dataclass(frozen=True)
class BFloat(Half):
    """16-bit floats with the range of float32 and 8 significant bits."""

    name = "bfloat"
    stretch = 1 + 2**-8
    dtype = torch.bfloat16


def _coded(x: Tensor, uniforms: Uniforms, code: Callable[[Tensor, Tensor, slice, Tensor], None]) -> Tensor:
    """Return the codes of [c, n], part by part as the uniform numbers come, so that on a CPU a part stays in the cache
    from the draw to the code. code: writes a part's codes, given its numbers, its uniform numbers, its rows and the
    place to write to."""
    codes = torch.empty_like(x)
    for (rows, columns), u in uniforms():
        code(x[rows, columns], u, rows, codes[rows, columns])
    return codes


def _largest(x: Tensor) -> Tensor:
    """Return the largest magnitude of each row, [c, 1]."""
    return torch.maximum(x.amax(1, keepdim=True), -x.amin(1, keepdim=True))


def _divisor(scale: Tensor) -> Tensor:
    """Return a scale to divide by: 1 for a row of zeros."""
    return torch.where(scale == 0, 1.0, scale)
