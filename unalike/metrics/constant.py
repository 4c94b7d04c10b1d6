"""The constant guess: the score that a model must beat to have learned anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unalike.data.federation import Federation
from unalike.metrics.evaluation import Line, clients_line, evaluate_columns, evaluate_set, validation_line
from unalike.metrics.names import directions
from unalike.nn.task import Task


class Constant(nn.Module):
    """A module with the same output for every sample."""

    def __init__(self, output: Tensor):
        super().__init__()
        self.head = nn.Linear(1, len(output), dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias.copy_(output)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.zeros(len(x), 1, dtype=self.head.bias.dtype, device=x.device))


def constant_output(federation: Federation, outputs: int | None = None) -> Tensor:
    """Return the constant guess, float64: the logarithms of the classes' shares in the training data, or the mean of
    the training targets. A class without samples counts as half a sample. outputs=1: one logit for two classes."""
    y = federation.train.y.cpu()
    if federation.classes is None:
        return y.double().reshape(len(y), -1).mean(0)
    counts = torch.bincount(y, minlength=federation.classes).double()
    log = (counts.clamp(min=0.5) / counts.sum()).log()
    if outputs == 1 and len(log) == 2:
        return log[1:] - log[:1]
    few = log.new_full((max(0, (outputs or 0) - len(log)),), float(np.log(0.5 / len(y))))
    return torch.cat([log, few])


def constant_scores(
    federation: Federation,
    metrics: Mapping[str, Any] | Sequence[Any] | None = None,
    loss: Any = None,
    *,
    unit: tuple[Any, Any] | None = None,
    clients: np.ndarray | None = None,
    outputs: int | None = None,
) -> Line:
    """Evaluate the constant guess; return numbers with the keys of a round's line: test_*, pooled_*, clients_*,
    validation_*.

    metrics, loss, unit: as in the run (default loss for numbers: squared error); clients: those evaluated, default all;
    outputs: the number of the model's outputs, if it is not the number of classes.
    """
    if loss is None and federation.classes is None:
        loss = "squared-error"
    task = Task(Constant(constant_output(federation, outputs)), loss, metrics, dtype=torch.float64, unit=unit)
    data = federation.to("cpu", torch.float64)
    task.check(data.train.x[:2], data.train.y[:2])
    bound = task.live()
    bound.vector.copy_(task.start)
    asked = task.metrics_for(data.train.y)
    line: Line = {}
    if data.global_test is not None and len(data.global_test[1]):
        line |= {f"test_{name}": value for name, value in evaluate_set(task, bound, data.global_test).items()}
    ids = np.arange(len(data)) if clients is None else clients
    for name in ("test", "validation"):
        columns = data.splits.get(name)
        if columns is None or not len(some := ids[columns.sizes[ids] > 0]):
            continue
        scores = evaluate_columns(task, bound, columns, some)
        line |= clients_line(scores, asked, directions(asked)) if name == "test" else validation_line(scores, asked)
    return line
