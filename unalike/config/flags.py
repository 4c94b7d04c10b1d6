"""Settings from the command line: `--table.name value` for every setting of a config file, `--name value` if the name
is unambiguous, booleans as `--name` and `--no-name`. Several networks: `--model small=linear,large=mlp`, and settings
of one as `--models.large.hidden 64`.

Which settings exist depends on the chosen data, model and method, which may be the user's own; argparse cannot know
them. So settings are removed before argparse sees the other words; `run.arguments` declares the known ones for help and
completion only.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from typing import Any

from unalike import config
from unalike.errors import UnalikeError, did_you_mean
from unalike.settings import typed
from unalike.text import listed

# Commands that take settings as flags.
COMMANDS = (["run"], ["compare"], ["local-federation"], ["serve"], ["data", "describe"])
# Flags that argparse reads.
OWN = {"--help", "--version", "--json", "--quiet", "--debug", "--resume", "--dry-run", "--allow-code"}
OWN |= {"--deadline", "--keys", "--host", "--port", "--wait", "--test-set", "--prepare", "--schema", "--picture"}
OWN |= {"--seeds", "--log", "--budget", "--tune", "--tune-rounds", "--target", "--score", "--no-references"}
SERVERS = {"--least", "--enough", "--tries", "--max-samples", "--max-norm", "--profile"}
OWN_OF = {"serve": {"--public", *SERVERS}, "local-federation": SERVERS}  # further flags of single commands
# The setting that a bare flag means, if its name alone is ambiguous.
SHORT = {
    "data": ("data", "name"),
    "data-folder": ("data", "folder"),
    "data-seed": ("data", "seed"),
    "table": ("data", "table"),
    "model": ("model", "name"),
    "method": ("method", "name"),
    "seed": ("run", "seed"),
    "folder": ("run", "folder"),
}
# settings of the run; if the method has one too, the run's is --run.epsilon
METHODS_FIRST = ("epsilon", "delta", "staleness")
# settings of [data], [model], [method] that decide which others exist
CHOOSE = ("name", "file", "folder", "table")

Given = tuple[str, str | None]  # a flag's name without dashes, and its text


def flag(table: str, name: str) -> str:
    """Return a setting as one types it."""
    short = next((s for s, place in SHORT.items() if place == (table, name)), None)
    return f"--{short or name.replace('_', '-')}"


def taken(words: list[str]) -> bool:
    """Return whether the given command takes settings as flags."""
    plain = [word for word in words if not word.startswith("-")]
    return any(plain[: len(command)] == command for command in COMMANDS)


def split(words: list[str]) -> tuple[list[str], list[Given]]:
    """Divide a command line into the words for argparse and the settings."""
    switches = _switches()
    command = next((word for word in words if not word.startswith("-")), "")
    own = OWN | OWN_OF.get(command, set())
    plain: list[str] = []
    settings: list[Given] = []
    k = 0
    while k < len(words):
        name, equals, value = words[k].removeprefix("--").partition("=")
        word = words[k]
        k += 1
        if not word.startswith("--") or not name or f"--{name}" in own:
            plain.append(word)
        elif equals:
            settings.append((name, value))
        elif k < len(words) and _is_value(words[k], name.rpartition(".")[2] or name, switches):
            settings.append((name, words[k]))
            k += 1
        else:
            settings.append((name, None))
    return plain, settings


def _switches() -> set[str]:
    """Return the flags that need no value: settings that may be true, and are nowhere a choice of words."""
    out = set()
    for table in config.TABLES:
        for name, found in config.uses(table).items():
            boolean = any(typed.fits(True, setting.hint) and setting.hint is not Any for setting, _ in found)
            if boolean and not any(setting.knob.choices for setting, _ in found):
                out.add(flag(table, name)[2:])
    return out


def _is_value(word: str, name: str, switches: set[str]) -> bool:
    """Return whether the word after a flag belongs to it."""
    if name in switches or name.startswith("no-"):
        return word in ("true", "false")
    return not word.startswith("-") or word[1:2].isdigit() or word[1:2] == "."


def is_fedsgd(given: list[Given]) -> bool:
    """Return whether flags ask for FedSGD, which is FedAvg with one step on the full batch."""
    return any(name in ("method", "method.name") and text == "fedsgd" for name, text in given)


def _understood(given: list[Given]) -> list[Given]:
    """Replace FedSGD by the flags that define it; settings that the user gives are kept."""
    if not is_fedsgd(given):
        return given
    own = {name.rpartition(".")[2] for name, _ in given}
    plain = [(name, "fedavg" if name in ("method", "method.name") else text) for name, text in given]
    work = [] if own & {"steps", "epochs"} else [("local.steps", "1")]
    return plain + work + ([] if "batch-size" in own else [("local.batch-size", "full")])


def collect(given: list[Given], tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tables of a file, overridden by flags; flags that decide which settings exist are read first."""
    given = _understood(given)
    of_networks = [flag for flag in given if is_of_networks(*flag)]
    given = [flag for flag in given if flag not in of_networks]
    tables = _networks(of_networks, tables)
    # a folder may belong to the named set
    given = sorted(given, key=lambda flag: flag[0] in ("data-folder", "data.folder"))
    for first in (True, False):
        for name, text in given:
            table, dot, setting = name.partition(".")
            where = (table, setting) if dot else SHORT.get(name, ("", ""))
            if (where[0] in config.NAMES and where[1] in CHOOSE) == first:
                table, setting, value = place(name, text, tables)
                if first:
                    tables[table] = _chosen(table, tables[table], setting, value)
                tables[table][setting] = value
    return tables


def is_of_networks(name: str, text: str | None) -> bool:
    """Return whether a flag is about several networks: `--model small=linear,large=mlp`, `--models.large.hidden 64`."""
    return name.startswith(f"{config.MODELS_TABLE}.") or (name in ("model", "model.name") and bool(networks(text)))


def networks(text: str | None) -> dict[str, str]:
    """Return the models of "small=linear,large=mlp" by the names of their networks; empty for any other text."""
    pairs = [re.fullmatch(r"\s*([^\W\d]\w*)\s*=\s*(.+?)\s*", part) for part in (text or "").split(",")]
    out = {pair[1]: pair[2] for pair in pairs if pair}
    if out and len(out) < len(pairs):
        raise UnalikeError(f"unalike run: --model {text}: each network is NAME=MODEL, with a name of its own.")
    return out


def _networks(given: list[Given], tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tables of a file with its model or networks replaced by those that flags name, and with flags for
    single networks applied."""
    out = {name: dict(tables.get(name, {})) for name in config.TABLES}
    found = {name: dict(table) for name, table in tables.get(config.MODELS_TABLE, {}).items()}
    for _, text in [flag for flag in given if not flag[0].startswith(f"{config.MODELS_TABLE}.")]:
        found = {name: {"file" if config.is_file(m) else "name": m} for name, m in networks(text).items()}
        out["model"] = {k: v for k, v in out["model"].items() if k in config.IN_COMMON}
    for flag, text in given:
        if flag.startswith(f"{config.MODELS_TABLE}."):
            name, setting, value = _of_network(flag, text, found)
            found[name][setting] = value
    return out | ({config.MODELS_TABLE: found} if found else {})


def _of_network(flag: str, text: str | None, found: dict[str, dict[str, Any]]) -> tuple[str, str, Any]:
    """Return (network, setting, value) for a flag such as `--models.large.hidden 64`."""
    _, name, bare = (*flag.split(".", 2), "")[:3]
    if name not in found:
        raise UnalikeError(f"unalike run: --{flag}: there is no network {name!r}.{did_you_mean(name, found)}")
    negated = text is None and bare.startswith("no-")
    setting = (bare.removeprefix("no-") if negated else bare).replace("-", "_")
    known = config.network_settings(found[name]) if _exists("model", found[name]) else {}
    if setting not in known:
        near = did_you_mean(setting, known)
        raise UnalikeError(f"unalike run: [{config.MODELS_TABLE}.{name}] has no setting {setting!r}.{near}")
    return name, setting, _value(flag, text, negated, known[setting][0])


def _chosen(table: str, values: dict[str, Any], setting: str, value: Any) -> dict[str, Any]:
    """Return a file's table after another data set, model or method was chosen, without settings that only the former
    had."""
    if values.get(setting) == value:
        return values
    if setting == "folder" and _exists(table, values) and setting in config.SETTINGS[table](values):
        return values  # a setting of the named data set
    former = config.SETTINGS[table](values) if _exists(table, values) else {}
    known = config.SETTINGS[table]({setting: value}) if _exists(table, {setting: value}) else former
    return {k: v for k, v in values.items() if k not in CHOOSE and (k in known or k not in former)}


def _exists(table: str, values: dict[str, Any]) -> bool:
    name = values.get("name")
    return name is None or (isinstance(name, str) and name in config.NAMES[table])


def known(tables: dict[str, dict[str, Any]]) -> dict[str, typed.Known]:
    """Return all settings that exist for the names chosen so far."""
    out = {}
    for table in config.TABLES:
        there = config.uses(table) if table in config.NAMES else {}
        choose = {n: typed.Setting(str) for n in CHOOSE if n in there}
        settings = config.SETTINGS[table](tables[table]) if _exists_or_plain(table, tables) else {}
        out[table] = {**settings, **choose}
    return out


def _exists_or_plain(table: str, tables: dict[str, dict[str, Any]]) -> bool:
    return table not in config.NAMES or _exists(table, tables[table])


def place(name: str, text: str | None, tables: dict[str, dict[str, Any]]) -> tuple[str, str, Any]:
    """Return (table, setting, value) for a flag."""
    table, dot, setting = name.partition(".")
    where, bare = (f"{table}.", setting) if dot else ("", name)
    negated = text is None and bare.startswith("no-")
    bare = bare.removeprefix("no-") if negated else bare
    setting = bare.replace("-", "_")
    settings = known(tables)
    if dot:
        if table not in settings:
            raise UnalikeError(f"unalike run: there is no table [{table}].{did_you_mean(table, settings)}")
        if setting not in settings[table]:
            near = did_you_mean(setting, settings[table])
            raise UnalikeError(f"unalike run: [{table}] has no setting {setting!r}.{near}")
    elif bare in SHORT:
        table, setting = SHORT[bare]
    else:
        places = [t for t in settings if setting in settings[t] and setting not in CHOOSE]
        if not places:
            near = did_you_mean(f"--{bare}", [*OWN, *(flag(t, n) for t, names in settings.items() for n in names)])
            near = (
                _of_one(setting, bare, tables)
                or _owners(setting)
                or (near if near.startswith(" Did") else " `unalike run --help` lists them.")
            )
            raise UnalikeError(f"unalike run: there is no setting --{where}{bare} here.{near}")
        if setting in METHODS_FIRST and "method" in places:
            places = ["method"]
        if len(places) > 1:
            ways = " or ".join(f"--{t}.{bare}" for t in places)
            raise UnalikeError(f"unalike run: --{bare} is a setting of {' and '.join(places)}: say {ways}.")
        table = places[0]
    if setting == "name" and table in ("model", "method") and config.is_file(text):
        setting = "file"
    return table, setting, _value(name, text, negated, settings[table][setting][0])


def _of_one(setting: str, bare: str, tables: dict[str, dict[str, Any]]) -> str:
    """Return ' Say ...' if one of several networks has the setting."""
    found = tables.get(config.MODELS_TABLE, {})
    having = [n for n, table in found.items() if _exists("model", table) and setting in config.network_settings(table)]
    return f" Say of which network: {' or '.join(f'--models.{name}.{bare}' for name in having)}." if having else ""


def _owners(setting: str) -> str:
    """Return ' It is a setting of …' if another data set, model or method has it."""
    for table in config.NAMES:
        if setting in (every := config.every(table)):
            return f" It is a setting of the {table} {listed(every[setting][2])}."
    return ""


def _value(name: str, text: str | None, negated: bool, hint: Any) -> Any:
    """Return a flag's text as a value of the setting's type."""
    if text is None:
        if typed.fits(True, hint):
            return not negated
        if negated:
            raise UnalikeError(f"unalike run: --{name} means nothing: the setting is {typed.words(hint)}.")
        raise UnalikeError(f"unalike run: --{name} needs a value: {typed.words(hint)}.")
    try:
        value = tomllib.loads(f"v = {text}")["v"] if "\n" not in text else text
    except (ValueError, RecursionError):
        value = text
    if not typed.fits(value, hint) and typed.fits(text, hint):
        value = text
    if not typed.fits(value, hint) and typed.fits({}, hint):  # a table, written a=1,b=2
        with contextlib.suppress(ValueError, RecursionError):
            value = tomllib.loads(f"v = {{{text}}}")["v"] if "\n" not in text else value
    if not typed.fits(value, hint):  # a list, written a,b, or a single element
        parts = [_value(name, part.strip(), False, Any) for part in text.split(",")]
        value = parts if typed.fits(parts, hint) else value
    problem = typed.misfit(value, hint)
    if problem:
        raise UnalikeError(f"unalike run: --{name} {problem}")
    return value
