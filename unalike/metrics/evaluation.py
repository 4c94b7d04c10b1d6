"""Loss and metrics of a model, on a test set or on each client's own samples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unalike.data.columns import Columns
from unalike.nn.task import BoundModule, Task

SLICE = 2048


def _rows(task: Task, bound: BoundModule, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return loss and metrics sample by sample, float64."""
    metrics = task.metrics_for(y)
    parts: dict[str, list[Tensor]] = {name: [] for name in ("loss", *metrics)}
    with torch.no_grad():
        for a in range(0, len(y), SLICE):
            xs, ys = x[a : a + SLICE].to(task.device), y[a : a + SLICE].to(task.device)
            output, _ = bound(xs, train=False)
            parts["loss"].append(task.losses(output, ys).double())
            for name, metric in metrics.items():
                parts[name].append(metric(output, ys).double())
    return {name: torch.cat(values) for name, values in parts.items()}


def evaluate_set(task: Task, bound: BoundModule, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Return mean loss and metrics over a test set."""
    return {name: float(v.mean()) for name, v in _rows(task, bound, *data).items()}


def evaluate_columns(task: Task, bound: BoundModule, columns: Columns, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean loss and metrics on each client's own samples, for a vector that all clients share: one pass over the
    pooled samples. Every client here must have samples."""
    everybody = len(ids) == len(columns.sizes)
    rows = None if everybody else np.concatenate([np.arange(*columns.offsets[k : k + 2]) for k in ids])
    x, y = (columns.x, columns.y) if rows is None else (columns.x[rows], columns.y[rows])
    sizes = columns.sizes[ids]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    values = _rows(task, bound, x, y)
    return {name: np.add.reduceat(v.cpu().numpy(), starts) / sizes for name, v in values.items()}
