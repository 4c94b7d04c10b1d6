"""How one data set is divided among clients: `partition(labels, clients, seed)` gives each client its row numbers.

Every sample is used exactly once (unless leftovers="drop" or the N largest natural clients are asked for), no client is
empty, an impossible request is an error, and the same arguments give the same answer everywhere. Any function of that
form may be used in place of those here. A size law may follow, and changes of the clients' samples (unalike/data/skew):
"dirichlet:0.3|quantity:0.5|permute:2".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from unalike.data.partition.labels import Classes, Dirichlet, PowerLawClasses, Shards, Similarity
from unalike.data.partition.natural import Natural
from unalike.data.partition.periods import Periods
from unalike.data.partition.pieces import Composed, Dealer, Partition, Piece, SizeLaw, called, composed
from unalike.data.partition.prior import LogNormal, PriorDirichlet
from unalike.data.partition.sizes import IID, PowerLaw, Quantity
from unalike.data.skew import CHANGES
from unalike.errors import UnalikeError, unknown

__all__ = [
    "IID", "PARTITIONS", "PIECES", "Classes", "Composed", "Dirichlet", "LogNormal", "Natural", "Partition", "Periods",
    "PowerLaw", "PowerLawClasses", "PriorDirichlet", "Quantity", "Shards", "Similarity", "SizeLaw", "called",
    "composed", "parse",
]  # fmt: skip

KINDS: tuple[type[Dealer], ...] = (
    IID, Dirichlet, PriorDirichlet, Shards, Classes, Similarity, LogNormal, PowerLaw, Quantity,
    PowerLawClasses, Periods, Natural,
)  # fmt: skip
PARTITIONS: dict[str, type] = {kind.name: kind for kind in KINDS}
PIECES: dict[str, type[Piece]] = {**PARTITIONS, **CHANGES}


def parse(text: str) -> Piece | Composed:
    """Read a partition from text: a name and its arguments in order, such as 'dirichlet:0.1', 'shards:2', 'iid:true';
    '@0.5' after them is the strength; several are joined by '|', as in 'dirichlet:0.3|rotate:4@0.5'."""
    pieces = [_piece(piece.strip(), str(text)) for piece in str(text).split("|")]
    return pieces[0] if len(pieces) == 1 else Composed(tuple(pieces))


def _piece(text: str, whole: str) -> Piece:
    text, at, strength = text.partition("@")
    name, *values = [piece.strip() for piece in text.split(":")]
    kind = PIECES.get(name.lower())
    if kind is None:
        raise unknown("partition", name, PIECES)
    read = getattr(kind, "read", None)
    piece = _usual(kind, values, whole) if read is None else read(values, whole)
    if not at:
        return piece
    try:
        return piece.at(float(strength))
    except ValueError:
        raise UnalikeError(
            f"The partition {whole!r} has the strength {strength!r}: after @ there must be a number from 0 to 1."
        ) from None


def _usual(kind: type[Piece], values: list[str], whole: str) -> Piece:
    """Make a piece from its arguments in order."""
    name = kind.name
    fields = kind.arguments()
    usage = ":".join([name, *("true" if str(f.type) == "bool" else f.name for f in fields)])
    if len(values) > len(fields):
        raise UnalikeError(f"The partition {whole!r} has {len(values)} arguments: write at most {usage!r}.")
    needed = [f for f in fields if f.default is dataclasses.MISSING][len(values) :]
    if needed:
        example = f"{name}:{EXAMPLES[str(needed[0].type)]}"
        raise UnalikeError(f"The partition {whole!r} lacks {needed[0].name}: write {usage!r}, such as {example!r}.")
    arguments = []
    for field, value in zip(fields, values, strict=False):
        try:
            arguments.append(READERS[str(field.type)](value))
        except (ValueError, KeyError):
            raise UnalikeError(
                f"The partition {whole!r} has {field.name}={value!r}: it must be {WORDS[str(field.type)]}; "
                f"write {usage!r}."
            ) from None
    return kind(*arguments)


READERS: dict[str, Callable] = {
    "float": float,
    "int": int,
    "bool": lambda v: {"true": True, "false": False}[v.lower()],
    "str": str,
    "str | None": str,
}
WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false"}
EXAMPLES = {"float": "0.3", "int": "2"}
