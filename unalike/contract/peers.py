"""What passes between clients: rows that the server half can pass on but not open, and methods that need no server."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Mapping
from typing import Any, Never

import numpy as np
import torch
from torch import Tensor

from unalike.contract.fields import PerClient
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Parcels:
    """Rows of one reply field on their way, one from each sender to its receiver.

    field: the reply field they came in; round, exchange: when; rows: as they came; between machines they are sealed.
    missing: receivers whose sender did not answer.
    """

    field: str
    round: int
    exchange: int
    rows: Tensor
    senders: np.ndarray
    receivers: np.ndarray
    missing: np.ndarray

    def at(self, ids: np.ndarray, part: str) -> tuple[np.ndarray, Parcels]:
        """Return which of these clients get a row, and the rows in their order; part: the name of the rows in the
        message."""
        stranger = np.setdiff1d(ids, [*self.receivers, *self.missing])
        if len(stranger):
            raise UnalikeError(
                f"Client {int(stranger[0])} is called with {part!r}, and no row of {self.field!r} is passed on to it: "
                "name it in pass_on(to=...), or call cohort.only(...) of those that are."
            )
        place = {int(client): k for k, client in enumerate(self.receivers)}
        there = np.isin(ids, self.receivers)
        index = np.array([place[int(client)] for client in ids[there]], dtype=np.int64)
        rows = self.rows[torch.from_numpy(index).to(self.rows.device)]
        return there, dc.replace(self, rows=rows, senders=self.senders[index], receivers=ids[there])


class Sealed(PerClient):
    """Rows from clients to other clients (`replies.pass_on`): the server half can only put them into a call."""

    def __init__(self, parcels: Parcels):
        self._parcels = parcels

    def __repr__(self) -> str:
        return f"Sealed({self._parcels.field!r}, {len(self._parcels.receivers)} rows)"

    def _refuse(self, *_: object, **__: object) -> Never:
        raise UnalikeError(
            f"The rows of {self._parcels.field!r} that are passed on cannot be opened by the server: give them to a "
            "call, such as cohort.call(self.learn, theirs=...)."
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Never:
        given = (part for value in (*args, *(kwargs or {}).values()) for part in _flat(value))
        next(part for part in given if isinstance(part, Sealed))._refuse()

    rows = property(_refuse)  # type: ignore[assignment]
    __getitem__ = __iter__ = __len__ = __float__ = __int__ = __bool__ = __array__ = __neg__ = __abs__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


def _flat(value: Any) -> list[Any]:
    return [part for some in value for part in _flat(some)] if isinstance(value, list | tuple) else [value]


def parcels_of(sealed: Sealed) -> Parcels:
    """Return the content of a `Sealed`, for the run that delivers it, not for methods."""
    return sealed._parcels


def addressed(
    field: str, when: tuple[int, int], rows: Tensor, asked: np.ndarray, answered: np.ndarray, to: np.ndarray
) -> Sealed:
    """Return the rows of the clients that answered, each addressed to the receiver in `to` at its sender's position in
    `asked`."""
    if len(to) != len(asked):
        raise UnalikeError(
            f"pass_on({field!r}) has {len(to)} receivers for {len(asked)} clients that were called: name one for each, "
            "in their order."
        )
    clients, times = np.unique(to, return_counts=True)
    if len(clients) < len(to):
        raise UnalikeError(
            f"pass_on({field!r}) names client {int(clients[times > 1][0])} twice: a part of a message has one row for "
            "a client. Give the other row to another part."
        )
    there = np.isin(asked, answered)
    return Sealed(Parcels(field, *when, rows, asked[there], to[there], to[~there]))


# ---------------------------------------------------------------- methods without a server


def has_tensor(value: Any) -> bool:
    """Return whether a value is a tensor or an array, or contains one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        return any(map(has_tensor, value))
    return isinstance(value, Tensor | np.ndarray) or (isinstance(value, PerClient) and not isinstance(value, Sealed))


def check_message(method: str, message: Mapping[str, Any]) -> None:
    """Refuse a message of a serverless method that has anything but numbers and rows that are passed on."""
    for name, value in message.items():
        if has_tensor(value):
            raise UnalikeError(
                f"{method} is serverless, and its server half sends {name!r}, a tensor: it may send numbers, and rows "
                "of clients with pass_on. A client's first model is me.start."
            )
