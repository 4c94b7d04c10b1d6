"""Requests from the server, made from what a method sends; and their parts put together again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import unalike
from unalike.contract import BUFFERS, Call, Evaluate, Method, PerClient, Vectors, fingerprint
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.nn.task import Task

TOLD = ":"  # prefix of the parts of a message that are the channel's: no field of a method has it


def message_parts(
    message: Mapping[str, Any], count: int, values: Mapping[str, Any], task: Task
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divide a message to `count` clients: what all get, with the statistics among the server's values, and the rows
    that differ. `Vectors` stay as they are: each client gets its own architecture's part."""
    shared, rows = {}, {}
    for name, value in message.items():
        if isinstance(value, PerClient):
            given = _count(value.rows)
            if given != count:
                raise UnalikeError(f"PerClient {name!r} has {given} rows for {count} clients: give one row each.")
            rows[name] = _rows(value.rows, task)
        else:
            shared[name] = _tensor(value, task)
    if BUFFERS in values and BUFFERS not in message:
        shared[BUFFERS] = values[BUFFERS]
    return shared, rows


def _count(rows: Any) -> int:
    """Return how many rows there are; those of several architectures together."""
    return sum(len(part) for _, part in rows.items()) if isinstance(rows, Vectors) else len(rows)


def _rows(rows: Any, task: Task) -> Any:
    """Convert per-client rows to a tensor in the task's dtype (NumPy defaults to float64)."""
    if isinstance(rows, Tensor | Vectors):
        return rows.to(task.device)
    values = torch.as_tensor(rows, device=task.device)
    return values.to(task.dtype) if values.is_floating_point() else values


def _tensor(value: Any, task: Task) -> Any:
    """Convert a part of a message to a tensor; numbers become 0-dimensional ones."""
    if isinstance(value, Tensor | Vectors):
        return value.to(task.device)
    if isinstance(value, bool | int):
        return torch.tensor(value, device=task.device)
    if isinstance(value, float):
        return torch.tensor(value, dtype=task.dtype, device=task.device)
    raise UnalikeError(f"A message holds tensors and numbers; got {type(value).__name__}.")


def identity(method: Method) -> dict[str, Any]:
    """Return what both ends must agree on: the method, its settings, and the program's version."""
    return {"method": type(method).__name__, "settings": fingerprint(method), "version": unalike.__version__}


def request_header(method: Method, call: Call) -> dict[str, Any]:
    """Return what a request says about itself."""
    kind: dict[str, Any] = {"kind": "request", "function": call.function}
    if isinstance(call.function, Evaluate):
        kind = {"kind": "evaluate", "function": "personal", "split": call.function.split}
    return {**kind, **identity(method), "round": call.round, "exchange": call.exchange, "trained": call.trained}


def told_parts(call: Call) -> dict[str, Tensor]:
    """Return what the run's channel tells all clients, as parts of a request."""
    return {TOLD + name: torch.tensor(value, dtype=torch.float64) for name, value in call.told.items()}


class Asked(NamedTuple):
    """A request as a client reads it, once: its header, its numbers, and the bytes that it came as."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]
    parts: Sequence[bytes]

    @property
    def digest(self) -> bytes:
        """The hash by which a request that comes again is known."""
        sha = hashlib.sha256()
        for part in self.parts:
            sha.update(part)
        return sha.digest()


def asked(parts: Sequence[bytes]) -> Asked:
    """Read a request."""
    return Asked(*united(parts), parts)


def united(parts: Iterable[bytes]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Join the parts of a message; no part may say again what another said."""
    header: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for part in parts:
        more, fields = wire.decode(part)
        more.pop("format")
        twice = (header.keys() & more.keys()) | (tensors.keys() & fields.keys())
        if twice:
            raise UnalikeError(f"A message says {min(twice)!r} in two of its parts.")
        header |= more
        tensors |= fields
    return header, tensors
