"""Write TOML, which the standard library only reads."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables: {"a": {"b": 1}} -> {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def dump_toml(tree: dict[str, Any]) -> str:
    """Return tables as TOML: text, numbers, booleans, lists, tables; None is left out."""
    lines: list[str] = []

    def table(values: dict[str, Any], path: tuple[str, ...]) -> None:
        plain = {k: v for k, v in values.items() if not isinstance(v, dict) and v is not None}
        if path and (plain or not any(isinstance(v, dict) for v in values.values())):
            lines.append(f"\n[{'.'.join(path)}]")
        lines.extend(f"{_bare(k)} = {_toml(v)}" for k, v in plain.items())
        for key, value in values.items():
            if isinstance(value, dict):
                table(value, (*path, _bare(key)))

    table(tree, ())
    return "\n".join(lines).lstrip("\n") + "\n"


def _bare(key: Any) -> str:
    """Return a key, in quotes if it needs them."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else _toml(str(key))


def _toml(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):  # a table in a list
        return "{" + ", ".join(f"{_bare(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    text = str(value).encode("utf-8", "replace").decode()  # half a surrogate pair is not allowed in TOML
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
