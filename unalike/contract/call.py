"""What engines are asked and what they answer: a call of a client function on some clients, and its outcome."""

from __future__ import annotations

import dataclasses as dc
import functools
from typing import Any

import numpy as np
from torch import Tensor

from unalike.contract.fields import Fields
from unalike.contract.peers import Parcels

EVALUATION = 1 << 20  # the exchange of every evaluation: no round has as many, so its draws are its own


@dc.dataclass(frozen=True)
class Evaluate:
    """Evaluation as a function to call: each client's own model on its own samples of a split.

    steps: of a newcomer, which took no part in training, the model that it begins with and trains for so many steps;
    None: the clients take part.
    """

    split: str
    steps: int | None = None


@dc.dataclass(frozen=True)
class Call:
    """One exchange: which client function, the message to all, the rows that differ, and when.

    function: the name of a function of the method, or `Evaluate(split)`; trained: how many trainings the earlier
    exchanges of the round had (batch orders are drawn from it); parcels: what of the rows is sealed from other clients;
    told: what the run's channel tells all clients, by name.
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
    """The replies of some clients: stacked fields, and each one's mean training loss (NaN where it did not train)."""

    ids: np.ndarray
    up: dict[str, Tensor]
    samples: np.ndarray
    loss: np.ndarray
    trained: int = 0  # how many times these clients trained in this exchange
    finite: np.ndarray | None = None  # whether all that a client sent is finite, where an engine already knows
    sealed: dict[str, Tensor] | None = None  # fields whose bytes only another client can open
    batches: np.ndarray | int = 0  # mini-batches that each client read in training
    passes: int = 0  # how often any one of its samples was in a noised step (DP-SGD), where the engine has counted it
    # of replies that went through the run's channel at the client: bytes that travelled, and its stages' own numbers
    sent: int | None = None
    extra: dict[str, Tensor] | None = None
    # of a channel that hides replies: sums of whole codes over all of these clients, in place of rows
    summed: dict[str, Tensor] | None = None
    slots: list[Any] | None = None  # what each of them is (`unalike.channel.summing.Slot`)


class LazyOutcome(Outcome):
    """An outcome that the device may still be computing: `ends` [2, c] holds the losses and whether all that is sent is
    finite; the host waits for it when it is first read."""

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
