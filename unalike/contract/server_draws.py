"""The server's random draws: functions of (seed, round, purpose), so that a resumed run draws the same."""

from __future__ import annotations

import dataclasses as dc
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.errors import UnalikeError


@dc.dataclass
class ServerDraws:
    """The source of `server.uniform` and the like. `round` is kept up to date by the run.

    public: the public set, (x, y or None), or None; like: a tensor with the dtype and device of the results. Numbers
    are drawn on the CPU, so they are the same on every device.
    """

    seed: int
    like: Tensor
    public: tuple[Any, Any] | None = None
    round: int = -1

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return draws.uniform(self._key(purpose), tuple(shape), self.like.dtype).to(self.like.device)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return draws.normal(self._key(purpose), tuple(shape), self.like.dtype).to(self.like.device)

    def integers(self, purpose: str, shape: tuple[int, ...], high: int) -> Tensor:
        if not 1 <= high < 1 << 32:
            raise UnalikeError(f"server.integers({purpose!r}) has high={high}: it must be in [1, 2^32).")
        values = self._generator(purpose).integers(high, size=tuple(shape))
        return torch.as_tensor(values, dtype=torch.int64, device=self.like.device)

    def coin(self, purpose: str, p: float) -> bool:
        if not 0 <= p <= 1:
            raise UnalikeError(f"server.coin({purpose!r}) has p={p}: it must be in [0, 1].")
        return bool(self._generator(purpose).random() < p)

    def shuffled(self, purpose: str, n: int) -> np.ndarray:
        return self._generator(purpose).permutation(n)

    def draw(self, purpose: str, n: int, stratify: bool = False) -> Tensor:
        if self.public is None:
            raise UnalikeError(f"server.draw({purpose!r}) needs a public set: fed.with_public(x, y) gives one.")
        x, y = self.public
        if not 1 <= n <= len(x):
            raise UnalikeError(f"server.draw({purpose!r}) is asked for {n} of {len(x)} public rows.")
        rng = self._generator(purpose)
        if not stratify:
            rows = rng.choice(len(x), n, replace=False)
        elif y is None or torch.as_tensor(y).is_floating_point():
            raise UnalikeError(f"server.draw({purpose!r}, stratify=True) needs classes: the public set has none.")
        else:
            rows = _stratified(rng, torch.as_tensor(y).cpu().numpy().reshape(len(x), -1)[:, 0], n)
        return torch.as_tensor(np.sort(rows), device=self.like.device)

    def _key(self, purpose: str) -> Tensor:
        return torch.tensor(draws.key(self.seed, self.round, f"server {purpose}"))

    def _generator(self, purpose: str) -> np.random.Generator:
        return draws.generator(self.seed, self.round, f"server {purpose}")


def _stratified(rng: np.random.Generator, y: np.ndarray, n: int) -> np.ndarray:
    """Return n rows with every class in proportion; remaining rows go to the largest remainders, ties at random."""
    classes, counts = np.unique(y, return_counts=True)
    shares = n * counts / len(y)
    take = np.floor(shares).astype(np.int64)
    order = np.lexsort((rng.random(len(classes)), take - shares))
    take[order[: n - take.sum()]] += 1
    rows = [rng.choice(np.flatnonzero(y == label), k, replace=False) for label, k in zip(classes, take, strict=True)]
    return np.concatenate(rows)
