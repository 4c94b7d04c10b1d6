"""From a command line to the arms of a comparison: flags go to the methods that have them, lists become a grid."""

from __future__ import annotations

import dataclasses as dc
import itertools
import re
from collections.abc import Sequence
from typing import Any

from unalike import config
from unalike.comparison.jobs import Arm
from unalike.config import flags
from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.results.evidence import REFERENCES

WHOLE = (
    "table",
    "data-folder",
    "folder",
    "augment",
    "loss",
    "test",
    "architecture",
    "channel",
)  # texts that may contain a comma

CHANNEL = ("channel", "run.channel")
SHARED = (*config.TABLES, config.MODELS_TABLE)  # tables that a flag may name, beside the methods


def arms_of(
    methods: Sequence[str], given: Sequence[flags.Given], start: dict[str, dict[str, Any]], free_rate: bool
) -> list[Arm]:
    """Return every method with every combination of the settings that are lists; `start` has the tables that flags
    override."""
    for name, _ in given:
        if name in ("seed", "run.seed"):
            raise UnalikeError("unalike compare: there are several seeds here: give --seeds (3, or 0,1,2).")
        if name in ("method", "method.name", "method.file", "run.folder", "run.resume"):
            raise UnalikeError(f"unalike compare: there is no --{name} here; methods are named without a flag.")
    free_rate = free_rate and not any(name in ("lr", "local.lr") for name, _ in given)
    arms: list[Arm] = []
    try:
        _owners(methods, given)
        for method in methods:
            mine, begun = _own(method, methods, given), _without_channel(method, start)
            axes = _axes(method, mine, begun)
            for parts in itertools.product(*(values for _, values in axes.values())):
                chosen = dict(zip(axes, parts, strict=True))
                words = [(name, chosen.get(name, text)) for name, text in mine]
                tables = config.absolute(config.check(flags.collect([("method", method), *words], begun)))
                label: list[str] = [_label(method)]
                case: list[str] = []
                for name, part in chosen.items():
                    place = case if axes[name][0] == "data" else label
                    place.append(f"{name.rpartition('.')[2]}={part}")
                arms.append(Arm(" ".join(label), "", ", ".join(case), tables, free_rate))
    except UnalikeError as error:
        raise UnalikeError(re.sub(r"^unalike run:", "unalike compare:", str(error))) from error
    return _named(arms)


def _without_channel(method: str, start: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tables without the channel, for a reference line: it sends nothing."""
    if method not in REFERENCES or "channel" not in start.get("run", {}):
        return start
    return {**start, "run": {name: value for name, value in start["run"].items() if name != "channel"}}


def _label(method: str) -> str:
    return method.rpartition(":")[2] if config.is_file(method) else method


def _settings_of(method: str) -> set[str]:
    table = {"file": method} if config.is_file(method) else {"name": method}
    return set(config.method_settings(table)) - {"name", "file"}


def _bare(name: str) -> str:
    return name.removeprefix("no-").replace("-", "_")


def _owners(methods: Sequence[str], given: Sequence[flags.Given]) -> None:
    """Check the flags that name a method: the method must be compared, and have such a setting."""
    labels = {_label(method): method for method in methods}
    for name, _ in given:
        table, dot, setting = name.partition(".")
        if not dot or table in SHARED:
            continue
        if table not in labels:
            raise unknown("method in this comparison", table, labels)
        if _bare(setting) not in _settings_of(labels[table]):
            near = did_you_mean(_bare(setting), _settings_of(labels[table]))
            raise UnalikeError(f"unalike compare: {table} has no setting {_bare(setting)!r}.{near}")


def _own(method: str, methods: Sequence[str], given: Sequence[flags.Given]) -> list[flags.Given]:
    """Return the flags that concern this method, without those that only other methods have."""
    mine, others = _settings_of(method), set().union(*map(_settings_of, methods))
    out = []
    for name, text in given:
        table, dot, setting = name.partition(".")
        bare = _bare(setting if dot else name)
        if bare == "channel" and method in REFERENCES:
            continue
        if dot and table not in SHARED:
            if table == _label(method):
                out.append((f"method.{setting}", text))
        elif bare in mine or bare not in others or (table != "method" if dot else name in flags.SHORT):
            out.append((name, text))
    return out


def chooses(name: str) -> bool:
    """Return whether a flag decides which other settings exist."""
    table, dot, setting = name.partition(".")
    place = (table, setting) if dot else flags.SHORT.get(name, ("", ""))
    return place[0] in config.NAMES and place[1] in flags.CHOOSE


def pieces(text: str) -> list[str]:
    """Split a text at commas that are in no brackets and no quotes."""
    found = re.findall(r"""(?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+""", text)
    return [part.strip() for part in found]


def _axes(method: str, given: Sequence[flags.Given], start: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Return flag -> (its table, the values to run), for flags whose text is a list of which each part would be valid
    alone."""
    lists = [flag for flag in given if flag[0].rpartition(".")[2] not in WHOLE and not flags.is_of_networks(*flag)]
    several = [(n, pieces(t)) for n, t in lists if t and len(pieces(t)) > 1]
    first = {n: parts[0] for n, parts in several}
    choices = [(n, first.get(n, t)) for n, t in given if chooses(n)]
    tables = flags.collect([("method", method), *choices], start)
    axes = {}
    for name, parts in several:
        try:
            placed = [flags.place(name, part, tables) for part in parts]
        except UnalikeError:
            # not a list of values; reading it later reports what is wrong
            continue
        values = [value for *_, value in placed]
        if any(isinstance(v, list | dict) and part[0] not in "[{" for v, part in zip(values, parts, strict=True)):
            # one value that is a list, such as --hidden 32,16, or a table
            continue
        if len(set(parts)) < len(parts):
            raise UnalikeError(f"unalike run: --{name} {','.join(parts)} has a value twice.")
        axes[name] = placed[0][0], parts
    return axes | _channels(given)


def _channels(given: Sequence[flags.Given]) -> dict[str, tuple[str, list[str]]]:
    """Return the channels of repeated --channel flags; commas belong to a channel's own text."""
    axes = {}
    for name in CHANNEL:
        texts = [text or "" for other, text in given if other == name]
        if len(set(texts)) < len(texts):
            raise UnalikeError(f"unalike run: --{name} is given twice with the same stages.")
        if len(texts) > 1:
            axes[name] = "run", texts
    return axes


def _named(arms: Sequence[Arm]) -> list[Arm]:
    """Give each arm a unique folder name."""
    out: list[Arm] = []
    for arm in arms:
        words = " ".join(filter(None, [arm.label, arm.case]))
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", words).strip("-.")[:100]
        taken = {a.name for a in out}
        number = next(k for k in itertools.count(1) if (name if k == 1 else f"{name}-{k}") not in taken)
        out.append(dc.replace(arm, name=name if number == 1 else f"{name}-{number}"))
    return out
