"""Clients whose data are elsewhere: how many samples each has, and what kind; nothing of the samples themselves."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch

from unalike.data.federation import Columns, Federation
from unalike.errors import UnalikeError


class Index(Federation):
    """What the server of a real federation knows of the clients' data. `x` and `y` are stand-ins of the right shape,
    one sample repeated without taking room: models are tried on them, nothing is trained or evaluated on them.

    sizes: of each split, one number a client; like: (x, y) of one sample; keys: what tells the clients apart.
    """

    def __init__(
        self,
        sizes: dict[str, np.ndarray],
        like: tuple[torch.Tensor, torch.Tensor],
        *,
        keys: list[str],
        classes: int | None = None,
        names: list[str] | None = None,
        global_test: tuple[Any, Any] | None = None,
    ):
        splits = {name: _columns(like, np.asarray(n)) for name, n in sizes.items() if np.any(n)}
        self._arguments = {
            "sizes": sizes,
            "keys": keys,
            "classes": classes,
            "names": names,
            "global_test": global_test,
        }
        self._like, self._keys = like, keys
        super().__init__(splits.pop("train"), **splits, global_test=global_test, classes=classes, names=names)  # type: ignore[arg-type]

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Index:
        def move(t: torch.Tensor) -> torch.Tensor:
            return t.to(device, dtype if t.is_floating_point() else None)

        test = None if self.global_test is None else (move(self.global_test[0]), move(self.global_test[1]))
        return Index(like=(move(self._like[0]), move(self._like[1])), **{**self._arguments, "global_test": test})  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """Of who the clients are: their data are their own to know."""
        return hashlib.sha256(json.dumps(self._keys).encode()).hexdigest()[:16]

    def check(self) -> None:
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            raise UnalikeError(f"{self.client_name(int(empty[0]))} has no training samples: leave it out.")

    def pooled(self) -> Federation:
        raise UnalikeError("The clients' data are on their own machines: a method that pools them cannot run here.")


def alone(data: Federation, client: int, clients: int) -> Federation:
    """One client's federation as the rest of the program knows it: number `client` of so many, the others empty."""
    if len(data) != 1:
        raise UnalikeError(f"A client brings its own data alone; these are the data of {len(data)} clients.")
    if not 0 <= client < clients:
        raise UnalikeError(f"There is no client {client} of {clients}.")

    def place(columns: Columns | None) -> Columns | None:
        if columns is None:
            return None
        offsets = np.zeros(clients + 1, dtype=np.int64)
        offsets[client + 1 :] = len(columns.y)
        return Columns(columns.x, columns.y, offsets)

    train = place(data.train)
    assert train is not None
    return Federation(train, validation=place(data.validation), test=place(data.test), classes=data.classes)


def _columns(like: tuple[torch.Tensor, torch.Tensor], sizes: np.ndarray) -> Columns:
    x, y = (t.expand(int(sizes.sum()), *t.shape[1:]) for t in like)
    return Columns(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
