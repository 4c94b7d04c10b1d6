"""A federation inside one process: every message becomes bytes, every client's state a file.

Slower than `sequential` and equal to it: what works here works between real machines.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unalike import wire
from unalike.engines.base import Call, Engine, Job, Outcome, Solo
from unalike.engines.sequential import Sequential
from unalike.errors import UnalikeError
from unalike.node import Node, StateFolder, check_function, request_header
from unalike.store import Shapes, scratch_folder


class FileStates:
    """The states of all clients of a loopback run, one folder each; the same face as `ClientStore`."""

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


class Loopback(Engine):
    name = "loopback"

    def __init__(self, job: Job):
        super().__init__(job)
        if not isinstance(job.states, FileStates):
            raise UnalikeError("The loopback engine keeps client state in files: give it FileStates.")
        self.states: FileStates = job.states
        self.solo = Solo(job)

    def evaluator(self) -> Engine:
        """Evaluation is the simulator's own look at a client's model; no message is made of it."""
        return Sequential(self.job)

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        check_function(self.job, call)
        header = request_header(self.job, call)
        device = self.job.model.device
        for position, client in enumerate(ids):
            request = wire.encode(header, call.message(position))
            self.states.touched(int(client))
            node = Node(self.job, int(client), self.states.of(int(client)), self.solo)
            answer, sent = wire.decode(node.handle(request))
            up = {k: v[None].to(device) for k, v in sent.items()}
            samples, loss = np.array([answer["samples"]]), np.array([answer["loss"]])
            yield Outcome(np.array([client]), up, samples, loss, answer["trained"])
