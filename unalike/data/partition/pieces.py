"""Pieces of skew, and several of them combined: `Dirichlet(0.3) | Quantity(0.5) | Rotate(4)`.

A dealer decides which client gets which samples, a size law only how many; a change (unalike/data/skew) alters a
client's samples. Every piece has a strength from 0, no skew at all, to 1, all that its own parameters ask for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from unalike.data.partition import tools
from unalike.data.partition.resize import resized
from unalike.errors import UnalikeError

Partition = Callable[[np.ndarray, int, int], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One kind of skew. `str(piece)` is the text that `parse` reads; `a | b` applies both, one after the other."""

    name: ClassVar[str]
    strength: float = dataclasses.field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        tools.number(f"{type(self).__name__}'s strength", self.strength, 0, 1, 0.5)

    @classmethod
    def arguments(cls) -> list[dataclasses.Field]:
        """Return the piece's parameters in order, without the strength."""
        return [f for f in dataclasses.fields(cls) if f.name != "strength"]

    def __str__(self) -> str:
        fields = self.arguments()
        values = [getattr(self, f.name) for f in fields]
        while values and values[-1] == fields[len(values) - 1].default:
            values.pop()
        text = ":".join([self.name, *(str(v).lower() if isinstance(v, bool) else str(v) for v in values)])
        return text + self.at_strength

    @property
    def at_strength(self) -> str:
        """Return the end of the piece's text: '@0.5', with all digits that `parse` needs; "" at full strength."""
        short = f"{self.strength:g}"
        return "" if self.strength == 1 else f"@{short if float(short) == self.strength else float(self.strength)}"

    def at(self, strength: float) -> Self:
        """Return the same piece at another strength."""
        return dataclasses.replace(self, strength=strength)

    def __or__(self, other: Any) -> Composed:
        return Composed((*_pieces(self), *_pieces(other)))

    def __ror__(self, other: Any) -> Composed:
        return Composed((*_pieces(other), *_pieces(self)))


class Dealer(Piece):
    """A partition: which rows each client gets. At a strength below 1, that share of a client's rows stays with it, and
    the others are exchanged at random among all clients; sizes stay the same."""

    resizable: ClassVar[bool] = True  # whether a size law may follow
    # whether each client has a contiguous stretch of one order, which other sizes would cut elsewhere
    stretches: ClassVar[bool] = False

    def __call__(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        parts = self.parts(labels, clients, seed)
        return parts if self.strength == 1 else _loosened(parts, self.strength, seed)

    def parts(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        """Return the rows of each client at full strength."""
        raise NotImplementedError


class SizeLaw(Dealer):
    """Quantity skew: how many samples each client gets. Alone it deals them at random; behind another dealer it leaves
    the clients their mixes of labels. At a strength below 1 sizes lie between equal and those asked for."""

    def __call__(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        labels = tools.checked(labels, clients, 1, self.name)
        sizes = self.sizes_at_strength(len(labels), clients, seed)
        return np.split(self.order(len(labels), seed), np.cumsum(sizes)[:-1])

    def sizes(self, n: int, clients: int, seed: int) -> np.ndarray:
        """Return how many of n samples each client gets at full strength, int64 [clients], at least one each."""
        raise NotImplementedError

    def order(self, n: int, seed: int) -> np.ndarray:
        """Return the rows in the order in which they are dealt."""
        return tools.generator(seed, self.name).permutation(n)

    def sizes_at_strength(self, n: int, clients: int, seed: int) -> np.ndarray:
        """Return how many of n samples each client gets, int64 [clients], at least one each."""
        asked = self.sizes(n, clients, seed)
        if self.strength == 1:
            return asked
        sizes = tools.apportion(self.strength * asked + (1 - self.strength) * n / clients, n)
        tools.repair(sizes[None], 1)
        return sizes


class Change(Piece):
    """A change of clients' samples, of their labels, or of both (unalike/data/skew)."""

    # whether it changes samples, which must then be prepared first
    of_features: ClassVar[bool] = True
    # whether clients must have their samples in the order of the data set
    in_order: ClassVar[bool] = False
    drifts: ClassVar[bool] = False  # whether it happens as rounds pass

    @property
    def copies(self) -> int:
        """Return how many clients it makes of one."""
        return 1

    def change(self, fed: Any, seed: int) -> Any:
        """Return the changed federation, with a record of the change in `fed.planted`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Composed:
    """Several pieces as one partition: a dealer, optionally a size law after it, then changes in order."""

    pieces: tuple[Any, ...]

    def __post_init__(self) -> None:
        for piece in self.pieces:
            if isinstance(piece, type) or not (callable(piece) or isinstance(piece, Piece)):
                raise UnalikeError(f"{piece!r} is no skew: give a partition, a change, or a text such as 'rotate:4'.")
        self._check_twins()
        dealers = [piece for piece in self.pieces if not isinstance(piece, Change)]
        for piece, at_its_place in zip(self.pieces, dealers, strict=False):
            if piece is not at_its_place:
                raise UnalikeError(f"{called(at_its_place)} deals the samples: it must come first in '{self}'.")
        if len(dealers) < 2:
            return
        first, second = dealers[:2]
        if not isinstance(second, SizeLaw) or len(dealers) > 2:
            raise UnalikeError(
                f"{called(first)} and {called(dealers[-1])} both deal the samples: name one of them; only a size law, "
                "such as 'quantity:0.5', may follow a dealer."
            )
        if isinstance(first, SizeLaw):
            raise UnalikeError(f"{first} and {second} both say how many samples a client gets: name one of them.")
        if isinstance(first, Dealer) and not first.resizable:
            raise UnalikeError(f"{first} keeps the clients' own samples, so {second} cannot follow: leave it out.")

    def __str__(self) -> str:
        return "|".join(called(piece) for piece in self.pieces)

    def _check_twins(self) -> None:
        """Raise if the same change occurs twice: it would draw the same again, and overwrite the record of the
        first."""
        names = [getattr(change, "skew", change).name for change in self.changes]
        for name in names:
            if names.count(name) > 1:
                raise UnalikeError(
                    f"{name} stands twice in '{self}', and would hide what it planted first: ask for it once."
                )

    def __or__(self, other: Any) -> Composed:
        return Composed((*self.pieces, *_pieces(other)))

    def __ror__(self, other: Any) -> Composed:
        return Composed((*_pieces(other), *self.pieces))

    @property
    def dealer(self) -> Partition | None:
        """Return the piece that deals the samples; None for the data's own clients, or IID if there are none."""
        return next((piece for piece in self.pieces if not isinstance(piece, Change)), None)

    @property
    def law(self) -> SizeLaw | None:
        """Return the size law after the dealer, if there is one."""
        second = self.pieces[1] if len(self.pieces) > 1 else None
        return second if isinstance(second, SizeLaw) else None

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Change))

    def without_features(self) -> Composed:
        """Return the same partition without changes of features."""
        return Composed(tuple(piece for piece in self.pieces if not getattr(piece, "of_features", False)))

    @property
    def copies(self) -> int:
        """Return how many clients the changes make of one that was dealt its samples."""
        return math.prod(change.copies for change in self.changes)

    @property
    def natural(self) -> bool:
        """Return whether the data's own clients are kept, apart from changes."""
        return self.dealer is None or str(self.dealer) == "natural"

    def __call__(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        if self.dealer is None:
            raise UnalikeError(f"'{self}' does not say how samples are dealt: begin with one that does, as in 'iid|…'.")
        parts, law = self.dealer(labels, clients, seed), self.law
        if law is None:
            return parts
        sizes = law.sizes_at_strength(sum(map(len, parts)), clients, seed)
        return resized(parts, None if getattr(self.dealer, "stretches", False) else labels, sizes, seed)

    def change(self, fed: Any, seed: int) -> Any:
        """Return the federation with all changes applied in order; drifting changes come last."""
        for change in sorted(self.changes, key=lambda change: change.drifts):
            if fed.drift is not None and not change.drifts:
                raise UnalikeError(f"These data drift, and {change} is to last: ask for it before what drifts.")
            fed = change.change(fed, seed)
        return fed


def called(piece: Any) -> str:
    """Return a piece as text; a function by its name."""
    return str(piece) if isinstance(piece, Piece) else str(getattr(piece, "__name__", piece))


def composed(partition: Any) -> Composed:
    """Return a piece, several pieces, or a partition function of the user's own as a `Composed`."""
    return partition if isinstance(partition, Composed) else Composed((partition,))


def _pieces(given: Any) -> Sequence[Any]:
    if isinstance(given, str):
        # imported here, because the registry imports all pieces
        from unalike.data.partition import parse

        given = parse(given)
    if isinstance(given, Composed):
        return given.pieces
    return (given,)


def _loosened(parts: list[np.ndarray], strength: float, seed: int) -> list[np.ndarray]:
    """Exchange a share of every client's rows at random; sizes stay."""
    rng = tools.generator(seed, "strength")
    sizes = np.array([len(part) for part in parts])
    rows = np.concatenate(parts)
    loose = rng.random(len(rows)) >= strength
    rows[loose] = rng.permutation(rows[loose])
    return np.split(rows, np.cumsum(sizes)[:-1])
