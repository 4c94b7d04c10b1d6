"""Replies from clients: what they may hold, and the checks that the server makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.contract.call import Outcome
from unalike.contract.fields import BUFFERS, LOSS, Field
from unalike.contract.method import Method
from unalike.errors import UnalikeError, did_you_mean
from unalike.messages import wire
from unalike.nn.task import Task

LOSS_FIELD = Field("scalar", read="each", weight="one")


def reply_fields(method: Method, task: Task) -> dict[str, Field]:
    """Return what a reply may hold: the fields that the method declares, the mean training loss, and BatchNorm's
    statistics where the server averages them."""
    if LOSS in method.sends or BUFFERS in method.sends:
        taken = LOSS if LOSS in method.sends else BUFFERS
        raise UnalikeError(f"{type(method).__name__} declares a field {taken!r}: that name is reserved, take another.")
    averaged = {BUFFERS: Field((task.buffer_layout.size,))} if task.averages_buffers else {}
    return {**method.sends, **averaged, LOSS: LOSS_FIELD}


def check_reply(up: Mapping[str, Tensor], fields: Mapping[str, Field], task: Task, method: Method, name: str) -> None:
    """Check that every field of a stack of replies is declared and has its declared shape."""
    kind = type(method).__name__
    for key, value in up.items():
        if key not in fields:
            raise UnalikeError(
                f"{kind}.{name} sends {key!r}, which `sends` does not declare.{did_you_mean(key, fields)}"
            )
        want = fields[key].resolve(task.sizes, method)
        if tuple(value.shape[1:]) != want:
            raise UnalikeError(
                f"{kind}.{name} sends {key!r} with shape {list(value.shape[1:])}; `sends` declares {list(want)}."
            )


def received_outcome(client: int, answer: bytes, asked: dict[str, Any], samples: int, task: Task) -> Outcome:
    """Return a client's reply as an outcome: it answers this request, is of this client's size, and all its numbers
    are finite and of the task's dtype."""
    header, sent = wire.decode(answer)
    if header.get("kind") == "error":
        raise UnalikeError(str(header.get("reason"))[:500])
    for key, value in asked.items():
        if header.get(key) != value and key not in ("kind", "trained"):
            raise UnalikeError(f"its reply is to another request: {key} is not {value!r}.")
    if header.get("kind") != "reply":
        raise UnalikeError("its answer is no reply.")
    if type(header.get("samples")) is not int or header["samples"] != samples:
        raise UnalikeError(f"it has {header.get('samples')!r} samples now and had {samples} at the beginning.")
    trained = header.get("trained")
    if type(trained) is not int or not 0 <= trained < 1000:
        raise UnalikeError("its reply does not say how often it trained.")
    loss = sent_loss(sent)
    if math.isinf(loss):
        raise UnalikeError("its loss became infinite.")
    up = {name: value[None].to(task.device) for name, value in sent.items()}
    for name, value in up.items():
        if value.is_floating_point() and value.dtype != task.dtype:
            raise UnalikeError(f"its {name!r} is {value.dtype}: it must be {task.dtype}.")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnalikeError(f"its {name!r} has a value that is NaN or infinite.")
    return Outcome(np.array([client]), up, np.array([samples]), np.array([loss]), trained)


def sent_loss(sent: dict[str, Tensor]) -> float:
    """Take the training loss out of a reply's fields; NaN where the client did not train."""
    value = sent.pop(LOSS, None)
    if value is None:
        return float("nan")
    if value.dtype != torch.float64 or value.dim() or value.isnan():
        raise UnalikeError("its loss is no number.")
    return float(value)
