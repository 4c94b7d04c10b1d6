"""A user's own models, methods and functions, given as "path/to/file.py:name"."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unalike import draws
from unalike.contract import Method
from unalike.errors import UnalikeError, did_you_mean, line_of
from unalike.settings.typed import short


def is_file(text: Any) -> bool:
    """Return whether a text is "path/to/file.py:name" and not the name of something built in."""
    return isinstance(text, str) and text.rpartition(":")[0].endswith(".py")


def code_in(value: Any) -> list[Path]:
    """Return the Python files named in tables, or in a text such as "small=a.py:build,large=b.py:build"."""
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return [*dict.fromkeys(file for part in inner for file in code_in(part))]
    pieces = re.split(r"[,=]", value) if isinstance(value, str) else []
    return [Path(found[1].strip()) for found in (re.match(r"(.+?\.py):", piece) for piece in pieces) if found]


def absolute_file(text: str) -> str:
    """Return path/to/file.py:name with an absolute path; any other text unchanged."""
    if not is_file(text):
        return text
    path, _, name = text.rpartition(":")
    return f"{Path(path).resolve()}:{name}"


def own_method(text: Any) -> type[Method]:
    """Return the method class of "path/to/file.py:Class"."""
    found = from_file(text)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UnalikeError(f"{text!r} is not a method: it must be a class made from unalike.Method.")
    return found


def own_model(text: Any) -> Callable[..., Any]:
    """Return the function that builds the model, from "path/to/file.py:build"."""
    found = from_file(text)
    if not callable(found) or isinstance(found, torch.nn.Module):
        what = "a model" if isinstance(found, torch.nn.Module) else short(found)
        raise UnalikeError(f"{text} must be a function or class that builds a model; it is {what}.")
    return found


def own_function(text: str) -> Any:
    """Return the function of "path/to/file.py:name"."""
    found = from_file(text)
    if not callable(found) or isinstance(found, type):
        raise UnalikeError(f"{text} must be a function of (output, y); it is {short(found)}.")
    return found


def from_file(text: Any) -> Any:
    """Return the thing called `name` in "path/to/file.py:name"."""
    path, _, name = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not path.endswith(".py"):
        raise UnalikeError(f"{short(text)} must be path/to/file.py:name.")
    try:
        file = Path(path).resolve()
        changed = file.stat().st_mtime_ns
    except (OSError, ValueError):
        raise UnalikeError(f"{text!r} must be path/to/file.py:name, and there is no file {path!r}.") from None
    module = _module(file, changed)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UnalikeError(f"{path} has no {name!r}.{did_you_mean(name, public)}")
    return getattr(module, name)


@functools.lru_cache(maxsize=64)
def _module(file: Path, changed: int) -> Any:
    """Return a user's file as a module, run once as long as it does not change; it can import files beside it."""
    spec = importlib.util.spec_from_file_location(f"unalike_user_{file.stem}_{draws.key(0, str(file))}", file)
    assert spec is not None and spec.loader is not None  # holds for every path that ends in .py
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look the module up there
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UnalikeError(f"{file} failed: {line_of(error)}.") from error
    return module
