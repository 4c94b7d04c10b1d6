"""Clients with different networks: an engine made of engines, one per architecture.

A call is divided by the architecture of its clients. Each part goes to its own engine, with the rows of its clients and
its part of every `Vectors` in the message; real clients are all asked at the same time.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.client import ClientStore, FileStates
from unalike.contract.architectures import Architectures
from unalike.contract.call import Call, Outcome
from unalike.engines.engine import Engine
from unalike.engines.flower import Flower, together


class Families(Engine):
    """Runs calls for clients of several architectures; `parts` are the engines by architecture."""

    name = "families"
    architectures: Architectures

    def __init__(self, parts: Mapping[str, Engine], architectures: Architectures):
        self.parts, self.architectures = dict(parts), architectures
        self.ordered = all(engine.ordered for engine in parts.values())
        super().__init__(next(iter(parts.values())).job)

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        first = next(iter(self.parts.values()))
        if isinstance(first, Flower):
            yield from together(first, call, ids, self.architectures, self._divide)
            return
        for engine, own, some in self._divide(call, ids):
            yield from engine.call(own, some)

    def _divide(self, call: Call, ids: np.ndarray) -> list[tuple[Any, Call, np.ndarray]]:
        return [(self.parts[name], own, some) for name, own, some in divided(self.architectures, call, ids)]

    def passes(self, call: Call, ids: np.ndarray) -> np.ndarray:
        found = np.zeros(len(self.architectures.of), dtype=np.int64)
        for engine, own, some in self._divide(call, ids):
            found[some] = engine.passes(own, some)
        return found[ids]

    def renew(self) -> None:
        for engine in self.parts.values():
            engine.renew()

    def leave_out(self, client: int, reason: str) -> None:
        self.parts[self.architectures.name(client)].leave_out(client, reason)

    @property
    def sizes(self) -> np.ndarray:
        out = np.zeros(len(self.architectures.of), dtype=np.int64)
        for name, engine in self.parts.items():
            own = self.architectures.clients(name)
            out[own] = engine.sizes[own]
        return out

    @property
    def compile(self) -> bool:
        """Return whether any of the engines compiles."""
        return any(getattr(engine, "compile", False) for engine in self.parts.values())

    @property
    def remark(self) -> str:
        return "".join(engine.remark for engine in self.parts.values())

    @property
    def notes(self) -> list[str]:
        return [*dict.fromkeys(note for engine in self.parts.values() for note in engine.notes)]

    def close(self) -> None:
        for engine in reversed(self.parts.values()):  # reversed: the first engine may own what the others use
            engine.close()


def divided(architectures: Architectures, call: Call, ids: np.ndarray) -> Iterator[tuple[str, Call, np.ndarray]]:
    """Yield each architecture among these clients with its own form of the call, and its clients."""
    for name, places in architectures.groups(ids):
        shared = architectures.part(call.shared, name)
        rows = architectures.rows(call.rows, name, places)
        yield name, dc.replace(call, shared=shared, rows=rows), ids[places]


Store = ClientStore | FileStates


class StatesByArchitecture:
    """The clients' states, with one store per architecture."""

    def __init__(self, stores: Mapping[str, Store], architectures: Architectures):
        self.stores, self.architectures = dict(stores), architectures

    def of(self, client: int) -> Store:
        """Return the store that holds a client's state."""
        return self.stores[self.architectures.name(client)]

    def read(self, ids: np.ndarray) -> tuple[dict[str, Any], Tensor]:
        """Return the state of clients of one architecture, and a mask of those that have kept nothing."""
        return self.of(int(ids[0])).read(ids)

    def discard(self) -> None:
        for store in self.stores.values():
            store.discard()

    def known(self) -> np.ndarray:
        """Return every client that keeps something."""
        return np.sort(np.concatenate([store.known() for store in self.stores.values()]))

    def __getitem__(self, client: int) -> dict[str, torch.Tensor]:
        return self.of(client)[client]
