"""Loss and metrics of a model: on a test set, on each client's own samples, and over all clients' samples together.

The numbers of a test set and of each client are exact. Those over all clients' samples together (`pooled_auc`) are made
from the clients' means of statistics, weighted by their samples: sums are all that is needed, also between machines.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from unalike.data.columns import Columns
from unalike.data.pixels import kept
from unalike.metrics.fairness import spread
from unalike.nn.metrics import Metric, need_outputs, statistics
from unalike.nn.task import BoundModule, Task

Line = dict[str, float | None]


@dc.dataclass(frozen=True)
class Scores:
    """The scores on some clients' samples.

    values: the loss and every metric of each client on its own samples [g], NaN where undefined; means: of every
    statistic over all their samples; sizes: their numbers of samples [g].
    """

    values: dict[str, np.ndarray]
    means: dict[str, Tensor]
    sizes: np.ndarray

    def pooled(self, metrics: Mapping[str, Metric]) -> Line:
        """Return the loss and metrics over all samples together. A user's own metric of a whole set cannot be computed
        from means, and is left out."""
        out = {"loss": self.weighted("loss")}
        for name, metric in metrics.items():
            if metric.statistic is not None and metric.value is not None:
                out[name] = defined(metric.value(self.means[metric.statistic.name]))
            elif metric.rows is not None:
                out[name] = self.weighted(name)
        return out

    def weighted(self, name: str) -> float | None:
        """Return the mean of the clients' values, weighted by their samples, over those that are defined."""
        values, sizes = self.values[name], self.sizes
        if name != "loss" and np.isnan(values).any():
            values, sizes = values[there := ~np.isnan(values)], sizes[there]
        return float((values * sizes).sum() / sizes.sum()) if len(values) else None


def defined(value: Any) -> float | None:
    """Return a metric as a round's line holds it: None if it is not defined."""
    return float(value) if math.isfinite(value) else None


def evaluate_set(task: Task, bound: BoundModule, data: tuple[Tensor, Tensor]) -> Line:
    """Return the loss and metrics on a test set."""
    found = _Pass(task, bound, *data, np.array([len(data[1])]))
    values: Line = {name: float(v.mean()) for name, v in found.rows.items()}
    values |= {name: defined(v[0]) for name, v in found.others().items()}
    return {name: values[name] for name in ("loss", *found.metrics)}


def evaluate_columns(task: Task, bound: BoundModule, columns: Columns, ids: np.ndarray) -> Scores:
    """Return the loss and metrics on each client's own samples, for a vector that all clients share, in one pass over
    the pooled samples. Every client here must have samples."""
    everybody = len(ids) == len(columns.sizes)
    x, y = columns.x, columns.y
    if not everybody:
        rows = torch.from_numpy(np.concatenate([np.arange(*columns.offsets[k : k + 2]) for k in ids]))
        x, y = kept(x, rows), kept(y, rows)
    sizes = columns.sizes[ids]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    found = _Pass(task, bound, x, y, sizes)
    own = {name: np.add.reduceat(v.cpu().numpy(), starts) / sizes for name, v in found.rows.items()}
    values = {**own, **found.others()}
    return Scores({name: values[name] for name in ("loss", *found.metrics)}, found.means(), sizes)


def merged(parts: Sequence[tuple[np.ndarray, Scores]]) -> Scores:
    """Merge the scores of several groups of clients; each comes with the positions of its clients."""
    order = np.argsort(np.concatenate([places for places, _ in parts]), kind="stable")
    first, sizes = parts[0][1], np.concatenate([scores.sizes for _, scores in parts])[order]
    values = {name: np.concatenate([scores.values[name] for _, scores in parts])[order] for name in first.values}
    means = {}
    for name in first.means:
        total = sum(scores.means[name] * int(scores.sizes.sum()) for _, scores in parts)
        means[name] = torch.as_tensor(total) / int(sizes.sum())
    return Scores(values, means, sizes)


class _Pass:
    """One pass over samples that belong to groups, one group after another.

    rows: loss and metrics per sample, float64; sums: of every statistic by group [g, k]; outputs, y: all of them, if a
    metric needs that.
    """

    def __init__(self, task: Task, bound: BoundModule, x: Tensor, y: Tensor, sizes: np.ndarray):
        self.sizes, self.metrics = sizes, task.metrics_for(y)
        plain = {name: m.rows for name, m in self.metrics.items() if m.rows is not None}
        summed, whole = statistics(self.metrics, of_all=False), need_outputs(self.metrics)
        parts: dict[str, list[Tensor]] = {name: [] for name in ("loss", *plain)}
        self.sums: dict[str, Tensor] = {}
        owner, at, kept = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)), 0, []
        for output, ys in task.forward(bound, x, y):
            parts["loss"].append(task.losses(output, ys).double())
            output, ys = task.original(output, ys)
            for name, metric in plain.items():
                parts[name].append(metric(output, ys).double())
            for name, statistic in summed.items():
                assert statistic.rows is not None
                some = statistic.rows(output, ys).cpu()  # on the CPU: a GPU would add them in any order
                total = self.sums.setdefault(name, some.new_zeros(len(sizes), some.shape[1]))
                total.index_add_(0, owner[at : at + len(ys)], some)
            at += len(ys)
            if whole:
                kept.append((output, ys))
        self.rows = {name: torch.cat(values) for name, values in parts.items()}
        self.outputs = torch.cat([output for output, _ in kept]) if kept else None
        self.y = torch.cat([ys for _, ys in kept]) if kept else None

    def others(self) -> dict[str, np.ndarray]:
        """Return the metrics that are not means over samples, for each group."""
        out = {}
        for name, metric in self.metrics.items():
            if metric.grouped is not None:
                assert self.outputs is not None and self.y is not None
                out[name] = metric.grouped(self.outputs, self.y, self.sizes)
            elif metric.statistic is not None and metric.value is not None:
                means = self.sums[metric.statistic.name] / torch.from_numpy(self.sizes)[:, None]
                out[name] = vmap(metric.value)(means).numpy()
        return out

    def means(self) -> dict[str, Tensor]:
        """Return the means of every statistic over all samples."""
        out = {name: total.sum(0) / int(self.sizes.sum()) for name, total in self.sums.items()}
        for name, statistic in statistics(self.metrics, of_all=True).items():
            assert self.outputs is not None and self.y is not None
            out[name] = statistic.means(self.outputs, self.y).cpu()
        return out


def clients_line(scores: Scores, metrics: Mapping[str, Metric], higher: Mapping[str, bool]) -> Line:
    """Return the numbers of clients' own test samples: over clients, each counted once, and over all samples
    together."""
    line: Line = {"clients_loss": float(scores.values["loss"].mean())}
    for name in metrics:
        values = scores.values[name]
        there = values[~np.isnan(values)]
        line |= {f"clients_{name}_{key}": number for key, number in spread(there, higher=higher[name]).items()}
        if len(there) < len(values):
            line[f"clients_{name}_count"] = len(there)
    return line | {f"pooled_{name}": value for name, value in scores.pooled(metrics).items()}


def newcomers_line(before: Scores, after: Scores, higher: Mapping[str, bool]) -> Line:
    """Return the numbers of newcomers: for the model they start with, and after their training."""
    line: Line = {"new_loss": float(after.values["loss"].mean())}
    for name, larger in higher.items():
        start, values = (v[~np.isnan(v)] for v in (before.values[name], after.values[name]))
        if len(values):
            found = spread(values, higher=larger)
            line |= {f"new_{name}_{key}": found[key] for key in ("mean", "worst20")}
            line[f"new_{name}_start"] = float(start.mean())
    return line


def validation_line(scores: Scores, metrics: Mapping[str, Metric]) -> Line:
    """Return the numbers over all clients' validation samples together; for a user's own metric of a whole set, the
    mean of the clients' values, weighted by their samples."""
    pooled = scores.pooled(metrics)
    line: Line = {f"validation_{k}": pooled[k] if k in pooled else scores.weighted(k) for k in ("loss", *metrics)}
    return line | {"validation_samples": int(scores.sizes.sum())}
