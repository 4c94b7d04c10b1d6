"""Copy small arrays from the host to a device, many in one piece."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def to_device(device: torch.device | str, *arrays: np.ndarray) -> list[Tensor]:
    """Copy arrays of 8-byte numbers to a device, all in one copy: the host would wait for each separate copy."""
    if torch.device(device).type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    whole = torch.from_numpy(pack(arrays)).pin_memory().to(device, non_blocking=True)
    return unpack(whole, [(a.shape, a.dtype) for a in arrays])


def pack(arrays: Sequence[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
    """Return arrays of 8-byte numbers laid end to end, as int64."""
    return np.concatenate([np.ascontiguousarray(a).view(np.int64).reshape(-1) for a in arrays], out=out)


def unpack(whole: Tensor, kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[Tensor]:
    """Return views of packed arrays, by shape and type."""
    parts = whole.split([math.prod(shape) for shape, _ in kinds])
    return [
        (part.view(torch.float64) if dtype == np.float64 else part).view(shape)
        for part, (shape, dtype) in zip(parts, kinds, strict=True)
    ]
