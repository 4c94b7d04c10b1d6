"""Calls that engines answer: a client function on some clients, and its outcome."""

from __future__ import annotations

import dataclasses as dc
import functools
from typing import Any

import numpy as np
from torch import Tensor

from unalike.contract.fields import Fields
from unalike.contract.peers import Parcels

# exchange number of every evaluation: no round has as many, so its draws are separate
EVALUATION = 1 << 20


@dc.dataclass(frozen=True)
class Evaluate:
    """Evaluation as a function to call: each client's own model on its own samples of a split.

    steps: for newcomers, which take no part in training: the number of steps for which each trains its initial model;
    None for the clients that take part.
    """

    split: str
    steps: int | None = None


@dc.dataclass(frozen=True)
class Call:
    """One exchange: the client function, the message to all, the rows that differ, and when.

    function: the name of a function of the method, or `Evaluate(split)`; trained: number of trainings in earlier
    exchanges of the round (batch orders depend on it); parcels: rows that come from other clients, sealed; told: the
    channel's values for all clients, by name.
    """

    function: str | Evaluate
    shared: dict[str, Tensor]
    rows: dict[str, Tensor]
    round: int
    exchange: int
    trained: int = 0
    parcels: dict[str, Parcels] = dc.field(default_factory=dict)
    told: dict[str, float] = dc.field(default_factory=dict)

    def message(self, position: int) -> Fields:
        """Return the message to the client at this position of the cohort."""
        return Fields({**self.shared, **{name: t[position] for name, t in self.rows.items()}})


@dc.dataclass
class Outcome:
    """The replies of some clients: stacked fields, and each one's mean training loss (NaN if it did not train)."""

    ids: np.ndarray
    up: dict[str, Tensor]
    samples: np.ndarray
    loss: np.ndarray
    # how many times these clients trained in this exchange
    trained: int = 0
    # whether everything a client sent is finite, if an engine already knows
    finite: np.ndarray | None = None
    sealed: dict[str, Tensor] | None = None  # fields whose bytes only another client can open
    batches: np.ndarray | int = 0  # mini-batches that each client trained on
    # how often any one of its samples was in a noised step (DP-SGD), if the engine counted it
    passes: int = 0
    # for replies that passed through the channel at the client: bytes that travelled, and the stages' own numbers
    sent: int | None = None
    extra: dict[str, Tensor] | None = None
    # for a channel that hides replies: sums of whole codes over all these clients, in place of rows
    summed: dict[str, Tensor] | None = None
    # descriptions of those sums (`unalike.channel.summing.Slot`)
    slots: list[Any] | None = None


class LazyOutcome(Outcome):
    """An outcome that the device may still be computing: `ends` [2, c] holds the losses and whether everything sent is
    finite; the host waits for it at the first access."""

    def __init__(
        self,
        ids: np.ndarray,
        up: dict[str, Tensor],
        samples: np.ndarray,
        trained: int,
        ends: Tensor,
        batches: np.ndarray | int,
    ):
        self.ids, self.up, self.samples, self.trained, self._ends = ids, up, samples, trained, ends
        self.batches = batches

    @functools.cached_property
    def loss(self) -> np.ndarray:  # type: ignore[override]
        return self._read[0]

    @functools.cached_property
    def finite(self) -> np.ndarray:  # type: ignore[override]
        return self._read[1] > 0

    @functools.cached_property
    def _read(self) -> np.ndarray:
        return self._ends.cpu().numpy()
