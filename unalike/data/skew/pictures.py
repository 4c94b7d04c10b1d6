"""Changes of pictures, some of signals too: turned, blurred, paler, of other colours."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unalike.data.partition import tools
from unalike.data.partition.pieces import Change
from unalike.data.skew.planted import check_groups, levels, turns
from unalike.data.skew.samples import changed, numbers, per_row, reach
from unalike.errors import UnalikeError


@dataclasses.dataclass(frozen=True)
class Rotate(Change):
    """Attribute skew by rotation: the pictures of every group of clients are turned by an angle of the group's own.

    Group g of G is turned by strength · degrees · g/G, counter-clockwise: four groups by 0°, 90°, 180° and 270°, as
    IFCA's rotated MNIST (arXiv:2006.04088). Without groups (0) client k of N is turned by degrees · k/N. Right angles
    are exact (square pictures); others are interpolated (bilinear), and what comes in from outside is black, the
    least value of its channel. A client's own tests are turned too; the global test set is not.

    What makes an angle hard is a class that looks like another when turned (6 and 9). Expect clustered methods to find
    the groups, and one global model to need more capacity.
    """

    name: ClassVar[str] = "rotate"
    groups: int = 4
    degrees: float = 360.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups("Rotate", self.groups)
        tools.number("Rotate's degrees", self.degrees, -360, 360, 180)

    def change(self, fed: Any, seed: int) -> Any:
        black = reach(numbers(self.name, fed, "pictures [channels, height, width]", 4))[0]
        planted, share = turns(self.name, len(fed), self.groups, seed)
        angle = self.strength * self.degrees * share

        def turned(x: Tensor, owners: np.ndarray, _: Tensor) -> Tensor:
            return black + _turned(x - black, angle[owners])

        return changed(fed, self.name, planted, angle % 360 != 0, turned, seed)


def _turned(x: Tensor, angle: np.ndarray) -> Tensor:
    """Turn every picture by its angle in degrees."""
    out, quarters = torch.empty_like(x), angle / 90
    exact = np.abs(quarters - np.round(quarters)) < 1e-9
    if x.shape[2] != x.shape[3]:
        exact &= np.round(quarters) % 2 == 0
    for quarter in np.unique(np.round(quarters[exact]) % 4):
        some = torch.from_numpy(exact & (np.round(quarters) % 4 == quarter))
        out[some] = torch.rot90(x[some], int(quarter), (2, 3))
    rest = torch.from_numpy(~exact)
    if rest.any():
        out[rest] = functional.grid_sample(x[rest], _grid(x, angle[~exact]), "bilinear", "zeros", align_corners=False)
    return out


def _grid(x: Tensor, angle: np.ndarray) -> Tensor:
    """Return where every pixel of the turned pictures is found, [n, H, W, 2] in grid_sample's coordinates."""
    height, width = x.shape[2:]
    down, right = torch.meshgrid(*(torch.arange(n).double() - (n - 1) / 2 for n in (height, width)), indexing="ij")
    radians = per_row(np.radians(angle), x)[:, 0]
    cos, sin = radians.cos(), radians.sin()
    return torch.stack([(cos * right - sin * down) * 2 / width, (sin * right + cos * down) * 2 / height], -1)


@dataclasses.dataclass(frozen=True)
class Blur(Change):
    """Attribute skew by sharpness: pictures or signals, from sharp at the first client to blurred at the last.

    A Gaussian of standard deviation strength · sigma · k/(N−1) pixels (or points in time) at client k of N; with
    `groups`, · g/(G−1) in group g of G. At the edges only what is inside the picture counts. A client's own tests are
    blurred too; the global test set is not. Cameras and sensors of unlike quality: details are lost, classes that
    differ in detail alone are confused.
    """

    name: ClassVar[str] = "blur"
    groups: int = 0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups("Blur", self.groups)
        tools.above_zero("Blur's sigma", self.sigma)

    def change(self, fed: Any, seed: int) -> Any:
        numbers(self.name, fed, "pictures and signals", 3, 4)
        planted, far = levels(self.name, len(fed), self.groups, seed)
        width = far * self.sigma * self.strength

        def blurred(x: Tensor, owners: np.ndarray, _: Tensor) -> Tensor:
            widths, which = np.unique(width[owners], return_inverse=True)
            for at, sigma in enumerate(widths):
                some = torch.from_numpy(np.flatnonzero(which == at))
                x[some] = _blurred(x[some], sigma)
            return x

        return changed(fed, self.name, planted, width > 0, blurred, seed)


def _blurred(x: Tensor, sigma: float) -> Tensor:
    """Blur along every axis behind the channels."""
    for axis in range(2, x.dim()):
        place = torch.arange(x.shape[axis]).double()
        weight = torch.exp(-((place[:, None] - place[None]) ** 2) / (2 * max(sigma, 1e-3) ** 2))
        x = torch.movedim(torch.movedim(x, axis, -1) @ (weight / weight.sum(1, keepdim=True)).T, -1, axis)
    return x


@dataclasses.dataclass(frozen=True)
class Contrast(Change):
    """Attribute skew by contrast: pictures or signals, from full contrast at the first client to `least` at the last.

    Every channel of a sample is pulled to its own mean, m + c · (x − m), where c = 1 − strength · (1 − least) · k/(N−1)
    at client k of N; with `groups`, · g/(G−1) in group g of G. A client's own tests are as pale as its training; the
    global test set is not changed. Nothing but scale is lost: a network that normalises hardly sees it, a linear one
    does.
    """

    name: ClassVar[str] = "contrast"
    groups: int = 0
    least: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups("Contrast", self.groups)
        tools.number("Contrast's least", self.least, 0, 1, 0.2)

    def change(self, fed: Any, seed: int) -> Any:
        numbers(self.name, fed, "pictures and signals", 3, 4)
        planted, far = levels(self.name, len(fed), self.groups, seed)
        lost = far * (1 - self.least) * self.strength

        def paler(x: Tensor, owners: np.ndarray, _: Tensor) -> Tensor:
            mean = x.mean(tuple(range(2, x.dim())), keepdim=True)
            return mean + (1 - per_row(lost[owners], x)) * (x - mean)

        return changed(fed, self.name, planted, lost > 0, paler, seed)


@dataclasses.dataclass(frozen=True)
class Colour(Change):
    """Attribute skew by colour: pictures whose hue is turned, or whose greys are darker, by group or by client.

    Three channels: the hue of group g of G is turned by strength · 360° · g/G (without groups, of client k of N by
    360° · k/N), a rotation of (red, green, blue) about the axis of greys; greys stay grey, and values may leave their
    range a little. One channel: the tones follow v ↦ v^(1 + 3 · strength · level), v being 0 at the least and 1 at the
    largest value of the training samples, and the level k/(N−1) or g/(G−1): from as they are to much darker. A
    client's own tests are changed too; the global test set is not.
    """

    name: ClassVar[str] = "colour"
    groups: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups("Colour", self.groups)

    def change(self, fed: Any, seed: int) -> Any:
        x = numbers(self.name, fed, "pictures [channels, height, width]", 4)
        if x.shape[1] not in (1, 3):
            raise UnalikeError(
                f"colour changes pictures of one channel or three, and these have {x.shape[1]}: take 'contrast' or "
                "'shift:1'."
            )
        return self._greys(fed, reach(x), seed) if x.shape[1] == 1 else self._hues(fed, seed)

    def _hues(self, fed: Any, seed: int) -> Any:
        planted, share = turns(self.name, len(fed), self.groups, seed)
        angle = 2 * math.pi * share * self.strength
        matrices = torch.from_numpy(_hue(angle))

        def turned(x: Tensor, owners: np.ndarray, _: Tensor) -> Tensor:
            return torch.einsum("nij,njhw->nihw", matrices[torch.from_numpy(owners)], x)

        return changed(fed, self.name, planted, angle > 0, turned, seed)

    def _greys(self, fed: Any, ends: tuple[Tensor, Tensor], seed: int) -> Any:
        planted, far = levels(self.name, len(fed), self.groups, seed)
        low, high = ends
        power = 1 + 3 * far * self.strength

        def darker(x: Tensor, owners: np.ndarray, _: Tensor) -> Tensor:
            v = (x - low) / (high - low).clamp(min=1e-12)
            return low + (high - low) * (v.clamp(min=0) ** per_row(power[owners], x) + v.clamp(max=0))

        return changed(fed, self.name, planted, power > 1, darker, seed)


def _hue(angle: np.ndarray) -> np.ndarray:
    """Return the rotations of (red, green, blue) about the axis of greys by these angles, [N, 3, 3] (Rodrigues)."""
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    return cos * np.eye(3) + (1 - cos) / 3 + sin * cross
