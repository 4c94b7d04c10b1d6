"""Clients whose data are on other machines: how many samples each has, and of which kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from unalike.data.columns import Columns, Pair, first_infinite_row, offsets_of, placed
from unalike.data.federation import Federation, as_arguments
from unalike.data.preparation import Preparation
from unalike.data.public import public_hash
from unalike.errors import UnalikeError


class RemoteFederation(Federation):
    """The clients' data as the server of a real federation knows them: sizes, shapes and classes, no samples.

    The columns are stand-ins of the right shape, one sample repeated without taking memory: models are tried on them,
    but nothing is trained or evaluated on them. The public set, if there is one, is the server's own copy. `keys`
    identify the clients.
    """

    remote = True

    def __init__(self, train: Columns, *, keys: list[str], **parts: Any):
        super().__init__(train, **parts)
        self.keys = keys

    @classmethod
    def from_sizes(cls, sizes: Mapping[str, np.ndarray], like: Pair, **parts: Any) -> RemoteFederation:
        """Build a remote federation from each split's samples per client and one sample `like` theirs; `parts` as in
        the constructor."""
        splits = {name: _stand_ins(like, np.asarray(n)) for name, n in sizes.items() if np.any(n)}
        return cls(**as_arguments(splits), **parts)

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "keys": self.keys}

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> RemoteFederation:
        """Move the stand-ins, the global test set and the public set to a device, floats to `dtype` if given; the
        stand-ins stay one repeated sample."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return self.moved(move, lambda c: _stand_ins((move(c.x[:1]), move(c.y[:1])), c.sizes))

    def prepared_by(self, preparation: Preparation) -> RemoteFederation:
        """Return the federation with the shapes that samples have after each client prepared its own."""

        def columns(split: Columns) -> Columns:
            like = preparation.apply(split.x[:1]), preparation.apply_target(split.y[:1])
            return _stand_ins(like, split.sizes)

        return self._prepared(preparation, columns)

    def learn(self, client: int, sizes: Mapping[str, int]) -> None:
        """Record the sizes of a client that joined after the start; in place, for all holders of these columns."""
        for name, columns in self.splits.items():
            counts = columns.sizes.copy()
            counts[client] = sizes.get(name, 0)
            made = _stand_ins((columns.x[:1], columns.y[:1]), counts)
            for part in Columns.__slots__:
                setattr(columns, part, getattr(made, part))

    def fingerprint(self) -> str:
        """Return 16 hex digits of a SHA-256 over the clients' keys and the public set, if any; the server does not know
        the clients' data."""
        sha = hashlib.sha256(json.dumps(self.keys).encode())
        if self.public is not None:
            sha.update(public_hash(self.public).encode())
        return sha.hexdigest()[:16]

    def check(self, gaps: bool = False) -> None:
        """Raise if a client has no training samples."""
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            raise UnalikeError(f"{self.client_name(int(empty[0]))} has no training samples: leave it out.")
        if self.global_test is not None and any(first_infinite_row(part) is not None for part in self.global_test):
            raise UnalikeError("The test set has values that are NaN or infinite: clean them, or prepare the features.")
        if self.public is not None:
            self.check_set("public set", *self.public, None, gaps)

    def pooled(self) -> Federation:
        """Refuse: the data cannot be pooled."""
        raise UnalikeError("The clients' data are on their own machines: a method that pools them cannot run here.")


def alone(data: Federation, client: int, clients: int) -> Federation:
    """Return one client's data as client number `client` of a federation of `clients`, the others empty."""
    if len(data) != 1:
        raise UnalikeError(f"A client brings its own data alone; these are the data of {len(data)} clients.")
    if not 0 <= client < clients:
        raise UnalikeError(f"There is no client {client} of {clients}.")

    def place(columns: Columns) -> Columns:
        offsets = np.zeros(clients + 1, dtype=np.int64)
        offsets[client + 1 :] = len(columns.y)
        return Columns(columns.x, columns.y, offsets)

    planted = {name: placed(values, np.array([client]), clients) for name, values in data.planted.items()}
    return data.map(place, names=None, planted=planted)


def _stand_ins(like: Pair, sizes: np.ndarray) -> Columns:
    x, y = (t.expand(int(sizes.sum()), *t.shape[1:]) for t in like)
    return Columns(x, y, offsets_of(sizes))
