"""A run as a TOML file, and the file as a run. Tables [data], [model], [method], [local], [run].

    [data]
    name = "digits"            # or folder = "path/of/client/files", or table = "file.csv"
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
Python accept the same. Paths are read from where the program is started, as in Python. The config.toml of a run folder
is such a file, with absolute paths and a table [facts] of what was found.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union

import torch

from unalike import draws
from unalike.contract import Method
from unalike.data.dataset import CLIENTS, Dataset
from unalike.data.federation import Federation
from unalike.data.partition import PARTITIONS
from unalike.data.partition import parse as parse_partition
from unalike.data.sources import FACTS as SETS
from unalike.data.sources import FEDERATIONS, SOURCES, load, load_federation
from unalike.engines import ENGINES
from unalike.engines.choose import OPTIONS
from unalike.engines.ray import INNER
from unalike.errors import UnalikeError, did_you_mean, line_of, unknown
from unalike.methods import METHODS
from unalike.models import MODELS, build
from unalike.nn.numerics import DEVICES, DTYPES, PRECISIONS
from unalike.nn.task import LOSSES
from unalike.run.run import Run
from unalike.run.sampling import Bernoulli, BySize, sampling
from unalike.run.settings import RunSettings
from unalike.run.simulate import simulate
from unalike.settings import typed
from unalike.settings.typed import Known, Setting
from unalike.training.optimizers import OPTIMIZERS
from unalike.training.settings import LocalTraining

TABLES = ("data", "model", "method", "local", "run")
FACTS = "facts"  # what a run found out about its data and model: written, never read as a setting
SAMPLINGS: dict[str, tuple[Any, Callable[[str], Any]]] = {"bernoulli": (Bernoulli, float), "by-size": (BySize, int)}

SPLIT: Known = {
    "partition": Setting(str, "iid"),
    "clients": Setting(int, CLIENTS),
    "seed": Setting(int, 0),
    "test": Setting(float | str, 0.0),
    "validation": Setting(float, 0.0),
    "drop_empty": Setting(bool, False),
}
NATURAL: Known = {
    **SPLIT,
    "partition": Setting(str, "natural"),
    "clients": Setting(int, None),
}  # data that come with their clients
TABLE: Known = {
    "table": Setting(str, None),
    "client": Setting(str, None),
    "label": Setting(str, None),
    "features": Setting(list[str], None),
    "categorical": Setting(list[str], None),
    "regression": Setting(bool, False),
    "delimiter": Setting(str, None),
    "encoding": Setting(str, "utf-8-sig"),
}
MODEL: Known = {"loss": Setting(str, None), "metrics": Setting(list[str], None), "head": Setting(str, None)}
ENGINE: Known = {name: option for name, option in OPTIONS.items() if option.knob.words}
LEAST: dict[tuple[str, str], int] = {  # what can be said of a number before there are data
    ("data", "clients"): 1,
    ("data", "seed"): 0,
    ("data", "test"): 0,
    ("data", "validation"): 0,
    ("run", "rounds"): 0,
    ("run", "seed"): 0,
    ("run", "checkpoint_every"): 1,
    ("run", "evaluate_every"): 1,
    ("run", "state_memory"): 0,
    ("run", "workers"): 1,
    ("run", "clients_at_once"): 1,
}

# One line each, for `unalike run --help` and for editors.
MEANING: dict[tuple[str, str], str] = {
    ("data", "name"): "a data set by name (unalike list data)",
    ("data", "folder"): "with a name, where that set's files are; alone, one .npz or .safetensors file a client",
    ("data", "table"): "a CSV or parquet file of your own, with a label and a client column",
    ("data", "client"): "the table's column that says whose row it is",
    ("data", "label"): "the table's column to be learned",
    ("data", "features"): "the table's columns to learn from; without it, all others",
    ("data", "categorical"): "features that are words or codes: one 0/1 feature a value",
    ("data", "regression"): "the label is a number, not a class",
    ("data", "delimiter"): "what divides the table's columns, where it is not found",
    ("data", "encoding"): "of the table's text, such as latin-1",
    ("data", "partition"): "how samples are dealt to clients: iid, dirichlet:0.1, natural (unalike list partitions)",
    ("data", "clients"): "how many clients; of data that come with their clients, the largest",
    ("data", "seed"): "of the split, apart from the run's",
    ("data", "test"): 'share of every client\'s samples held out for its own test; "same": the test set, dealt alike',
    ("data", "validation"): "share held out to choose a round by",
    ("data", "drop_empty"): "leave clients without a sample out",
    ("data", "normalise"): "pictures minus the mean, over the deviation; else in 0..1",
    ("data", "scale"): "features to -1..1 by their ranges in the training rows",
    ("data", "test_share"): "of every speaker's text, or of all tweets, for the test set",
    ("model", "name"): "a model by name (unalike list models), or file.py:build",
    ("model", "file"): "a model of your own, path/to/file.py:build",
    ("model", "loss"): "a loss by name, or file.py:loss of (output, y), one value a sample",
    ("model", "metrics"): "metrics of your own, file.py:metric of (output, y)",
    ("model", "head"): "the last layer's name, where it is not found",
    ("method", "name"): "a method by name (unalike list methods), or file.py:Class",
    ("method", "file"): "a method of your own, path/to/file.py:Class",
    ("local", "epochs"): "passes over a client's data a round (or give steps); a list: one each",
    ("local", "steps"): "mini-batch steps a round; a list: one a client",
    ("local", "batch_size"): 'samples a step, or "full"',
    ("local", "lr"): "learning rate; a list: one a client",
    ("local", "lr_decay"): "the rate of round t (from 0) is lr * lr_decay**t",
    ("local", "optimizer"): "how a gradient becomes a step",
    ("local", "momentum"): "of sgd and rmsprop",
    ("local", "nesterov"): "Nesterov's momentum",
    ("local", "betas"): "of adam",
    ("local", "smoothing"): "of rmsprop",
    ("local", "eps"): "of adam and rmsprop",
    ("local", "weight_decay"): "added to the gradient, after clipping",
    ("local", "clip_norm"): "the gradient's norm is cut to this",
    ("local", "shuffle"): "a new order of the samples every pass",
    ("local", "drop_last"): "leave a short last batch out",
    ("local", "keep_optimizer"): "a client's optimizer lives through the run",
    ("local", "augment"): "pictures mirrored and shifted while training: flip, crop:4, flip,crop:4:0.5",
    ("run", "rounds"): "how many rounds",
    ("run", "clients_per_round"): "a share (0.2), a count (10), bernoulli:0.15, by-size:10, or lists",
    ("run", "buffers"): "BatchNorm's statistics",
    ("run", "seed"): "of everything random in the run",
    ("run", "engine"): "who runs the clients (unalike list engines)",
    ("run", "device"): "where",
    ("run", "dtype"): "of weights and data",
    ("run", "precision"): "of products: tf32 and bf16 on a GPU, bf16 on a CPU that has it",
    ("run", "deterministic"): "bit-identical repeats on a GPU too",
    ("run", "folder"): "where the run is written",
    ("run", "resume"): "go on where the run in the folder ended",
    ("run", "checkpoint_every"): "rounds between checkpoints",
    ("run", "evaluate_every"): "rounds between evaluations",
    ("run", "evaluate_clients"): "auto, all, none, or how many",
    ("run", "state_memory"): "bytes of client state in memory; the rest is in files",
    ("run", "workers"): "threads of the workers engine; processes of the ray engine",
    ("run", "clients_at_once"): "clients in a stack of the batched engine",
    ("run", "memory"): "for a stack of the batched engine: bytes, or 8GB",
    ("run", "compile"): "whether the batched engine compiles its step",
    ("run", "fast"): "whether it uses layers with kernels of their own (on a GPU: yes)",
    ("run", "address"): "of a Ray cluster to join: auto, host:port or ray://host:port; else one is started",
    ("run", "inner"): "the engine that each worker of the ray engine runs",
}


# ---------------------------------------------------------------- what may be said


def run_settings() -> Known:
    """[run]: the settings of a run, and the engines' options."""
    return typed.hints(RunSettings) | ENGINE


def data_settings(table: dict[str, Any]) -> Known:
    """[data]: what the named source takes; for pooled data also how it is split."""
    name = table.get("name")
    if name is None and "table" in table:
        return {**TABLE, **(NATURAL if "client" in table else SPLIT)}
    if name is None and "folder" in table:
        return {
            "folder": Setting(str, None),
            "seed": Setting(int, 0),
            "test": Setting(float, 0.0),
            "validation": Setting(float, 0.0),
        }
    if name in FEDERATIONS:
        more = {"partition": NATURAL["partition"], "validation": SPLIT["validation"]}
        return {"name": Setting(str, None), **typed.hints(FEDERATIONS[name]), **more}
    options = typed.hints(SOURCES[name]) if name in SOURCES else {}
    return {"name": Setting(str, None), **options, **(NATURAL if name in SETS and SETS[name].clients else SPLIT)}


def model_settings(table: dict[str, Any]) -> Known:
    """[model]: what the named builder takes."""
    if "file" in table:
        builder = own_model(table["file"])
        free = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(builder).parameters.values())
        options = typed.hints(builder) | ({k: Setting(Any, None) for k in table} if free else {})
        return {**options, "file": Setting(str, None), **MODEL}
    name = table.get("name", "linear")
    options = typed.hints(MODELS[name]) if name in MODELS else {}
    return {"name": Setting(str, "linear"), **options, **MODEL}


def method_settings(table: dict[str, Any]) -> Known:
    """[method]: the hyper-parameters of the named method, or of one's own (`file = "path/to/file.py:Class"`)."""
    if "file" in table:
        return {"file": Setting(str, None), **typed.hints(own_method(table["file"]))}
    name = table.get("name", "fedavg")
    options = typed.hints(METHODS[name]) if name in METHODS else {}
    return {"name": Setting(str, "fedavg"), **options}


def local_settings(table: dict[str, Any]) -> Known:
    """[local]: what LocalTraining takes."""
    known = typed.hints(LocalTraining)
    return known | {
        "batch_size": Setting(int | str, 32),
        "epochs": Setting(known["epochs"][0], None if "steps" in table else 1),
    }


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
    ("run", "engine"): ("auto", *ENGINES),
    ("run", "buffers"): ("average", "local", "freeze"),
    ("run", "inner"): INNER,
}


def every(table: str) -> dict[str, tuple[Any, Any, list[str]]]:
    """All that a table may hold: name -> (annotation, default, the data sets, models or methods that take it)."""
    found: dict[str, list[tuple[Any, Any, str]]] = {}
    chosen = [({"name": choice} if choice else {}, choice) for choice in NAMES.get(table, {"": None})]
    for values, choice in [*chosen, *([({"table": ""}, "table")] if table == "data" else [])]:
        for name, (hint, default, *_) in SETTINGS[table](values).items():
            found.setdefault(name, []).append((hint, default, choice))
    extra = {"data": "folder", "model": "file", "method": "file"}.get(table)
    if extra:
        found[extra] = [(str, None, "")]
    out = {}
    for name, uses in found.items():
        hints, defaults, choices = zip(*uses, strict=True)
        default = defaults[0] if all(d == defaults[0] for d in defaults) else None
        out[name] = (Union[hints], default, [*choices])  # noqa: UP007 (known only now)
    return out


# ---------------------------------------------------------------- files


def read(path: str | Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, checked."""
    return check(read_tables(path), str(path))


def read_tables(path: str | Path) -> dict[str, dict[str, Any]]:
    """What a TOML file says, of which only the tables are checked (flags may still change the rest)."""
    return shape(load_toml(path), str(path))


def load_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file says."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnalikeError(f"There is no file {str(path)!r}.") from None
    except UnicodeDecodeError as error:
        raise UnalikeError(f"{path} is not a text file (UTF-8), and a config must be TOML.") from error
    except OSError as error:
        raise UnalikeError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of thousands of digits
        raise UnalikeError(f"{path} is not TOML: {error}.") from error


def shape(config: dict[str, Any], where: str = "The config") -> dict[str, dict[str, Any]]:
    """The tables, all of them, if there are no others."""
    for name, table in config.items():
        if name not in (*TABLES, FACTS):
            home = next((t for t in TABLES if name in SETTINGS[t]({})), None)
            if home and not isinstance(table, dict):
                raise UnalikeError(f"{where} has {name} outside of a table: it belongs under [{home}].")
            what = (
                f"a table [{typed.short(name)[1:-1]}]" if isinstance(table, dict) else f"a setting {typed.short(name)}"
            )
            raise UnalikeError(f"{where} has {what}, which means nothing.{did_you_mean(name, TABLES)}")
        if not isinstance(table, dict):
            raise UnalikeError(f"{where}: {name} must be a table, [{name}]; got {typed.short(table)}.")
    return {name: dict(config.get(name, {})) for name in TABLES}


def check(config: dict[str, Any], where: str = "The config") -> dict[str, dict[str, Any]]:
    """Every table, name, setting and kind of value exists; what depends on the data is checked when it is there."""
    tables = shape(config, where)
    for table in ("model", "method"):
        if {"name", "file"} <= set(tables[table]):
            raise UnalikeError(f"[{table}] has a name and a file: give one of the two.")
    ways = {"name", "folder", "table"} & set(tables["data"])
    if not ways or ("table" in ways and len(ways) > 1):
        raise UnalikeError("[data] needs a name or a folder, or a table alone (`unalike list data` has the names).")
    if "table" in ways and "label" not in tables["data"]:
        raise UnalikeError("[data] table needs a label, the column to be learned.")
    for table, registry in NAMES.items():
        chosen = tables[table].get("name")
        if chosen is not None and (not isinstance(chosen, str) or chosen not in registry):
            raise unknown({"data": "data set"}.get(table, table), chosen, registry)
    for name, values in tables.items():
        typed.check(f"[{name}]", values, SETTINGS[name](values))
    for (table, name), options in CHOICES.items():
        value = tables[table].get(name)
        if value is not None and value not in options:
            raise unknown(name, value, options)
    for (table, name), least in LEAST.items():
        value = tables[table].get(name, least)
        if not isinstance(value, str) and value < least:
            raise UnalikeError(f"[{table}] {name} must be at least {least}; got {value!r}.")
    if "rounds" not in tables["run"]:
        raise UnalikeError("[run] needs rounds, the number of rounds.")
    _check_values(tables)
    return tables


def _check_values(tables: dict[str, dict[str, Any]]) -> None:
    """What takes more than a type: values that must go together, and names of things in files."""
    data, local, run = tables["data"], tables["local"], tables["run"]
    batch, device, whom = local.get("batch_size"), run.get("device", "auto"), run.get("evaluate_clients", "auto")
    if isinstance(batch, str) and batch != "full":
        raise UnalikeError(f'[local] batch_size must be a whole number or "full"; got {batch!r}.')
    share = data.get("test", 0)
    if isinstance(share, str) and share != "same" and "table" not in data:
        raise UnalikeError(f'[data] test must be a share such as 0.2, or "same"; got {share!r}.')
    if (0 if isinstance(share, str) else share) + data.get("validation", 0) >= 1:
        raise UnalikeError("[data] test and validation must leave something to train on: together less than 1.")
    if device.split(":")[0] not in DEVICES:
        raise unknown("device", device, DEVICES)
    if isinstance(whom, str) and whom not in ("auto", "all", "none"):
        raise UnalikeError(f'[run] evaluate_clients must be "auto", "all", "none" or a whole number; got {whom!r}.')
    if run.get("resume") and "folder" not in run:
        raise UnalikeError("[run] resume needs the folder of the run to continue.")
    make_method(tables["method"])
    make_local(local)
    make_loss(tables["model"])
    participants = sampling(make_sampling(run.get("clients_per_round", 1.0)))
    if "partition" in data:
        parse_partition(data["partition"])
    clients = population(data)
    if clients is not None:
        participants.check(clients)


def population(data: dict[str, Any]) -> int | None:
    """How many clients there will be, where that can be said before the data are there."""
    known = data_settings(data)
    if "clients" not in known or "clients" in data:
        return data.get("clients")
    dealt = str(data.get("partition", "natural")).partition(":")[0] != "natural"
    return CLIENTS if dealt and "partition" in known else known["clients"][1]


def absolute(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Paths made absolute, so that a run folder's config can be run from anywhere."""
    out = {name: dict(table) for name, table in tables.items()}
    for table in ("data", "run"):
        for name in ("folder", "table"):
            if name in out[table]:
                out[table][name] = str(Path(out[table][name]).resolve())
    if "table" in out["data"] and isinstance(out["data"].get("test"), str) and out["data"]["test"] != "same":
        out["data"]["test"] = str(Path(out["data"]["test"]).resolve())
    for table, name in (("model", "file"), ("method", "file"), ("model", "loss")):
        if is_file(out[table].get(name)):
            out[table][name] = _absolute(out[table][name])
    if "metrics" in out["model"]:
        out["model"]["metrics"] = [_absolute(text) for text in out["model"]["metrics"]]
    return out


def is_file(text: Any) -> bool:
    """Whether this is "path/to/file.py:name" and not the name of something built in."""
    return isinstance(text, str) and text.rpartition(":")[0].endswith(".py")


def _absolute(text: str) -> str:
    path, _, name = text.rpartition(":")
    return f"{Path(path).resolve()}:{name}"


def schema() -> dict[str, Any]:
    """A JSON Schema of config files, for editors: which settings there are depends on the name or file chosen."""
    tables = {table: _schema_of(table) for table in TABLES}
    tables["run"]["required"] = ["rounds"]
    tables["data"]["anyOf"] = [{"required": [way]} for way in ("name", "folder", "table")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "unalike run",
        "type": "object",
        "properties": {**tables, FACTS: {"type": "object"}},
        "required": ["data", "run"],
        "additionalProperties": False,
    }


def _schema_of(table: str) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = {}
    for name, (hint, default, _) in every(table).items():
        one = {"enum": list(CHOICES[table, name])} if (table, name) in CHOICES else typed.schema(hint)
        if table in NAMES and name == "name":
            one = {"enum": list(NAMES[table])}
        least = {"minimum": LEAST[table, name]} if (table, name) in LEAST else {}
        text = {"description": MEANING[table, name]} if (table, name) in MEANING else {}
        given = {"default": default} if isinstance(default, str | int | float) else {}
        properties[name] = one | least | text | given
    if table not in NAMES:
        return {"type": "object", "properties": properties, "additionalProperties": False}
    rules = [_only(table, {"name": name}, {"properties": {"name": {"const": name}}, "required": ["name"]})
             for name in NAMES[table]]  # fmt: skip
    if table == "data":
        unnamed = {"not": {"anyOf": [{"required": ["name"]}, {"required": ["table"]}]}}
        rules.append(_only(table, {"folder": ""}, {"required": ["folder"], **unnamed}))
        rules.append(_only(table, {"table": ""}, {"required": ["table"]}))
        rules[-1]["then"]["required"] = ["label"]
    else:  # the default's; a file of one's own takes what it takes
        unnamed = {"not": {"anyOf": [{"required": ["name"]}, {"required": ["file"]}]}}
        rules.append(_only(table, {}, unnamed))
    return {"type": "object", "properties": properties, "allOf": rules}


def _only(table: str, chosen: dict[str, str], when: dict[str, Any]) -> dict[str, Any]:
    return {"if": when, "then": {"propertyNames": {"enum": list(SETTINGS[table](chosen))}}}


# ---------------------------------------------------------------- from tables to a run


def run(
    config: dict[str, Any],
    callbacks: Any = (),
    resume: bool = False,
    federation: Federation | None = None,
    before: Callable[[dict[str, Any]], None] = lambda tables: None,
    **options: Any,
) -> Run:
    """The run that a config describes. With a federation of one's own, [data] is not looked at. `before` is given the
    checked tables before anything is made of them; options are the engine's, where a file cannot hold them."""
    tables = absolute(check(config if federation is None else {**config, "data": {"folder": "."}}))
    settings = dict(tables["run"])
    settings["clients_per_round"] = make_sampling(settings.get("clients_per_round", 1.0))
    settings["resume"] = resume or settings.get("resume", False)
    if federation is None:
        federation = make_data(tables["data"])
    else:
        tables["data"] = dict(config.get("data", {}))
    before(tables)
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
        **options,
    )


def make_data(table: dict[str, Any]) -> Federation:
    """[data]: a name, a folder or a table, and how it is split among clients."""
    try:
        return _data(dict(table))
    except (MemoryError, OverflowError, ValueError) as error:  # numpy, asked for 10**12 of something
        raise UnalikeError(f"[data] {typed.short(table)} is too much for this machine: {line_of(error)}.") from error


def _data(options: dict[str, Any]) -> Federation:
    name = options.pop("name", None)
    if name in FEDERATIONS:
        share, dealt = options.pop("validation", 0.0), options.pop("partition", "natural")
        seed = options.get("seed", 0)
        if dealt == "natural":
            return load_federation(name, **options).split_clients(validation=share, seed=seed)
        test = options.pop("test", 0.0)
        made = load_federation(name, **options)  # everybody's samples, dealt anew to as many clients
        pool = Dataset(made.train.x, made.train.y, made.global_test, made.classes, name)
        return pool.split(dealt, len(made), seed=seed, test=test, validation=share)
    if name is None and "folder" in options:
        fractions = {f"{k}_fraction": options.pop(k) for k in ("test", "validation") if k in options}
        return Federation.from_folder(options.pop("folder"), **fractions, **options)
    split = {key: options.pop(key) for key in SPLIT if key in options}
    if name is None:
        return _table(options, split)
    return load(name, **options).split(**split)


def _table(options: dict[str, Any], split: dict[str, Any]) -> Federation:
    """A table by its client column, or pooled and dealt by a partition; `test` may be a second table."""
    from unalike.data import tables

    test = split.get("test")
    if isinstance(test, str) and test != "same":
        options["test"] = split.pop("test")
    return tables.table_dataset(options.pop("table"), **options).split(**split)


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
    file, name = options.pop("file", None), options.pop("name", "linear")
    builder = own_model(file) if file else MODELS[name]
    taken = inspect.signature(builder).parameters
    options = {k: v for k, v in found.items() if k in taken and v is not None} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draws.key(seed, "model") & 0xFFFFFFFF)
        try:
            module = builder(**options) if file else build(name, **options)
        except UnalikeError:
            raise
        except Exception as error:
            raise UnalikeError(f"{file or name} cannot be built from {options}: {line_of(error)}.") from error
    if not isinstance(module, torch.nn.Module):
        raise UnalikeError(f"{file} must return a torch.nn.Module; it returned {typed.short(module)}.")
    return module


def make_loss(table: dict[str, Any]) -> dict[str, Any]:
    """loss, metrics and head of [model]; functions of one's own as "path/to/file.py:name"."""
    out: dict[str, Any] = {k: table[k] for k in MODEL if k in table}
    if ":" in out.get("loss", ""):
        out["loss"] = _function(out["loss"])
    elif "loss" in out and out["loss"] not in LOSSES:
        raise unknown("loss", out["loss"], LOSSES)
    if "metrics" in out:
        out["metrics"] = {text.rpartition(":")[2]: _function(text) for text in out["metrics"]}
    return out


def _function(text: str) -> Any:
    found = from_file(text)
    if not callable(found) or isinstance(found, type):
        raise UnalikeError(f"{text} must be a function of (output, y); it is {typed.short(found)}.")
    return found


def make_method(table: dict[str, Any]) -> Method:
    """[method]: a name and hyper-parameters."""
    options = dict(table)
    file, name = options.pop("file", None), options.pop("name", "fedavg")
    try:
        return (own_method(file) if file else METHODS[name])(**options)
    except UnalikeError:
        raise
    except Exception as error:
        raise UnalikeError(f"[method] {file or name} cannot be made from {options}: {line_of(error)}.") from error


def own_method(text: Any) -> type[Method]:
    """The method class of "path/to/file.py:Class"."""
    found = from_file(text)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UnalikeError(f"{text!r} is not a method: it must be a class made from unalike.Method.")
    return found


def own_model(text: Any) -> Callable[..., Any]:
    """What builds the model, of "path/to/file.py:build"."""
    found = from_file(text)
    if not callable(found) or isinstance(found, torch.nn.Module):
        what = "a model" if isinstance(found, torch.nn.Module) else typed.short(found)
        raise UnalikeError(f"{text} must be a function or class that builds a model; it is {what}.")
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
    except (ValueError, OverflowError):
        raise UnalikeError(f"clients_per_round={value!r}: after the colon there must be a number.") from None


def from_file(text: Any) -> Any:
    """The thing called `name` in "path/to/file.py:name"."""
    path, _, name = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not path.endswith(".py"):
        raise UnalikeError(f"{typed.short(text)} must be path/to/file.py:name.")
    try:
        file = Path(path).resolve()
        changed = file.stat().st_mtime_ns
    except (OSError, ValueError):
        raise UnalikeError(f"{text!r} must be path/to/file.py:name, and there is no file {path!r}.") from None
    module = _module(file, changed)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UnalikeError(f"{path} has no {name!r}.{did_you_mean(name, public)}")
    return getattr(module, name)


@functools.lru_cache(maxsize=64)
def _module(file: Path, changed: int) -> Any:
    """A user's file, run once as long as it does not change; its neighbours can be imported from it."""
    spec = importlib.util.spec_from_file_location(f"unalike_user_{file.stem}_{draws.key(0, str(file))}", file)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UnalikeError(f"{file} failed: {line_of(error)}.") from error
    return module


__all__ = ["PARTITIONS", "check", "read", "run", "schema"]
