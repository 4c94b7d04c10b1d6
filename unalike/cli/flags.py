"""Settings from the command line: `--table.name value` for every setting of a config file, `--name value` where the
name is clear, booleans as `--name` and `--no-name`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from unalike import config, typed
from unalike.errors import UnalikeError, did_you_mean

# What a bare flag means where a name alone would not say it.
SHORT = {
    "data": ("data", "name"),
    "data-folder": ("data", "folder"),
    "data-seed": ("data", "seed"),
    "model": ("model", "name"),
    "method": ("method", "name"),
    "seed": ("run", "seed"),
    "folder": ("run", "folder"),
}
ORDER = ("run", "local", "method", "data", "model")  # whose bare name wins


def flag(name: str) -> str:
    """A setting's name as a flag."""
    return name.replace("_", "-")


def collect(rest: list[str], tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tables of a file, overridden by flags. Names (of data, model, method) are read first: they decide what else
    there is."""
    tables = {name: dict(tables.get(name, {})) for name in config.TABLES}
    given = list(_pairs(rest))
    for first in (True, False):
        for name, value in given:
            names = name in (
                "data",
                "data-folder",
                "model",
                "method",
                *(f"{t}.{n}" for t in config.NAMES for n in ("name", "file")),
            )
            if names == first:
                table, setting, parsed = _place(name, value, tables)
                tables[table][setting] = parsed
    return tables


def _pairs(rest: list[str]) -> Any:
    """(name, text or None) of every flag."""
    k = 0
    while k < len(rest):
        word = rest[k]
        if not word.startswith("--") or word == "--":
            raise UnalikeError(f"unalike run: {word!r} is not a flag; a setting is --name value.")
        name, equals, value = word[2:].partition("=")
        k += 1
        if equals:
            yield name, value
        elif k < len(rest) and not (rest[k].startswith("--") and len(rest[k]) > 2 and not _number(rest[k])):
            yield name, rest[k]
            k += 1
        else:
            yield name, None


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def known(tables: dict[str, dict[str, Any]]) -> dict[str, config.Known]:
    """All settings there are, for the names chosen so far."""
    out = {}
    for table in config.TABLES:
        settings = dict(config.SETTINGS[table](tables[table]))
        if table in config.NAMES:
            settings["name"] = (str, None)
        if table == "data":
            settings["folder"] = (str, None)
        if table in ("model", "method"):
            settings["file"] = (str, None)
        out[table] = settings
    return out


def _place(name: str, value: str | None, tables: dict[str, dict[str, Any]]) -> tuple[str, str, Any]:
    """(table, setting, value) of a flag."""
    settings = known(tables)
    negated = value is None and name.startswith("no-")
    bare = name.removeprefix("no-") if negated else name
    table, dot, setting = bare.partition(".")
    setting = setting.replace("-", "_")
    if dot and table in settings:
        if setting not in settings[table]:
            near = did_you_mean(setting, settings[table])
            raise UnalikeError(f"unalike run: [{table}] has no setting {setting!r}.{near}")
    elif bare in SHORT:
        table, setting = SHORT[bare]
    else:
        setting = bare.replace("-", "_")
        places = [t for t in ORDER if setting in settings[t] and setting not in ("name", "file")]
        if not places:
            every = {flag(n) for t in settings.values() for n in t} | set(SHORT)
            near = did_you_mean(bare, every) if len(bare) > 1 else ""
            near = near if near.startswith(" Did") else " `unalike run --help` and `unalike list` show what there is."
            raise UnalikeError(f"unalike run: there is no setting --{bare}.{near}")
        table = places[0]
    if setting == "name" and value is not None and table in ("model", "method") and _is_file(value):
        setting = "file"
    if setting == "file":
        tables[table].pop("name", None)
    return table, setting, _value(name, value, negated, settings[table][setting][0])


def _is_file(text: str) -> bool:
    return text.rpartition(":")[0].endswith(".py")


def _value(name: str, text: str | None, negated: bool, hint: Any) -> Any:
    """A flag's text as the setting wants it."""
    if text is None:
        if hint is bool or typed.fits(True, hint):
            return not negated
        raise UnalikeError(f"unalike run: --{name} needs a value: {typed.words(hint)}.")
    try:
        parsed = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = text
    if not typed.fits(parsed, hint) and typed.fits(text, hint):
        parsed = text
    if isinstance(parsed, str) and typed.fits([], hint) and not typed.fits(parsed, hint):
        parsed = [part.strip() for part in text.split(",")]
    if not typed.fits(parsed, hint):
        raise UnalikeError(f"unalike run: --{name} must be {typed.words(hint)}; got {text!r}.")
    return parsed


def absolute(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Paths made absolute, so that a run folder's config can be run from anywhere."""
    out = {name: dict(table) for name, table in tables.items()}
    for table, name in (("data", "folder"), ("run", "folder")):
        if isinstance(out[table].get(name), str):
            out[table][name] = str(Path(out[table][name]).resolve())
    for table, name in (("model", "file"), ("method", "file"), ("model", "loss")):
        value = out[table].get(name)
        if isinstance(value, str) and _is_file(value):
            out[table][name] = _resolved(value)
    if isinstance(out["model"].get("metrics"), list):
        out["model"]["metrics"] = [_resolved(v) if _is_file(str(v)) else v for v in out["model"]["metrics"]]
    return out


def _resolved(text: str) -> str:
    path, _, name = text.rpartition(":")
    return f"{Path(path).resolve()}:{name}"
