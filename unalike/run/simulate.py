"""`simulate`: check what was asked for and run a method on a federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from unalike.contract.method import Method
from unalike.data.federation import Federation
from unalike.errors import UnalikeError
from unalike.models import start_of
from unalike.nn.empty import NoModel
from unalike.nn.numerics import DTYPES, check_precision, find_device, numerics
from unalike.nn.output import Output
from unalike.nn.task import Loss, Task, default_loss
from unalike.run.callbacks import Callback
from unalike.run.run import Run
from unalike.run.settings import split_options, takes_settings
from unalike.training.settings import LocalTraining


@takes_settings
def simulate(
    model: nn.Module | Callable[[], nn.Module] | None,
    federation: Federation,
    method: Method,
    *,
    local: LocalTraining | None = None,
    loss: Loss | nn.Module | str | None = None,
    metrics: Mapping[str, Any] | Sequence[Any] | None = None,
    head: str | None = None,
    output: Output = None,
    callbacks: Sequence[Callback] = (),
    recipe: dict[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Run `method` for so many rounds and return the `Run`.

    model: one of `ua.models`, or a function that builds a model: its weights come from the run's seed. Any other
      module, and one whose weights you have loaded or set, starts with the weights it has. None: for methods that need
      no model.
    loss: a name, or a function of (output, y) with one value a sample; default cross-entropy, or squared
      error where y is a number.
    metrics: a list of names and functions, or a dict from names to functions; the first is the headline. Names:
      accuracy, auc, f1, balanced_accuracy, log_loss, brier, calibration_error; rmse, mae, r2. A function of (outputs,
      y) gives one value a sample, or one number for all; `function.higher_is_better = False` where less is better.
      Default: accuracy, or for numbers rmse, mae and r2.
    head: the last layer's name, where it is not found.
    output: which part of what the model returns is its output, where that is a tuple or a dict: a key or attribute
      ("logits"), a position (0), or a function.
    recipe: the tables of the config file this run comes from, written into its config.toml.
    clients_per_round: as below, a list of client lists, or one of `ua.sampling`.
    engine_options: such as `workers`, `clients_at_once`, `memory` and `compile` (`unalike run --help` has them all).

    """
    if not isinstance(method, Method):
        given = getattr(method, "__name__", type(method).__name__)
        raise UnalikeError(f"method must be a method such as ua.FedAvg(); got {given}.")
    if not isinstance(federation, Federation):
        raise UnalikeError(f"The data must be a Federation; got {type(federation).__name__}: use Dataset.split(...).")
    chosen, engine_options = split_options(settings)
    device = find_device(chosen.device)
    check_precision(chosen.precision, device)
    with numerics(chosen.precision, chosen.deterministic):
        if model is None:
            start = no_model(method, federation.classes)
        else:
            start = start_of(model, chosen.seed) if callable(model) else model
        loss = default_loss(federation.train.y) if loss is None else loss
        numeric = DTYPES[chosen.dtype], device, chosen.precision
        unit = None if federation.preparation is None else federation.preparation.target
        task = Task(start, loss, metrics, head, *numeric, chosen.buffers, unit=unit, output=output)
        run = Run(task, federation, method, local or LocalTraining(), chosen, engine_options, recipe)
        try:
            run.go(callbacks)
        finally:
            run.close()
    return run


def no_model(method: Method, classes: int | None) -> nn.Module:
    """Return what stands in a model's place for a method that needs none."""
    if method.needs_model:
        raise UnalikeError(f"{type(method).__name__} trains a model: give one, such as ua.models.mlp(...).")
    return NoModel(classes or 1)
