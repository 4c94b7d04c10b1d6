"""What a client keeps on its disk: its state, kept and pending; and the folders of all clients of a loopback run."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from unalike.client.state_in_memory import Shapes, scratch_folder
from unalike.errors import UnalikeError, first_line
from unalike.files import replace

# beside pending state: a hash of the request, what was answered, and the round it belongs to; beside kept state, the
# round it was kept in
REQUEST, REPLY, ROUND = "__request__", "__reply__", "__round__"
CHANNEL = "channel."  # prefix of what a channel's stages keep for the client, beside the method's own state


class StateFolder:
    """One client's state: `state.safetensors` is kept, `pending.safetensors` waits for the server's acknowledgement
    and holds the last answer too: it may have been lost on its way."""

    def __init__(self, path: Path, shapes: Shapes, real: bool = False):
        # real: a real client's, written through to the disk and stamped with its round
        self.path, self.shapes, self.real = path, shapes, real

    def read(self) -> tuple[dict[str, Tensor], bool]:
        """Return the state, pending over kept over zeros, and whether the method has kept nothing for longer than a
        round."""
        values = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype, _) in self.shapes.items()}
        kept = self._load("state")
        values.update({n: v for n, v in (kept or {}).items() if n in self.shapes})
        pending = {n: v for n, v in (self._load("pending") or {}).items() if n in self.shapes}
        values.update(pending)
        there = {n for n in kept or {} if n != ROUND} | {n for n in pending if self.shapes[n][2] == "run"}
        return values, not methods_own(there)

    def stage(self, values: dict[str, Tensor]) -> None:
        """What the last answer leaves behind, together with what was staged before it in this round."""
        if values:
            self._save("pending", {**(self._load("pending") or {}), **values})

    def answered(self, digest: bytes) -> bytes | None:
        """The answer to this very request, if it was the last one and left anything behind."""
        pending = self._load("pending") or {}
        if REPLY not in pending or bytes(pending[REQUEST].numpy()) != digest:
            return None
        return bytes(pending[REPLY].numpy())

    def pending(self, name: str, round: int) -> bytes | None:
        """Return bytes that an answer of this round has left behind under this name."""
        pending = self._load("pending") or {}
        there = name in pending and ROUND in pending and int(pending[ROUND]) == round
        return bytes(pending[name].numpy()) if there else None

    def begin(self, round: int, exchange: int) -> None:
        """Forget what another round left pending, or this round when it starts anew: that reply was lost."""
        pending = self._load("pending")
        if pending is not None and (exchange == 0 or ROUND not in pending or int(pending[ROUND]) != round):
            self.discard()

    def commit(self) -> set[str]:
        """Keep what is pending; return the names of what is kept for longer than a round."""
        pending = self._load("pending")
        if pending is None:
            return set()
        keep = {n: v for n, v in pending.items() if n in self.shapes and self.shapes[n][2] == "run"}
        stamp = {ROUND: pending[ROUND]} if self.real and self._stateful else {}
        if keep or stamp:
            self._save("state", {**(self._load("state") or {}), **keep, **stamp})
        self.discard()
        return {*keep}

    @property
    def _stateful(self) -> bool:
        return any(life == "run" for _, _, life in self.shapes.values())

    def settle(self, acknowledged: int | None, commit: bool = True) -> None:
        """Bring the state to what the server counts on: the last of this client's rounds that entered its model
        (None: none did). What is pending from that round is kept; what the server never counted is forgotten.
        commit=False only looks: the server may yet fail before it has written its checkpoint."""
        at = {name: (self._load(name) or {}).get(ROUND) for name in ("state", "pending")}
        rounds = {name: None if value is None else int(value) for name, value in at.items()}
        if rounds["pending"] is not None and rounds["pending"] == acknowledged:
            if commit:
                self.commit()
        elif not self._stateful or rounds["state"] == acknowledged:
            if not commit:
                self.discard()  # an answer that the server has closed its round without
        elif acknowledged is None:  # the run begins anew
            self.discard()
            (self.path / "state.safetensors").unlink(missing_ok=True)
        else:
            has = "nothing" if rounds["state"] is None else f"the state of round {rounds['state'] + 1}"
            raise UnalikeError(
                f"The server counts on this client's state of round {acknowledged + 1}, and {self.path} has {has}: put "
                "the right folder back, or begin a new run."
            )

    def discard(self) -> None:
        (self.path / "pending.safetensors").unlink(missing_ok=True)

    def replace(self, values: dict[str, Tensor]) -> None:
        """Set the kept state (from a checkpoint): what has these names."""
        self.discard()
        self._save("state", {**(self._load("state") or {}), **values})

    def names(self) -> set[str]:
        """Return the names of what is kept."""
        file = self.path / "state.safetensors"
        with safetensors.safe_open(file, framework="pt") as tensors:
            return {*tensors.keys()}

    def _load(self, name: str) -> dict[str, Tensor] | None:
        file = self.path / f"{name}.safetensors"
        try:
            return safetensors.torch.load_file(file) if file.exists() else None
        except Exception as error:
            raise UnalikeError(f"The client state {file} cannot be read: {first_line(error)}.") from error

    def _save(self, name: str, values: dict[str, Tensor]) -> None:
        plain = {n: v.detach().cpu().contiguous().clone() for n, v in values.items()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            replace(self.path / f"{name}.safetensors", safetensors.torch.save(plain), sync=self.real)
        except OSError as error:
            raise UnalikeError(f"Cannot write client state to {self.path}: {error.strerror or error}.") from error


def methods_own(names: Iterable[str]) -> set[str]:
    """Return the names that are the method's, not the channel's."""
    return {name for name in names if not name.startswith(CHANNEL)}


def with_channel(shapes: Shapes, channel: Shapes) -> Shapes:
    """Return the shapes of all that a client's folder holds: the method's state, and what a channel's stages keep."""
    return {**shapes, **{CHANNEL + name: shape for name, shape in channel.items()}}


class FileStates:
    """State folders, one per client, with the same face as `ClientStore`. channel: shapes of what a channel's stages
    keep in the same folders; of these, `ChannelStates` has that face."""

    mapped = True

    def __init__(
        self, shapes: Shapes, folder: Path | None, device: torch.device | str = "cpu", channel: Shapes | None = None
    ):
        self.folder = folder or scratch_folder(self)
        self.shapes, self.device = shapes, torch.device(device)
        self.all_shapes = with_channel(shapes, channel or {})
        self.channel = ChannelStates(self, channel) if channel else None
        self._staged: set[int] = set()
        self._changed: set[int] = set()

    def clear(self) -> None:
        """Forget every client: what a killed run left here may be ahead of its checkpoint."""
        for folder in self.folder.glob("client-*"):
            shutil.rmtree(folder)

    def of(self, client: int) -> StateFolder:
        return StateFolder(self.folder / f"client-{client:07d}", self.all_shapes)

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
            kept = self.of(client).commit()
            if methods_own(kept):
                self._changed.add(client)
            if self.channel is not None and kept - methods_own(kept):
                self.channel.touched.add(client)
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
        ids = self.folders()
        if self.channel is not None:  # whose folders may hold the channel's part alone
            ids = [client for client in ids if methods_own(self.of(client).names())]
        return np.array(ids, dtype=np.int64)

    def folders(self) -> list[int]:
        """Return the clients of which anything is kept, in order."""
        files = self.folder.glob("client-*/state.safetensors")
        return sorted(int(file.parent.name.removeprefix("client-")) for file in files)

    def rows_of(self, ids: np.ndarray) -> dict[str, Tensor]:
        rows = [self.of(int(k)).read()[0] for k in ids]
        names = [n for n, (_, _, life) in self.shapes.items() if life == "run"]
        return {n: torch.stack([r[n] for r in rows]) for n in names} if rows else {}

    def restore(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        for row, client in enumerate(ids):
            self.of(int(client)).replace({n: v[row] for n, v in values.items()})

    def __getitem__(self, client: int) -> dict[str, Tensor]:
        values, _ = self.of(client).read()
        return {name: values[name] for name, (_, _, life) in self.shapes.items() if life == "run"}


class ChannelStates:
    """What a channel's stages keep in the clients' folders, as a store of its own, for checkpoints: so that a run goes
    on in any engine. `FileStates` keeps and forgets it together with the clients' other state."""

    mapped = True

    def __init__(self, states: FileStates, shapes: Shapes):
        self.states, self.shapes, self.touched = states, shapes, set[int]()

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        rows = [self.states.of(int(k)).read()[0] for k in ids]
        values = {n: torch.stack([row[CHANNEL + n] for row in rows]).to(self.states.device) for n in self.shapes}
        return values, torch.zeros(len(ids), dtype=torch.bool)

    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        self.states.stage(ids, {CHANNEL + name: value for name, value in values.items()})

    def commit(self) -> None:
        """Nothing is left to do: `FileStates.commit` keeps the whole folder."""

    def discard(self) -> None:
        """Nothing is left to do: `FileStates.discard` forgets the whole folder's."""

    def changed(self) -> tuple[np.ndarray, dict[str, Tensor]]:
        ids = np.array(sorted(self.touched), dtype=np.int64)
        self.touched = set()
        return ids, self.rows_of(ids)

    def known(self) -> np.ndarray:
        there = [k for k in self.states.folders() if (names := self.states.of(k).names()) - methods_own(names)]
        return np.array(there, dtype=np.int64)

    def rows_of(self, ids: np.ndarray) -> dict[str, Tensor]:
        return self.read(ids)[0] if len(ids) else {}

    def restore(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        self.states.restore(ids, {CHANNEL + name: value for name, value in values.items()})

    def __getitem__(self, client: int) -> dict[str, Tensor]:
        return {name: rows[0] for name, rows in self.read(np.array([client]))[0].items()}
