"""Put official files of a data set that no registry carries into the cache, after checking them.

The set's own reader reads the files first and must find the known numbers of samples. The copies lie in the cache's
`NAME-imported` with a manifest; like everything in the cache they are checked by hash whenever they are used.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unalike.data import fetch
from unalike.data.formats import safe_extract
from unalike.data.sources import FACTS, SOURCES
from unalike.errors import UnalikeError, line_of, unknown
from unalike.files import complaining

SETS = ("cifar100", "emnist", "femnist", "sent140", "tiny-imagenet")
# for the other sets, LEAF's program makes samples of any size
EXACT = ("cifar100", "emnist", "tiny-imagenet")


def bring(name: str, path: Path) -> Path:
    """Put a folder, an archive or a file of a set into the cache; return its path there."""
    if name not in SETS:
        raise unknown("data set to import", name, SETS)
    if not path.exists():
        raise UnalikeError(f"unalike data import: {path} is not there: give the file or folder with {name}'s files.")
    scratch = fetch.cache() / fetch.SCRATCH / f"{name}.{uuid.uuid4().hex[:8]}"
    try:
        with complaining(f"{name} cannot be written to the cache {fetch.cache()}"):
            (scratch / fetch.BROUGHT).mkdir(parents=True)
            _copy(path, scratch / fetch.BROUGHT)
        check(name, scratch / fetch.BROUGHT, path)
        return fetch.keep(name, scratch, path.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy(path: Path, folder: Path) -> None:
    """Copy the given file or folder; a zip is unpacked (CIFAR's readers take a tar.gz as it is)."""
    if path.is_dir():
        shutil.copytree(path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(fetch.MANIFEST, ".*"))
    elif path.suffix == ".zip":
        safe_extract(path, folder, fetch.UNPACKED_LIMIT)
    else:
        shutil.copy(path, folder / path.name)


def check(name: str, folder: Path, given: Path) -> None:
    """Read the set from its files; raise an error of one line if they are not this set."""
    source: Callable[..., Any] = SOURCES[name]
    try:
        data = source(folder=str(folder))
    except UnalikeError as error:
        raise UnalikeError(f"{given} is not {name}: {str(error).replace(str(folder), str(given))}") from error
    except (OSError, ValueError, KeyError, IndexError, TypeError, EOFError) as error:
        raise UnalikeError(f"{given} is not {name}: its files cannot be read ({line_of(error)}).") from error
    facts = FACTS[name]
    sizes = len(data.y), len(data.test[1]) if data.test is not None else 0
    if name in EXACT and sizes != (facts.train, facts.test):
        raise UnalikeError(
            f"{given} is not the whole of {name}: it has {sizes[0]:,} + {sizes[1]:,} samples, the official files have "
            f"{facts.train:,} + {facts.test:,}."
        )
    labels = {int(label) for part in (data.y, data.test[1] if data.test is not None else ()) for label in part}
    if not labels or min(labels) < 0 or max(labels) >= facts.classes:
        raise UnalikeError(f"{given} is not {name}: its labels are not 0 to {facts.classes - 1}.")
