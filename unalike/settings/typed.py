"""Annotations as the one source of a setting's type: they check values, give words for errors, and a JSON Schema."""

from __future__ import annotations

import dataclasses as dc
import functools
import inspect
import math
import reprlib
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unalike.errors import UnalikeError, did_you_mean
from unalike.settings.knobs import NONE, Knob, knobs

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "text"}
MANY = {bool: "truth values", int: "whole numbers", float: "numbers", str: "texts", Path: "texts"}
SCHEMA = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}


class Setting(NamedTuple):
    """A setting: its annotation, its default, and its description."""

    hint: Any
    default: Any = None
    knob: Knob = NONE


Known = dict[str, Setting]


def hints(fn: Any) -> Known:
    """Return the settings of a class or a function by name; a setting without a default has `inspect.Parameter.empty`.
    The annotation for files takes precedence over Python's."""
    try:
        return dict(_hints(fn))
    # a user's own object that cannot be hashed
    except TypeError:
        return _hints.__wrapped__(fn)


# cached: annotations are text, and reading those of all methods takes tens of milliseconds
@functools.lru_cache(maxsize=512)
def _hints(fn: Any) -> Known:
    try:
        plain = isinstance(fn, type) and not dc.is_dataclass(fn)
        annotations = typing.get_type_hints(fn.__init__ if plain else fn, include_extras=True)
    # a user's own function, annotated with names that do not exist
    except Exception:
        annotations = {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    described = knobs(fn)
    return {
        name: _setting(annotations.get(name, Any), p.default, described.get(name, NONE))
        for name, p in inspect.signature(fn).parameters.items()
        if p.kind in kinds
    }


def _setting(hint: Any, default: Any, knob: Knob) -> Setting:
    """Separate a description from its `Annotated`."""
    if typing.get_origin(hint) is typing.Annotated:
        hint, *more = typing.get_args(hint)
        knob = next((part for part in more if isinstance(part, Knob)), knob)
    return Setting(knob.written or hint, default, knob)


def short(value: Any) -> str:
    """Return a value as an error shows it, cut if it is long."""
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = 60
    try:
        text = writer.repr(value)
        return text if len(text) <= 120 else text[:117] + "..."
    except ValueError:  # Python refuses to write more than 4,300 digits
        return "a number of thousands of digits"


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value from a file or a command line fits an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, h) for h in args)
    if hint in (None, type(None)):
        return value is None
    if hint is float:
        return fits(value, int) or (isinstance(value, float) and math.isfinite(value))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64
    if hint is bool:
        return isinstance(value, bool)
    if hint in (str, Path):
        return isinstance(value, str | hint) and "\0" not in str(value)
    if origin is tuple and Ellipsis not in args:
        listed = isinstance(value, list | tuple) and len(value) == len(args)
        return listed and all(fits(v, h) for v, h in zip(value, args, strict=True))
    if origin in (tuple, list, Sequence):
        return isinstance(value, list | tuple) and all(fits(v, args[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    return False  # functions and objects cannot be written into a file


def words(hint: Any) -> str:
    """Return an annotation in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [words(h) for h in args if h is not type(None) and words(h)]
        return " or ".join(dict.fromkeys(parts))
    if origin is tuple and Ellipsis not in args:
        return f"a list of {len(args)} {_many(args[0])}"
    if origin in (tuple, list, Sequence):
        return f"a list of {_many(args[0])}"
    if origin is dict:
        return f"a table of {_many(args[1])} by name"
    return WORDS.get(hint, "")


def _many(hint: Any) -> str:
    if typing.get_origin(hint) is dict:
        return "tables"
    return MANY.get(hint) or words(hint).replace("a list", "lists")


def schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts: list[dict[str, Any]] = []
        for part in (schema(h) for h in args if h is not type(None) and not _unwritable(h)):
            parts += [] if part in parts else [part]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if origin is tuple and Ellipsis not in args:
        return {"type": "array", "prefixItems": [schema(h) for h in args], "minItems": len(args), "maxItems": len(args)}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(args[1])}
    return {"type": SCHEMA[hint]} if hint in SCHEMA else {}


def _unwritable(hint: Any) -> bool:
    return typing.get_origin(hint) is Callable or (hint not in SCHEMA and not typing.get_args(hint))


def check(where: str, values: dict[str, Any], known: Known) -> None:
    """Raise an error of one line unless every name is known and every value fits."""
    for name, value in values.items():
        if name not in known:
            raise UnalikeError(f"{where} has no setting {name!r}.{did_you_mean(name, known)}")
        problem = misfit(value, known[name][0])
        if problem:
            raise UnalikeError(f"{where} {name} {problem}")


def misfit(value: Any, hint: Any) -> str:
    """Return 'must be …; got ….' if a value does not fit, else ""."""
    if fits(value, hint):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be {words(hint)}, and finite; got {value!r}."
    if fits(1, hint) and type(value) is int:
        return f"must be {words(hint)} that fits in 64 bits; got {short(value)}."
    return f"must be {words(hint) or 'left to Python: no file can hold it'}; got {short(value)}."
