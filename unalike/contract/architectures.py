"""Which network each client has, if there are several, and the consequences for the fields of a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from unalike.contract.fields import BUFFERS, Field
from unalike.contract.vectors import Vectors
from unalike.errors import UnalikeError, did_you_mean

# shapes that mean the same in every network
SHARED = ("scalar", "features", "pairs", "classes", "samples", "public", "input")
Sizes = dict[str, int]
Assigned = Sequence[str] | Callable[[int], str] | str  # names by client, a function of its number, or "a:10, b:5"


class Architectures:
    """The networks of a run by name, and the one that each client has.

    of: index of each client's architecture in `names`, by client number; sizes: the named sizes that shapes of fields
    use, by architecture; heads: the shapes of each one's head.
    """

    def __init__(
        self,
        assigned: Assigned,
        population: int,
        sizes: Mapping[str, Sizes],
        heads: Mapping[str, Sequence[tuple[int, ...]]],
    ):
        self.names, self.sizes = list(sizes), sizes
        self.of = _places(assigned, population, self.names)
        self.same_heads = len({tuple(shapes) for shapes in heads.values()}) == 1

    def name(self, client: int) -> str:
        """Return a client's architecture."""
        return self.names[self.of[client]]

    def clients(self, name: str) -> np.ndarray:
        """Return the clients of an architecture."""
        return np.flatnonzero(self.of == self.names.index(name))

    @property
    def shares(self) -> dict[str, float]:
        """Return each architecture's share of the clients."""
        return {name: len(self.clients(name)) / len(self.of) for name in self.names}

    def groups(self, ids: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the architectures of these clients, each with the positions of its clients among them."""
        own = self.of[ids]
        for k, name in enumerate(self.names):
            places = np.flatnonzero(own == k)
            if len(places):
                yield name, places

    def is_own(self, name: str, field: Field, method: object) -> bool:
        """Return whether a field has one value per architecture: it has the shape of the model or of a part of it, so
        that no sum crosses architectures. Heads of equal shapes are summed over all clients."""
        if name == BUFFERS or field.by == "network":
            return True
        return any(self._is_own(size, method) for size in _words(field))

    def _is_own(self, size: str, method: object) -> bool:
        if size == "head":
            return not self.same_heads
        nets = getattr(method, "nets", {})
        # one of the method's further networks, or its optimizer's state
        further = size.removeprefix("optimizer ") in nets
        return not (size in SHARED or further or isinstance(getattr(method, size, None), int))

    def check(self, method: Any) -> None:
        """Refuse a method that several architectures do not allow: sums of fields whose sizes differ, and tables of
        rows of the model's shape."""
        if method.one_network:
            raise UnalikeError(f"{type(method).__name__} {method.one_network}: it needs one network for all clients.")
        for name, field in method.sends.items():
            if not self.is_own(name, field, method):
                self._check_sizes(f"sends {name!r}", field, method)
        for name in method.nets:
            self._check_sizes(f"has a network {name!r}", Field(name), method)
        for name, field in method.tables.items():
            if self.is_own(name, field, method):
                raise UnalikeError(
                    f"{type(method).__name__} has a table {name!r} of rows of the shape {field.shape!r}, which differs "
                    "between networks: it needs one network for all clients."
                )
            self._check_sizes(f"has a table {name!r}", field, method)

    def _check_sizes(self, what: str, field: Field, method: object) -> None:
        first, *others = ((name, field.resolve(sizes, method)) for name, sizes in self.sizes.items())
        for name, shape in others:
            if shape != first[1]:
                raise UnalikeError(
                    f"{type(method).__name__} {what} of the shape {field.shape!r}, which all clients must have in "
                    f"common: it is {list(first[1])} in the network {first[0]!r} and {list(shape)} in {name!r}."
                )

    def part(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return a message as clients of one architecture get it, with their own part of every `Vectors`."""
        return {key: value[name] if isinstance(value, Vectors) else value for key, value in values.items()}

    def rows(self, rows: Mapping[str, Any], name: str, places: np.ndarray) -> dict[str, Any]:
        """Return the rows for the clients of one architecture; `Vectors` hold them already."""
        out = {}
        for key, value in rows.items():
            if not isinstance(value, Vectors):
                out[key] = value[torch.from_numpy(places).to(value.device)]
                continue
            out[key] = value[name]
            if len(out[key]) != len(places):
                raise UnalikeError(
                    f"PerClient {key!r} has {len(out[key])} rows for {len(places)} clients with the network {name!r}: "
                    "give one row each."
                )
        return out


def remaining(
    rows: Mapping[str, Any], ids: np.ndarray, there: np.ndarray, several: Architectures | None
) -> dict[str, Any]:
    """Return the rows of the clients that remain in a call; there: a mask over these clients."""
    out = {}
    for key, value in rows.items():
        if isinstance(value, Vectors) and several is not None:
            left = {name: torch.from_numpy(there[places]) for name, places in several.groups(ids)}
            parts = {name: part[left[name].to(part.device)] if name in left else part for name, part in value.items()}
            out[key] = Vectors(parts)
        else:
            out[key] = value[torch.from_numpy(there).to(value.device)]
    return out


def _words(field: Field) -> list[str]:
    """Return the named sizes in a field's shape."""
    return [size for size in field.names if isinstance(size, str)]


def _places(assigned: Assigned, population: int, names: Sequence[str]) -> np.ndarray:
    """Return the index of each client's architecture in `names`."""
    given = assigned_names(assigned, population)
    for client, name in enumerate(given):
        if name not in names:
            raise UnalikeError(f"architecture gives client {client} {name!r}.{did_you_mean(str(name), names)}")
    if len(given) != population:
        raise UnalikeError(f"architecture has {len(given)} entries for {population} clients: give one each.")
    unused = [name for name in names if name not in given]
    if unused:
        raise UnalikeError(f"No client has the network {unused[0]!r}: leave it out, or name it in architecture.")
    place = {name: k for k, name in enumerate(names)}
    return np.array([place[name] for name in given], dtype=np.int64)


def assigned_names(assigned: Assigned, population: int) -> list[str]:
    """Return the name of each client's architecture; "small:10, large:5" means ten clients and the next five."""
    if callable(assigned):
        return [assigned(client) for client in range(population)]
    if not isinstance(assigned, str):
        return [str(name) for name in assigned]
    out: list[str] = []
    for part in assigned.split(","):
        name, colon, count = (text.strip() for text in part.partition(":"))
        if not colon or not count.isdecimal():
            raise UnalikeError(
                f"architecture={assigned!r}: it must be a list of names, one per client, or such as "
                "'small:10, large:10', ten clients and the next ten."
            )
        out += [name] * min(int(count), 10 * population)
    return out
