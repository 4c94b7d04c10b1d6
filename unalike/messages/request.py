"""Requests from the server: made from what a method sends, and checked by a client before anything is computed."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

import unalike
from unalike.contract.call import Call, Evaluate
from unalike.contract.fields import BUFFERS, PerClient
from unalike.contract.method import Method, client_functions, fingerprint
from unalike.errors import UnalikeError, did_you_mean
from unalike.messages import wire
from unalike.nn.task import Task

MAX_FIELDS = 64
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)  # what a request may bring
SPLITS = ("test", "validation")  # what a client may be asked to evaluate on


def message_parts(
    message: Mapping[str, Any], count: int, values: Mapping[str, Any], task: Task
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divide a message to `count` clients: what all get, with the statistics among the server's values, and the rows
    that differ."""
    shared, rows = {}, {}
    for name, value in message.items():
        if isinstance(value, PerClient):
            if len(value.rows) != count:
                raise UnalikeError(
                    f"PerClient {name!r} has {len(value.rows)} rows for {count} clients: give one row each."
                )
            rows[name] = _rows(value.rows, task)
        else:
            shared[name] = _tensor(value, task)
    if BUFFERS in values and BUFFERS not in message:
        shared[BUFFERS] = values[BUFFERS]
    return shared, rows


def _rows(rows: Any, task: Task) -> Tensor:
    """Convert per-client rows to a tensor in the task's dtype (NumPy defaults to float64)."""
    if isinstance(rows, Tensor):
        return rows.to(task.device)
    values = torch.as_tensor(rows, device=task.device)
    return values.to(task.dtype) if values.is_floating_point() else values


def _tensor(value: Any, task: Task) -> Tensor:
    """Convert a part of a message to a tensor; numbers become 0-dimensional ones."""
    if isinstance(value, Tensor):
        return value.to(task.device)
    if isinstance(value, bool | int):
        return torch.tensor(value, device=task.device)
    if isinstance(value, float):
        return torch.tensor(value, dtype=task.dtype, device=task.device)
    raise UnalikeError(f"A message holds tensors and numbers; got {type(value).__name__}.")


def request_header(method: Method, call: Call) -> dict[str, Any]:
    """Return what a request says about itself."""
    kind: dict[str, Any] = {"kind": "request", "function": call.function}
    if isinstance(call.function, Evaluate):
        kind = {"kind": "evaluate", "function": "personal", "split": call.function.split}
    return {
        **kind,
        "method": type(method).__name__,
        "settings": fingerprint(method),
        "version": unalike.__version__,
        "round": call.round,
        "exchange": call.exchange,
        "trained": call.trained,
    }


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


def asked_call(header: dict[str, Any], method: Method) -> Call:
    """Return the call of a request: it must name this version, this method, and a function that may be called."""
    evaluation = header.get("kind") == "evaluate"
    expected = {
        "kind": "evaluate" if evaluation else "request",
        "method": type(method).__name__,
        "settings": fingerprint(method),
        "version": unalike.__version__,
    }
    for key, value in expected.items():
        if header.get(key) != value:
            raise UnalikeError(f"The request is for {key} {_given(header, key)}; this client runs {value!r}.")
    for key, low in (("round", -1), ("exchange", 0), ("trained", 0)):
        if type(header.get(key)) is not int or not low <= header[key] < 1 << 31:
            raise UnalikeError(
                f"The request has {key} {_given(header, key)}: it must be a whole number of at least {low}."
            )
    counted = header.get("acknowledged")
    if counted is not None and (type(counted) is not int or not -1 <= counted <= header["round"]):
        raise UnalikeError(
            f"The request acknowledges round {reprlib.repr(counted)}: it must be one up to {header['round']}."
        )
    function = _evaluation(header) if evaluation else _function(header, method)
    return Call(function, {}, {}, header["round"], header["exchange"], header["trained"])


def _given(header: dict[str, Any], key: str) -> str:
    return reprlib.repr(header.get(key))


def _function(header: dict[str, Any], method: Method) -> str:
    name, options = header.get("function"), list(client_functions(method))
    if name not in options:
        raise UnalikeError(
            f"{type(method).__name__} has no function {_given(header, 'function')} to call."
            f"{did_you_mean(str(name), options)}"
        )
    return str(name)


def _evaluation(header: dict[str, Any]) -> Evaluate:
    if header.get("split") not in SPLITS:
        raise UnalikeError(
            f"The request is to evaluate on {_given(header, 'split')}: it must be 'test' or 'validation'."
        )
    return Evaluate(header["split"])


def check_fields(tensors: dict[str, Tensor], task: Task) -> None:
    """Check a request's numbers: of the expected kinds, all finite; the model and its statistics have their shape,
    perhaps several in a stack. (What else a function reads, it checks by using it: requests' fields are not
    declared.)"""
    if len(tensors) > MAX_FIELDS:
        raise UnalikeError(f"The request has {len(tensors)} fields: at most {MAX_FIELDS} are taken.")
    shapes = {"w": [task.layout.size], BUFFERS: [task.buffer_layout.size]}
    for name, value in tensors.items():
        shape, want = list(value.shape), shapes.get(name, [])
        if value.dtype not in (*DTYPES, task.dtype):
            raise UnalikeError(f"The request's {name!r} is {value.dtype}: it must be a float, an integer or a bool.")
        if want and shape[-1:] != want:
            raise UnalikeError(f"The request's {name!r} has shape {shape}: it must end in {want}.")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnalikeError(f"The request's {name!r} has a value that is NaN or infinite.")
