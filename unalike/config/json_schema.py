"""A JSON Schema of config files, for editors."""

from __future__ import annotations

from typing import Any

from unalike.channel import STAGES
from unalike.config.channels import CHANNEL, stage_settings
from unalike.config.tables import (
    FACTS,
    IN_COMMON,
    MODELS_TABLE,
    NAMES,
    PICTURES,
    SECTIONS,
    SETTINGS,
    SPLIT,
    TABLES,
    described,
    every,
)
from unalike.settings import typed
from unalike.settings.knobs import Knob


def schema() -> dict[str, Any]:
    """Return a JSON Schema of config files, for editors; which settings exist depends on the chosen name or file."""
    tables = {table: _schema_of(table) for table in TABLES}
    tables["run"]["required"] = ["rounds"]
    tables[MODELS_TABLE] = {"type": "object", "additionalProperties": _network()}
    ways = [{"required": [way]} for way in ("name", "folder", "table")]
    part = {**tables["data"], "anyOf": ways}
    tables["data"]["anyOf"] = [*ways, {"type": "object", "minProperties": 1, "additionalProperties": part}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "unalike run",
        "type": "object",
        "properties": {**tables, CHANNEL: _channel(), FACTS: {"type": "object"}},
        "required": ["data", "run"],
        "additionalProperties": False,
        "allOf": [_common_only(), _needs_networks(), _one_channel()],
    }


def _common_only() -> dict[str, Any]:
    """Return the rule that, with several networks, [model] has only what they have in common."""
    then = {"properties": {"model": {"propertyNames": {"enum": list(IN_COMMON)}}}}
    return {"if": {"required": [MODELS_TABLE]}, "then": then}


def _needs_networks() -> dict[str, Any]:
    return {
        "if": {"properties": {"run": {"required": ["architecture"]}}, "required": ["run"]},
        "then": {"required": [MODELS_TABLE]},
    }


def _one_channel() -> dict[str, Any]:
    then = {"properties": {"run": {"not": {"required": [CHANNEL]}}}}
    return {"if": {"required": [CHANNEL]}, "then": then}


def _channel() -> dict[str, Any]:
    """Return the schema of [[channel]]: a kind, by name or from a file, and the settings of that kind."""
    words = {"description": "a stage by name (unalike list stages), or path/to/file.py:Class", "type": "string"}
    kind = {**words, "anyOf": [{"enum": list(STAGES)}, {"pattern": r"\.py:\w+$"}]}
    rules = []
    for name, stage in STAGES.items():
        known = stage_settings(stage)
        own = {
            n: typed.schema(s.hint) | _bounds(s.knob) | ({"description": s.knob.words} if s.knob.words else {})
            for n, s in known.items()
        }
        then = {"propertyNames": {"enum": ["kind", *known]}, "properties": own}
        rules.append({"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": then})
    table = {"type": "object", "properties": {"kind": kind}, "required": ["kind"], "allOf": rules}
    return {"type": "array", "items": table}


def _network() -> dict[str, Any]:
    """Return the schema of [models.NAME]: that of [model] without what all networks have in common."""
    one = _schema_of("model")
    properties = {name: value for name, value in one["properties"].items() if name not in IN_COMMON}
    return {**one, "properties": properties, "not": {"anyOf": [{"required": [name]} for name in IN_COMMON]}}


def _schema_of(table: str) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = {}
    knobs = described(table)
    for name, (hint, default, _) in every(table).items():
        one = {"enum": list(NAMES[table])} if table in NAMES and name == "name" else typed.schema(hint)
        limits = {} if _takes_files(table) else _limits(knobs[name])
        text = {"description": knobs[name].words} if knobs[name].words else {}
        given = {"default": default} if isinstance(default, str | int | float) else {}
        properties[name] = (limits if "enum" in limits else one | limits) | text | given
    if table not in NAMES:
        return {"type": "object", "properties": properties, "additionalProperties": False}
    rules = [_only(table, {"name": name}, {"properties": {"name": {"const": name}}, "required": ["name"]})
             for name in NAMES[table]]  # fmt: skip
    if table == "data":
        unnamed = {"not": {"anyOf": [{"required": ["name"]}, {"required": ["table"]}]}}
        rules.append(_only(table, {"folder": ""}, {"required": ["folder"], **unnamed}))
        # a folder of pictures has more settings, which only the folder shows
        names = rules[-1]["then"]["propertyNames"]["enum"]
        names += [name for name in (*PICTURES, *SPLIT) if name not in names]
        rules.append(_only(table, {"table": ""}, {"required": ["table"]}))
        rules[-1]["then"]["required"] = ["label"]
    # settings of the default; a user's own file may have any
    else:
        unnamed = {"not": {"anyOf": [{"required": ["name"]}, {"required": ["file"]}]}}
        rules.append(_only(table, {}, unnamed))
    return {"type": "object", "properties": properties, "allOf": rules}


def _takes_files(table: str) -> bool:
    """Return whether limits must depend on the chosen name: a user's own file may have a setting of the same name with
    other limits."""
    return "file" in SECTIONS[table].others


def _limits(knob: Knob) -> dict[str, Any]:
    if knob.choices:
        return {"enum": list(knob.choices)}
    return {} if knob.least is None else {"minimum": knob.least}


def _bounds(knob: Knob) -> dict[str, Any]:
    """Return the choices of a setting, or all bounds of a number."""
    words = {
        "minimum": knob.least,
        "exclusiveMinimum": knob.above,
        "maximum": knob.most,
        "exclusiveMaximum": knob.below,
    }
    return _limits(knob) | {word: bound for word, bound in words.items() if bound is not None}


def _only(table: str, chosen: dict[str, str], when: dict[str, Any]) -> dict[str, Any]:
    known = SETTINGS[table](chosen)
    then: dict[str, Any] = {"propertyNames": {"enum": list(known)}}
    limits = {name: found for name, setting in known.items() if (found := _limits(setting.knob))}
    if limits and _takes_files(table):
        then["properties"] = limits
    return {"if": when, "then": then}
