"""Data that change as rounds pass: what is declared of them, and tensors that hold the present.

A drifting federation's splits are all the samples that there will ever be, before any drift; `fed.drift` says what
becomes of them, as a function of the round, and `fed.at(round)` is what clients have in that round.
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
    """What becomes of a federation's samples as rounds pass: `changes` are pairs of a drifting change
    (unalike/data/skew/drift.py) and its seed, done one after the other, a stream last."""

    changes: tuple[tuple[Any, int], ...]

    @property
    def rounds(self) -> int:
        """The last round in which something changes."""
        return max(change.rounds for change, _ in self.changes)

    def phase(self, round: int) -> tuple[int, ...]:
        """Return what tells a round's samples from another's: rounds of the same phase have the same."""
        if isinstance(round, bool) or not isinstance(round, int) or round < 1:
            raise UnalikeError(f"There is no round {round!r}: rounds are whole numbers from 1.")
        return tuple(change.phase(round) for change, _ in self.changes)

    def present(self, fed: Any, round: int) -> Any:
        """Return the federation as it is in this round."""
        self.phase(round)  # only to see that it is a round
        now = fed
        for change, seed in sorted(self.changes, key=lambda pair: pair[0].in_order):  # a stream shows what became of it
            now = change.present(now, fed, seed, round)
        return now.replace(planted=fed.planted, drift=None)

    def plain(self) -> list[list[Any]]:
        """Return it as lists of a text and a seed, for a file."""
        return [[str(change), seed] for change, seed in self.changes]

    @classmethod
    def from_plain(cls, changes: list[list[Any]]) -> Drifting:
        from unalike.data.partition import parse  # here: the registry knows all changes, which are made of federations

        return cls(tuple((parse(text), seed) for text, seed in changes))

    def __str__(self) -> str:
        return "|".join(f"{change} (seed {seed})" for change, seed in self.changes)


class Present:
    """A drifting federation as it is now: `data` has tensors of its own, which `enter` fills with a round's samples in
    place, so that whatever holds one of them sees the present. The federation itself is never written to."""

    def __init__(self, federation: Federation, device: torch.device, dtype: torch.dtype):
        self.federation = federation
        assert federation.drift is not None
        federation.at(federation.drift.rounds)  # what cannot be done is said before the first round
        self.data = own_memory(federation.at(1).to(device, dtype))
        self._phase = self._phase_of(1)

    def enter(self, round: int) -> bool:
        """Fill the tensors with the samples of this round; return whether they are others than before."""
        phase = self._phase_of(round)
        if phase == self._phase:
            return False
        fill(self.data, self.federation.at(round))
        self._phase = phase
        return True

    def _phase_of(self, round: int) -> tuple[int, ...]:
        assert self.federation.drift is not None
        return self.federation.drift.phase(round)


def own_memory(fed: Federation) -> Federation:
    """Return a federation whose splits share no memory with anything; its other sets are shared."""
    return fed.each_part(lambda part: part.map(lambda c: Columns(c.x.clone(), c.y.clone(), c.offsets)))


def fill(data: Federation, now: Federation) -> None:
    """Write the samples of one federation into another's tensors; their sizes are the same."""
    for old, new in zip(_columns(data), _columns(now), strict=True):
        old.x.copy_(new.x)
        old.y.copy_(new.y)
    for columns in data.splits.values():
        columns.renew()


def _columns(fed: Federation) -> Iterator[Columns]:
    for part in getattr(fed, "own", {"": fed}).values():
        yield from part.splits.values()
