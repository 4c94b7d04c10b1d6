"""Make requests from what a method sends, and put their parts together again."""

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

# prefix of the channel's parts of a message: no method's field has it
TOLD = ":"


def message_parts(
    message: Mapping[str, Any], count: int, values: Mapping[str, Any], task: Task
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divide a message to `count` clients into the part for all, including BatchNorm's statistics from the server's
    values, and the rows that differ. `Vectors` stay as they are: each client gets its own architecture's part."""
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
    """Return the number of rows; for several architectures, the total."""
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
    """Return a request's header."""
    kind: dict[str, Any] = {"kind": "request", "function": call.function}
    if isinstance(call.function, Evaluate):
        kind = {"kind": "evaluate", "function": "personal", "split": call.function.split}
    return {**kind, **identity(method), "round": call.round, "exchange": call.exchange, "trained": call.trained}


def told_parts(call: Call) -> dict[str, Tensor]:
    """Return the channel's values for all clients, as parts of a request."""
    return {TOLD + name: torch.tensor(value, dtype=torch.float64) for name, value in call.told.items()}


class Asked(NamedTuple):
    """A request as a client has read it: its header, its tensors, and its original bytes."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]
    parts: Sequence[bytes]

    @property
    def digest(self) -> bytes:
        """Return the hash by which a repeated request is recognised."""
        sha = hashlib.sha256()
        for part in self.parts:
            sha.update(part)
        return sha.digest()


def asked(parts: Sequence[bytes]) -> Asked:
    """Read a request."""
    return Asked(*united(parts), parts)


def united(parts: Iterable[bytes]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Join the parts of a message; refuse parts that repeat a name."""
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
