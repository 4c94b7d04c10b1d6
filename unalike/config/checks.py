"""Read a config file and check everything that can be checked before the data are loaded."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from unalike.config.build import make_clock, make_local, make_loss, make_method, make_sampling
from unalike.config.channels import CHANNEL, absolute_channel, check_channel, taken_in
from unalike.config.public import absolute_public, check_public
from unalike.config.tables import (
    FACTS,
    IN_COMMON,
    MODEL,
    MODELS_TABLE,
    NAMES,
    SECTIONS,
    SETTINGS,
    TABLES,
    data_parts,
    data_settings,
    network_settings,
)
from unalike.config.user_files import absolute_file, code_in
from unalike.contract import Method
from unalike.data.dataset import CLIENTS
from unalike.data.federation import check_shares
from unalike.data.partition import Composed, Natural, composed
from unalike.data.partition import parse as parse_partition
from unalike.data.sources import FEDERATIONS
from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.nn.numerics import DEVICES
from unalike.run.arrivals import buffer_of, refusal
from unalike.run.sampling import sampling
from unalike.settings import typed
from unalike.settings.knobs import check as check_value

FEDSGD = "fedsgd is run as fedavg with one step on all samples of a client (--steps 1 --batch-size full)"


def read(path: str | Path, allow_code: bool | Collection[Path] = False) -> dict[str, dict[str, Any]]:
    """Return the checked tables of a TOML file; allow_code: as in `read_tables`."""
    return check(read_tables(path, allow_code), str(path))


def read_tables(path: str | Path, allow_code: bool | Collection[Path] = False) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file; only their names are checked, because flags may still change the rest.

    The config.toml of a run's folder may not bring code by itself: the folder may be somebody else's. Python files that
    it names are run only if they are in `allow_code`, or with allow_code=True.
    """
    tree = load_toml(path)
    if FACTS in tree and allow_code is not True:
        _check_code(path, code_in(tree), {file.resolve() for file in allow_code or ()})
    return shape(tree, str(path))


def _check_code(path: str | Path, files: list[Path], allowed: set[Path]) -> None:
    """Refuse a run's config that names a Python file which the user has not named too."""
    for file in files:
        if file.resolve() not in allowed:
            raise UnalikeError(
                f"{path} runs code, {file}: look at it, then name the same file here too (--method, --model, --loss, "
                "--metrics, --channel), or say --allow-code (in Python allow_code=True)."
            )


def load_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnalikeError(f"There is no file {str(path)!r}.") from None
    except UnicodeDecodeError as error:
        raise UnalikeError(f"{path} is not a text file (UTF-8), and a config must be TOML.") from error
    except OSError as error:
        raise UnalikeError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number with thousands of digits
        raise UnalikeError(f"{path} is not TOML: {error}.") from error


def shape(config: dict[str, Any], where: str = "The config") -> dict[str, dict[str, Any]]:
    """Return all tables, empty ones included; raise for a table that does not exist. A channel's tables become part of
    [run]."""
    stages = taken_in(config, where)
    for name, table in config.items():
        if name == CHANNEL:
            continue
        if name not in (*TABLES, MODELS_TABLE, FACTS):
            home = next((t for t in TABLES if name in SETTINGS[t]({})), None)
            if home and not isinstance(table, dict):
                raise UnalikeError(f"{where} has {name} outside of a table: it belongs under [{home}].")
            what = (
                f"a table [{typed.short(name)[1:-1]}]" if isinstance(table, dict) else f"a setting {typed.short(name)}"
            )
            raise UnalikeError(f"{where} has {what}, which means nothing.{did_you_mean(name, TABLES)}")
        if not isinstance(table, dict):
            raise UnalikeError(f"{where}: {name} must be a table, [{name}]; got {typed.short(table)}.")
    networks = {MODELS_TABLE: dict(config[MODELS_TABLE])} if MODELS_TABLE in config else {}
    tables = {name: dict(config.get(name, {})) for name in TABLES} | networks
    if stages is not None:
        tables["run"][CHANNEL] = stages
    return _without_fedsgd(tables)


def _without_fedsgd(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Replace FedSGD by FedAvg with one step on the full batch; settings that the file has are kept."""
    if tables["method"].get("name") != "fedsgd":
        return tables
    local = {} if {"steps", "epochs"} & set(tables["local"]) else {"steps": 1}
    method = {**tables["method"], "name": "fedavg"}
    return {**tables, "method": method, "local": {"batch_size": "full", **local, **tables["local"]}}


def is_fedsgd(path: str | Path | None) -> bool:
    """Return whether a config file asks for FedSGD."""
    method = load_toml(path).get("method") if path else None
    return isinstance(method, dict) and method.get("name") == "fedsgd"


def _check_networks(tables: dict[str, dict[str, Any]]) -> None:
    """Check [models.small], [models.large]: each must be a model, and [model] must have only what they have in
    common."""
    networks, parts = tables.get(MODELS_TABLE), data_parts(tables["data"])
    if parts and set(parts) != set(networks or {}):
        mine, others = _listed("data", parts), _listed(MODELS_TABLE, networks or {})
        raise UnalikeError(f"There are {mine} and {others}: give data and a network for every name.")
    if networks is None:
        if "architecture" in tables["run"]:
            raise UnalikeError("[run] architecture is for several networks: give them as [models.NAME] tables.")
        return
    for name in tables["model"]:
        if name not in IN_COMMON:
            raise UnalikeError(f"[model] has {name}, and there are [models.NAME] tables: give it there, to each.")
    for name, table in networks.items():
        where = f"[{MODELS_TABLE}.{name}]"
        if not isinstance(table, dict):
            raise UnalikeError(f"{where} must be a table; got {typed.short(table)}.")
        if not name.isidentifier():
            raise UnalikeError(f"{where} is the name of a network: use letters, digits and _.")
        if {"name", "file"} <= set(table):
            raise UnalikeError(f"{where} has a name and a file: give one of the two.")
        chosen = table.get("name")
        if chosen is not None and (not isinstance(chosen, str) or chosen not in NAMES["model"]):
            raise unknown("model", chosen, NAMES["model"])
        if common := [key for key in IN_COMMON if key in table]:
            raise UnalikeError(f"{where} has {common[0]}, which is the same for all networks: give it in [model].")
        typed.check(where, table, network_settings(table))
    if parts and "architecture" in tables["run"]:
        raise UnalikeError("[run] has architecture, and the [data.NAME] tables say it already: leave it out.")
    if len(networks) > 1 and not parts and "architecture" not in tables["run"]:
        raise UnalikeError('[run] needs architecture, which client has which network: "small:10, large:10", or a list.')


def _listed(table: str, names: Iterable[str]) -> str:
    return ", ".join(f"[{table}.{name}]" for name in names) or f"no [{table}.NAME]"


def check(config: dict[str, Any], where: str = "The config") -> dict[str, dict[str, Any]]:
    """Check every table, name, setting and type of value, and return the tables; what depends on the data is checked
    later."""
    tables = shape(config, where)
    for table in ("model", "method"):
        if {"name", "file"} <= set(tables[table]):
            raise UnalikeError(f"[{table}] has a name and a file: give one of the two.")
    data = _data_tables(tables["data"])
    for where_it_is, values in data.items():
        _check_source(where_it_is, values)
    for table in ("model", "method"):
        _check_name(table, tables[table], table)
    for name in TABLES:
        if name != "data":
            typed.check(f"[{name}]", tables[name], SETTINGS[name](tables[name]))
    _check_networks(tables)
    for where_it_is, values in data.items():
        _check_limits(where_it_is, values, data_settings(values))
    _check_limits("[run]", tables["run"], SETTINGS["run"](tables["run"]))
    if "rounds" not in tables["run"]:
        raise UnalikeError("[run] needs rounds, the number of rounds.")
    _check_values(tables)
    return _with_own_network(tables)


def _with_own_network(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tables with the model that the method makes itself, if it does; then only loss and metrics of [model]
    count."""
    method = make_method(tables["method"])
    if not method.network:
        return tables
    kept = {name: value for name, value in tables["model"].items() if name in MODEL}
    return {**tables, "model": {"name": method.network, **method.network_options(), **kept}}


def _data_tables(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return [data], or the tables [data.pictures] and [data.signals], by the names they have in a file."""
    parts = data_parts(data)
    if parts and (other := next((name for name in data if name not in parts), None)):
        raise UnalikeError(f"[data] has {other}, and there are [data.NAME] tables: give it there, to each.")
    return {f"[data.{name}]": table for name, table in parts.items()} or {"[data]": data}


def _check_source(where: str, data: dict[str, Any]) -> None:
    """Check that the data are given in one way only, and that every setting is one of theirs."""
    ways = {"name", "folder", "table"} & set(data)
    if not ways or ("table" in ways and len(ways) > 1):
        raise UnalikeError(f"{where} needs a name or a folder, or a table alone (`unalike list data` has the names).")
    if "table" in ways and "label" not in data:
        raise UnalikeError(f"{where} table needs a label, the column to be learned.")
    _check_name("data", data, "data set")
    typed.check(where, data, data_settings(data))


def _check_name(table: str, values: dict[str, Any], noun: str) -> None:
    chosen = values.get("name")
    if chosen is not None and (not isinstance(chosen, str) or chosen not in NAMES[table]):
        raise unknown(noun, chosen, NAMES[table])


def _check_limits(where: str, values: dict[str, Any], known: typed.Known) -> None:
    """Check that numbers are in their ranges, and words among their choices; methods and local training check their
    own."""
    for name, value in values.items():
        knob = known[name].knob
        if knob.choices or not isinstance(value, str):  # a text in place of a number has a meaning of its own
            check_value(f"{where} ", name, value, knob)


def _check_values(tables: dict[str, dict[str, Any]]) -> None:
    """Check what takes more than a type: values that must go together, and names of things in files."""
    local, run = tables["local"], tables["run"]
    batch, device, whom = local.get("batch_size"), run.get("device", "auto"), run.get("evaluate_clients", "auto")
    if isinstance(batch, str) and batch != "full":
        raise UnalikeError(f'[local] batch_size must be a whole number or "full"; got {batch!r}.')
    for where, data in _data_tables(tables["data"]).items():
        _check_shares(where, data)
        _check_extras(where, data)
    if device.split(":")[0] not in DEVICES:
        raise unknown("device", device, DEVICES)
    if isinstance(whom, str) and whom not in ("auto", "all", "none"):
        raise UnalikeError(f'[run] evaluate_clients must be "auto", "all", "none" or a whole number; got {whom!r}.')
    if run.get("resume") and "folder" not in run:
        raise UnalikeError("[run] resume needs the folder of the run to continue.")
    method = make_method(tables["method"])
    check_channel(run.get(CHANNEL, ()), method, len(tables.get(MODELS_TABLE, {})))
    make_local(local)
    make_clock(tables["clock"])
    _check_asynchronous(run.get("asynchronous"), method)
    make_loss(tables["model"])
    participants = sampling(make_sampling(run.get("clients_per_round", 1.0)))
    for data in _data_tables(tables["data"]).values():
        _check_partition(data)
    clients = population(tables["data"])
    if clients is not None:
        participants.check(clients)
        method.check_clients(clients)


def _check_asynchronous(given: Any, method: Method) -> None:
    """Check that the method of an asynchronous run can be run so."""
    if buffer_of(given) and (why := refusal(method)):
        raise UnalikeError(f"[run] asynchronous: {type(method).__name__} does not run so: {why}.")


def _check_partition(data: dict[str, Any]) -> None:
    """Check that the partition can be read; clients that have their own files can only be changed."""
    recipe = _recipe(data)
    if not recipe.natural and "clients" not in data_settings(data) and Path(data.get("folder", ".")).is_dir():
        raise UnalikeError(f"{recipe.dealer} deals samples, and a folder of files has its clients: give changes alone.")


def _recipe(data: dict[str, Any]) -> Composed:
    return composed(parse_partition(data.get("partition", "natural")))


def _check_shares(where: str, data: dict[str, Any]) -> None:
    share = data.get("test", 0)
    if isinstance(share, str) and share != "same" and "table" not in data:
        raise UnalikeError(f'{where} test must be a share such as 0.2, or "same"; got {share!r}.')
    if (0 if isinstance(share, str) else share) + data.get("validation", 0) >= 1:
        raise UnalikeError(f"{where} test and validation must leave something to train on: together less than 1.")


def _check_extras(where: str, data: dict[str, Any]) -> None:
    """Check the public set and further splits, as far as possible without the samples."""
    public, splits = data.get("public", 0), data.get("splits", {})
    try:
        if isinstance(public, str):
            check_public(public, data.get("name"))
        elif isinstance(public, float) and not public < 1:
            raise UnalikeError(f"public={public!r} must be a share in [0, 1) or a whole number of samples.")
        check_shares(splits)
        if data.get("shipped") and not public:
            raise UnalikeError("shipped is about a public set, and there is none: give public too.")
    except UnalikeError as error:
        raise UnalikeError(f"{where} {error}") from None


def population(data: dict[str, Any]) -> int | None:
    """Return the number of clients, if it is known before the data are loaded."""
    if parts := data_parts(data):
        counts = [count for part in parts.values() if (count := population(part)) is not None]
        return sum(counts) if len(counts) == len(parts) else None
    known, recipe = data_settings(data), _recipe(data)
    # the set's own number of clients, multiplied by views
    if data.get("name") in FEDERATIONS:
        made = data.get("clients", known["clients"].default)
        return made * recipe.copies if recipe.natural else made
    if "clients" not in known or "clients" in data:
        return data.get("clients")
    dealt = not isinstance(recipe.dealer, Natural | None)
    return CLIENTS if dealt else known["clients"].default


def absolute(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tables with absolute paths, so that a run folder's config can be run from anywhere."""
    out = copy.deepcopy(tables)
    data, networks = [*_data_tables(out["data"]).values()], [*out.get(MODELS_TABLE, {}).values()]
    own = {"data": data, "model": [out["model"], *networks]}
    for values, section in [
        (table, section) for t, section in SECTIONS.items() for table in own.get(t, [out.get(t, {})])
    ]:
        for name in values.keys() & {*section.paths}:
            values[name] = str(Path(values[name]).resolve())
        for name in values.keys() & {*section.files}:
            given = values[name]
            values[name] = [*map(absolute_file, given)] if isinstance(given, list) else absolute_file(given)
    if CHANNEL in out["run"]:
        out["run"][CHANNEL] = absolute_channel(out["run"][CHANNEL])
    for table in data:
        if "table" in table and isinstance(table.get("test"), str) and table["test"] != "same":
            table["test"] = str(Path(table["test"]).resolve())
        public = table.get("public")
        if isinstance(public, str):
            table["public"] = absolute_public(public)
    return out
