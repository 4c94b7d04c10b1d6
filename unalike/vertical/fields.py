"""Declarations of what crosses between parties; from them come the checks of every message and the table "who sees
what"."""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from unalike import contract
from unalike.errors import UnalikeError, did_you_mean

DTYPES = {"float": torch.float64, "index": torch.int64, "bytes": torch.uint8}
MOST_BYTES = 1 << 30  # most bytes of one field
ROLES = ("guest", "hosts", "coordinator")


@dc.dataclass(frozen=True)
class Field(contract.Field):
    """One declared part of a message between parties.

    shape: a tuple of numbers and names: "rows" (of the request), "columns" (of the host), "outputs", or a whole-number
      attribute of the method. to: who gets it: "guest", "hosts" or "coordinator". read: "sum" if the receiver only
      needs the sum over hosts, "each" else. sealed: it is encrypted, as bytes; the receiver cannot open it unless it
      is the key's owner. masked: what is inside is hidden from the key's owner by a random number of the sender's.
      tells: what it tells its receiver, in words; sum_tells: where sums are secure. kind: "float", "index" or "bytes".
    """

    shape: str | tuple[int | str, ...] = ("rows", "outputs")
    read: str = "each"
    to: str = "guest"
    sealed: bool = False
    masked: bool = False
    tells: str = ""
    sum_tells: str = ""
    kind: str = "float"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to not in ROLES or self.kind not in DTYPES:
            raise UnalikeError(f"Field(to={self.to!r}, kind={self.kind!r}): `to` must be one of {', '.join(ROLES)}.")

    @property
    def per_row(self) -> bool:
        """Return whether it holds numbers of single people in the clear."""
        return "rows" in self.names and self.kind == "float" and not self.sealed

    @property
    def form(self) -> str:
        """Return in a word or two how it travels."""
        hidden = {(True, True): "sealed and masked", (True, False): "sealed", (False, True): "masked"}
        return hidden.get((self.sealed, self.masked), "clear")


ROWS = Field(("rows",), to="hosts", kind="index", tells="which people are in the batch")


def answer(takes: str = "rows", gives: str = "") -> Callable[[Callable], Callable]:
    """Mark a method's function as one that another party may be asked to run, with the fields that it takes and
    returns."""

    def mark(function: Callable) -> Callable:
        function.takes, function.gives = tuple(takes.split()), tuple(gives.split())  # type: ignore[attr-defined]
        return function

    return mark


def answers(method: Any) -> dict[str, Callable]:
    """Return the functions of a method that other parties may be asked to run, by name."""
    found = {name: getattr(method, name) for name in dir(type(method)) if not name.startswith("_")}
    return {name: function for name, function in found.items() if hasattr(function, "takes")}


def check(
    tensors: Mapping[str, Tensor],
    names: tuple[str, ...],
    method: Any,
    sizes: Mapping[str, int],
    who: str,
    hidden: Collection[str] = (),
) -> None:
    """Check one party's message: exactly these fields, of their dtype and shape, every number finite. hidden: fields
    that come as masked whole numbers."""
    declared = {"rows": ROWS, **method.sends}
    declared |= {name: dc.replace(declared[name], kind="index") for name in hidden}
    if set(tensors) != set(names):
        listed = ", ".join(sorted(tensors)) or "nothing"
        raise UnalikeError(f"{who} sent {listed[:200]}; {', '.join(names) or 'nothing'} was expected.")
    for name in names:
        _check_field(name, tensors[name], declared[name], method, sizes, who)


def _check_field(name: str, value: Tensor, field: Field, method: Any, sizes: Mapping[str, int], who: str) -> None:
    wanted = DTYPES["bytes" if field.sealed else field.kind]
    if value.dtype != wanted:
        raise UnalikeError(f"{who} sent {name!r} as {value.dtype}: it must be {wanted}.")
    if wanted == torch.uint8:
        if value.dim() != 1 or value.numel() > MOST_BYTES:
            raise UnalikeError(f"{who} sent {name!r} with shape {list(value.shape)}: it must be a row of bytes.")
        return
    shape = field.resolve(dict(sizes), method)
    if tuple(value.shape) != shape:
        raise UnalikeError(f"{who} sent {name!r} with shape {list(value.shape)}: it must be {list(shape)}.")
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise UnalikeError(f"{who} sent {name!r} with a value that is NaN or infinite.")


def check_rows(rows: Tensor, count: int, who: str) -> None:
    """Check that rows are distinct positions among the aligned ones."""
    if rows.dtype != torch.int64 or rows.dim() != 1 or not len(rows):
        raise UnalikeError(f"{who} asked for rows that are no list of places.")
    if int(rows.min()) < 0 or int(rows.max()) >= count:
        raise UnalikeError(f"{who} asked for a row out of range: there are {count}.")
    if len(rows.unique()) < len(rows):
        raise UnalikeError(f"{who} asked for the same row twice in one batch.")


def numbers_in(field: Field, method: Any, sizes: Mapping[str, int]) -> int:
    """Return how many numbers a field holds."""
    return math.prod(field.resolve(dict(sizes), method))


def function_of(method: Any, name: Any, who: str) -> Callable:
    """Return the function that a request names; only functions marked by `answer` can be asked for."""
    known = answers(method)
    if not isinstance(name, str) or name not in known:
        said = str(name)[:60]
        raise UnalikeError(
            f"{who} asked for {said!r}, which {type(method).__name__} does not answer.{did_you_mean(said, known)}"
        )
    return known[name]
