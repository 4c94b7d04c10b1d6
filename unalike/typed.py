"""Annotations as the one source of what a setting may be: checked values, words for errors, and a JSON Schema."""

from __future__ import annotations

import dataclasses as dc
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError, did_you_mean

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "text"}
SCHEMA = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}


def hints(fn: Any) -> dict[str, tuple[Any, Any]]:
    """name -> (annotation, default) of a dataclass or a function; `inspect.Parameter.empty` where there is none."""
    if dc.is_dataclass(fn):
        annotations = typing.get_type_hints(fn)
        missing = inspect.Parameter.empty
        return {f.name: (annotations[f.name], missing if f.default is dc.MISSING else f.default) for f in dc.fields(fn)}
    target = vars(fn)["__init__"] if isinstance(fn, type) else fn
    annotations = typing.get_type_hints(target)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: (annotations.get(name, Any), p.default)
        for name, p in inspect.signature(fn).parameters.items()
        if p.kind in kinds and name != "self"
    }


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file or a command line may be given for an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, h) for h in args)
    if hint in (None, type(None)):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str):
        return isinstance(value, hint)
    if hint is Path:
        return isinstance(value, str | Path)
    if origin is tuple and Ellipsis not in args:
        listed = isinstance(value, list | tuple) and len(value) == len(args)
        return listed and all(fits(v, h) for v, h in zip(value, args, strict=True))
    if origin in (tuple, list, Sequence):
        return isinstance(value, list | tuple) and all(fits(v, args[0]) for v in value)
    return False  # functions and objects cannot be written into a file


def words(hint: Any) -> str:
    """What an annotation asks for, in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [words(h) for h in args if h is not type(None) and words(h)]
        return " or ".join(dict.fromkeys(parts))
    if origin is tuple and Ellipsis not in args:
        return f"a list of {len(args)}: " + ", ".join(words(h) for h in args)
    if origin in (tuple, list, Sequence):
        return f"a list ({words(args[0])} each)"
    return WORDS.get(hint, "")


def schema(hint: Any) -> dict[str, Any]:
    """The JSON Schema of an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [schema(h) for h in args if h is not type(None) and not _unwritable(h)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if origin is tuple and Ellipsis not in args:
        return {"type": "array", "prefixItems": [schema(h) for h in args], "minItems": len(args), "maxItems": len(args)}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema(args[0])}
    return {"type": SCHEMA[hint]} if hint in SCHEMA else {}


def _unwritable(hint: Any) -> bool:
    return typing.get_origin(hint) is Callable or (hint not in SCHEMA and not typing.get_args(hint))


def check(where: str, values: dict[str, Any], known: dict[str, tuple[Any, Any]]) -> None:
    """Every name is known and every value fits, or one line."""
    for name, value in values.items():
        if name not in known:
            raise UnalikeError(f"{where} has no setting {name!r}.{did_you_mean(name, known)}")
        hint = known[name][0]
        if not fits(value, hint):
            raise UnalikeError(f"{where} {name} must be {words(hint)}; got {value!r}.")
