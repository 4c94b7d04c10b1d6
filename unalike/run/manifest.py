"""A checkpoint's manifest: the round, the names of its files, and hashes of each file, of the log and of the manifest
itself.

manifest.json is the last checkpoint, manifest-000012.json an earlier one that is kept. A file that is missing or has
another hash makes its checkpoint `Spoilt`; manifests of earlier versions have no hashes, and are trusted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError, first_line
from unalike.files import open_plain, read_plain
from unalike.settings.typed import short

NAME = "manifest.json"
STATE = re.compile(r"(server-\d{6,}(-\d{3,})?|(clients|table|channel)[\w.-]*-\d{6,}-\d{3,})\.safetensors")
OLDER = re.compile(r"manifest-(\d{6,})\.json")
HASH = re.compile(r"[0-9a-f]{64}")
DEEPEST = 100  # deepest nesting of a manifest's JSON


class Spoilt(UnalikeError):
    """Raised for a checkpoint that is not as it was written."""


def ours(name: str) -> bool:
    """Return whether a file in checkpoint/ has a name that this program gives; only such files are ever removed."""
    bare = name[1 : -len(".new")] if name.startswith(".") and name.endswith(".new") else name
    return any(pattern.fullmatch(bare) for pattern in (STATE, OLDER))


def sealed(manifest: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest, with a hash of itself."""
    return json.dumps({**manifest, "sha256": _digest(manifest)}).encode()


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def kept(folder: Path) -> list[Path]:
    """Return the manifests in a folder of checkpoints, the last one first."""
    numbers = {int(found[1]): found[0] for found in map(OLDER.fullmatch, _names(folder)) if found}
    last = [folder / NAME] if os.path.lexists(folder / NAME) else []
    return last + [folder / numbers[number] for number in sorted(numbers, reverse=True)]


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def read(file: Path) -> dict[str, Any]:
    """Return the manifest in a file, without its own hash; raise `Spoilt` if it is no manifest, or not as it was
    written."""
    try:
        found = json.loads(read_plain(file))
    except FileNotFoundError:
        raise Spoilt(f"The checkpoint {file} cannot be read: there is no such file.") from None
    except (ValueError, RecursionError) as error:
        raise Spoilt(f"The checkpoint {file} cannot be read: {first_line(error)}.") from error
    if fault := _fault(found):
        raise Spoilt(f"The checkpoint {file} cannot be read: {fault}.")
    written = found.pop("sha256", None)
    if written is not None and written != _digest(found):
        raise Spoilt(f"The checkpoint {file} cannot be read: it was changed after it was written.")
    return found


def _fault(found: Any) -> str:
    """Return what is wrong with a manifest, "" if nothing."""
    if not isinstance(found, dict):
        return f"it is {short(found)}, no table"
    missing = [key for key in ("round", "server", "numbers", "segments") if key not in found]
    if missing:
        return f"it lacks {missing[0]!r}"
    hashes = [found[key] for key in ("sha256", "server_sha256", "log") if key in found]
    wrong = {
        "round": type(found["round"]) is not int or found["round"] < 0,
        "server": not _is_state(found["server"]),
        "numbers": not isinstance(found["numbers"], dict) or _deep(found["numbers"]),
        "segments": not isinstance(found["segments"], dict) or not all(map(_is_parts, found["segments"].values())),
    }
    for key in [key for key, is_wrong in wrong.items() if is_wrong]:
        return f"its {key} cannot be {short(found[key])}"
    return "" if all(map(_is_hash, hashes)) else "one of its hashes is none"


def _deep(value: Any, depth: int = 0) -> bool:
    """Return whether a value is nested deeper than any server's state can be."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > DEEPEST or any(_deep(part, depth + 1) for part in inner)


def _is_state(name: Any) -> bool:
    return isinstance(name, str) and STATE.fullmatch(name) is not None


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and HASH.fullmatch(value) is not None


def _is_parts(parts: Any) -> bool:
    """Return whether `parts` is a list of segments: a file name, its rows, and optionally its hash."""
    return isinstance(parts, list) and all(
        isinstance(part, dict)
        and _is_state(part.get("file"))
        and type(part.get("rows")) is int
        and 0 <= part["rows"] < math.inf
        and ("sha256" not in part or _is_hash(part["sha256"]))
        for part in parts
    )


def files(manifest: dict[str, Any]) -> dict[str, str | None]:
    """Return the hashes of a checkpoint's files by name; None for a file written before there were hashes."""
    parts = [part for some in manifest["segments"].values() for part in some]
    return {manifest["server"]: manifest.get("server_sha256")} | {part["file"]: part.get("sha256") for part in parts}


def verify(folder: Path, manifest: dict[str, Any], only: str | None = None) -> None:
    """Check the files of a checkpoint, or only the file `only`, against their hashes; raise `Spoilt` for the first that
    is missing or has changed."""
    for name, wanted in files(manifest).items():
        if only in (None, name):
            found = _file_digest(folder / name)
            if wanted not in (None, found):
                raise Spoilt(f"The checkpoint {folder / name} cannot be read: it was changed after it was written.")


def _file_digest(file: Path) -> str:
    try:
        with open_plain(file) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        raise Spoilt(f"The checkpoint {file} cannot be read: there is no such file.") from None


def last(folder: Path, only: str | None = None, whole: bool = True) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the newest checkpoint that is as it was written (None if there is none), and what is wrong with newer
    ones. only: check only the file under this key ("server"); whole: check files too, not the manifest alone."""
    faults: list[str] = []
    for file in kept(folder):
        try:
            manifest = read(file)
            if whole:
                verify(folder, manifest, manifest[only] if only else None)
            return manifest, faults
        except Spoilt as error:
            faults.append(str(error))
    if faults:
        raise UnalikeError(faults[0])
    return None, []
