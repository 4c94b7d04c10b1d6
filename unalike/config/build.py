"""Build the parts of a run (data, model, method, training) from the tables of a config."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from unalike import draws
from unalike.config.public import make_public
from unalike.config.tables import EXTRAS, MODEL, MODELS_TABLE, SPLIT, data_parts
from unalike.config.user_files import is_file, own_function, own_method, own_model
from unalike.contract import Method
from unalike.contract.architectures import assigned_names
from unalike.data import Dataset, Federation, load, load_federation
from unalike.data.extras import with_extras
from unalike.data.partition import composed, parse
from unalike.data.pictures import layout, picture_dataset
from unalike.data.sources import FEDERATIONS
from unalike.data.tables import table_dataset
from unalike.errors import UnalikeError, line_of, unknown
from unalike.methods import METHODS
from unalike.models import MODELS, build
from unalike.nn.metrics import named
from unalike.nn.task import LOSSES
from unalike.run.clock import Clock
from unalike.run.sampling import Bernoulli, BySize, Turns
from unalike.settings.typed import short
from unalike.training.settings import LocalTraining

SAMPLINGS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "bernoulli": (Bernoulli, float),
    "by-size": (BySize, int),
    "turns": (Turns, int),
}
# suffix of bernoulli:0.15: an empty cohort counts as a round
EMPTY = ":empty"


def make_data(table: dict[str, Any], raw: bool = False) -> Federation:
    """Build the federation of [data]: a name, a folder or a table, and how it is split among clients; raw: features to
    be prepared are left as they are. [data.pictures] and [data.signals] are joined into one."""
    if parts := data_parts(table):
        return joined({name: _part(name, own, raw) for name, own in parts.items()})
    try:
        return _data(dict(table), raw)
    except (MemoryError, OverflowError, ValueError) as error:  # numpy, asked for 10**12 of something
        raise UnalikeError(f"[data] {short(table)} is too much for this machine: {line_of(error)}.") from error


def as_stored(table: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return [data] without changes of features, if these are still to be prepared, and the text of what was left
    out."""
    if parts := data_parts(table):
        found = {name: as_stored(part) for name, part in parts.items()}
        return {**table, **{n: own for n, (own, _) in found.items()}}, ", ".join(
            filter(None, (c for _, c in found.values()))
        )
    if "partition" not in table or "name" in table:
        return table, ""
    recipe = composed(parse(table["partition"]))
    kept = recipe.without_features()
    left = "|".join(str(piece) for piece in recipe.pieces if piece not in kept.pieces)
    rest = {name: value for name, value in table.items() if name != "partition"}
    return (rest | ({"partition": str(kept)} if kept.pieces else {}), left) if left else (table, "")


def _part(name: str, table: dict[str, Any], raw: bool) -> Federation:
    try:
        return make_data(table, raw)
    except UnalikeError as error:
        raise UnalikeError(f"[data.{name}]: {error}") from None


def joined(parts: dict[str, Federation]) -> Federation:
    """Join federations by name; a single one is returned unchanged."""
    return Federation.joined(parts) if len(parts) > 1 else next(iter(parts.values()))


def _data(options: dict[str, Any], raw: bool) -> Federation:
    name = options.pop("name", None)
    if isinstance(options.get("public"), str):
        options["public"] = make_public(options["public"], name, options, options.get("seed", 0))
    if name in FEDERATIONS:
        share, dealt = options.pop("validation", 0.0), options.pop("partition", "natural")
        seed, extras = options.get("seed", 0), _extras(options)
        if composed(parse(dealt)).natural:
            own = load_federation(name, **options).split_clients(validation=share, seed=seed)
            return _extended(own, extras, seed, lambda fed: fed.skewed(dealt, seed))
        test = options.pop("test", 0.0)
        # all clients' samples, divided anew among as many clients
        made = load_federation(name, **options)
        pool = Dataset(made.train.x, made.train.y, made.global_test, made.classes, name)
        return pool.split(dealt, len(made), seed=seed, test=test, validation=share, **extras)
    split = {key: options.pop(key) for key in SPLIT if key in options}
    if name is None and "folder" in options and layout(options["folder"]):
        return picture_dataset(**options).split(**split)
    if name is None and "folder" in options:
        fractions = {f"{k}_fraction": split.pop(k) for k in ("test", "validation") if k in split}
        extras, changes, seed = _extras(split), split.pop("partition", "natural"), split.get("seed", 0)
        fed = Federation.from_folder(options.pop("folder"), raw=True, **fractions, **split, **options)
        ready = lambda fed: fed if raw or fed.recipe is None else fed.prepared()  # noqa: E731
        return _extended(fed, extras, seed, lambda fed: ready(fed).skewed(changes, seed))
    if name is None:
        return _table(options, split, raw)
    return load(name, **options).split(**split)


def _extras(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the public set and further splits from the options and return them."""
    return {key: options.pop(key) for key in EXTRAS if key in options}


def _extended(
    fed: Federation, extras: dict[str, Any], seed: int, ready: Callable[[Federation], Federation]
) -> Federation:
    """Return a federation whose clients have their own samples, extended by a public set and further splits."""
    labels, shipped = extras.get("public_labels", True), extras.get("shipped", False)
    return with_extras(fed, extras.get("public"), labels, extras.get("splits"), seed, shipped, ready)


def _table(options: dict[str, Any], split: dict[str, Any], raw: bool) -> Federation:
    """Return a table as a federation, by its client column or pooled and divided by a partition; `test` may be a second
    table."""
    test = split.get("test")
    if isinstance(test, str) and test != "same":
        options["test"] = split.pop("test")
    return table_dataset(options.pop("table"), **options).split(**split, raw=raw)


def make_model(table: dict[str, Any], federation: Federation, seed: int) -> torch.nn.Module:
    """Build the model of [model]: a name or a file, and options; sizes that follow from the data may be left out.
    Weights come from the seed."""
    options = {k: v for k, v in table.items() if k not in MODEL}
    sample, target = federation.train.x[0], federation.train.y[0]
    found = {
        "features": sample.numel(),
        "channels": sample.shape[0] if sample.dim() == 3 else None,
        "size": sample.shape[-1] if sample.dim() == 3 else None,
        # or the number of values to predict
        "classes": target.numel() if federation.classes is None else federation.classes,
    }
    file, name = options.pop("file", None), options.pop("name", "linear")
    builder = own_model(file) if file else MODELS[name]
    taken = inspect.signature(builder).parameters
    options = {k: v for k, v in found.items() if k in taken and v is not None} | options
    with draws.torch_seed(seed, "model"):
        try:
            module = builder(**options) if file else build(name, **options)
        except UnalikeError:
            raise
        except Exception as error:
            raise UnalikeError(f"{file or name} cannot be built from {options}: {line_of(error)}.") from error
    if not isinstance(module, torch.nn.Module):
        raise UnalikeError(f"{file} must return a torch.nn.Module; it returned {short(module)}.")
    return module


def make_models(tables: dict[str, Any], federation: Federation, seed: int) -> Any:
    """Build the model of [model], or a dict of models for [models.NAME] if clients have different networks. Weights
    come from the seed."""
    if MODELS_TABLE not in tables:
        return make_model(tables["model"], federation, seed)
    parts = getattr(federation, "parts", {})
    networks = tables[MODELS_TABLE].items()
    return {name: make_model(table, parts.get(name, federation), seed) for name, table in networks}


def network_names(tables: dict[str, Any], clients: int) -> list[str]:
    """Return the name of each client's network, as in the [models.NAME] tables."""
    networks, architecture = tables[MODELS_TABLE], tables["run"].get("architecture")
    names = [*networks] * clients if len(networks) == 1 else assigned_names(architecture or [], clients)
    if len(names) != clients or not {*names} <= {*networks}:
        raise UnalikeError(
            f"[run] architecture must name one of {', '.join(networks)} for each of {clients} clients; it is "
            f"{short(architecture)}."
        )
    return names


def make_loss_of(tables: dict[str, Any]) -> dict[str, Any]:
    """Return loss, metrics, head and output of [model]; the latter two for each network if there are several."""
    networks = tables.get(MODELS_TABLE, {})
    out = make_loss(tables["model"])
    for key in ("head", "output"):
        if own := {name: table[key] for name, table in networks.items() if key in table}:
            out[key] = own
    return out


def make_loss(table: dict[str, Any]) -> dict[str, Any]:
    """Return loss, metrics and head of [model]; a user's own functions are "path/to/file.py:name"."""
    out: dict[str, Any] = {k: table[k] for k in MODEL if k in table}
    if ":" in out.get("loss", ""):
        out["loss"] = own_function(out["loss"])
    elif "loss" in out and out["loss"] not in LOSSES:
        raise unknown("loss", out["loss"], LOSSES)
    if "metrics" in out:
        out["metrics"] = {t.rpartition(":")[2]: own_function(t) if is_file(t) else t for t in out["metrics"]}
        # refuses unknown names before any data are loaded
        named(out["metrics"])
    return out


def make_method(table: dict[str, Any]) -> Method:
    """Build the method of [method]: a name and hyper-parameters."""
    options = dict(table)
    file, name = options.pop("file", None), options.pop("name", "fedavg")
    try:
        return (own_method(file) if file else METHODS[name])(**options)
    except UnalikeError:
        raise
    except Exception as error:
        raise UnalikeError(f"[method] {file or name} cannot be made from {options}: {line_of(error)}.") from error


def make_local(table: dict[str, Any]) -> LocalTraining:
    """Build the LocalTraining of [local]."""
    options = dict(table)
    if options.get("batch_size") == "full":
        options["batch_size"] = None
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    return LocalTraining(**options)


def make_clock(table: dict[str, Any]) -> Clock | None:
    """[clock]: the settings of a clock; None where there are none."""
    return Clock(**table) if table else None


def make_sampling(value: Any) -> Any:
    """Return a sampling: a number or lists, as in Python, or "bernoulli:0.15", "bernoulli:0.15:empty", "by-size:10" or
    "turns:10"."""
    if not isinstance(value, str):
        return value
    name, _, argument = value.partition(":")
    if name not in SAMPLINGS:
        raise unknown("sampling", name, SAMPLINGS)
    kind, number = SAMPLINGS[name]
    options = {}
    if kind is Bernoulli and argument.endswith(EMPTY):
        argument, options = argument.removesuffix(EMPTY), {"empty": True}
    try:
        return kind(number(argument), **options)
    except (ValueError, OverflowError):
        raise UnalikeError(f"clients_per_round={value!r}: after the colon there must be a number.") from None
