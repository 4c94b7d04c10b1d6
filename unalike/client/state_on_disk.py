"""A client's state on its disk, kept and pending; and the folders of all clients of a loopback run."""

from __future__ import annotations

import dataclasses as dc
import hashlib
import json
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from unalike.client.state_in_memory import Shapes, scratch_folder
from unalike.errors import UnalikeError, first_line
from unalike.files import replace

# beside pending state: a hash of the request, the answer, and the round it belongs to; beside kept state, the
# round it was kept in
REQUEST, REPLY, ROUND = "__request__", "__reply__", "__round__"
FILE = "state.safetensors"
PENDING = "pending/"  # prefix of pending entries
HASH, NO_HASH = "sha256", "0" * 64
# prefix of state that a channel's stages keep for the client, beside the method's own
CHANNEL = "channel."


@dc.dataclass
class Content:
    """The content of a client's file: kept state, and state that waits for the server's acknowledgement."""

    kept: dict[str, Tensor]
    pending: dict[str, Tensor]
    changed: bool = False

    def round_of(self, part: str) -> int | None:
        """Return the round that a part, "kept" or "pending", belongs to."""
        stamp = getattr(self, part).get(ROUND)
        return None if stamp is None else int(stamp)

    def forget(self) -> None:
        """Forget the pending state."""
        self.changed |= bool(self.pending)
        self.pending = {}


class StateFolder:
    """One client's state in one file: kept state, and state that waits for the server's acknowledgement, together with
    the last answer, which may have been lost on its way. `open` reads the file once and writes it once."""

    def __init__(self, path: Path, shapes: Shapes, real: bool = False):
        # real: for a real client, whose file is synced to disk, stamped with its round, hashed, and readable by its
        # owner alone
        self.path, self.shapes, self.real = path, shapes, real
        self._content: Content | None = None
        # the round and the first exchange that the pending state is of; and of the last one that was forgotten
        self._began: tuple[int, int] | None = None
        self._forgotten: tuple[int, int] | None = None

    @contextmanager
    def open(self) -> Iterator[Content]:
        """Hold the content in memory for a block: read at its beginning, written at its end if anything changed. Within
        the block all other methods work on the same content."""
        if self._content is not None:
            yield self._content
            return
        content = self._content = self._load()
        try:
            yield content
        finally:
            self._content = None
            if content.changed:
                self._save(content)

    def read(self) -> tuple[dict[str, Tensor], bool]:
        """Return the state (pending, else kept, else zeros), and whether the method has kept nothing for longer than a
        round."""
        with self.open() as content:
            values = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype, _) in self.shapes.items()}
            values.update({n: v for n, v in content.kept.items() if n in self.shapes})
            pending = {n: v for n, v in content.pending.items() if n in self.shapes}
            values.update(pending)
            there = {n for n in content.kept if n != ROUND} | {n for n in pending if self.shapes[n][2] == "run"}
            return values, not methods_own(there)

    def stage(self, values: dict[str, Tensor]) -> None:
        """Stage the state after the last answer, together with state staged earlier in this round."""
        with self.open() as content:
            content.pending.update(values)
            content.changed |= bool(values)

    def answered(self, digest: bytes) -> bytes | None:
        """Return the answer to this very request, if it was the last one and left any state."""
        with self.open() as content:
            if REPLY not in content.pending or bytes(content.pending[REQUEST].numpy()) != digest:
                return None
            return bytes(content.pending[REPLY].numpy())

    def pending(self, name: str, round: int) -> bytes | None:
        """Return bytes that an answer of this round has left under this name."""
        with self.open() as content:
            there = name in content.pending and content.round_of("pending") == round
            return bytes(content.pending[name].numpy()) if there else None

    def begin(self, round: int, exchange: int) -> None:
        """Forget pending state of another round, or of this round if it starts anew: that reply was lost. Refuse a
        later exchange of a round whose earlier one was forgotten so: its state is not what the server means."""
        with self.open() as content:
            if exchange == 0 or content.round_of("pending") != round:
                if self._forgotten is not None and self._forgotten[0] == round and self._forgotten[1] < exchange:
                    raise UnalikeError(
                        f"Another round was asked for in the middle of round {round + 1}, and this client has "
                        "forgotten what it had begun: ask for that round from its beginning."
                    )
                if any(name in self.shapes for name in content.pending):
                    self._forgotten = self._began
                self._began = (round, exchange)
                content.forget()

    def commit(self) -> set[str]:
        """Keep the pending state; return the names of what is kept for longer than a round."""
        with self.open() as content:
            pending = content.pending
            keep = {n: v for n, v in pending.items() if n in self.shapes and self.shapes[n][2] == "run"}
            stamp = {ROUND: pending[ROUND]} if pending and self.real and self._stateful else {}
            content.kept.update({**keep, **stamp})
            content.forget()
            return {*keep}

    @property
    def _stateful(self) -> bool:
        return any(life == "run" for _, _, life in self.shapes.values())

    def settle(self, acknowledged: int | None, commit: bool = True) -> None:
        """Bring the state in line with the server: `acknowledged` is the last of this client's rounds that entered the
        model (None: none did). Pending state of that round is kept; state that the server never counted is forgotten.
        commit=False changes nothing, because the server may yet fail before it has written its checkpoint."""
        with self.open() as content:
            kept, pending = content.round_of("kept"), content.round_of("pending")
            if pending is not None and pending == acknowledged:
                if commit:
                    self.commit()
            elif not self._stateful or kept == acknowledged:
                if not commit:
                    # the server closed its round without this answer
                    content.forget()
            elif acknowledged is None:  # the run begins anew
                content.forget()
                content.kept, content.changed = {}, True
            else:
                has = "nothing" if kept is None else f"the state of round {kept + 1}"
                raise UnalikeError(
                    f"The server counts on this client's state of round {acknowledged + 1}, and {self.path} has {has}: "
                    "put the right folder back, or begin a new run."
                )

    def discard(self) -> None:
        with self.open() as content:
            content.forget()

    def replace(self, values: dict[str, Tensor]) -> None:
        """Set the kept state under these names (from a checkpoint)."""
        with self.open() as content:
            content.forget()
            content.kept.update(values)
            content.changed = True

    def names(self) -> set[str]:
        """Return the names of the kept state."""
        with safetensors.safe_open(self.file, framework="pt") as tensors:
            return {name for name in tensors.keys() if not name.startswith(PENDING)}  # noqa: SIM118

    @property
    def file(self) -> Path:
        return self.path / FILE

    def _load(self) -> Content:
        content = Content({}, {})
        try:
            if self.file.exists():
                for name, value in _decoded(self.file.read_bytes(), self.real).items():
                    part = content.pending if name.startswith(PENDING) else content.kept
                    part[name.removeprefix(PENDING)] = value
        except Exception as error:
            raise UnalikeError(f"The client state {self.file} cannot be read: {first_line(error)}.") from error
        return content

    def _save(self, content: Content) -> None:
        values = content.kept | {PENDING + name: value for name, value in content.pending.items()}
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700 if self.real else 0o777)
            if values:
                replace(self.file, _encoded(values, self.real), sync=self.real, mode=0o600 if self.real else 0o666)
            else:
                self.file.unlink(missing_ok=True)
        except OSError as error:
            raise UnalikeError(f"Cannot write client state to {self.path}: {error.strerror or error}.") from error


def _encoded(values: dict[str, Tensor], hashed: bool) -> bytes:
    """Return the bytes of a state file; hashed: include their SHA-256, computed with zeros in its place."""
    plain = {n: v.detach().cpu().contiguous().clone() for n, v in values.items()}
    if not hashed:
        return safetensors.torch.save(plain)
    data = safetensors.torch.save(plain, metadata={HASH: NO_HASH})
    return data.replace(NO_HASH.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def _decoded(data: bytes, hashed: bool) -> dict[str, Tensor]:
    """Return the values of a state file; raise if any byte has changed."""
    values = safetensors.torch.load(data)
    if hashed:
        header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
        said = str(header.get("__metadata__", {}).get(HASH))
        if hashlib.sha256(data.replace(said.encode(), NO_HASH.encode(), 1)).hexdigest() != said:
            raise UnalikeError("its hash is another than when it was written: the disk, or somebody, has changed it")
    return values


def methods_own(names: Iterable[str]) -> set[str]:
    """Return the names that belong to the method, not to the channel."""
    return {name for name in names if not name.startswith(CHANNEL)}


def with_channel(shapes: Shapes, channel: Shapes) -> Shapes:
    """Return the shapes of everything in a client's folder: the method's state, and what a channel's stages keep."""
    return {**shapes, **{CHANNEL + name: shape for name, shape in channel.items()}}


class FileStates:
    """State folders, one per client, with the interface of `ClientStore`. channel: shapes of the state that a channel's
    stages keep in the same folders; for it, `ChannelStates` has that interface."""

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
        """Forget all clients' state: a killed run may have left state that is ahead of its checkpoint."""
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
        # folders that may hold only the channel's part
        if self.channel is not None:
            ids = [client for client in ids if methods_own(self.of(client).names())]
        return np.array(ids, dtype=np.int64)

    def folders(self) -> list[int]:
        """Return the clients that have kept anything, in order."""
        files = self.folder.glob(f"client-*/{FILE}")
        found = sorted(int(file.parent.name.removeprefix("client-")) for file in files)
        return [client for client in found if self.of(client).names()]

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
    """The state that a channel's stages keep in the clients' folders, as a separate store for checkpoints, so that a
    run can continue with any engine. `FileStates` keeps and forgets it together with the clients' other state."""

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
        """Do nothing: `FileStates.commit` keeps the whole folder."""

    def discard(self) -> None:
        """Do nothing: `FileStates.discard` forgets the whole folder."""

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
