"""Metrics of a task: the built-in ones by name, a user's own functions, and how each is computed.

A metric is one of three kinds.
- One value per sample (accuracy, log_loss, brier, mae, and a user's own functions that return a tensor [n]): the
  metric of a set is the mean.
- A function of the means of a statistic (f1, balanced_accuracy, calibration_error, rmse, r2): a statistic has a row of
  numbers per sample; the metric of a set is a function of their means. Means over several clients' samples need sums
  only.
- A function of all outputs (auc, and a user's own functions that return a single number).

Every built-in metric has means, so that the number over all clients' samples comes from sums. For auc these are shares
of scores in bins: ties within a bin count half. An undefined value is NaN: the AUC of samples of one class, the R2 of
equal targets.

Legend of shapes: n samples, C classes, d targets, k numbers of a statistic, g groups (clients) of samples.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unalike.errors import UnalikeError, first_line, unknown

Rows = Callable[[Tensor, Tensor], Tensor]
Grouped = Callable[[Tensor, Tensor, np.ndarray], np.ndarray]  # (outputs, y, samples of each group) -> [g]

MEANS = "means."  # prefix of the reply field in which the means of a statistic travel
CALIBRATION_BINS = 15
# Bins of a class. They are narrow where log-odds are small and wide where they are large (even in their arcsinh), so
# that neither a model that is hardly trained nor one that is far too sure of itself has all its samples in one.
AUC_BINS, AUC_UNIT, AUC_RANGE = 8192, 0.05, 13.0


@dc.dataclass(frozen=True)
class Statistic:
    """Numbers per sample whose means some metrics are functions of.

    rows: (outputs, y) -> [n, k]; or, if rows would be too long, of_all: (outputs, y) -> their means [k]. holds: whether
    means [k] are possible for any samples; clients' answers are checked by it.
    """

    name: str
    holds: Callable[[Tensor], bool]
    rows: Rows | None = None
    of_all: Rows | None = None

    def means(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the means over these samples, float64 [k]."""
        if self.rows is not None:
            return self.rows(output, y).mean(0)
        assert self.of_all is not None
        return self.of_all(output, y)


@dc.dataclass(frozen=True)
class Metric:
    """A metric of a task.

    rows: one value per sample; statistic, value: a function of a statistic's means [k]; grouped: from all outputs.
    labels: "classes" or "numbers" if it is for only one of them; low, high: the range of its values.
    """

    name: str
    higher_is_better: bool = True
    rows: Rows | None = None
    statistic: Statistic | None = None
    value: Callable[[Tensor], Tensor] | None = None
    grouped: Grouped | None = None
    labels: str = ""
    low: float = -math.inf
    high: float = math.inf

    @property
    def always(self) -> bool:
        """Return whether it is defined for any samples."""
        return self.rows is not None

    @property
    def function(self) -> Callable[..., Any] | None:
        """Return the function that computes it; for a user's own metric, that function."""
        grouped = self.grouped
        return grouped.args[0] if isinstance(grouped, functools.partial) else grouped or self.rows or self.value

    def check(self, y: Tensor) -> None:
        """Refuse labels that the metric is not meant for."""
        if self.labels == ("numbers" if not y.is_floating_point() else "classes"):
            have = "classes" if self.labels == "numbers" else "numbers"
            others = ", ".join(name for name, metric in BUILT_IN.items() if metric.labels == have)
            raise UnalikeError(
                f"The metric {self.name!r} is for {self.labels} and the labels are {have}: use one of {others}."
            )


# ---------------------------------------------------------------- classes


def log_odds(output: Tensor) -> Tensor:
    """Return the log-odds of every class's probability, float64 [n, C]."""
    z = two_sided(output).double()
    classes = z.shape[-1]
    if classes == 2:
        return torch.stack([z[..., 0] - z[..., 1], z[..., 1] - z[..., 0]], -1)
    own = torch.eye(classes, dtype=torch.bool, device=z.device)
    others = z[..., None, :].masked_fill(own, -math.inf).logsumexp(-1)
    return z - others


def two_sided(output: Tensor) -> Tensor:
    """Return logits [n, C]; a single output per sample, [n] or [n, 1], is the logit of class 1 against 0."""
    if output.dim() > 1 and output.shape[-1] > 1:
        return output
    z = output.reshape(output.shape[0])
    return torch.stack([torch.zeros_like(z), z], -1)


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return 1 for a sample whose largest logit is the label, else 0."""
    return (two_sided(logits).argmax(-1) == y).to(logits.dtype)


def log_loss(output: Tensor, y: Tensor) -> Tensor:
    """Return minus the logarithm of the label's probability, one value per sample."""
    return -F.log_softmax(two_sided(output), -1).gather(-1, y[:, None])[:, 0]


def brier(output: Tensor, y: Tensor) -> Tensor:
    """Return the Brier score, one value per sample: the sum over classes of the squared error of the probability; for
    two classes that of class 1 alone, half the sum."""
    p = F.softmax(two_sided(output), -1)
    square = (p - one_hot(y, p.shape[-1]).to(p.dtype)).square()
    return square[:, 1] if p.shape[-1] == 2 else square.sum(-1)


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Return [n, C], True at the label."""
    return y[:, None] == torch.arange(classes, device=y.device)


def class_rows(output: Tensor, y: Tensor) -> Tensor:
    """Return for every class whether it is the label, whether it is predicted, and whether both: [n, 3 C]."""
    z = two_sided(output)
    label, predicted = one_hot(y, z.shape[-1]), one_hot(z.argmax(-1), z.shape[-1])
    return torch.cat([label, predicted, label & predicted], -1).double()


def f1_of(means: Tensor) -> Tensor:
    """Return F1 = 2 hits / (labels + predictions): of class 1 if there are two classes, else the mean over all classes
    that occur as labels or predictions."""
    label, predicted, hit = means.reshape(3, -1)
    each = 2 * hit / (label + predicted)
    return each[1] if len(each) == 2 else _mean_where(each, label + predicted > 0)


def balanced_accuracy_of(means: Tensor) -> Tensor:
    """Return the mean recall over the classes that occur as labels."""
    label, _, hit = means.reshape(3, -1)
    return _mean_where(hit / label, label > 0)


def _mean_where(values: Tensor, there: Tensor) -> Tensor:
    return torch.where(there, values, 0.0).sum() / there.sum()


def calibration_rows(output: Tensor, y: Tensor) -> Tensor:
    """Return the top probability minus whether it is right, in the column of that probability's bin: [n, 15]."""
    top, predicted = F.softmax(two_sided(output).double(), -1).max(-1)
    bin = ((top * CALIBRATION_BINS).ceil().long() - 1).clamp(0, CALIBRATION_BINS - 1)
    return one_hot(bin, CALIBRATION_BINS) * (top - (predicted == y).double())[:, None]


def calibration_error_of(means: Tensor) -> Tensor:
    """Return the expected calibration error: the difference between mean top probability and accuracy in each bin,
    weighted by the bin's samples."""
    return means.abs().sum()


# ---------------------------------------------------------------- the area under the ROC curve


def auc_bins(output: Tensor, y: Tensor) -> Tensor:
    """Return the shares of samples in bins of a class's log-odds, separately for the class and the others: [C, 2, bins]
    as one vector; for two classes, of class 1 alone."""
    odds = _contrasts(output).nan_to_num(0.0)
    columns = torch.arange(odds.shape[-1], device=y.device)
    even = torch.asinh(odds.double() / AUC_UNIT)
    place = ((even + AUC_RANGE) * (AUC_BINS / (2 * AUC_RANGE))).clamp(0, AUC_BINS - 1).long()
    other = y[:, None] != (columns if len(columns) > 1 else columns + 1)
    index = (columns * 2 + other) * AUC_BINS + place
    return torch.bincount(index.reshape(-1), minlength=len(columns) * 2 * AUC_BINS).double() / len(y)


def _contrasts(output: Tensor) -> Tensor:
    """Return the log-odds of each class against the others; for two classes only those of class 1."""
    odds = log_odds(output)
    return odds[:, 1:] if odds.shape[-1] == 2 else odds


def auc_of(means: Tensor) -> Tensor:
    """Return the area under the ROC curve from bins; for several classes the mean over those with samples of both
    kinds."""
    own, other = means.reshape(-1, 2, AUC_BINS).unbind(1)
    below = other.cumsum(-1) - other / 2
    pairs = own.sum(-1) * other.sum(-1)
    return _mean_where((own * below).sum(-1) / pairs, pairs > 0)


def auc_grouped(output: Tensor, y: Tensor, sizes: np.ndarray) -> np.ndarray:
    """Return the exact area under the ROC curve of each group, with ties counted half; NaN if no class has samples of
    both kinds, or an output is not finite."""
    odds, label = _contrasts(output).cpu().numpy(), y.cpu().numpy()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    single = odds.shape[1] == 1
    each = [_ranked(odds[:, c], label == (1 if single else c), owner, len(sizes)) for c in range(odds.shape[1])]
    table = np.stack(each)
    there = ~np.isnan(table)
    with np.errstate(invalid="ignore"):
        out = np.where(there, table, 0).sum(0) / there.sum(0)
    broken = np.bincount(owner, ~np.isfinite(odds).all(1), len(sizes)) > 0
    return np.where(broken, np.nan, out)


def _ranked(score: np.ndarray, positive: np.ndarray, owner: np.ndarray, groups: int) -> np.ndarray:
    """Return the share of pairs of a positive and a negative sample in one group in which the positive has the higher
    score."""
    order = np.lexsort((score, owner))
    score, positive, owner = score[order], positive[order], owner[order]
    first = np.ones(len(score), bool)
    first[1:] = (score[1:] != score[:-1]) | (owner[1:] != owner[:-1])
    block = np.cumsum(first) - 1  # equal scores of a group together
    up = np.bincount(block, positive)
    down = np.bincount(block) - up
    own = owner[first]
    ups, downs = np.bincount(own, up, groups), np.bincount(own, down, groups)
    below = np.cumsum(down) - down - (np.cumsum(downs) - downs)[own]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.bincount(own, up * (below + down / 2), groups) / (ups * downs)


# ---------------------------------------------------------------- numbers


def absolute_error(output: Tensor, y: Tensor) -> Tensor:
    """Return the absolute error, one value per sample; with several targets the mean."""
    return (output.reshape(y.shape) - y).abs().reshape(y.shape[0], -1).mean(-1)


def error_rows(output: Tensor, y: Tensor) -> Tensor:
    """Return squared error, target and squared target for every target: [n, 3 d]."""
    target = y.double().reshape(y.shape[0], -1)
    error = output.double().reshape(target.shape) - target
    return torch.cat([error.square(), target, target.square()], -1)


def rmse_of(means: Tensor) -> Tensor:
    """Return the root mean squared error; the mean over targets."""
    return means.reshape(3, -1)[0].sqrt().mean()


def r2_of(means: Tensor) -> Tensor:
    """Return R2 = 1 - squared error / variance; the mean over the targets that vary. (Less than 1e-12 of the mean
    square is rounding, not variance.)"""
    error, target, square = means.reshape(3, -1)
    variance = square - target.square()
    return _mean_where(1 - error / variance, variance > 1e-12 * square)


# ---------------------------------------------------------------- the metrics by name


def _counts_hold(means: Tensor) -> bool:
    label, predicted, hit = means.reshape(3, -1)
    one = all(abs(float(part.sum()) - 1) < 1e-6 for part in (label, predicted))
    return one and bool((means >= 0).all() and (hit <= torch.minimum(label, predicted) + 1e-9).all())


def _errors_hold(means: Tensor) -> bool:
    error, target, square = means.reshape(3, -1)
    return bool((error >= 0).all() and (square * (1 + 1e-9) >= target.square()).all())


def _bins_hold(means: Tensor) -> bool:
    each = means.reshape(-1, 2 * AUC_BINS).sum(-1)
    return bool((means >= 0).all() and ((each - 1).abs() < 1e-6).all())


COUNTS = Statistic("classes", _counts_hold, class_rows)
CALIBRATION = Statistic("calibration", lambda means: float(means.abs().sum()) <= 1 + 1e-6, calibration_rows)
ERRORS = Statistic("errors", _errors_hold, error_rows)
BINS = Statistic("bins", _bins_hold, of_all=auc_bins)

CLASSES: dict[str, Any] = {"labels": "classes", "low": 0.0, "high": 1.0}
BUILT_IN = {
    metric.name: metric
    for metric in (
        Metric("accuracy", rows=accuracy, **CLASSES),
        Metric("auc", statistic=BINS, value=auc_of, grouped=auc_grouped, **CLASSES),
        Metric("f1", statistic=COUNTS, value=f1_of, **CLASSES),
        Metric("balanced_accuracy", statistic=COUNTS, value=balanced_accuracy_of, **CLASSES),
        Metric("log_loss", False, log_loss, labels="classes", low=0.0),
        Metric("brier", False, brier, labels="classes", low=0.0, high=2.0),
        Metric("calibration_error", False, statistic=CALIBRATION, value=calibration_error_of, **CLASSES),
        Metric("rmse", False, statistic=ERRORS, value=rmse_of, labels="numbers", low=0.0),
        Metric("mae", False, absolute_error, labels="numbers", low=0.0),
        Metric("r2", statistic=ERRORS, value=r2_of, labels="numbers", high=1.0),
    )
}
OF_CLASSES, OF_NUMBERS = ("accuracy",), ("rmse", "mae", "r2")  # defaults


def named(metrics: Mapping[str, Any] | Sequence[Any] | str | None) -> dict[str, Metric] | None:
    """Return metrics by name: from a list of names and functions, or a dict from names to functions; None for None."""
    if metrics is None:
        return None
    if isinstance(metrics, str):
        metrics = [metrics]
    if isinstance(metrics, Mapping):
        pairs = list(metrics.items())
    elif isinstance(metrics, Sequence):
        pairs = [(m if isinstance(m, str) else getattr(m, "__name__", type(m).__name__), m) for m in metrics]
    else:
        pairs = [("", None)]
    if not all(isinstance(name, str) and (isinstance(m, str) or callable(m)) for name, m in pairs):
        names = ", ".join(BUILT_IN)
        raise UnalikeError(f"metrics must be a list of names ({names}), or a dict from names to functions (output, y).")
    for name, _ in pairs:
        if name == "loss" or name.startswith(MEANS):
            whose = "that is the loss's own name" if name == "loss" else f"names that begin with {MEANS!r} are reserved"
            raise UnalikeError(f"A metric cannot be named {name!r}: {whose}.")
    return {name: _metric(name, given) for name, given in pairs}


def _metric(name: str, given: Any) -> Metric:
    if isinstance(given, str):
        if given not in BUILT_IN:
            raise unknown("metric", given, BUILT_IN)
        return dc.replace(BUILT_IN[given], name=name)
    higher = getattr(given, "higher_is_better", True)
    if getattr(given, "whole", False):
        return whole(Metric(name, higher), given)
    return Metric(name, higher, rows=given)


def whole(metric: Metric, function: Callable[..., Any]) -> Metric:
    """Return a user's own metric as one of all outputs: its function returns a single number."""
    grouped = functools.partial(one_by_one, function, metric.name)
    return dc.replace(metric, rows=None, grouped=grouped)


def one_by_one(function: Callable[..., Any], name: str, output: Tensor, y: Tensor, sizes: np.ndarray) -> np.ndarray:
    """Call a user's own function for each group's outputs and labels, float32 or float64 on the CPU."""
    parts = zip(output.cpu().split(sizes.tolist()), y.cpu().split(sizes.tolist()), strict=True)
    out = np.empty(len(sizes))
    for k, (some, labels) in enumerate(parts):
        try:
            out[k] = float(function(some, labels))
        except UnalikeError:
            raise
        except Exception as error:
            raise UnalikeError(
                f"The metric {name!r} failed on {len(labels)} samples: {first_line(error)}. It must give one number, "
                "float('nan') where it is not defined."
            ) from error
    return np.where(np.isfinite(out), out, np.nan)


def statistics(metrics: Mapping[str, Metric], of_all: bool | None = None) -> dict[str, Statistic]:
    """Return the statistics of these metrics by name; of_all: only those computed from all outputs, or only the
    others."""
    found = {m.statistic.name: m.statistic for m in metrics.values() if m.statistic is not None}
    return {name: s for name, s in found.items() if of_all is None or (s.rows is None) == of_all}


def need_outputs(metrics: Mapping[str, Metric]) -> bool:
    """Return whether some of these metrics are computed from all outputs of a set."""
    return any(m.grouped is not None for m in metrics.values())
