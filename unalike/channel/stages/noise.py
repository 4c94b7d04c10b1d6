"""Noise: it bounds what can be learnt about one client, by a known amount per exchange (docs/privacy.md).

Floating-point normal draws have known gaps (Mironov 2012), which an attacker who sees every digit could use; noise in
whole numbers (`integer_noise.py`) has none.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unalike.channel.events import Event, GaussianSum, LocalGaussian, LocalLaplace, SampledGaussian, noise_beside_count
from unalike.channel.stage import Flight, Form, Sees, Stage, Total, Way, refuse
from unalike.channel.stages.clip import AdaptiveClip, Clip, ClipLayers
from unalike.errors import UnalikeError
from unalike.settings.knobs import knob

# in place of a multiplier: calibrated from the run's epsilon
AUTO = "auto"
CENTRAL = Sees(
    server="every clean reply: it adds the noise itself, and the guarantee is for those who see the model",
    clients="the model, in which ε bounds what can be learnt of one client",
)
LAWS = ("gaussian", "laplace")


@dc.dataclass(frozen=True)
class Noise(Stage):
    """Base class of all noise: it knows the clip before it, to which its multiplier is relative."""

    wide = True
    private = True

    multiplier: float | str = knob(1.0, "z, its standard deviation relative to the clip; auto: from epsilon")
    # the stages from the clip on
    bounded: tuple[Stage, ...] = dc.field(default=(), kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        z = self.multiplier
        if z != AUTO and (isinstance(z, str | bool) or not 0 <= z < math.inf):
            raise refuse(dc.replace(self, multiplier=AUTO), f"the multiplier must be at least 0, or 'auto'; got {z!r}.")

    @property
    def z(self) -> float:
        """Return its standard deviation relative to the clip."""
        if isinstance(self.multiplier, str):
            raise refuse(self, "'auto' needs what may be spent: give epsilon (and delta).")
        return self.multiplier

    @property
    def clip(self) -> Stage:
        """Return the clip that it is relative to."""
        return self.bounded[0]

    def bound(self, known: Mapping[str, Any]) -> float:
        """Return the largest norm of a reply when it reaches the noise."""
        norm = self.clip.bound(known)
        assert norm is not None
        return norm * math.prod(stage.stretch for stage in self.bounded)

    def event(self, q: float) -> Event:
        """Return the privacy event of one exchange, with clients who each took part with probability q."""
        raise NotImplementedError

    def check(self, before: Sequence[Stage], after: Sequence[Stage]) -> None:
        super().check(before, after)
        if not any(isinstance(stage, Clip | ClipLayers | AdaptiveClip) for stage in before):
            late = any(isinstance(stage, Clip | ClipLayers | AdaptiveClip) for stage in after)
            why = "a clip after the noise bounds nothing: put it before" if late else "noise needs a clip before it"
            raise refuse(self, f"{why}, such as clip:1.0.")
        if any(isinstance(stage, Noise) for stage in before):
            raise refuse(self, "there is noise before it already: one is accounted for.")
        if any(isinstance(stage, Clip | ClipLayers | AdaptiveClip) for stage in after):
            raise refuse(self, "a clip after the noise changes what was accounted for: put it before.")

    def fit(self, before: Sequence[Stage], size: int) -> Stage:
        at = max(k for k, stage in enumerate(before) if isinstance(stage, Clip | ClipLayers | AdaptiveClip))
        self._check_bounded(before[at:])
        return dc.replace(self, bounded=tuple(before[at:]))

    def _check_bounded(self, stages: Sequence[Stage]) -> None:
        """Refuse stages between the clip and the noise that may make a reply longer than the clip's bound."""
        for stage in stages:
            if stage.keeps(("field",)):
                raise refuse(self, f"{stage.name} adds an error of earlier rounds after the clip: put it before it.")
            if not math.isfinite(stage.stretch):
                raise refuse(self, f"{stage.name} may make a reply longer than the clip's bound: put it before it.")
        if getattr(stages[0], "order", 2) != 2:
            raise refuse(self, "Gaussian noise needs the ordinary norm: leave out the clip's order.")


@dc.dataclass(frozen=True)
class GaussianNoise(Noise):
    """N(0, (z·C)²) on every number of the sum, drawn by the server (central DP; DP-FedAvg, McMahan et al. 2018). The
    server sees every clean reply: the guarantee is towards those who see the model."""

    name = "noise"

    @property
    def sees(self) -> Sees:
        return CENTRAL

    def event(self, q: float) -> Event:
        return GaussianSum(self.z) if q == 1 else SampledGaussian(q, self.z)

    def updates(self, expected: float) -> float:
        """Return the noise of the sums, relative to the clip, if an adaptive clip's count spends a part of z."""
        if not isinstance(self.clip, AdaptiveClip) or not self.z:
            return self.z
        try:
            return noise_beside_count(self.z, self.clip.std * expected)
        except UnalikeError as error:
            raise refuse(self, f"{error} Raise the std of {self.clip}, or take more clients.") from None

    def server(self, total: Total) -> None:
        sigma = self.updates(total.expected) * self.bound(total.values)
        if not sigma:
            return
        for name, value in total.sums.items():
            total.sums[name] = value + sigma * total.normal(f"noise {name}", tuple(value.shape), value)


@dc.dataclass(frozen=True)
class LocalNoise(Noise):
    """Noise in every reply before it leaves the client (local DP): gaussian, N(0, (z·C)²), or laplace, of the scale z·C
    with C a bound of the sum of absolute values (`clip:1.0:1`). It protects towards the server too, and puts √clients
    times the noise into the mean. A reply could be any other, so it spends what a change of 2C does."""

    name = "local-noise"
    local = floats = True

    law: str = knob("gaussian", "of the noise", choices=LAWS)

    @property
    def sees(self) -> Sees:
        return Sees(server="each client's reply with the client's own noise, bounded by ε of one client", shields=True)

    def event(self, q: float) -> Event:
        return LocalGaussian(self.z) if self.law == "gaussian" else LocalLaplace(self.z)

    def fit(self, before: Sequence[Stage], size: int) -> Stage:
        if any(isinstance(stage, AdaptiveClip) for stage in before):
            raise refuse(self, "the bit of an adaptive clip before it would go past the noise: take clip.")
        return super().fit(before, size)

    def form(self, form: Form) -> Form:
        if form.positions == "sent":
            raise refuse(self, "which entries travel would go past the noise: choose them after it, or with randomk.")
        return form

    def _check_bounded(self, stages: Sequence[Stage]) -> None:
        if self.law == "gaussian":
            return super()._check_bounded(stages)
        if len(stages) > 1 or getattr(stages[0], "order", 2) != 1:
            raise refuse(self, "Laplace noise needs a bound of the sum of absolute values before it: clip:1.0:1.")

    def one(self, flight: Flight, name: str, way: Way) -> Flight:
        scale = self.z * self.bound(way.told)
        draw = way.draw.normal if self.law == "gaussian" else lambda *asked: laplace(way.draw.uniform, *asked)
        noise = draw(f"local {name}", (flight.values.shape[1],))
        return dc.replace(flight, values=flight.values + scale * noise.to(flight.values.dtype))


def laplace(uniform: Any, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Draw from the Laplace distribution of scale 1, [c, *shape], float64, as a difference of two exponentials."""
    one, other = (fine(uniform, f"{purpose} {side}", shape) for side in ("up", "down"))
    return torch.log1p(-other) - torch.log1p(-one)


def fine(uniform: Any, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Draw uniform numbers in [0, 1) of 53 bits, [c, *shape], float64: with 24 bits the tails would end too soon."""
    high, middle, low = (
        (uniform(f"{purpose} {k}", shape).double() * 2**bits).floor() for k, bits in enumerate((24, 24, 5))
    )
    return (high * 2**29 + middle * 2**5 + low) / 2**53
