"""A run is a folder: config.toml, rounds.jsonl, checkpoint/. Killing the process loses at most the round in progress.

A checkpoint is a manifest that names its files; files are written under new names and the manifest is renamed into
place last. Client state is written as segments, only the rows that changed since the last checkpoint, so that a round
costs what its cohort costs; segments are merged when they hold more than twice the live rows.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from unalike.errors import UnalikeError
from unalike.exchange import Server

# What may differ between a run and its continuation without making it another run.
FREE = ("run.rounds", "run.engine", "run.device", "run.checkpoint_every", "unalike.version")
MERGE_ROWS = 1 << 16  # rows a merged segment holds at most


class RunFolder:
    """One run on disk."""

    def __init__(self, path: str | Path, config: dict[str, Any], resume: bool):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoint"
        self.manifest: dict[str, Any] | None = None
        exists = (self.path / "config.toml").exists()
        if exists:
            self._compare(config)
            if not resume:
                done = self._read_manifest()
                at = f"round {done['round']}" if done else "before its first checkpoint"
                raise UnalikeError(
                    f"{self.path} already holds this run ({at}): continue with resume=True or choose another folder."
                )
            self.manifest = self._read_manifest()
        elif self.path.exists() and any(self.path.iterdir()):
            raise UnalikeError(f"{self.path} is not empty and holds no run: choose another folder.")
        with self.writing():
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if not exists or self.manifest is None:
                _replace(self.path / "config.toml", dump_toml(config).encode())
        self._trim_rounds(self.manifest["round"] if self.manifest else 0)
        self._log = open(self.path / "rounds.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (open for the run)

    def close(self) -> None:
        self._log.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A full disk is the user's to mend: one line, and the last checkpoint stands."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG):
                kept = f"the checkpoint of round {self.manifest['round']}" if self.manifest else "nothing before it"
                raise UnalikeError(
                    f"Cannot write to {self.path}: {error.strerror}. Kept: {kept}; make room and resume."
                ) from error
            raise

    # ---- config

    def _compare(self, config: dict[str, Any]) -> None:
        import tomllib

        try:
            old = flatten(tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8")))
        except tomllib.TOMLDecodeError as error:
            raise UnalikeError(f"{self.path / 'config.toml'} is not readable: {error}.") from error
        new = flatten(tomllib.loads(dump_toml(config)))
        for key in sorted(set(old) | set(new)):
            if key not in FREE and old.get(key) != new.get(key):
                raise UnalikeError(
                    f"{self.path} holds another run: there {key} is {old.get(key)!r}, here {new.get(key)!r}. "
                    "Choose another folder."
                )

    # ---- rounds.jsonl

    def log(self, line: dict[str, Any]) -> None:
        with self.writing():
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()

    def history(self) -> list[dict[str, Any]]:
        file = self.path / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def _trim_rounds(self, last: int) -> None:
        """Drop lines after the checkpoint (and a half-written one): those rounds are run again."""
        file = self.path / "rounds.jsonl"
        if not file.exists():
            return
        keep = []
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["round"] > last:
                    break
            except (ValueError, KeyError):
                break
            keep.append(line)
        _replace(file, "".join(line + "\n" for line in keep).encode())

    # ---- checkpoints

    def _read_manifest(self) -> dict[str, Any] | None:
        file = self.checkpoints / "manifest.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def save(self, round: int, server: Server, stores: dict[str, Any]) -> None:
        """Write the state after `round` rounds; `stores` are the client states and the server's tables by name."""
        with self.writing():
            self._save(round, server, stores)

    def _save(self, round: int, server: Server, stores: dict[str, Any]) -> None:
        tensors, numbers = _divide(server._values)
        files = {"server": f"server-{round:06d}.safetensors"}
        self._write(files["server"], tensors)
        old = self.manifest["segments"] if self.manifest else {}
        segments: dict[str, list[dict[str, Any]]] = {}
        for name, store in stores.items():
            ids, rows = store.changed()
            parts = list(old.get(name, []))
            if len(ids):
                parts.append(self._segment(name, round, 0, ids, rows))
            live = len(store.known()) if len(parts) > 8 else 0
            if len(parts) > 8 and sum(p["rows"] for p in parts) > 2 * live:
                parts = self._merged(name, round, store)
            segments[name] = parts
        manifest = {"round": round, **files, "numbers": numbers, "segments": segments}
        _replace(self.checkpoints / "manifest.json", json.dumps(manifest).encode())
        self.manifest = manifest
        named = {files["server"], "manifest.json"} | {p["file"] for parts in segments.values() for p in parts}
        for file in self.checkpoints.iterdir():
            if file.name not in named and file.is_file():
                file.unlink()

    def _segment(self, name: str, round: int, part: int, ids: np.ndarray, rows: dict[str, Tensor]) -> dict[str, Any]:
        file = f"{name}-{round:06d}-{part:03d}.safetensors"
        self._write(file, {"__ids__": torch.from_numpy(ids), **rows})
        return {"file": file, "rows": len(ids)}

    def _merged(self, name: str, round: int, store: Any) -> list[dict[str, Any]]:
        known = store.known()
        return [
            self._segment(name, round, 1 + a // MERGE_ROWS, ids, store.rows_of(ids))
            for a in range(0, len(known), MERGE_ROWS)
            if len(ids := known[a : a + MERGE_ROWS])
        ]

    def _write(self, file: str, tensors: dict[str, Tensor]) -> None:
        plain = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
        _replace(self.checkpoints / file, safetensors.torch.save(plain))

    def load(self, server: Server, stores: dict[str, Any]) -> int:
        """Put the last checkpoint back; the number of rounds done (0: none)."""
        if self.manifest is None:
            return 0
        device = server.w.device
        for name, value in self._read(self.manifest["server"]).items():
            _put(server._values, name, value.to(device))
        server._values.update(self.manifest["numbers"])
        for name, parts in self.manifest["segments"].items():
            for part in parts:
                rows = self._read(part["file"])
                stores[name].restore(rows.pop("__ids__").numpy(), rows)
        return int(self.manifest["round"])

    def _read(self, file: str) -> dict[str, Tensor]:
        try:
            return safetensors.torch.load_file(self.checkpoints / file)
        except Exception as error:
            raise UnalikeError(f"The checkpoint file {self.checkpoints / file} cannot be read: {error}.") from error


def _divide(values: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The server's state: tensors (also in lists, as name.0, name.1) and everything JSON can hold."""
    tensors, numbers = {}, {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, list | tuple) and value and all(isinstance(v, Tensor) for v in value):
            tensors |= {f"{name}.{k}": v for k, v in enumerate(value)}
        else:
            try:
                numbers[name] = json.loads(json.dumps(value))
            except TypeError as error:
                raise UnalikeError(
                    f"The server's {name!r} is {type(value).__name__}, which a checkpoint cannot hold: use tensors, "
                    "numbers, text, or lists of them."
                ) from error
    return tensors, numbers


def _put(values: dict[str, Any], name: str, value: Tensor) -> None:
    stem, _, index = name.rpartition(".")
    if not stem:
        values[name] = value
        return
    if index == "0":
        values[stem] = []
    values.setdefault(stem, []).append(value)


def _replace(path: Path, data: bytes) -> None:
    """Write under a new name and rename: a reader sees the old file or the new one."""
    new = path.with_name(f".{path.name}.new")
    try:
        with open(new, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


# ---------------------------------------------------------------- TOML


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def dump_toml(tree: dict[str, Any]) -> str:
    """A small TOML writer for what a config holds: text, numbers, booleans, lists, tables; None is left out."""
    lines: list[str] = []

    def table(values: dict[str, Any], path: tuple[str, ...]) -> None:
        plain = {k: v for k, v in values.items() if not isinstance(v, dict) and v is not None}
        if path and (plain or not any(isinstance(v, dict) for v in values.values())):
            lines.append(f"\n[{'.'.join(json.dumps(p) if not p.isidentifier() else p for p in path)}]")
        lines.extend(f"{k if k.isidentifier() else json.dumps(k)} = {_toml(v)}" for k, v in plain.items())
        for key, value in values.items():
            if isinstance(value, dict):
                table(value, (*path, key))

    table(tree, ())
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(repr(value), repr(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
