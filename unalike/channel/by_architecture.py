"""Sum replies from clients with different networks: fields of a model's shape by architecture, other fields over all
clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from unalike.channel.sums import Sums
from unalike.contract import BUFFERS, Architectures, Field, Outcome, Vectors


class SumsByArchitecture:
    """The replies to one call, with the interface of `Sums`. Fields of a model's shape are `Vectors`, zero for
    architectures without replies; other fields are summed over all clients, in the order in which architectures come.

    fields: of each architecture; they differ in BatchNorm's statistics. like: a tensor with the dtype and device of the
    models.
    """

    def __init__(
        self,
        architectures: Architectures,
        fields: Mapping[str, Mapping[str, Field]],
        method: object,
        ordered: bool,
        like: Tensor,
    ):
        self._architectures, self._method, self._like = architectures, method, like
        self._fields = fields
        self.fields: dict[str, Field] = {name: field for some in fields.values() for name, field in some.items()}
        self._shared = Sums(self.fields, method, ordered=False)
        self._parts = {name: Sums(some, method, ordered) for name, some in fields.items()}

    # ---- adding replies

    def add(self, outcome: Outcome) -> None:
        """Add the replies of some clients of one architecture."""
        names = {*outcome.up, *(outcome.sealed or {})}
        own = {name for name in names if self._is_own(name)}
        for sums, keep in ((self._part(outcome), own), (self._shared, names - own)):
            up, sealed = (_kept(part or {}, keep) for part in (outcome.up, outcome.sealed))
            sums.add(Outcome(outcome.ids, up, outcome.samples, np.empty(0), sealed=sealed))

    def add_losses(self, losses: np.ndarray) -> None:
        self._shared.add_losses(losses)

    def close(self, cohort: np.ndarray) -> None:
        """End the call: put ids, rows and losses into the cohort's order."""
        self._shared.close(cohort)
        for sums in self._parts.values():
            # placeholders for the losses, which are kept for all architectures together
            losses = np.zeros(len(sums.ids))
            sums.add_losses(losses)
            sums.close(cohort)

    def _part(self, outcome: Outcome) -> Sums:
        return self._parts[self._architectures.name(int(outcome.ids[0]))]

    def _is_own(self, name: str) -> bool:
        return self._architectures.is_own(name, self.fields[name], self._method)

    # ---- results

    @property
    def ids(self) -> np.ndarray:
        return self._shared.ids

    @property
    def losses(self) -> np.ndarray:
        return self._shared.losses

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(n for sums in (self._shared, *self._parts.values()) for n in sums.names))

    @property
    def architectures(self) -> list[str]:
        """Return the architectures that answered."""
        return [name for name, sums in self._parts.items() if len(sums.ids)]

    def ids_of(self, architecture: str) -> np.ndarray:
        """Return the clients of one architecture that answered, in order."""
        return self._parts[architecture].ids

    @property
    def weights(self) -> dict[str, float | Vectors]:
        """Return the sums of weights by field; 1 for architectures without replies, whose sums are 0."""
        own = {name: self._own_weights(name) for name in self.names if self._is_own(name)}
        return {**self._shared.weights, **own}

    def _own_weights(self, name: str) -> Vectors:
        return Vectors({key: sums.weights.get(name, 1.0) for key, sums in self._parts.items()})

    def total(self, name: str) -> Tensor | Vectors:
        """Return Σ weight · value, float64 or int64."""
        if not self._is_own(name):
            return self._shared.total(name)
        return Vectors({key: self._total(key, name) for key in self._parts})

    def _total(self, architecture: str, name: str) -> Tensor:
        sums = self._parts[architecture]
        return sums.total(name) if name in sums.names else self._zeros(architecture, name, torch.float64)

    def rows(self, name: str) -> Tensor | Vectors:
        """Return one row per client; for a field by architecture, the rows of each architecture's clients."""
        if not self._is_own(name):
            return self._shared.rows(name)
        return Vectors({key: self._rows(key, name) for key in self._parts})

    def _rows(self, architecture: str, name: str) -> Tensor:
        sums = self._parts[architecture]
        return sums.rows(name) if name in sums.names else self._zeros(architecture, name, self._like.dtype, 0)

    def _zeros(self, architecture: str, name: str, dtype: torch.dtype, *rows: int) -> Tensor:
        field = self._fields[architecture].get(name, Field((0,)))  # a network without such statistics
        shape = field.resolve(self._architectures.sizes[architecture], self._method)
        return torch.zeros((*rows, *shape), dtype=dtype, device=self._like.device)

    def buffers(self) -> Iterator[tuple[str, np.ndarray, Tensor, float]]:
        """Yield BatchNorm's statistics for each architecture: its name, its clients, sum and weight."""
        for name, sums in self._parts.items():
            if BUFFERS in sums.names:
                yield name, sums.ids, sums.total(BUFFERS), sums.weights[BUFFERS]


def _kept(fields: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    return {name: value for name, value in fields.items() if name in names}
