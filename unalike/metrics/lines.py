"""The lines of rounds.jsonl: which values are numbers, how many bytes a round sent, which round validation chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from unalike.metrics.names import Number

Line = dict[str, Any]
# with fewer validation samples of all clients, their loss chooses the round
FEW_SAMPLES = 100


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number, possibly infinite or NaN; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)


def traffic(line: Mapping[str, Any]) -> int:
    """Return all bytes of a round, in both directions and between clients, including those before round 1."""
    return sum(int(line.get(f"{when}bytes_{way}") or 0) for when in ("", "setup_") for way in ("down", "up", "peer"))


def choose(lines: Sequence[Line], *scores: Number) -> Line | None:
    """Return the round that validation data choose, by the first of these scores that they have; None without such
    data. Never by test data. Of rounds with the same score, the one with the least validation loss is chosen, then the
    last, since the first would be the least trained. Fewer than 100 validation samples say little about a score: then
    the loss chooses. For drifting data, only rounds on the last data are compared."""
    lines = [line for line in lines if line.get("data_drift") == lines[-1].get("data_drift")]
    few = min((line.get("validation_samples", FEW_SAMPLES) for line in lines), default=0) < FEW_SAMPLES
    for score in scores:
        sign, key = 1 if score.larger else -1, score.validation

        def rank(line: Line, sign: int = sign, key: str = key) -> tuple[float, ...]:
            value, loss = sign * line[key], line.get("validation_loss")
            less = -loss if is_finite(loss) else -math.inf
            return (less, value, line["round"]) if few else (value, less, line["round"])

        rated = [line for line in lines if is_finite(line.get(key))]
        if rated:
            return max(rated, key=rank)
    return None


def thin(count: int, most: int) -> np.ndarray:
    """Return which of `count` things to keep: evenly spaced, including the first and the last."""
    return np.unique(np.linspace(0, max(0, count - 1), min(count, max(2, most))).round().astype(int))
