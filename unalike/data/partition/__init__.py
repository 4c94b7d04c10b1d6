"""How one data set is dealt to clients: `partition(labels, clients, seed)` gives each client its row numbers.

Every sample is used exactly once (unless leftovers="drop" or the N largest natural clients are asked for), no client
is empty, an impossible request is an error, and the same arguments give the same answer everywhere. Any function of
that form may be used in place of those here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from unalike.data.partition.labels import Classes, Dirichlet, PowerLawClasses, Shards, Similarity
from unalike.data.partition.natural import Natural
from unalike.data.partition.prior import LogNormal, PriorDirichlet
from unalike.data.partition.sizes import IID, PowerLaw
from unalike.data.partition.tools import Partition, Spelled
from unalike.errors import UnalikeError, unknown

__all__ = [
    "IID", "PARTITIONS", "Classes", "Dirichlet", "LogNormal", "Natural", "Partition", "PowerLaw", "PowerLawClasses",
    "PriorDirichlet", "Shards", "Similarity", "parse",
]  # fmt: skip

KINDS: tuple[type[Spelled], ...] = (
    IID, Dirichlet, PriorDirichlet, Shards, Classes, Similarity, LogNormal, PowerLaw, PowerLawClasses, Natural,
)  # fmt: skip
PARTITIONS: dict[str, type] = {kind.name: kind for kind in KINDS}


def parse(text: str) -> Partition:
    """'dirichlet:0.1', 'shards:2', 'iid', 'iid:true': a name and its arguments in order."""
    name, *values = [piece.strip() for piece in str(text).split(":")]
    kind = PARTITIONS.get(name.lower())
    if kind is None:
        raise unknown("partition", name, PARTITIONS)
    fields = dataclasses.fields(kind)
    usage = ":".join([name.lower(), *("true" if str(f.type) == "bool" else f.name for f in fields)])
    if len(values) > len(fields):
        raise UnalikeError(f"The partition {text!r} has {len(values)} arguments: write at most {usage!r}.")
    needed = [f for f in fields if f.default is dataclasses.MISSING][len(values) :]
    if needed:
        example = f"{name.lower()}:{EXAMPLES[str(needed[0].type)]}"
        raise UnalikeError(f"The partition {text!r} lacks {needed[0].name}: write {usage!r}, such as {example!r}.")
    arguments = []
    for field, value in zip(fields, values, strict=False):
        try:
            arguments.append(READERS[str(field.type)](value))
        except (ValueError, KeyError):
            raise UnalikeError(
                f"The partition {text!r} has {field.name}={value!r}: it must be {WORDS[str(field.type)]}; "
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
