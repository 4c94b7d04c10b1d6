"""The tables of a config file, and the settings of each."""

from __future__ import annotations

import dataclasses as dc
import inspect
from collections.abc import Callable
from typing import Any, Union

from unalike.config.user_files import own_method, own_model
from unalike.data.dataset import CLIENTS, Dataset
from unalike.data.pictures import layout, picture_dataset
from unalike.data.sources import FACTS as SETS
from unalike.data.sources import FEDERATIONS, SOURCES
from unalike.data.tables import table_dataset
from unalike.engines.choose import OPTIONS
from unalike.methods import METHODS
from unalike.models import MODELS
from unalike.run.clock import Clock
from unalike.run.settings import RunSettings
from unalike.settings.knobs import Knob
from unalike.settings.typed import Known, Setting, hints
from unalike.training.settings import LocalTraining

# table of tables, one per network, if clients have different ones
MODELS_TABLE = "models"
# facts that a run found about its data and model: written, never read as settings
FACTS = "facts"

_split, _table = hints(Dataset.split), {n: s for n, s in hints(table_dataset).items() if s.knob.words}
SPLIT: Known = {n: s for n, s in _split.items() if s.knob.words} | {
    "partition": _split["partition"]._replace(default="iid"),
    "clients": _split["clients"]._replace(default=CLIENTS),
}
# settings of data that come with their clients
NATURAL: Known = SPLIT | {"partition": _split["partition"]._replace(default="natural"), "clients": _split["clients"]}
EXTRAS = ("public", "public_labels", "shipped", "splits")  # settings that any data may have
TABLE: Known = {
    "table": Setting(str, None, Knob("a CSV or parquet file of your own, with a label and a client column")),
    "client": _table["client"],
    **_table,
    "categorical": _table["categorical"]._replace(default=None),
    "drop": _table["drop"]._replace(default=None),
}
FOLDER = Setting(
    str,
    None,
    Knob("with a name, where that set's files are; alone, one .npz or .safetensors per client, or CLIENT/CLASS/*.png"),
)
PICTURES: Known = {"folder": FOLDER, "size": hints(picture_dataset)["size"]}
SCALE = _table["scale"]._replace(default=None)  # arrays are left as they are unless asked for
DATA = Setting(str, None, Knob("a data set by name (unalike list data)"))
MODEL: Known = {
    "loss": Setting(str, None, Knob("a loss by name, or file.py:loss of (output, y), one value per sample")),
    "metrics": Setting(
        list[str],
        None,
        Knob("metrics, the first is the headline: auc, f1, ... (docs/metrics.md), or file.py:metric of (output, y)"),
    ),
    "head": Setting(str, None, Knob("the last layer's name, where it is not found")),
    "output": Setting(
        str | int, None, Knob("the part of a model's tuple or dict that is its output: a key or a position")
    ),
}
# settings that several networks have in common: they are in [model]
IN_COMMON = ("loss", "metrics")
MODEL_NAME = Setting(str, "linear", Knob("a model by name (unalike list models), or file.py:build"))
MODEL_FILE = Setting(str, None, Knob("a model of your own, path/to/file.py:build"))
METHOD_NAME = Setting(str, "fedavg", Knob("a method by name (unalike list methods), or file.py:Class"))
METHOD_FILE = Setting(str, None, Knob("a method of your own, path/to/file.py:Class"))
ENGINE: Known = {name: option for name, option in OPTIONS.items() if option.knob.words}


def data_settings(table: dict[str, Any]) -> Known:
    """Return the settings of [data]: those of the named source and, for pooled data, of the split."""
    name = table.get("name")
    if name is None and "table" in table:
        return {**TABLE, **(NATURAL if "client" in table else SPLIT)}
    if name is None and "folder" in table:
        if depth := layout(table["folder"]):
            return {**PICTURES, **(NATURAL if depth == "clients" else SPLIT)}
        own = {"folder": FOLDER, "scale": SCALE, "test": SPLIT["test"]._replace(hint=float)}
        return own | {name: NATURAL[name] for name in ("partition", "seed", "validation", *EXTRAS)}
    if name in FEDERATIONS:
        more = {"partition": NATURAL["partition"], "validation": SPLIT["validation"]}
        return {"name": DATA, **hints(FEDERATIONS[name]), **more, **{name: SPLIT[name] for name in EXTRAS}}
    options = hints(SOURCES[name]) if name in SOURCES else {}
    return {"name": DATA, **options, **(NATURAL if name in SETS and SETS[name].clients else SPLIT)}


def data_parts(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables [data.NAME], one [data] per network, by name; empty if [data] itself names the data."""
    # settings that may be dicts themselves: shares by name, a table passed from Python
    own = ("splits", "table")
    return {name: part for name, part in data.items() if isinstance(part, dict) and name not in own}


def model_settings(table: dict[str, Any]) -> Known:
    """Return the settings of [model]: the parameters of the named builder."""
    if "file" in table:
        builder = own_model(table["file"])
        free = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(builder).parameters.values())
        options = hints(builder) | ({name: Setting(Any) for name in table} if free else {})
        return {**options, "file": MODEL_FILE, **MODEL}
    name = table.get("name", "linear")
    return {"name": MODEL_NAME, **(hints(MODELS[name]) if name in MODELS else {}), **MODEL}


def network_settings(table: dict[str, Any]) -> Known:
    """Return the settings of [models.NAME]: those of [model] that may differ between networks."""
    return {name: setting for name, setting in model_settings(table).items() if name not in IN_COMMON}


def method_settings(table: dict[str, Any]) -> Known:
    """Return the settings of [method]: the hyper-parameters of the named method, or of the user's own (`file =
    "path/to/file.py:Class"`)."""
    if "file" in table:
        return {"file": METHOD_FILE, **hints(own_method(table["file"]))}
    name = table.get("name", "fedavg")
    return {"name": METHOD_NAME, **(hints(METHODS[name]) if name in METHODS else {})}


def local_settings(table: dict[str, Any]) -> Known:
    """Return the settings of [local]: those of LocalTraining."""
    known = hints(LocalTraining)
    return known | {"epochs": known["epochs"]._replace(default=None if "steps" in table else 1)}


def run_settings(table: dict[str, Any]) -> Known:
    """Return the settings of [run]: those of a run, and the engines' options."""
    return hints(RunSettings) | ENGINE


@dc.dataclass(frozen=True)
class Section:
    """A table of a config file.

    settings: returns what it may have, given what it has. names: possible values of `name`; others: settings that may
    replace a name. paths, files: settings that are paths, and settings that may be path/to/file.py:name.
    """

    settings: Callable[[dict[str, Any]], Known]
    names: dict[str, Any] = dc.field(default_factory=dict)
    others: Known = dc.field(default_factory=dict)
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


SECTIONS = {
    "data": Section(
        data_settings,
        {**SOURCES, **FEDERATIONS},
        {"folder": FOLDER, "table": TABLE["table"]},
        paths=("folder", "table"),
    ),
    "model": Section(model_settings, MODELS, {"file": MODEL_FILE}, files=("file", "loss", "metrics")),
    "method": Section(method_settings, METHODS, {"file": METHOD_FILE}, files=("file",)),
    "local": Section(local_settings),
    "clock": Section(lambda table: hints(Clock)),
    "run": Section(run_settings, paths=("folder",)),
}
TABLES = tuple(SECTIONS)
SETTINGS = {name: section.settings for name, section in SECTIONS.items()}
NAMES = {name: section.names for name, section in SECTIONS.items() if section.names}


def uses(table: str) -> dict[str, list[tuple[Setting, str]]]:
    """Return every setting that a table may have, with the data sets, models or methods that take it."""
    section, found = SECTIONS[table], dict[str, list[tuple[Setting, str]]]()
    choices: list[tuple[dict[str, Any], str]] = [({"name": name}, name) for name in section.names] or [({}, "")]
    choices += [({"table": ""}, "table")] if "table" in section.others else []
    for values, owner in choices:
        for name, setting in section.settings(values).items():
            found.setdefault(name, []).append((setting, owner))
    if table == "data":
        # a setting of folders of pictures, which are recognised only when looked at
        found["size"].append((PICTURES["size"], "pictures"))
    others = {name: [(setting, "")] for name, setting in section.others.items() if name != "table"}
    return found | others


def every(table: str) -> dict[str, tuple[Any, Any, list[str]]]:
    """Return everything that a table may have: name -> (annotation, default, the data sets, models or methods that take
    it)."""
    out = {}
    for name, found in uses(table).items():
        settings, owners = zip(*found, strict=True)
        default = settings[0].default if all(s.default == settings[0].default for s in settings) else None
        out[name] = (Union[tuple(s.hint for s in settings)], default, [*owners])  # noqa: UP007 (known only now)
    return out


def described(table: str) -> dict[str, Knob]:
    """Return the descriptions of all settings of a table, where all that take a setting agree on its description."""
    out = {}
    for name, found in uses(table).items():
        first, *rest = [setting.knob for setting, _ in found]
        same = {f.name: getattr(first, f.name) for f in dc.fields(Knob)}
        out[name] = Knob(**{k: v for k, v in same.items() if all(getattr(knob, k) == v for knob in rest)})
    return out
