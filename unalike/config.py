"""A run as a TOML file, and the file as a run. Tables [data], [model], [method], [local], [run].

    [data]
    name = "digits"            # or folder = "path/of/client/files"
    partition = "dirichlet:0.1"
    clients = 50

    [model]
    name = "mlp"               # or file = "path/to/file.py:build"; sizes are found from the data
    loss = "cross-entropy"     # or "path/to/file.py:loss"

    [method]
    name = "scaffold"

    [local]
    epochs = 5
    batch_size = 10            # "full" is the full batch

    [run]
    rounds = 20
    clients_per_round = 0.2    # or 10, "bernoulli:0.15", "by-size:10", [[0, 1], [2, 3]]

What a setting may be comes from the annotations of the functions it is given to, so a file, the command line and
Python accept the same. The config.toml of a run folder is such a file, with a table [facts] of what was found.
"""

from __future__ import annotations

import importlib.util
import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unalike import random, typed
from unalike.contract import Method
from unalike.data.federation import Federation
from unalike.data.partition import PARTITIONS
from unalike.data.partition import parse as parse_partition
from unalike.data.sources import FEDERATIONS, SOURCES, load, load_federation
from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.local import OPTIMIZERS, LocalTraining
from unalike.methods import METHODS
from unalike.model import LOSSES
from unalike.models import MODELS, build
from unalike.sampling import Bernoulli, BySize
from unalike.simulate import DTYPES, PRECISIONS, Run, simulate

TABLES = ("data", "model", "method", "local", "run")
FACTS = "facts"  # what a run found out about its data and model: written, never read as a setting
SAMPLINGS: dict[str, tuple[Any, Callable[[str], Any]]] = {"bernoulli": (Bernoulli, float), "by-size": (BySize, int)}

Known = dict[str, tuple[Any, Any]]
SPLIT: Known = {
    "partition": (str, "iid"),
    "clients": (int, 10),
    "seed": (int, 0),
    "test": (float, 0.0),
    "validation": (float, 0.0),
}
MODEL: Known = {"loss": (str, None), "metrics": (list[str], None), "head": (str, None)}
ENGINE: Known = {
    "workers": (int, None),
    "clients_at_once": (int, None),
    "memory": (int, None),
    "compile": (bool, None),
}
NOT_IN_RUN = {
    "model",
    "federation",
    "method",
    "local",
    "callbacks",
    "loss",
    "metrics",
    "head",
    "recipe",
    "engine_options",
}


# ---------------------------------------------------------------- what may be said


def run_settings() -> Known:
    """[run]: what `simulate` takes, and the engines' options."""
    known = {n: h for n, h in typed.hints(simulate).items() if n not in NOT_IN_RUN}
    known["clients_per_round"] = (float | str | list[list[int]], 1.0)
    return known | ENGINE


def data_settings(table: dict[str, Any]) -> Known:
    """[data]: what the named source takes; for pooled data also how it is split."""
    if "folder" in table:
        return {"folder": (str, None), **{k: SPLIT[k] for k in ("seed", "test", "validation")}}
    name = table.get("name")
    if name in FEDERATIONS:
        return {"name": (str, None), **typed.hints(FEDERATIONS[name])}
    options = typed.hints(SOURCES[name]) if name in SOURCES else {}
    return {"name": (str, None), **options, **SPLIT}


def model_settings(table: dict[str, Any]) -> Known:
    """[model]: what the named builder takes."""
    if "file" in table:
        return {"file": (str, None), **MODEL, **{k: (Any, None) for k in table if k not in MODEL}}
    name = table.get("name", "linear")
    options = typed.hints(MODELS[name]) if name in MODELS else {}
    return {"name": (str, "linear"), **options, **MODEL}


def method_settings(table: dict[str, Any]) -> Known:
    """[method]: the hyper-parameters of the named method, or of one's own (`file = "path/to/file.py:Class"`)."""
    if "file" in table:
        return {"file": (str, None), **typed.hints(own_method(table["file"]))}
    name = table.get("name", "fedavg")
    options = typed.hints(METHODS[name]) if name in METHODS else {}
    return {"name": (str, "fedavg"), **options}


def local_settings(table: dict[str, Any]) -> Known:
    """[local]: what LocalTraining takes."""
    known = typed.hints(LocalTraining)
    return known | {"batch_size": (int | str, 32)}


SETTINGS: dict[str, Callable[[dict[str, Any]], Known]] = {
    "data": data_settings,
    "model": model_settings,
    "method": method_settings,
    "local": local_settings,
    "run": lambda table: run_settings(),
}
NAMES: dict[str, dict[str, Any]] = {"data": {**SOURCES, **FEDERATIONS}, "model": MODELS, "method": METHODS}
CHOICES: dict[tuple[str, str], Any] = {
    ("local", "optimizer"): OPTIMIZERS,
    ("run", "dtype"): DTYPES,
    ("run", "precision"): PRECISIONS,
    ("run", "engine"): ("auto", "sequential", "workers", "batched", "loopback"),
    ("run", "buffers"): ("average", "local", "freeze"),
}


# ---------------------------------------------------------------- files


def read(path: str | Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, checked."""
    return check(read_tables(path), str(path))


def read_tables(path: str | Path) -> dict[str, Any]:
    """What a TOML file says, unchecked (flags may still change it)."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnalikeError(f"There is no file {str(path)!r}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UnalikeError(f"{path} cannot be read: {error}.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnalikeError(f"{path} is not TOML: {error}.") from error


def check(config: dict[str, Any], where: str = "The config") -> dict[str, dict[str, Any]]:
    """Every table, name, setting and kind of value exists; what depends on the data is checked when it is there."""
    for name, table in config.items():
        if name == FACTS:
            continue
        if name not in TABLES:
            raise UnalikeError(f"{where} has a table [{name}], which means nothing.{did_you_mean(name, TABLES)}")
        if not isinstance(table, dict):
            raise UnalikeError(f"{where}: {name} must be a table, [{name}]; got {table!r}.")
    tables = {name: dict(config.get(name, {})) for name in TABLES}
    for table in ("model", "method"):
        if {"name", "file"} <= set(tables[table]):
            raise UnalikeError(f"[{table}] has a name and a file: give one of the two.")
    if ("name" in tables["data"]) == ("folder" in tables["data"]):
        raise UnalikeError("[data] needs a name or a folder, one of the two.")
    for table, registry in NAMES.items():
        chosen = tables[table].get("name")
        if chosen is not None and (not isinstance(chosen, str) or chosen not in registry):
            raise unknown({"data": "data set"}.get(table, table), chosen, registry)
    for name, table in tables.items():
        typed.check(f"[{name}]", table, SETTINGS[name](table))
    for (table, name), options in CHOICES.items():
        value = tables[table].get(name)
        if value is not None and value not in options:
            raise unknown(name, value, options)
    if "rounds" not in tables["run"]:
        raise UnalikeError("[run] needs rounds, the number of rounds.")
    if tables["local"].get("batch_size") not in (None, "full") and isinstance(tables["local"]["batch_size"], str):
        raise UnalikeError(
            f'[local] batch_size must be a whole number or "full"; got {tables["local"]["batch_size"]!r}.'
        )
    make_method(tables["method"])
    make_local(tables["local"])
    make_sampling(tables["run"].get("clients_per_round", 1.0))
    if "partition" in tables["data"]:
        parse_partition(tables["data"]["partition"])
    return tables


def schema() -> dict[str, Any]:
    """A JSON Schema of config files, for editors. (Options of every source, model and method are allowed together.)"""
    tables: dict[str, Any] = {}
    for table in TABLES:
        known: Known = {}
        for choice in NAMES.get(table, {"": None}):
            known |= SETTINGS[table]({"name": choice} if choice else {})
        properties = {name: typed.schema(hint) for name, (hint, _) in known.items()}
        if table in NAMES:
            properties["name"] = {"enum": list(NAMES[table])}
        if table == "data":
            properties["folder"] = {"type": "string"}
        if table in ("model", "method"):
            properties["file"] = {"type": "string"}
        for (where, name), options in CHOICES.items():
            if where == table:
                properties[name] = {"enum": list(options)}
        tables[table] = {
            "type": "object",
            "properties": properties,
            "additionalProperties": table in ("model", "method"),
        }
    tables["run"]["required"] = ["rounds"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "unalike run",
        "type": "object",
        "properties": {**tables, FACTS: {"type": "object"}},
        "required": ["data", "run"],
        "additionalProperties": False,
    }


# ---------------------------------------------------------------- from tables to a run


def run(config: dict[str, Any], callbacks: Any = (), resume: bool = False) -> Run:
    """The run that a config describes."""
    tables = check(config)
    settings = dict(tables["run"])
    settings["clients_per_round"] = make_sampling(settings.get("clients_per_round", 1.0))
    settings["resume"] = resume or settings.get("resume", False)
    federation = make_data(tables["data"])
    module = make_model(tables["model"], federation, settings.get("seed", 0))
    return simulate(
        module,
        federation,
        make_method(tables["method"]),
        local=make_local(tables["local"]),
        callbacks=callbacks,
        recipe=tables,
        **make_loss(tables["model"]),
        **settings,
    )


def make_data(table: dict[str, Any]) -> Federation:
    """[data]: a name or a folder, and how it is split among clients."""
    options = dict(table)
    if "folder" in options:
        fractions = {f"{k}_fraction": options.pop(k) for k in ("test", "validation") if k in options}
        return Federation.from_folder(options.pop("folder"), **fractions, **options)
    name = options.pop("name")
    if name in FEDERATIONS:
        return load_federation(name, **options)
    split = {key: options.pop(key, default) for key, (_, default) in SPLIT.items()}
    partition = parse_partition(split.pop("partition"))
    return load(name, **options).split(partition, **split)


def make_model(table: dict[str, Any], federation: Federation, seed: int) -> torch.nn.Module:
    """[model]: a name or a file, and options; what the data decide need not be said. Weights come from the seed."""
    options = {k: v for k, v in table.items() if k not in MODEL}
    sample = federation.train.x[0]
    found = {
        "features": sample.numel(),
        "channels": sample.shape[0] if sample.dim() == 3 else None,
        "size": sample.shape[-1] if sample.dim() == 3 else None,
        "classes": federation.classes,
    }
    file = options.pop("file", None)
    name = options.pop("name", "linear")
    builder = from_file(file) if file else MODELS[name]
    taken = inspect.signature(builder).parameters
    options = {k: v for k, v in found.items() if k in taken and v is not None} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random.key(seed, "model") & 0xFFFFFFFF)
        if not file:
            return build(name, **options)
        try:
            return builder(**options)
        except Exception as error:
            raise UnalikeError(f"{file} failed to build a model from {options}: {error}") from error


def make_loss(table: dict[str, Any]) -> dict[str, Any]:
    """loss, metrics and head of [model]; functions of one's own as "path/to/file.py:name"."""
    out: dict[str, Any] = {k: table[k] for k in MODEL if k in table}
    if ":" in str(out.get("loss", "")):
        out["loss"] = from_file(out["loss"])
    elif "loss" in out and out["loss"] not in LOSSES:
        raise unknown("loss", out["loss"], LOSSES)
    if "metrics" in out:
        functions = [from_file(name) for name in out["metrics"]]
        out["metrics"] = {fn.__name__: fn for fn in functions}
    return out


def make_method(table: dict[str, Any]) -> Method:
    """[method]: a name and hyper-parameters."""
    options = dict(table)
    file, name = options.pop("file", None), options.pop("name", "fedavg")
    return (own_method(file) if file else METHODS[name])(**options)


def own_method(text: Any) -> type[Method]:
    """The method class of "path/to/file.py:Class"."""
    found = from_file(text) if isinstance(text, str) else text
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UnalikeError(f"{text!r} is not a method: it must be a class made from unalike.Method.")
    return found


def make_local(table: dict[str, Any]) -> LocalTraining:
    """[local]: the settings of LocalTraining."""
    options = dict(table)
    if options.get("batch_size") == "full":
        options["batch_size"] = None
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    return LocalTraining(**options)


def make_sampling(value: Any) -> Any:
    """A number or lists, as in Python, or "bernoulli:0.15" or "by-size:10"."""
    if not isinstance(value, str):
        return value
    name, _, argument = value.partition(":")
    if name not in SAMPLINGS:
        raise unknown("sampling", name, SAMPLINGS)
    kind, number = SAMPLINGS[name]
    try:
        return kind(number(argument))
    except ValueError:
        raise UnalikeError(f"clients_per_round={value!r}: after the colon there must be a number.") from None


def from_file(text: str) -> Any:
    """The thing called `name` in "path/to/file.py:name"."""
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not path or not file.is_file():
        raise UnalikeError(f"{text!r} must be path/to/file.py:name, and there is no file {path or text!r}.")
    spec = importlib.util.spec_from_file_location(f"unalike_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UnalikeError(f"{path!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UnalikeError(f"{path} failed: {type(error).__name__}: {error}.") from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UnalikeError(f"{path} has no {name!r}.{did_you_mean(name, public)}")
    return getattr(module, name)


__all__ = ["PARTITIONS", "check", "read", "run", "schema"]
