"""Public sets that a config can name, beside shares, files and noise: another data set, or samples made by a
function."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unalike import draws
from unalike.config.user_files import absolute_file, from_file
from unalike.data import load
from unalike.data.extras import MOST, NOISE, parse_public
from unalike.data.files import SUFFIXES
from unalike.data.sources import SOURCES
from unalike.errors import UnalikeError, did_you_mean, line_of
from unalike.settings.typed import hints, short

MADE = re.compile(r"(.+\.py:[^:]+)(?::(.*))?")  # make.py:samples:1000
FORMS = (
    "a share of the samples such as 0.1, a number of them, an .npz or .safetensors file, another data set such as "
    "'cifar100:5000', 'noise:1000', or 'make.py:samples:1000'"
)


def check_public(text: str, own: str | None = None) -> None:
    """Raise unless a text names a public set, as far as can be seen without samples; own: the name of the clients'
    data."""
    name, colon, rows = text.partition(":")
    if made := MADE.fullmatch(text):
        _count(made[1], made[2] or "")
        _function(made[1])
    elif name in SOURCES:
        if name == own:
            raise UnalikeError(f"public={text!r} are the clients' own samples: set some aside, as with public=0.1.")
        if colon:
            _count(name, rows)
    elif name != NOISE and Path(text).suffix not in SUFFIXES:
        near = did_you_mean(name, SOURCES)
        raise UnalikeError(f"public={text!r} must be {FORMS}.{near if 'Did you mean' in near else ''}")
    else:
        parse_public(text)


def make_public(text: str, own: str | None, options: dict[str, Any], seed: int) -> Any:
    """Return the public set that a text names: a pair (x, y or None), or the text itself, which `Dataset.split`
    understands. own, options: the name of the clients' data, and their options, which another data set takes over if it
    has them."""
    check_public(text, own)
    name, colon, rows = text.partition(":")
    if made := MADE.fullmatch(text):
        return _made(made[1], int(made[2]), seed)
    if name not in SOURCES:
        return text
    shared = {key: options[key] for key in hints(SOURCES[name]).keys() & options.keys() if key != "folder"}
    x = load(name, **shared).x
    wanted = int(rows) if colon else len(x)
    if wanted > len(x):
        raise UnalikeError(f"public={text!r}: {name} has {len(x)} training samples.")
    chosen = draws.generator(seed, "public").choice(len(x), wanted, replace=False)
    chosen.sort()
    # without its labels, which are of other classes
    return x[chosen], None


def absolute_public(text: str) -> str:
    """Return the text with its path, if it has one, made absolute."""
    if made := MADE.fullmatch(text):
        return absolute_file(made[1]) + ("" if made[2] is None else f":{made[2]}")
    return str(Path(text).resolve()) if Path(text).suffix in SUFFIXES else text


def _count(name: str, rows: str) -> None:
    if not rows.isdecimal() or not 1 <= int(rows[:18]) < MOST:
        given = f"{name}:{rows}" if rows else name
        raise UnalikeError(f"public={given!r} must end with a whole number of samples, as in '{name}:1000'.")


def _function(name: str) -> Callable[..., Any]:
    found = from_file(name)
    if not callable(found) or isinstance(found, type):
        raise UnalikeError(f"{name} must be a function of (n, seed) that gives n samples; it is {short(found)}.")
    return found  # type: ignore[no-any-return]


def _made(name: str, count: int, seed: int) -> tuple[Any, Any]:
    """Return the samples that a function of (n, seed) makes, with or without labels."""
    make = _function(name)
    with draws.torch_seed(seed, "public"):
        try:
            found = make(count, seed)
        except UnalikeError:
            raise
        except Exception as error:
            raise UnalikeError(f"{name}({count}, {seed}) failed: {line_of(error)}.") from error
    x, y = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    given = len(x) if hasattr(x, "__len__") else 0
    if given != count:
        raise UnalikeError(
            f"{name}({count}, {seed}) must give {count} samples, and perhaps their labels; it gave {given}."
        )
    return x, y
