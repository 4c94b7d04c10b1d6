"""How far clients drift apart in a round: the size of their updates, and how much the updates agree."""

from __future__ import annotations

import torch
from torch import Tensor


class Drift:
    """Measure the updates of one round, stack by stack, without storing them.

    With unit vectors û_k of c updates, the mean cosine over all pairs can be computed without pairs:

        (‖Σ û_k‖² − c) / (c (c − 1))

    It reads every client's update, so only a simulation can measure it, not a server behind secure aggregation. An
    update of zero has a size but no direction.
    """

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._direction: Tensor | None = None

    def add(self, updates: Tensor) -> None:
        """Add some clients' updates, [c, P]."""
        rows = updates.detach().reshape(len(updates), -1)
        norms = torch.linalg.vector_norm(rows, dim=1)
        self._norms.append(norms)
        share = torch.where(norms > 0, 1 / norms, 0.0)
        if self._direction is None:
            self._direction = torch.zeros_like(rows[0])
        self._direction.addmv_(rows.T, share)

    def numbers(self) -> dict[str, float | None]:
        """Return the mean and largest size, and the mean cosine between two updates (None for fewer than two)."""
        if self._direction is None:
            return {}
        norms = torch.cat(self._norms).double()
        count = int((norms > 0).sum())
        square = float(self._direction.double().square().sum())
        cosine = (square - count) / (count * (count - 1)) if count > 1 else None
        return {"drift_mean": float(norms.mean()), "drift_max": float(norms.max()), "drift_cosine": cosine}
