"""A user's own pictures: pics/CLIENT/CLASS/*.png, or pics/CLASS/*.png for a partition to divide.

With train/ and test/ above them, the pictures in test/ are the global test set.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from unalike.data.dataset import Dataset
from unalike.data.federation import Federation
from unalike.data.safety import reading
from unalike.errors import UnalikeError
from unalike.settings.knobs import Knob

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
GREY = {"1", "L", "LA"}
# with modes that begin with "I;": more than 8 bits, which Pillow would cut off
DEEP = {"I", "F"}


class Picture(NamedTuple):
    """A picture's file, class and client ("" if there are no clients)."""

    file: Path
    label: str
    client: str


def from_pictures(
    folder: str | os.PathLike, size: int | None = None, *, test: float = 0.0, validation: float = 0.0, seed: int = 0
) -> Federation:
    """Return a federation of the pictures in folder/CLIENT/CLASS/, as float32 [channels, height, width] in 0..1.

    All must have one size, or `size` makes them size × size: resized, and cropped to their centre. They are grey if all
    files are. `test` and `validation` are shares of each client's pictures, drawn by `seed`.
    """
    data = picture_dataset(folder, size)
    if data.natural is None:
        raise UnalikeError(
            f"{folder} has folders of classes, without clients: put them into one folder per client, or divide them "
            "by picture_dataset(folder).split('dirichlet:0.3', clients=10)."
        )
    return data.split(test=test, validation=validation, seed=seed)


def picture_dataset(
    folder: str | os.PathLike, size: Annotated[int | None, Knob("pixels along a side", least=1)] = None
) -> Dataset:
    """Return the same pictures as one pooled Dataset, for a partition to divide; clients, if any, are a column of
    it."""
    top = Path(folder)
    with reading(top, "folder of pictures"):
        if not top.is_dir():
            raise FileNotFoundError(2, "", str(top))
        parts = {"train": _found(_training(top)), "test": _found(top / "test") if _training(top) != top else []}
    if not parts["train"]:
        raise UnalikeError(f"{top} has no pictures: put them into CLIENT/CLASS/ or CLASS/ there, as png or jpg.")
    classes = sorted({picture.label for picture in parts["train"]})
    strange = next((picture for picture in parts["test"] if picture.label not in classes), None)
    if strange is not None:
        raise UnalikeError(f"{strange.file} is of the class {strange.label!r}, which no training picture has.")
    if len(classes) == 1:
        raise UnalikeError(f"All pictures of {top} are of the class {classes[0]!r}: nothing to learn.")
    x = _pixels([picture.file for part in parts.values() for picture in part], size)
    y = np.array([classes.index(picture.label) for part in parts.values() for picture in part], np.int64)
    cut, clients = len(parts["train"]), {name: [p.client for p in part] for name, part in parts.items()}
    named = all(clients["train"])
    beside: dict[str, Any] = {"test": (x[cut:], y[cut:])} if parts["test"] else {}
    if parts["test"] and named and all(clients["test"]):
        beside["test_columns"] = {"client": clients["test"]}
    return Dataset(
        x[:cut], y[:cut], classes=len(classes), name=top.resolve().name, label_names=classes,
        columns={"client": clients["train"]} if named else None, natural="client" if named else None, **beside,
    )  # fmt: skip


def layout(folder: Any) -> str:
    """Return how deep the first picture lies: 'clients', 'classes' or ''. Only names are looked at; a folder with one
    data file per client gives ''."""
    try:
        if not folder or any(file.suffix in (".npz", ".safetensors") for file in Path(folder).iterdir()):
            return ""
        for place in _folders(_training(Path(folder))):
            if any(_is_picture(file) for file in place.iterdir()):
                return "classes"
            if any(_is_picture(file) for inner in _folders(place) for file in inner.iterdir()):
                return "clients"
    # missing or unreadable, or not a path: reported when it is read
    except (OSError, TypeError, ValueError):
        pass
    return ""


def _training(top: Path) -> Path:
    return top / "train" if (top / "train").is_dir() else top


def _folders(place: Path) -> list[Path]:
    return sorted(p for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def _found(root: Path) -> list[Picture]:
    """Return the pictures below a folder, in the order of their names; raise unless all lie equally deep."""
    found: list[Picture] = []
    for file in sorted(file for file in root.rglob("*") if _is_picture(file)):
        above = file.relative_to(root).parts[:-1]
        if any(part.startswith(".") for part in above):  # thumbnails and other hidden files
            continue
        *clients, label = above or ("", "", "")
        if len(clients) > 1 or (found and bool(clients) != bool(found[0].client)):
            raise UnalikeError(
                f"{file} lies at another depth than it should: all must be in CLIENT/CLASS/, or all in CLASS/."
            )
        found.append(Picture(file, label, clients[0] if clients else ""))
    return found


def _pixels(files: list[Path], size: int | None) -> np.ndarray:
    """Return pictures as float32 [n, channels, height, width] in 0..1."""
    try:
        pillow: Any = importlib.import_module("PIL.Image")
        fit = importlib.import_module("PIL.ImageOps").fit
    except ImportError:
        raise UnalikeError("Reading pictures needs Pillow, which is missing: pip install pillow.") from None
    shapes, modes = set[tuple[int, int]](), set[str]()
    for file in files:  # reads the headers only
        with reading(file, "picture"), pillow.open(file) as image:
            if image.mode in DEEP or image.mode.startswith("I;"):
                raise UnalikeError(f"{file} has more than 8 bits a colour: save it with 8.")
            if size is None and shapes and image.size not in shapes:
                wide, high = image.size
                first = " × ".join(map(str, *shapes))
                raise UnalikeError(
                    f"{file} has {wide} × {high} pixels and {files[0]} {first}: all must have one size; --size 64 "
                    "makes them 64 × 64."
                )
            shapes.add(image.size)
            modes.add(image.mode)
    wide, high = (size, size) if size is not None else next(iter(shapes))
    mode = "L" if modes <= GREY else "RGB"
    x = np.empty((len(files), len(mode), high, wide), np.float32)
    for row, file in zip(x, files, strict=True):
        with reading(file, "picture"), pillow.open(file) as image:
            whole = image.convert(mode)
            colours = np.asarray(whole if size is None else fit(whole, (size, size)), np.float32)
        row[:] = colours.reshape(high, wide, len(mode)).transpose(2, 0, 1)
    x /= 255
    return x
