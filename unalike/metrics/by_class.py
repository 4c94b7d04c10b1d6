"""Metrics of every class: its samples, recall, precision and F1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from unalike.nn.metrics import COUNTS
from unalike.nn.task import BoundModule, Task


def class_means(task: Task, bound: BoundModule, x: Tensor, y: Tensor) -> Tensor:
    """Return for every class the shares of samples that belong to it, that are predicted to, and that do both: [3
    C]."""
    total: Tensor | None = None
    for output, ys in task.forward(bound, x, y):
        some = COUNTS.means(output, ys).cpu() * len(ys)
        total = some if total is None else total + some
    assert total is not None
    return total / len(y)


def class_table(means: Tensor, samples: int, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return one row per class that occurs among the labels or predictions; None for a number that is not defined: the
    recall of a class without samples, the precision of one that is never predicted."""
    counts = (means * samples).round().reshape(3, -1).T.tolist()
    share = lambda part, whole: part / whole if whole else None  # noqa: E731
    return [
        {
            "class": names[k] if names is not None and k < len(names) else str(k),
            "samples": int(label),
            "recall": share(hit, label),
            "precision": share(hit, predicted),
            "f1": share(2 * hit, label + predicted),
        }
        for k, (label, predicted, hit) in enumerate(counts)
        if label or predicted
    ]
