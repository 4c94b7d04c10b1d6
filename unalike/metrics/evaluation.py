"""Loss and metrics of one vector, on a test set or on each client's own samples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unalike.data.columns import Columns
from unalike.model import Live, Model

SLICE = 2048


def _rows(model: Model, live: Live, vector: Tensor, buffers: Tensor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Loss and metrics sample by sample, float64."""
    metrics = model.metrics_for(y)
    live.vector.copy_(vector)
    live.buffers.copy_(buffers)
    parts: dict[str, list[Tensor]] = {name: [] for name in ("loss", *metrics)}
    with torch.no_grad():
        for a in range(0, len(y), SLICE):
            xs, ys = x[a : a + SLICE].to(model.device), y[a : a + SLICE].to(model.device)
            output, _ = live(xs, train=False)
            parts["loss"].append(model.losses(output, ys).double())
            for name, metric in metrics.items():
                parts[name].append(metric(output, ys).double())
    return {name: torch.cat(values) for name, values in parts.items()}


def evaluate_set(
    model: Model, live: Live, vector: Tensor, buffers: Tensor, data: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Mean loss and metrics over a test set."""
    return {name: float(v.mean()) for name, v in _rows(model, live, vector, buffers, *data).items()}


def evaluate_columns(
    model: Model, live: Live, vector: Tensor, buffers: Tensor, columns: Columns, ids: np.ndarray
) -> dict[str, np.ndarray]:
    """Mean loss and metrics on each client's own samples, for a vector that all clients share: one pass over the
    pooled samples. Every client here must have samples."""
    everybody = len(ids) == len(columns.sizes)
    rows = None if everybody else np.concatenate([np.arange(*columns.offsets[k : k + 2]) for k in ids])
    x, y = (columns.x, columns.y) if rows is None else (columns.x[rows], columns.y[rows])
    sizes = columns.sizes[ids]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    values = _rows(model, live, vector, buffers, x, y)
    return {name: np.add.reduceat(v.cpu().numpy(), starts) / sizes for name, v in values.items()}
