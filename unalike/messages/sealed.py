"""Rows that clients seal for each other: the messages about them, and the checks at both ends and at the server.

A sender encrypts a row under a fresh key and sends it with its reply. When the server half passes the row on, the
server asks the sender to wrap that key for the receiver, and gives the receiver both. The encryption itself is in
`unalike.network.seal`.
"""

from __future__ import annotations

import base64
import dataclasses as dc
import math
import reprlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from unalike.contract import Call, Field, Method
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.nn.task import Task

# additional bytes of a sealed row: a nonce of 12 and a tag of 16
OVERHEAD = 28
# most keys that one request may ask to wrap
MOST = 1 << 16

# the description that a row or a key is bound to: it opens under no other
About = dict[str, int | str]


class Sealer(Protocol):
    """A client's keys, to seal rows for other clients and to open theirs (`unalike.network.seal.Keyring`). Public keys
    are lines of text, as in a .pub file."""

    def seal(self, row: bytes, about: About) -> tuple[bytes, bytes]:
        """Return the sealed row, and the key that opens it."""
        ...

    def wrap(self, key: bytes, receiver: str, about: About) -> bytes:
        """Return the key encrypted so that only the owner of the public key `receiver` can read it."""
        ...

    def unwrap(self, wrapped: bytes, sender: str, about: About) -> bytes:
        """Return a key that the owner of the public key `sender` wrapped for this client."""
        ...

    def open(self, row: bytes, key: bytes, about: About) -> bytes:
        """Return the opened row."""
        ...


def row_about(run: str, round: int, exchange: int, field: str, sender: int) -> About:
    """Return the description that a sealed row is bound to."""
    return {"run": run, "round": round, "exchange": exchange, "field": field, "sender": sender}


def key_about(row: About, receiver: int, part: str, at: int) -> About:
    """Return the description that a wrapped key is bound to: the row, and where it may be used."""
    return {**row, "receiver": receiver, "part": part, "at": at}


# ---------------------------------------------------------------- at the server


def peer_payload(rows: Tensor, field: Field) -> int:
    """Return the bytes of the numbers in rows that are passed on, sealed or not."""
    sealed = field.read == "sealed" and rows.dtype == torch.uint8
    return wire.payload({"rows": rows}) - (OVERHEAD * len(rows) if sealed else 0)


def take_sealed(
    up: dict[str, Tensor], fields: Mapping[str, Field], task: Task, method: Method
) -> dict[str, Tensor] | None:
    """Remove the sealed fields from a reply; the server can check only their length."""
    names = [name for name in up if name in fields and fields[name].read == "sealed"]
    for name in names:
        want = math.prod(fields[name].resolve(task.sizes, method)) * task.dtype.itemsize + OVERHEAD
        if up[name].dtype != torch.uint8 or list(up[name].shape[1:]) != [want]:
            raise UnalikeError(f"its {name!r} is not sealed as {want} bytes.")
    return {name: up.pop(name) for name in names} or None


def unsealed(call: Call, fields: Mapping[str, Field], task: Task, method: Method) -> Call:
    """Return the call with zeros for sealed rows, so that it can be rehearsed."""
    zeros = {
        part: torch.zeros(1, *fields[some.field].resolve(task.sizes, method), dtype=task.dtype, device=task.device)
        for part, some in call.parcels.items()
    }
    return dc.replace(call, rows={**call.rows, **zeros}) if zeros else call


def wrapped_keys(answer: bytes, asked: dict[str, Any], count: int) -> list[str]:
    """Return the keys that a sender has wrapped; refuse a malformed answer."""
    header, _ = wire.decode(answer)
    if header.get("kind") != "reply":
        raise UnalikeError(str(header.get("reason"))[:500])
    keys = header.get("wrapped")
    same = all(header.get(name) == value for name, value in asked.items())
    if not same or not isinstance(keys, list) or len(keys) != count or not all(isinstance(k, str) for k in keys):
        raise UnalikeError(f"its answer is not the {count} keys that it was asked for.")
    return [key[:1000] for key in keys]


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ---------------------------------------------------------------- at a client


@dc.dataclass(frozen=True)
class Wrap:
    """One key to wrap: for the row of this field that the client sent in this exchange, and for this receiver."""

    field: str
    exchange: int
    receiver: int
    key: str
    part: str


@dc.dataclass(frozen=True)
class Delivery:
    """A sealed part of a request: its sender, and the wrapped key."""

    field: str
    exchange: int
    sender: int
    key: str
    wrapped: str

    @property
    def wrapped_key(self) -> bytes:
        try:
            return base64.b64decode(self.wrapped, validate=True)
        except ValueError:
            raise UnalikeError("The request brings a sealed row with a key that is no text of ours.") from None


def asked_wraps(header: dict[str, Any]) -> list[Wrap]:
    """Return which keys a request asks to wrap; refuse a malformed one."""
    rows = header.get("rows")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST:
        raise UnalikeError(f"The request to wrap keys names {reprlib.repr(rows)}: it must be a list of rows.")
    for name in ("round", "at"):
        _whole(name, header.get(name), -1)
    return [_made(Wrap, row) for row in rows]


def deliveries(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Delivery]:
    """Remove the descriptions of sealed parts from a request's header and return them."""
    told = header.pop("sealed", None)
    if told is None:
        return {}
    if not isinstance(told, dict) or not told.keys() <= tensors.keys():
        raise UnalikeError(f"The request says of sealed parts {reprlib.repr(told)}: it has no such parts.")
    for part in told:
        if tensors[part].dtype != torch.uint8 or tensors[part].dim() != 1:
            raise UnalikeError(f"The request's sealed part {part!r} is not made of bytes.")
    return {part: _made(Delivery, row) for part, row in told.items()}


def _made(kind: type[Any], row: Any) -> Any:
    fields = dc.fields(kind)
    if not isinstance(row, dict) or row.keys() != {field.name for field in fields}:
        raise UnalikeError(f"The request describes a sealed row as {reprlib.repr(row)}, which cannot be.")
    for field in fields:
        if field.type == "int":
            _whole(field.name, row[field.name], 0)
        elif not isinstance(row[field.name], str) or len(row[field.name]) > 1000:
            raise UnalikeError(f"The request describes a sealed row as {reprlib.repr(row)}, which cannot be.")
    return kind(**row)


def _whole(name: str, value: Any, low: int) -> None:
    if type(value) is not int or not low <= value < 1 << 31:
        raise UnalikeError(f"The request says of a sealed row {name} {reprlib.repr(value)}: it must be a whole number.")


def bytes_of(name: str, value: Tensor, dtype: torch.dtype) -> bytes:
    """Return a row's numbers as bytes."""
    if value.dtype != dtype:
        raise UnalikeError(f"The sealed field {name!r} is {value.dtype}: it must be {dtype}.")
    return value.detach().cpu().contiguous().numpy().tobytes()


def row_of(data: bytes, part: str, field: Field | None, task: Task, method: Method) -> Tensor:
    """Return the row that another client sealed; check that it has the shape that the method declares."""
    if field is None or field.read != "sealed":
        raise UnalikeError(f"The request brings {part!r} from another client, and {type(method).__name__} seals none.")
    shape = field.resolve(task.sizes, method)
    if len(data) != math.prod(shape) * task.dtype.itemsize:
        raise UnalikeError(
            f"The row {part!r} from another client has {len(data)} bytes: {list(shape)} of {task.dtype} have "
            f"{math.prod(shape) * task.dtype.itemsize}."
        )
    return torch.frombuffer(bytearray(data), dtype=task.dtype).reshape(shape) if data else torch.zeros(shape)
