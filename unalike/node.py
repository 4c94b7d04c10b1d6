"""A client on its own: its state in a folder, its answers as bytes. What a real federation runs at each owner's.

`loopback` runs it in one process; a network only has to carry the bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import unalike
from unalike import wire
from unalike.contract import Fields, client_functions
from unalike.engines.base import Call, Job, Solo
from unalike.errors import UnalikeError, did_you_mean
from unalike.store import Shapes


class StateFolder:
    """One client's state: `state.safetensors` is kept, `pending.safetensors` waits for the server's acknowledgement."""

    def __init__(self, path: Path, shapes: Shapes):
        self.path, self.shapes = path, shapes

    def read(self) -> tuple[dict[str, Tensor], bool]:
        """The state, pending over kept over zeros, and whether nothing was ever kept."""
        values = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype, _) in self.shapes.items()}
        kept = self._load("state")
        values.update(kept or {})
        values.update(self._load("pending") or {})
        return values, kept is None

    def stage(self, values: dict[str, Tensor]) -> None:
        """What the last answer leaves behind, together with what was staged before it in this round."""
        if values:
            self._save("pending", {**(self._load("pending") or {}), **values})

    def commit(self) -> bool:
        """Keep what is pending; True if there was anything for longer than a round."""
        pending = self._load("pending")
        if pending is None:
            return False
        keep = {n: v for n, v in pending.items() if self.shapes[n][2] == "run"}
        if keep:
            self._save("state", {**(self._load("state") or {}), **keep})
        self.discard()
        return bool(keep)

    def discard(self) -> None:
        (self.path / "pending.safetensors").unlink(missing_ok=True)

    def kept(self) -> dict[str, Tensor]:
        return self._load("state") or {}

    def replace(self, values: dict[str, Tensor]) -> None:
        """Set the kept state (from a checkpoint)."""
        self.discard()
        self._save("state", values)

    def _load(self, name: str) -> dict[str, Tensor] | None:
        file = self.path / f"{name}.safetensors"
        return safetensors.torch.load_file(file) if file.exists() else None

    def _save(self, name: str, values: dict[str, Tensor]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        new = self.path / f".{name}.new"
        plain = {n: v.detach().cpu().contiguous().clone() for n, v in values.items()}
        safetensors.torch.save_file(plain, new)
        os.replace(new, self.path / f"{name}.safetensors")


class Node:
    """Answers requests for one client."""

    def __init__(self, job: Job, client: int, state: StateFolder, solo: Solo):
        self.job, self.client, self.state, self.solo = job, client, state, solo

    def handle(self, request: bytes) -> bytes:
        header, tensors = wire.decode(request)
        function = self._check(header)
        state, first = self.state.read()
        device = self.job.model.device
        call = Call(function, {}, {}, header["round"], header["exchange"])
        message = Fields({k: v.to(device) for k, v in tensors.items()})
        kept, sent, loss = self.solo.run(
            call,
            self.client,
            {k: v.to(device) for k, v in state.items()},
            torch.tensor(first, device=device),
            message,
        )
        self.state.stage(kept)
        answer = {
            **header,
            "kind": "reply",
            "samples": int(self.job.data.train.sizes[self.client]),
            "loss": loss,
        }
        return wire.encode(answer, sent)

    def _check(self, header: dict[str, Any]) -> Any:
        """A request must name this program's version, this method, and one of its own functions."""
        method = type(self.job.method)
        expected = request_header(self.job, header.get("function", ""), 0, 0)
        for key in ("method", "version"):
            if header.get(key) != expected[key]:
                raise UnalikeError(f"The request is for {key} {header.get(key)!r}; this client runs {expected[key]!r}.")
        for key in ("round", "exchange"):
            if type(header.get(key)) is not int or header[key] < -1:
                raise UnalikeError(f"The request has {key} {header.get(key)!r}: it must be a whole number.")
        name = header.get("function")
        if name not in set(client_functions(self.job.method)):
            options = client_functions(self.job.method)
            raise UnalikeError(f"{method.__name__} has no function {name!r} to call.{did_you_mean(str(name), options)}")
        return getattr(self.job.method, name)


def request_header(job: Job, function: str, round: int, exchange: int) -> dict[str, Any]:
    """What a request says about itself."""
    return {
        "kind": "request",
        "method": type(job.method).__name__,
        "version": unalike.__version__,
        "function": function,
        "round": round,
        "exchange": exchange,
    }
