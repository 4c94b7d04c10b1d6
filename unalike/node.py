"""A client on its own: its state in a folder, its answers as bytes. What a real federation runs at each owner's.

`loopback` runs it in one process; a network only has to carry the bytes.
"""

from __future__ import annotations

import hashlib
import os
import reprlib
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import unalike
from unalike import wire
from unalike.contract import Fields, client_functions, fingerprint
from unalike.engines.base import Call, Job, Solo
from unalike.errors import UnalikeError, did_you_mean
from unalike.store import Shapes

# beside pending state: a hash of the request, what was answered, and the round it belongs to
REQUEST, REPLY, ROUND = "__request__", "__reply__", "__round__"


class StateFolder:
    """One client's state: `state.safetensors` is kept, `pending.safetensors` waits for the server's acknowledgement
    and holds the last answer too: it may have been lost on its way."""

    def __init__(self, path: Path, shapes: Shapes):
        self.path, self.shapes = path, shapes

    def read(self) -> tuple[dict[str, Tensor], bool]:
        """The state, pending over kept over zeros, and whether there is none yet but for a round's own."""
        values = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype, _) in self.shapes.items()}
        kept = self._load("state")
        values.update(kept or {})
        pending = {n: v for n, v in (self._load("pending") or {}).items() if n in self.shapes}
        values.update(pending)
        return values, kept is None and not any(self.shapes[n][2] == "run" for n in pending)

    def stage(self, values: dict[str, Tensor]) -> None:
        """What the last answer leaves behind, together with what was staged before it in this round."""
        if values:
            self._save("pending", {**(self._load("pending") or {}), **values})

    def answered(self, request: bytes) -> bytes | None:
        """The answer to this very request, if it was the last one and changed the state."""
        pending = self._load("pending") or {}
        if REPLY not in pending or bytes(pending[REQUEST].numpy()) != hashlib.sha256(request).digest():
            return None
        return bytes(pending[REPLY].numpy())

    def begin(self, round: int, exchange: int) -> None:
        """Forget what another round left pending, or this round when it starts anew: that reply was lost."""
        pending = self._load("pending")
        if pending is not None and (exchange == 0 or ROUND not in pending or int(pending[ROUND]) != round):
            self.discard()

    def commit(self) -> bool:
        """Keep what is pending; True if there was anything for longer than a round."""
        pending = self._load("pending")
        if pending is None:
            return False
        keep = {n: v for n, v in pending.items() if n in self.shapes and self.shapes[n][2] == "run"}
        if keep:
            self._save("state", {**(self._load("state") or {}), **keep})
        self.discard()
        return bool(keep)

    def discard(self) -> None:
        (self.path / "pending.safetensors").unlink(missing_ok=True)

    def replace(self, values: dict[str, Tensor]) -> None:
        """Set the kept state (from a checkpoint)."""
        self.discard()
        self._save("state", values)

    def _load(self, name: str) -> dict[str, Tensor] | None:
        file = self.path / f"{name}.safetensors"
        try:
            return safetensors.torch.load_file(file) if file.exists() else None
        except Exception as error:
            raise UnalikeError(f"The client state {file} cannot be read: {str(error).splitlines()[0]}.") from error

    def _save(self, name: str, values: dict[str, Tensor]) -> None:
        new = self.path / f".{name}.new"
        plain = {n: v.detach().cpu().contiguous().clone() for n, v in values.items()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            new.write_bytes(safetensors.torch.save(plain))
            os.replace(new, self.path / f"{name}.safetensors")
        except OSError as error:
            raise UnalikeError(f"Cannot write client state to {self.path}: {error.strerror or error}.") from error


class Node:
    """Answers requests for one client."""

    def __init__(self, job: Job, client: int, state: StateFolder, solo: Solo):
        self.job, self.client, self.state, self.solo = job, client, state, solo

    def handle(self, request: bytes) -> bytes:
        header, tensors = wire.decode(request)
        function = self._check(header)
        again = self.state.answered(request)
        if again is not None:
            return again
        self.state.begin(header["round"], header["exchange"])
        state, first = self.state.read()
        device = self.job.model.device
        call = Call(function, {}, {}, header["round"], header["exchange"], header["trained"])
        message = Fields({k: v.to(device) for k, v in tensors.items()})
        kept, sent, loss = self.solo.run(
            call,
            self.client,
            {k: v.to(device) for k, v in state.items()},
            torch.tensor(first, device=device),
            message,
        )
        answer = {
            **header,
            "kind": "reply",
            "samples": int(self.job.data.train.sizes[self.client]),
            "loss": loss,
            "trained": self.solo.trained,
        }
        reply = wire.encode(answer, sent)
        if kept:
            as_tensor = lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8)  # noqa: E731
            kept |= {REQUEST: as_tensor(hashlib.sha256(request).digest()), REPLY: as_tensor(reply)}
            kept[ROUND] = torch.tensor(header["round"])
            self.state.stage(kept)
        return reply

    def _check(self, header: dict[str, Any]) -> Any:
        """A request must name this program's version, this method, and one of its own functions."""
        method = type(self.job.method)
        expected = request_header(self.job, Call(self.job.method.client, {}, {}, 0, 0))
        for key in ("kind", "method", "settings", "version"):
            if header.get(key) != expected[key]:
                given = reprlib.repr(header.get(key))
                raise UnalikeError(f"The request is for {key} {given}; this client runs {expected[key]!r}.")
        for key, low in (("round", -1), ("exchange", 0), ("trained", 0)):
            if type(header.get(key)) is not int or not low <= header[key] < 1 << 31:
                given = reprlib.repr(header.get(key))
                raise UnalikeError(f"The request has {key} {given}: it must be a whole number of at least {low}.")
        name, options = header.get("function"), list(client_functions(self.job.method))
        if name not in options:
            given = reprlib.repr(name)
            raise UnalikeError(f"{method.__name__} has no function {given} to call.{did_you_mean(str(name), options)}")
        return getattr(self.job.method, str(name))


def request_header(job: Job, call: Call) -> dict[str, Any]:
    """What a request says about itself."""
    return {
        "kind": "request",
        "method": type(job.method).__name__,
        "settings": fingerprint(job.method),
        "version": unalike.__version__,
        "function": call.fn.__name__,
        "round": call.round,
        "exchange": call.exchange,
        "trained": call.trained,
    }
