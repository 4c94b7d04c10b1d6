"""A run from a TOML file: tables [data], [model], [method], [local], [run].

[data]
name = "digits"            # or folder = "path/of/client/files"
partition = "dirichlet:0.1"
clients = 50

[model]
name = "mlp"               # features, channels, size and classes are found from the data

[method]
name = "scaffold"

[local]
epochs = 5
batch_size = 10

[run]
rounds = 20
clients_per_round = 0.2
"""

from __future__ import annotations

import dataclasses as dc
import inspect
import tomllib
from pathlib import Path
from typing import Any

import torch

from unalike import random
from unalike.contract import Method
from unalike.data.federation import Federation
from unalike.data.partition import parse as parse_partition
from unalike.data.sources import FEDERATIONS, load, load_federation
from unalike.engines import OPTIONS as ENGINE_OPTIONS
from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.local import LocalTraining
from unalike.methods import METHODS
from unalike.models import MODELS, build
from unalike.sampling import Bernoulli, BySize
from unalike.simulate import Run, simulate

TABLES = ("data", "model", "method", "local", "run")
SPLIT = {"clients": 10, "partition": "iid", "seed": 0, "test": 0.0, "validation": 0.0}
SAMPLINGS = {"bernoulli": (Bernoulli, float), "by-size": (BySize, int)}
NOT_IN_RUN = {"model", "federation", "method", "local", "callbacks", "metrics", "engine_options"}


def read(path: str | Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, checked for names that do not exist."""
    try:
        config = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnalikeError(f"There is no file {str(path)!r}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UnalikeError(f"{path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise UnalikeError(f"{path} is not TOML: {error}.") from error
    return check(config, str(path))


def check(config: dict[str, Any], where: str = "The config") -> dict[str, dict[str, Any]]:
    """Every table is known and is a table."""
    for name, table in config.items():
        if name not in TABLES:
            raise UnalikeError(f"{where} has a table [{name}], which means nothing.{did_you_mean(name, TABLES)}")
        if not isinstance(table, dict):
            raise UnalikeError(f"{where}: {name} must be a table, [{name}]; got {table!r}.")
    return {name: dict(config.get(name, {})) for name in TABLES}


def run(config: dict[str, dict[str, Any]], callbacks: Any = (), resume: bool = False) -> Run:
    """The run that a config describes."""
    settings = dict(config["run"])
    known = set(inspect.signature(simulate).parameters) - NOT_IN_RUN | {o for n in ENGINE_OPTIONS.values() for o in n}
    for name in settings:
        if name not in known:
            raise UnalikeError(f"[run] has no setting {name!r}.{did_you_mean(name, known)}")
    if "rounds" not in settings:
        raise UnalikeError("[run] needs rounds, the number of rounds.")
    settings["clients_per_round"] = _sampling(settings.get("clients_per_round", 1.0))
    federation = make_data(config["data"])
    seed = settings.get("seed", 0)
    module = make_model(config["model"], federation, seed)
    local = make_local(config["local"])
    settings["resume"] = resume or settings.get("resume", False)
    return simulate(module, federation, make_method(config["method"]), local=local, callbacks=callbacks, **settings)


def make_data(table: dict[str, Any]) -> Federation:
    """[data]: a name or a folder, and how it is split among clients."""
    options = dict(table)
    if ("name" in options) == ("folder" in options):
        raise UnalikeError("[data] needs a name or a folder, one of the two.")
    if "folder" in options:
        fractions = {f"{k}_fraction": options.pop(k) for k in ("test", "validation") if k in options}
        return _call("[data]", Federation.from_folder, options.pop("folder"), **fractions, **options)
    name = options.pop("name")
    if name in FEDERATIONS:
        return load_federation(name, **options)
    split = {key: options.pop(key, default) for key, default in SPLIT.items()}
    if type(split["clients"]) is not int:
        raise UnalikeError(f"[data] clients must be a whole number; got {split['clients']!r}.")
    partition = parse_partition(split.pop("partition"))
    return load(name, **options).split(partition, **split)


def make_model(table: dict[str, Any], federation: Federation, seed: int) -> torch.nn.Module:
    """[model]: a name and options; what the data decide need not be said. Weights are drawn from the run's seed."""
    options = dict(table)
    name = options.pop("name", "linear")
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    sample = federation.train.x[0]
    found = {
        "features": sample.numel(),
        "channels": sample.shape[0] if sample.dim() == 3 else None,
        "size": sample.shape[-1] if sample.dim() == 3 else None,
        "classes": federation.classes,
    }
    taken = inspect.signature(MODELS[name]).parameters
    options = {k: v for k, v in found.items() if k in taken and v is not None} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random.key(seed, "model") & 0xFFFFFFFF)
        return build(name, **options)


def make_method(table: dict[str, Any]) -> Method:
    """[method]: a name and hyper-parameters."""
    options = dict(table)
    name = options.pop("name", "fedavg")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return _call(f"[method] {name}", METHODS[name], **options)


def make_local(table: dict[str, Any]) -> LocalTraining:
    """[local]: the settings of LocalTraining; batch_size = "full" is the full batch."""
    options = dict(table)
    if options.get("batch_size") == "full":
        options["batch_size"] = None
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    return _call("[local]", LocalTraining, **options)


def _sampling(value: Any) -> Any:
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


def _call(where: str, fn: Any, *args: Any, **options: Any) -> Any:
    """Call a constructor with options from a file: unknown ones and wrong kinds of values are one line."""
    fields = {f.name for f in dc.fields(fn)} if dc.is_dataclass(fn) else set(inspect.signature(fn).parameters)
    for name in options:
        if name not in fields:
            raise UnalikeError(f"{where} has no setting {name!r}.{did_you_mean(name, fields)}")
    try:
        return fn(*args, **options)
    except (TypeError, ValueError) as error:
        raise UnalikeError(f"{where}: {error}.") from error
