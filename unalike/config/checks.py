"""Read a config file and check all that can be said of it before there are data."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from unalike.config.build import make_local, make_loss, make_method, make_sampling
from unalike.config.tables import (
    FACTS,
    IN_COMMON,
    MODELS_TABLE,
    NAMES,
    SECTIONS,
    SETTINGS,
    TABLES,
    data_settings,
    network_settings,
)
from unalike.config.user_files import absolute_file
from unalike.data.dataset import CLIENTS
from unalike.data.extras import parse_public
from unalike.data.federation import check_shares
from unalike.data.partition import parse as parse_partition
from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.nn.numerics import DEVICES
from unalike.run.sampling import sampling
from unalike.settings import typed
from unalike.settings.knobs import check as check_value


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
    return {name: dict(config.get(name, {})) for name in TABLES} | networks


def _check_networks(tables: dict[str, dict[str, Any]]) -> None:
    """[models.small], [models.large]: each is a model, and [model] has only what they have in common."""
    networks = tables.get(MODELS_TABLE)
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
    if len(networks) > 1 and "architecture" not in tables["run"]:
        raise UnalikeError('[run] needs architecture, which client has which network: "small:10, large:10", or a list.')


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
    known = {name: SETTINGS[name](tables[name]) for name in TABLES}
    for name in TABLES:
        typed.check(f"[{name}]", tables[name], known[name])
    _check_networks(tables)
    for table in ("data", "run"):  # methods and local training check their own, below
        for name, value in tables[table].items():
            knob = known[table][name].knob
            if knob.choices or not isinstance(value, str):  # text in place of a number means something else
                check_value(f"[{table}] ", name, value, knob)
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
    _check_extras(data)
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


def _check_extras(data: dict[str, Any]) -> None:
    """The public set and further splits, as far as they can be checked without the samples."""
    public, splits = data.get("public", 0), data.get("splits", {})
    try:
        if isinstance(public, str):
            parse_public(public)
        elif isinstance(public, float) and not public < 1:
            raise UnalikeError(f"public={public!r} must be a share in [0, 1) or a whole number of samples.")
        check_shares(splits)
    except UnalikeError as error:
        raise UnalikeError(f"[data] {error}") from None


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
    if MODELS_TABLE in out:
        out[MODELS_TABLE] = {name: dict(table) for name, table in out[MODELS_TABLE].items()}
    networks = out.get(MODELS_TABLE, {}).values()
    for values, section in [(out[t], s) for t, s in SECTIONS.items()] + [(t, SECTIONS["model"]) for t in networks]:
        for name in values.keys() & {*section.paths}:
            values[name] = str(Path(values[name]).resolve())
        for name in values.keys() & {*section.files}:
            given = values[name]
            values[name] = [*map(absolute_file, given)] if isinstance(given, list) else absolute_file(given)
    if "table" in out["data"] and isinstance(out["data"].get("test"), str) and out["data"]["test"] != "same":
        out["data"]["test"] = str(Path(out["data"]["test"]).resolve())
    public = out["data"].get("public")
    if isinstance(public, str) and isinstance(path := parse_public(public), Path):
        out["data"]["public"] = str(path.resolve())
    return out
