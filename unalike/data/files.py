"""The files of federations: one file per client, and folders of memory-mapped columns.

These functions read and write a federation's parts; the public entry points are `Federation.from_folder`,
`Federation.mapped` and `Federation.open_mapped`.
"""

from __future__ import annotations

import difflib
import json
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unalike.data.columns import FORMAT, Columns, Pair, agree, as_pair, first_infinite_row, stack
from unalike.data.drifting import Drifting
from unalike.data.pixels import CONSTANTS, held_by, made_of, numbers
from unalike.data.preparation import Preparation, Recipe
from unalike.data.public import Public
from unalike.data.schema import Schema
from unalike.errors import UnalikeError, did_you_mean, first_line

INDEX = "columns.json"
# splits that most files have beside the training samples
OWN = ("test", "validation")
KEYS = ("x", "y", *(f"{letter}_{name}" for name in OWN for letter in "xy"))
SUFFIXES = (".npz", ".safetensors")
PIXELS = "_pixels.npz"  # end of the names of the constants of pictures that are held as bytes
WITH_PIXELS = f"{FORMAT}, pictures as bytes"  # versions up to 0.2.0 would take these for tokens
# facts that are objects
KINDS: dict[str, Any] = {"schema": Schema, "recipe": Recipe, "preparation": Preparation, "drift": Drifting}
STEMS = {"train": "training", "validation": "validation", "test": "test"}  # first part of a split's file names
# first part of a further split's file names
FURTHER = "split-"

# ---------------------------------------------------------------- one file per client


def read_folder(folder: Path, gaps: bool = False) -> dict[str, Any]:
    """Read the parts of a federation from a folder of client files: splits, names, and the global test set. With
    `gaps`, x may have missing cells (NaN)."""
    files, test = _client_files(folder)
    contents = [read_arrays(file, gaps) for file in files]
    keys = set(contents[0])
    for file, content in zip(files, contents, strict=True):
        if set(content) != keys:
            raise UnalikeError(
                f"{file} has the keys {', '.join(sorted(content))} and {files[0].name} "
                f"{', '.join(sorted(keys))}: give every client file the same keys."
            )
    called = [str(file) for file in files]
    train = stack([(c["x"], c["y"]) for c in contents], called, None)
    parts: dict[str, Any] = {"train": train, "names": [file.stem for file in files]}
    found = {
        name: stack([(c[f"x_{name}"], c[f"y_{name}"]) for c in contents], called, train) for name in split_names(keys)
    }
    parts |= {name: columns for name, columns in found.items() if name in OWN}
    parts["splits"] = {name: columns for name, columns in found.items() if name not in OWN}
    if test is not None:
        parts["global_test"] = _read_global_test(test, train, gaps)
    return parts


def _client_files(folder: Path) -> tuple[list[Path], Path | None]:
    """Return the clients' files in the order of their names, and the file of the global test set."""
    if not folder.is_dir():
        raise UnalikeError(f"{folder} is not a folder: give a folder with one .npz or .safetensors file per client.")
    found = sorted(f for f in folder.iterdir() if f.suffix in SUFFIXES and f.is_file() and f.name[0] != ".")
    tests = [f for f in found if f.name.startswith("_")]
    files = [f for f in found if not f.name.startswith("_")]
    for file in tests:
        if file.stem != "_test" or len(tests) > 1:
            raise UnalikeError(
                f"{file}: of the names that begin with '_' there may be one only, the global test set "
                "'_test.npz' or '_test.safetensors'; rename or remove it."
            )
    if not files:
        raise UnalikeError(f"{folder} has no client files: put one .npz or .safetensors file per client there.")
    twice = {f.stem for f in files if f.suffix == ".npz"} & {f.stem for f in files if f.suffix != ".npz"}
    if twice:
        raise UnalikeError(f"{folder} has {min(twice)!r} as .npz and as .safetensors: keep one file per client.")
    return files, tests[0] if tests else None


def _read_global_test(file: Path, train: Columns, gaps: bool) -> Pair:
    content = read_arrays(file, gaps)
    if set(content) != {"x", "y"}:
        raise UnalikeError(f"{file} has the keys {', '.join(sorted(content))}: it must have x and y only.")
    pair = content["x"], content["y"]
    agree(pair, (train.x, train.y), str(file), "the clients")
    return pair


def read_arrays(file: Path, gaps: bool = False) -> dict[str, torch.Tensor]:
    """Read the arrays of one client's file: numeric and finite, with the keys in `KEYS`, or x_NAME and y_NAME for a
    further split; every x has its y. With `gaps`, x may have missing cells (NaN)."""
    raw = load_arrays(file)
    for key in raw:
        if key not in KEYS and not _further(key, raw):
            raise UnalikeError(f"{file} has an unknown key {key!r}.{did_you_mean(key, KEYS)}")
    content = {}
    for suffix in ("", *(f"_{name}" for name in (*OWN, *(n for n in split_names(raw) if n not in OWN)))):
        missing = [letter + suffix for letter in "xy" if letter + suffix not in raw]
        if len(missing) == 1 or (missing and not suffix):
            raise UnalikeError(
                f"{file} has no {' and no '.join(missing)}: every file needs x and y, and x_test goes with "
                "y_test, x_validation with y_validation; add it."
            )
        if missing:
            continue
        x, y = as_pair(raw["x" + suffix], raw["y" + suffix], str(file))
        for letter, tensor in (("x", x), ("y", y)):
            if first_infinite_row(tensor, gaps and letter == "x") is not None:
                cure = "" if gaps or letter == "y" else ", or set `scale`, which fills missing cells"
                raise UnalikeError(
                    f"{file}: {letter}{suffix} has NaN or infinite values: all must be finite; clean them{cure}."
                )
            content[letter + suffix] = tensor
    if not len(content["x"]):
        raise UnalikeError(f"{file} has no training samples: every client needs at least one; remove the file.")
    return content


def split_names(keys: Iterable[str]) -> list[str]:
    """Return the names of the splits in a client's file, beside the training samples, in sorted order."""
    return sorted(key[2:] for key in keys if key.startswith("x_"))


def _further(key: str, keys: Iterable[str]) -> bool:
    """Return whether a key belongs to a further split: x_NAME with y_NAME, and not a misspelt common key."""
    name = key[2:]
    slip = bool(difflib.get_close_matches(name, ("train", "public", *OWN)))
    return key[:2] in ("x_", "y_") and {f"x_{name}", f"y_{name}"} <= set(keys) and name.isidentifier() and not slip


def load_arrays(file: Path) -> dict[str, Any]:
    """Read all arrays of an .npz or .safetensors file; pickled objects are refused."""
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                return {key: archive[key] for key in archive.files}
        from safetensors.torch import load_file

        return load_file(file)
    # numpy, zipfile and safetensors raise different errors for a bad file
    except Exception as error:
        if "allow_pickle" in str(error) and zipfile.is_zipfile(file):
            raise UnalikeError(f"{file} holds pickled objects, which are never loaded: save numeric arrays.") from None
        raise UnalikeError(f"{file} cannot be read: write it again as a valid {file.suffix} file.") from None


# ---------------------------------------------------------------- memory-mapped columns


def write_mapped(
    target: Path, splits: Mapping[str, Columns], global_test: Pair | None, public: Public | None, facts: dict[str, Any]
) -> None:
    """Write every column as .npy into a new folder, which appears under its name only when complete.

    `facts` (classes, names, label names, what the features are) go into the folder's index, columns.json.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnalikeError(f"{target} exists already: open it with Federation.open_mapped, or give a new folder.")
    scratch = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        scratch.mkdir(parents=True)
        for name, columns in splits.items():
            stem = _stem(name)
            _save(scratch, stem, columns.x, columns.y)
            np.save(scratch / f"{stem}_offsets.npy", columns.offsets, allow_pickle=False)
        if global_test is not None:
            _save(scratch, "global", *global_test)
        if public is not None:
            _save(scratch, "public", *public)
        parts = [_stem(name) for name in splits] + ["global"] * (global_test is not None)
        parts += ["public"] * (public is not None)
        plain = {name: facts[name] and facts[name].plain() for name in KINDS if name in facts}
        planted = {name: values.tolist() for name, values in facts.get("planted", {}).items()}
        form = WITH_PIXELS if any(scratch.glob(f"*{PIXELS}")) else FORMAT
        index = {"format": form, "parts": parts, **facts, **plain, "planted": planted}
        (scratch / INDEX).write_text(json.dumps(index), encoding="utf-8")
        if target.exists():
            target.rmdir()  # empty: checked above
        scratch.rename(target)
    except OSError as error:
        raise UnalikeError(f"{target} could not be written ({error.strerror}): free space or give another.") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def open_mapped(source: Path) -> dict[str, Any]:
    """Open the parts of a federation that `write_mapped` wrote, with all splits under "splits"; rows are read from disk
    when touched."""
    try:
        index = json.loads((source / INDEX).read_text(encoding="utf-8"))
        if index["format"] not in (FORMAT, WITH_PIXELS):
            raise UnalikeError(f"{source} has the format {index['format']!r}: this version reads {FORMAT!r}.")
        pairs = {stem: _open(source, stem) for stem in index["parts"]}
        parts: dict[str, Any] = {"global_test": pairs.pop("global", None), "public": pairs.pop("public", None)}
        parts["splits"] = {
            _name(stem): Columns(*pair, np.load(source / f"{stem}_offsets.npy", allow_pickle=False))
            for stem, pair in pairs.items()
        }
        if "train" not in parts["splits"]:
            raise KeyError("train")
        facts = {"classes": index["classes"], "names": index["names"], "label_names": index.get("label_names")}
        facts |= {name: kind.from_plain(index[name]) for name, kind in KINDS.items() if index.get(name)}
        facts["notes"], facts["shipped"] = index.get("notes", []), index.get("shipped", False)
        facts["planted"] = index.get("planted", {})
        return {**parts, **facts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnalikeError(
            f"{source} is not a complete folder of columns ({first_line(error)}): write it again with "
            "Federation.mapped."
        ) from None


def _stem(split: str) -> str:
    """Return the first part of the names of a split's files; a further split's cannot collide with any other's."""
    return STEMS.get(split, f"{FURTHER}{split}")


def _name(stem: str) -> str:
    return stem.removeprefix(FURTHER) if stem.startswith(FURTHER) else {s: n for n, s in STEMS.items()}[stem]


def _save(folder: Path, stem: str, x: torch.Tensor, y: torch.Tensor | None) -> None:
    for letter, tensor in (("x", x), ("y", y)):
        if tensor is None:
            continue
        values, *constants = held_by(tensor if tensor.dtype == torch.float32 else numbers(tensor))
        np.save(folder / f"{stem}_{letter}.npy", values.cpu().numpy(), allow_pickle=False)
        if constants:
            held: Any = {name: value.cpu().numpy() for name, value in zip(CONSTANTS, constants, strict=True)}
            np.savez(folder / f"{stem}_{letter}{PIXELS}", **held)


def _open(folder: Path, stem: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    labels = folder / f"{stem}_y.npy"
    if stem == "public" and not labels.exists():
        return _samples(folder, stem), None
    return _samples(folder, stem), _map(labels)


def _samples(folder: Path, stem: str) -> torch.Tensor:
    """Open samples: numbers, or bytes with the constants by which they are read."""
    values, constants = _map(folder / f"{stem}_x.npy"), folder / f"{stem}_x{PIXELS}"
    if not constants.exists():
        return values
    with np.load(constants, allow_pickle=False) as archive:
        return made_of([values, *(torch.from_numpy(archive[name]) for name in CONSTANTS)])


def _map(file: Path) -> torch.Tensor:
    # "c", copy on write: torch wants writable memory, and the file stays as it is
    array = np.load(file, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(array if array.size else np.array(array))
