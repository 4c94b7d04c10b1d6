"""Client state in a simulation: one row per client that has ever kept something.

Rows are allocated on first write. Up to a budget they lie in memory (on the device of the run); beyond it, in sparse
memory-mapped files, so that a million clients cost only what was written. New state is staged, and becomes the client's
state when the server has finished the round (`commit`); a round that fails leaves nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.errors import UnalikeError


def scratch_folder(owner: object) -> Path:
    """Return a temporary folder that is removed together with its owner."""
    path = tempfile.mkdtemp(prefix="unalike-")
    weakref.finalize(owner, shutil.rmtree, path, ignore_errors=True)
    return Path(path)


Shapes = dict[str, tuple[tuple[int, ...], torch.dtype, str]]  # name -> shape, dtype, lifetime


class ClientStore:
    """Rows of client state by name, read and staged for arrays of client numbers."""

    def __init__(
        self,
        shapes: Shapes,
        population: int,
        device: torch.device | str = "cpu",
        budget: int = 2 << 30,
        folder: Path | None = None,
    ):
        self.shapes, self.population = shapes, population
        self.device, self.budget, self.folder = torch.device(device), budget, folder
        self._row: np.ndarray = np.full(population, -1, dtype=np.int32 if population < 2**31 else np.int64)
        self._rows: dict[str, Tensor] = {}
        self._files: dict[str, Path] = {}
        self._used = self._capacity = 0
        self._staged: list[tuple[np.ndarray, dict[str, Tensor]]] = []
        self._where: dict[str, dict[int, tuple[int, int]]] = {}
        self._changed: list[np.ndarray] = []
        self._lock = threading.Lock()
        self.mapped = False

    # ---- for client functions

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """Return the clients' state (staged, else kept, else zeros), and a mask of those that have kept nothing."""
        with self._lock:
            rows = self._row[ids]
            known, out = rows >= 0, {}
            for name, (shape, dtype, life) in self.shapes.items():
                if life == "run" and self._used and (rows >= 0).any():
                    values = self._take(name, np.maximum(rows, 0))
                    if (rows < 0).any():
                        values[torch.from_numpy(rows < 0).to(self.device)] = 0
                else:
                    values = torch.zeros(len(ids), *shape, dtype=dtype, device=self.device)
                places = self._where.get(name, {})
                for k, client in enumerate(ids) if places else ():
                    if int(client) in places:
                        chunk, row = places[int(client)]
                        values[k] = self._staged[chunk][1][name][row]
                        known[k] |= life == "run"
                out[name] = values
            if (some := known.any()) and not known.all():
                return out, torch.from_numpy(~known).to(self.device)
            # the usual case: needs no copy from the device
            return out, torch.full((len(ids),), not some, device=self.device)

    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        """Stage the new state of these clients; it becomes permanent by `commit`."""
        if not values:
            return
        with self._lock:
            values = {name: v.detach() for name, v in values.items()}
            chunk = len(self._staged)
            self._staged.append((ids.copy(), values))
            for name in values:
                places = self._where.setdefault(name, {})
                for row, client in enumerate(ids):
                    places[int(client)] = (chunk, row)

    # ---- the end of a round

    def commit(self) -> None:
        """Keep the staged state."""
        kept = [(ids, {n: v for n, v in values.items() if self.shapes[n][2] == "run"}) for ids, values in self._staged]
        for ids, values in kept:
            if values:
                self._write(ids, values)
                self._changed.append(ids)
        self.discard()

    def discard(self) -> None:
        """Forget the staged state."""
        self._staged, self._where = [], {}

    # ---- checkpoints

    def changed(self) -> tuple[np.ndarray, dict[str, Tensor]]:
        """Return the rows written since the last call, once each."""
        ids = np.unique(np.concatenate(self._changed)) if self._changed else np.empty(0, dtype=np.int64)
        self._changed = []
        return ids, self.rows_of(ids)

    def known(self) -> np.ndarray:
        """Return every client that keeps something."""
        return np.flatnonzero(self._row >= 0)

    def rows_of(self, ids: np.ndarray) -> dict[str, Tensor]:
        """Return the kept rows of clients that have them."""
        rows = self._row[ids]
        return {n: self._take(n, rows) for n, (_, _, life) in self.shapes.items() if life == "run"} if len(ids) else {}

    def restore(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        """Set rows from a checkpoint."""
        if len(ids):
            self._write(ids, {n: v.to(self.device) for n, v in values.items()})

    def __getitem__(self, client: int) -> dict[str, Tensor]:
        """Return the kept state of one client."""
        if not 0 <= client < self.population:
            raise UnalikeError(f"There is no client {client}: there are {self.population}, numbered from 0.")
        values, _ = self.read(np.array([client]))
        return {n: v[0] for n, v in values.items() if self.shapes[n][2] == "run"}

    # ---- rows

    def _take(self, name: str, rows: np.ndarray) -> Tensor:
        index = torch.from_numpy(rows.astype(np.int64))
        if self.mapped:
            return self._rows[name][index].to(self.device)
        return self._rows[name].index_select(0, index.to(self.device))

    def _write(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        new = ids[self._row[ids] < 0]
        if len(new):
            self._grow(self._used + len(new))
            if self.mapped:
                for name in self._rows:
                    self._reserve(name, self._used, len(new))
            self._row[new] = np.arange(self._used, self._used + len(new))
            self._used += len(new)
        index = torch.from_numpy(self._row[ids].astype(np.int64))
        for name, value in values.items():
            target = self._rows[name]
            target[index.to(target.device)] = value.to(target.device, target.dtype)

    def _grow(self, needed: int) -> None:
        if needed <= self._capacity:
            return
        capacity = min(self.population, max(needed, 2 * self._capacity, 16))
        width = {
            name: (int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, shape, dtype)
            for name, (shape, dtype, life) in self.shapes.items()
            if life == "run"
        }
        # while growing, old and new rows exist at the same time: count both
        if not self.mapped and (capacity + self._used) * sum(b for b, *_ in width.values()) > self.budget:
            self._map(width)
            return
        for name, (_, shape, dtype) in width.items():
            rows = torch.zeros(capacity, *shape, dtype=dtype, device=self.device)
            if self._used:
                rows[: self._used] = self._rows[name][: self._used]
            self._rows[name] = rows
        self._capacity = capacity

    def _reserve(self, name: str, first: int, count: int) -> None:
        """Reserve disk space before writing to a mapped file: a full disk is an error here, but a crash there."""
        shape, dtype, _ = self.shapes[name]
        row = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if count and row and hasattr(os, "posix_fallocate"):
            with open(self._files[name], "r+b") as file:
                try:
                    os.posix_fallocate(file.fileno(), first * row, count * row)
                except OSError as error:
                    raise UnalikeError(
                        f"Cannot keep state in {self._files[name].parent}: {error.strerror}. Make room, then resume."
                    ) from error

    def _map(self, width: dict[str, Any]) -> None:
        """Move to sparse files that have room for every client; only rows that are written take space."""
        folder = self.folder or scratch_folder(self)
        folder.mkdir(parents=True, exist_ok=True)
        for name, (_, shape, dtype) in width.items():
            path = folder / f"{name}.rows"
            # an earlier run in this process may still use it
            path.unlink(missing_ok=True)
            rows = torch.from_numpy(np.memmap(path, mode="w+", shape=(self.population, *shape), dtype=_NUMPY[dtype]))
            self._files[name] = path
            self._reserve(name, 0, self._used)
            if self._used:
                rows[: self._used] = self._rows[name][: self._used].cpu()
            self._rows[name] = rows
        self._capacity, self.mapped = self.population, True


_NUMPY = {
    torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.uint8: np.uint8,
    torch.bool: np.bool_,
}  # fmt: skip
