"""Helpers of the sources: facts about a set, where its files are, normalisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unalike.data import fetch, formats
from unalike.data.dataset import Dataset
from unalike.data.pixels import pixels as as_pixels
from unalike.errors import UnalikeError


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts about a set that are known without its files. `clients`: how many it comes with, 0 if it has none."""

    what: str
    train: int
    test: int
    classes: int
    owner: str
    licence: str
    clients: int = 0
    files: tuple[str, ...] = ()
    package: fetch.Package | None = None

    @property
    def here(self) -> bool:
        """Return whether the set is generated here, or included in a package."""
        return self.package is None and not self.files


def place(name: str, facts: Facts, folder: str | None, files: Iterable[str] | None = None) -> Path:
    """Return the folder that holds a set: the user's own, or the cache's, fetched and checked."""
    if folder is not None:
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise UnalikeError(f"{path} is not a folder: for {name!r} give one with {', '.join(expected(facts))}.")
        return path
    if (brought := fetch.imported(name)) is not None:
        return brought
    if facts.package is None:
        raise fetch.not_here(name, expected(facts), facts.owner)
    return fetch.get(facts.package, files)


def expected(facts: Facts) -> tuple[str, ...]:
    """Return the file names that a user's own folder must have."""
    return facts.files or tuple(facts.package.files if facts.package else ())


def find(folder: Path, *names: str, needed: bool = True) -> Path | None:
    """Return the file or folder of one of these names, in the folder or up to three folders below it."""
    for depth in ("", "*/", "*/*/", "*/*/*/"):
        found = sorted({path for name in names for path in folder.glob(depth + name)})
        if len({path.parent for path in found}) > 1:
            raise UnalikeError(f"{folder} has {found[0].name} more than once: give the folder of the one you mean.")
        if found:
            return min(found, key=lambda path: names.index(path.name))
    if needed:
        raise UnalikeError(f"{folder} has no {' or '.join(names)}: give the folder that holds it.")
    return None


def found(folder: Path, *names: str) -> Path:
    """Return the same as `find`; raise if it is missing."""
    path = find(folder, *names)
    assert path is not None
    return path


def images(pixels: np.ndarray, mean: Sequence[float], std: Sequence[float], normalise: bool) -> torch.Tensor:
    """Return uint8 pictures [n, C, H, W] as numbers in 0..1, then standardised by channel: minus the mean, over the
    deviation. They stay bytes in memory."""
    held = torch.from_numpy(np.ascontiguousarray(pixels))
    return as_pixels(held, mean, std) if normalise else as_pixels(held)


def from_leaf(name: str, folder: Path, client: str, classes: int, encode: Callable[[Any, Any], Any]) -> Dataset:
    """Return a LEAF folder as a Dataset: its `train` rows and `test` rows, with the user of each."""
    read = formats.read_leaf(folder)
    held_out = np.asarray(read["test"], bool)
    x, y = encode(read["x"], read["y"])
    user = np.asarray(read["user"])
    test = (x[held_out], y[held_out]) if held_out.any() else None
    return Dataset(
        x[~held_out], y[~held_out], test=test, classes=classes, name=name, natural=client,
        columns={client: user[~held_out]}, test_columns={client: user[held_out]} if test else None,
    )  # fmt: skip
