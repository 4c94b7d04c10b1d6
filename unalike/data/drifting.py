"""Data that change from round to round: the declaration of the change, and tensors that hold the current round's
samples.

The splits of a drifting federation hold all samples before any drift; `fed.drift` says how they change with the round,
and `fed.at(round)` is the federation that clients have in that round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from unalike.data.columns import Columns
from unalike.errors import UnalikeError

if TYPE_CHECKING:
    from unalike.data.federation import Federation


@dataclasses.dataclass(frozen=True)
class Drifting:
    """How a federation's samples change with the round. `changes` are pairs of a drifting change
    (unalike/data/skew/drift.py) and its seed, applied one after the other, a stream last."""

    changes: tuple[tuple[Any, int], ...]

    @property
    def rounds(self) -> int:
        """Return the last round in which something changes."""
        return max(change.rounds for change, _ in self.changes)

    def phase(self, round: int) -> tuple[int, ...]:
        """Return a tuple that identifies the samples of a round: rounds of the same phase have the same samples."""
        if isinstance(round, bool) or not isinstance(round, int) or round < 1:
            raise UnalikeError(f"There is no round {round!r}: rounds are whole numbers from 1.")
        return tuple(change.phase(round) for change, _ in self.changes)

    def present(self, fed: Any, round: int) -> Any:
        """Return the federation as it is in this round."""
        self.phase(round)  # only checks the round
        now = fed
        # a stream comes last: it shows samples that the other changes have altered
        for change, seed in sorted(self.changes, key=lambda pair: pair[0].in_order):
            now = change.present(now, fed, seed, round)
        return now.replace(planted=fed.planted, drift=None)

    def plain(self) -> list[list[Any]]:
        """Return the changes as lists of a text and a seed, for a file."""
        return [[str(change), seed] for change, seed in self.changes]

    @classmethod
    def from_plain(cls, changes: list[list[Any]]) -> Drifting:
        # imported here, because the registry imports all changes, which import federations
        from unalike.data.partition import parse

        return cls(tuple((parse(text), seed) for text, seed in changes))

    def __str__(self) -> str:
        return "|".join(f"{change} (seed {seed})" for change, seed in self.changes)


class Present:
    """A drifting federation in the current round. `data` has its own tensors, which `enter` overwrites with a
    round's samples, so that every holder of such a tensor sees the current samples. The federation itself is never
    written to."""

    def __init__(self, federation: Federation, device: torch.device, dtype: torch.dtype):
        self.federation = federation
        assert federation.drift is not None
        # an impossible change is reported before the first round
        federation.at(federation.drift.rounds)
        self.data = own_memory(federation.at(1).to(device, dtype))
        self._phase = self._phase_of(1)

    def enter(self, round: int) -> bool:
        """Fill the tensors with the samples of this round; return whether they differ from before."""
        phase = self._phase_of(round)
        if phase == self._phase:
            return False
        fill(self.data, self.federation.at(round))
        self._phase = phase
        return True

    @property
    def moved(self) -> int:
        """Return a number that grows whenever the data change."""
        return sum(self._phase)

    def _phase_of(self, round: int) -> tuple[int, ...]:
        assert self.federation.drift is not None
        return self.federation.drift.phase(round)


def own_memory(fed: Federation) -> Federation:
    """Return a copy of the federation whose splits share no memory with it; its global test and public sets are
    shared."""
    return fed.each_part(lambda part: part.map(lambda c: Columns(c.x.clone(), c.y.clone(), c.offsets)))


def fill(data: Federation, now: Federation) -> None:
    """Write the samples of one federation into another's tensors, which have the same sizes."""
    for old, new in zip(_columns(data), _columns(now), strict=True):
        old.x.copy_(new.x)
        old.y.copy_(new.y)
    for columns in data.splits.values():
        columns.renew()


def _columns(fed: Federation) -> Iterator[Columns]:
    for part in getattr(fed, "own", {"": fed}).values():
        yield from part.splits.values()
