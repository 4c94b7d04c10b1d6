"""The states of all clients of a loopback run, each in a folder as on a real client's disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unalike.client.state import StateFolder
from unalike.client.store import Shapes, scratch_folder


class FileStates:
    """State folders, one per client, with the same face as `ClientStore`."""

    mapped = True

    def __init__(self, shapes: Shapes, folder: Path | None, device: torch.device | str = "cpu"):
        self.folder = folder or scratch_folder(self)
        self.shapes, self.device = shapes, torch.device(device)
        self._staged: set[int] = set()
        self._changed: set[int] = set()

    def clear(self) -> None:
        """Forget every client: what a killed run left here may be ahead of its checkpoint."""
        for folder in self.folder.glob("client-*"):
            shutil.rmtree(folder)

    def of(self, client: int) -> StateFolder:
        return StateFolder(self.folder / f"client-{client:07d}", self.shapes)

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        rows = [self.of(int(k)).read() for k in ids]
        values = {n: torch.stack([r[0][n] for r in rows]).to(self.device) for n in self.shapes}
        return values, torch.tensor([r[1] for r in rows], device=self.device)

    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        for row, client in enumerate(ids):
            self.touched(int(client))
            self.of(int(client)).stage({n: v[row] for n, v in values.items()})

    def touched(self, client: int) -> None:
        self._staged.add(client)

    def commit(self) -> None:
        for client in self._staged:
            if self.of(client).commit():
                self._changed.add(client)
        self._staged = set()

    def discard(self) -> None:
        for client in self._staged:
            self.of(client).discard()
        self._staged = set()

    def changed(self) -> tuple[np.ndarray, dict[str, Tensor]]:
        ids = np.array(sorted(self._changed), dtype=np.int64)
        self._changed = set()
        return ids, self.rows_of(ids)

    def known(self) -> np.ndarray:
        folders = self.folder.glob("client-*/state.safetensors")
        return np.array(sorted(int(f.parent.name.removeprefix("client-")) for f in folders), dtype=np.int64)

    def rows_of(self, ids: np.ndarray) -> dict[str, Tensor]:
        rows = [self.of(int(k)).read()[0] for k in ids]
        names = [n for n, (_, _, life) in self.shapes.items() if life == "run"]
        return {n: torch.stack([r[n] for r in rows]) for n in names} if rows else {}

    def restore(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        for row, client in enumerate(ids):
            self.of(int(client)).replace({n: v[row] for n, v in values.items()})

    def __getitem__(self, client: int) -> dict[str, Tensor]:
        values, _ = self.of(client).read()
        return {n: v for n, v in values.items() if self.shapes[n][2] == "run"}
