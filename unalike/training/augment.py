"""Random flips and shifted crops of images, drawn anew for every sample of every step.

Written as text in `LocalTraining(augment=...)`: "flip", "crop:4", "flip,crop:4:0.5". A function of (seed, round,
client, step, place in the batch), so all engines, a compiled step and a resumed run draw the same.
"""

from __future__ import annotations

import dataclasses as dc
import functools

import torch
from torch import Tensor

from unalike import draws
from unalike.errors import UnalikeError, unknown

# folded into a step's key; layers that draw fold in numbers from 0 up
NUMBER = -1


@dc.dataclass(frozen=True)
class Augmentation:
    """The chance that a picture is mirrored, and the chance that it is shifted by up to `pad` pixels in each direction,
    with zeros moving in.

    FedDyn and FedDC: "flip,crop:4:0.5" (half of the pictures are shifted). Most others shift all: "flip,crop:4".
    """

    flip: float = 0.0
    pad: int = 0
    crop: float = 0.0

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Return the pictures x [..., B, C, H, W], each augmented by its own draws; key [...]: one per batch."""
        *lead, b, channels, height, width = x.shape
        place = torch.arange(b, device=x.device)
        draw = draws.bits(key[..., None], place)  # [..., B]: 16 bits for each of four decisions
        part = lambda k: (draw >> (16 * k)) & 0xFFFF  # noqa: E731
        cropped = part(1) < round(self.crop * (1 << 16))
        shifts = 2 * self.pad + 1
        down, right = (torch.where(cropped, (part(k) * shifts >> 16) - self.pad, 0) for k in (2, 3))
        row = torch.arange(height, device=x.device) + down[..., None]  # [..., B, H]: the row that each row is read from
        column = torch.arange(width, device=x.device) + right[..., None]
        inside = ((row >= 0) & (row < height))[..., :, None] & ((column >= 0) & (column < width))[..., None, :]
        mirrored = part(0) < round(self.flip * (1 << 16))
        column = torch.where(mirrored[..., None], width - 1 - column, column)
        source = row.clamp(0, height - 1)[..., :, None] * width + column.clamp(0, width - 1)[..., None, :]
        source = source.reshape(*lead, b, 1, -1).expand(*lead, b, channels, height * width)
        moved = x.flatten(-2).gather(-1, source).reshape(x.shape)
        return torch.where(inside.unsqueeze(-3), moved, 0.0)


def check(x: Tensor) -> None:
    """Raise unless x holds pictures."""
    if x.dim() != 4 or not x.dtype.is_floating_point:
        kind = str(x.dtype).removeprefix("torch.")
        raise UnalikeError(
            f"augment was asked for, and a sample is {list(x.shape[1:])} of {kind}: it must be a float image of "
            "channels × height × width; leave augment out."
        )


@functools.cache
def parse(text: str) -> Augmentation:
    """Read an Augmentation from 'flip', 'flip:0.5', 'crop:4', 'crop:4:0.5' or 'flip,crop:4'."""
    found: dict[str, float] = {}
    for piece in str(text).split(","):
        name, *values = [word.strip() for word in piece.split(":")]
        usage = {"flip": "flip:share", "crop": "crop:pixels:share"}.get(name)
        if usage is None:
            raise unknown("augmentation", name, ("flip", "crop"))
        try:
            if name == "crop":
                found["pad"] = int(values.pop(0))
            share = float(values.pop(0)) if values else {"flip": 0.5, "crop": 1.0}[name]
        except (ValueError, IndexError):
            share = -1.0
        if values or name in found or not 0 <= share <= 1 or not 0 <= found.get("pad", 0) <= 4096:
            raise UnalikeError(
                f"augment={text!r} has {piece.strip()!r}: write {usage!r} once, the share from 0 to 1, such as "
                "'flip,crop:4' or 'flip:0.5,crop:4:0.5'."
            )
        found[name] = share
    return Augmentation(**found)  # type: ignore[arg-type]
