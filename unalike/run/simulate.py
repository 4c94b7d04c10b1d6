"""`simulate`: check the arguments and run a method on a federation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from unalike.contract.method import Method
from unalike.data.federation import Federation
from unalike.errors import UnalikeError
from unalike.models import build, start_of
from unalike.nn.empty import NoModel
from unalike.nn.numerics import DTYPES, check_precision, find_device, numerics
from unalike.nn.output import Output
from unalike.nn.task import Loss, Task, default_loss
from unalike.run.callbacks import Callback
from unalike.run.clock import Clock
from unalike.run.run import Run
from unalike.run.settings import split_options, takes_settings
from unalike.training.settings import LocalTraining

Model = nn.Module | Callable[[], nn.Module]


@takes_settings
def simulate(
    model: Model | Mapping[str, Model] | None,
    federation: Federation,
    method: Method,
    *,
    local: LocalTraining | None = None,
    loss: Loss | nn.Module | str | None = None,
    metrics: Mapping[str, Any] | Sequence[Any] | None = None,
    head: str | Mapping[str, str] | None = None,
    output: Output | Mapping[str, Output] = None,
    clock: Clock | None = None,
    callbacks: Sequence[Callback] = (),
    recipe: dict[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Run `method` for `rounds` rounds and return the `Run`.

    model: one of `ua.models`, or a function that builds a model: its weights come from the run's seed. Any other
      module, and one whose weights you have loaded or set, starts with the weights it has. Where clients have
      different networks: a dict from names to models, and `architecture` says which client has which. None: for methods
      that need no model. A method that makes its own (trees) does not look at it.
    loss: a name, or a function of (output, y) with one value per sample; default cross-entropy, or squared
      error where y is a number.
    metrics: a list of names and functions, or a dict from names to functions; the first is the headline. Names:
      accuracy, auc, f1, balanced_accuracy, log_loss, brier, calibration_error; rmse, mae, r2. A function of (outputs,
      y) gives one value per sample, or one number for all; `function.higher_is_better = False` where less is better.
      Default: accuracy, or for numbers rmse, mae and r2.
    head: the last layer's name, where it is not found.
    output: which part of what the model returns is its output, where that is a tuple or a dict: a key or attribute
      ("logits"), a position (0), or a function.
    clock: how long clients take, when they are there, how long the server waits (`ua.Clock`); None: no time is kept.
    recipe: the tables of the config file this run comes from, written into its config.toml.
    clients_per_round: as below, a list of client lists, or one of `ua.sampling`.
    architecture: as below, or a function from a client's number to a name; head and output may then be dicts by name.
    engine_options: such as `workers`, `clients_at_once`, `memory` and `compile` (`unalike run --help` has them all).

    """
    if not isinstance(method, Method):
        given = getattr(method, "__name__", type(method).__name__)
        raise UnalikeError(f"method must be a method such as ua.FedAvg(); got {given}.")
    if not isinstance(federation, Federation):
        raise UnalikeError(f"The data must be a Federation; got {type(federation).__name__}: use Dataset.split(...).")
    chosen, engine_options = split_options(settings)
    device, precision = find_device(chosen.device), chosen.precision
    check_precision(precision, device)
    if method.on_cpu:
        device, precision = torch.device("cpu"), "highest"
    with numerics(chosen.precision, chosen.deterministic):
        parts: Mapping[str, Federation] = getattr(federation, "parts", {})
        tasks = {}
        for name, own in networks(model, federation, chosen.architecture).items():
            data = parts.get(name, federation)
            start = no_model(method, data) if own is None or method.network else own
            start = start_of(start, chosen.seed) if callable(start) else start
            measure = default_loss(data.train.y) if loss is None else loss
            numeric = DTYPES[chosen.dtype], device, precision
            unit = None if data.preparation is None else data.preparation.target
            given = {"unit": unit, "output": _of(output, name)}
            tasks[name] = Task(start, measure, metrics, _of(head, name), *numeric, chosen.buffers, **given)
        run = Run(tasks, federation, method, local or LocalTraining(), chosen, engine_options, recipe, clock)
        try:
            run.go(callbacks)
        finally:
            run.close()
    return run


def networks(model: Any, federation: Federation, architecture: Any) -> dict[str, Any]:
    """Return the networks by name; a single network has the name "model"."""
    parts = getattr(federation, "parts", None)
    if not isinstance(model, Mapping):
        if parts is not None and len(parts) > 1:
            raise UnalikeError(f"Joined federations need a network each, by name: {{{_listed(parts)}}}.")
        if architecture is not None:
            raise UnalikeError("architecture says which client has which of several networks, and there is one.")
        return {"model": model}
    for name in model:
        if not isinstance(name, str) or not name.isidentifier():
            raise UnalikeError(f"A network is called {name!r}: use letters, digits and _.")
    if parts is not None and set(parts) != set(model):
        raise UnalikeError(f"There are the networks {_listed(model)} for the data {_listed(parts)}: give one each.")
    if not model:
        raise UnalikeError("There is no network: give a model, or a dict from names to models.")
    return dict(model)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _of(value: Any, name: str) -> Any:
    """Return the value given for this network, or the one given for all networks."""
    return value.get(name) if isinstance(value, Mapping) else value


def no_model(method: Method, data: Federation) -> nn.Module:
    """Return the model that a method makes itself, or an empty stand-in if the method needs none."""
    classes = data.classes
    if method.network:
        features = data.train.x[:1].numel()
        return build(method.network, features=features, classes=classes or 1, **method.network_options())
    if method.needs_model:
        raise UnalikeError(f"{type(method).__name__} trains a model: give one, such as ua.models.mlp(...).")
    return NoModel(classes or 1)
