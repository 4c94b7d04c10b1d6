"""Join federations whose samples have different shapes: pictures at some clients, signals at others.

Clients are numbered part after part, or as a list of their parts says. Labels mean the same everywhere; samples can
only be read from a part.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch

from unalike.data.columns import Columns, Pair, offsets_of, placed
from unalike.data.drifting import Drifting
from unalike.data.federation import SPLITS, Federation
from unalike.data.public import Public
from unalike.errors import UnalikeError


class JoinedColumns(Columns):
    """One split of all parts: sizes, labels, and the rows of one client. There is no single array of samples."""

    __slots__ = ("_y", "parts")

    def __init__(self, parts: Mapping[str, Columns]):
        """parts: the columns of each part that has this split, all with N clients; a part is empty at other parts'
        clients."""
        self.parts = dict(parts)
        self._sizes = np.sum([columns.sizes for columns in parts.values()], axis=0)
        self.offsets = offsets_of(self._sizes)
        self.offsets.flags.writeable = self._sizes.flags.writeable = False
        self._y: torch.Tensor | None = None

    @property
    def y(self) -> torch.Tensor:  # type: ignore[override]
        """Return all clients' labels, in the order of the clients."""
        if self._y is None:
            labels = [columns.y for columns in self.parts.values()]
            if all(y.stride(0) == 0 for y in labels):  # stand-ins for remote clients: they take no memory
                self._y = labels[0][:1].expand(int(self._sizes.sum()), *labels[0].shape[1:])
            else:
                owners = np.concatenate([columns.owners() for columns in self.parts.values()])
                order = torch.from_numpy(np.argsort(owners, kind="stable"))
                self._y = torch.cat(labels)[order.to(labels[0].device)]
        return self._y

    @property
    def x(self) -> torch.Tensor:  # type: ignore[override]
        """Refuse: the samples have different shapes."""
        shapes = ", ".join(f"{name} {list(columns.x.shape[1:])}" for name, columns in self.parts.items())
        raise UnalikeError(
            f"The samples of joined federations have different shapes ({shapes}): ask one of its `parts` for them."
        )

    def of(self, k: int) -> Pair:
        """Return client k's rows, as views."""
        if not 0 <= k < len(self._sizes):
            raise UnalikeError(f"There is no client {k}: there are {len(self)}, numbered from 0.")
        own = next((columns for columns in self.parts.values() if columns.sizes[k]), None)
        return (own or next(iter(self.parts.values()))).of(k)

    def renew(self) -> None:
        """Called after the parts' samples were changed in place; labels are collected again."""
        self._y = None

    def take(self, rows: np.ndarray, sizes: np.ndarray) -> NoReturn:
        """Refuse: the samples have different shapes."""
        _refuse()


class JoinedFederation(Federation):
    """Several federations as one (`Federation.joined`).

    `parts`: by name, each with all N clients, of which those of other parts have no samples; a part has its own global
    test set and public set. `architecture`: the name of every client's part. `own`: the parts as they were given.
    """

    def __init__(self, parts: Mapping[str, Federation], architecture: Sequence[str] | None = None):
        """architecture: the name of every client's part, if clients are not numbered part after part; clients of the
        same part keep their order."""
        self.own = _checked(parts)
        first = next(iter(self.own.values()))
        self.architecture = _numbered(self.own, architecture)
        places = {name: np.flatnonzero(np.array(self.architecture) == name) for name in self.own}
        self.classes, self.names = first.classes, _names(self.own, places)
        self.label_names = next((p.label_names for p in self.own.values() if p.label_names is not None), None)
        self.schema = self.recipe = self.preparation = None  # each part has its own
        self.planted = _planted(self.own, places, len(self.architecture))
        self.notes = [f"{name}: {note}" for name, part in self.own.items() for note in part.notes]
        self.shipped = any(part.shipped for part in self.own.values())
        self.global_test = None
        clients = len(self.architecture)
        self.parts = {name: _padded(part, places[name], clients, self.names) for name, part in self.own.items()}
        names = [s for part in self.own.values() for s in part.splits]
        ordered = [*(s for s in SPLITS if s in names), *dict.fromkeys(s for s in names if s not in SPLITS)]
        self.splits = {
            split: JoinedColumns(
                {name: part.splits[split] for name, part in self.parts.items() if split in part.splits}
            )
            for split in ordered
        }

    @property
    def remote(self) -> bool:  # type: ignore[override]
        """Return whether the clients' samples are on other machines."""
        return any(part.remote for part in self.own.values())

    @property
    def drift(self) -> Drifting | None:  # type: ignore[override]
        """Return how the parts' samples change with the round, for all parts that drift; None if none does."""
        changes = [change for part in self.own.values() if part.drift is not None for change in part.drift.changes]
        return Drifting(tuple(changes)) if changes else None

    def each_part(self, fn: Callable[[Federation], Federation]) -> Federation:
        """Apply `fn` to each part and join the results."""
        return JoinedFederation({name: fn(part) for name, part in self.own.items()}, self.architecture)

    def at(self, round: int) -> Federation:
        """Return the parts as they are in this round, joined; a federation without drift returns itself."""
        return self if self.drift is None else self.each_part(lambda part: part.at(round))

    def part_of(self, client: int) -> Federation:
        """Return the client's part."""
        return self.parts[self.architecture[client]]

    @property
    def public(self) -> Public | None:  # type: ignore[override]
        """Return None if no part has a public set; otherwise refuse, because every part has its own form of the public
        samples."""
        if self.public_rows:
            raise UnalikeError("Joined federations have a public set each: ask one of the `parts` for its own.")
        return None

    @property
    def public_rows(self) -> int:
        """Return the number of public samples, 0 if there are none."""
        return next(iter(self.own.values())).public_rows

    def public_fingerprint(self) -> str | None:
        """Return 16 hex digits that identify the parts' public sets, None if there are none."""
        if not self.public_rows:
            return None
        facts = [f"{name} {part.public_fingerprint()}" for name, part in self.own.items()]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    def shipped_bytes(self) -> int:
        """Return the bytes of sending every client its part's public set once; 0 if none is shipped."""
        return sum(part.shipped_bytes() for part in self.own.values())

    def sets(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, Columns | None]]:
        """Yield every labelled set of samples of every part as (description, x, y, columns)."""
        for name, part in self.parts.items():
            yield from ((f"{what} of {name!r}", x, y, columns) for what, x, y, columns in part.sets())

    def __repr__(self) -> str:
        return f"Federation.joined({', '.join(f'{name}: {part!r}' for name, part in self.own.items())})"

    def check(self, gaps: bool = False) -> None:
        """Raise for the first fault in any part."""
        for name, part in self.own.items():
            try:
                part.check(gaps)
            except UnalikeError as error:
                raise UnalikeError(f"{name}: {error}") from None

    def fingerprint(self) -> str:
        """Return 16 hex digits of a sha256 over the parts' names and fingerprints."""
        facts = [f"{name} {part.fingerprint()}" for name, part in self.own.items()]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Federation:
        """Move every tensor of every part, floats to `dtype` where given; may return self."""
        moved = {name: part.to(device, dtype) for name, part in self.own.items()}
        same = all(moved[name] is part for name, part in self.own.items())
        return self if same else JoinedFederation(moved, self.architecture)

    def replace(self, **parts: Any) -> Self:
        """Refuse: change the parts instead."""
        _refuse()

    def map(self, fn: Any, **parts: Any) -> Self:
        """Refuse: change the parts instead."""
        _refuse()

    def split_clients(self, **shares: Any) -> NoReturn:
        """Refuse: change the parts instead."""
        _refuse()

    def named_splits(self, seed: int = 0, **shares: float) -> NoReturn:
        """Refuse: change the parts instead."""
        _refuse()

    def skewed(self, changes: Any, seed: int = 0) -> NoReturn:
        """Refuse: change the parts instead."""
        _refuse()

    def prepared(self, recipe: Any = None) -> NoReturn:
        """Refuse: change the parts instead."""
        _refuse()

    def mapped(self, folder: str | Path) -> NoReturn:  # type: ignore[override]
        """Refuse: write the parts one by one."""
        _refuse()

    def pooled(self) -> NoReturn:
        """Refuse: samples of different shapes cannot be pooled."""
        raise UnalikeError("Samples of different shapes cannot be pooled: a method that pools them cannot run here.")


def _refuse() -> NoReturn:
    raise UnalikeError("Joined federations stay as they are: split, prepare or map the parts first, then join them.")


def _checked(parts: Mapping[str, Federation]) -> dict[str, Federation]:
    """Return the parts; raise if they cannot be joined."""
    if not isinstance(parts, Mapping) or not parts:
        raise UnalikeError('Give federations by name to join them: Federation.joined({"pictures": a, "signals": b}).')
    for name, part in parts.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UnalikeError(f"A part is named {name!r}: it needs a name of letters, digits and _.")
        if not isinstance(part, Federation) or isinstance(part, JoinedFederation):
            raise UnalikeError(f"The part {name!r} is a {type(part).__name__}: it must be a Federation of its own.")
    first_name, first = next(iter(parts.items()))
    for name, part in parts.items():
        both = f"{name!r} and {first_name!r}"
        if part.classes != first.classes or part.train.y.shape[1:] != first.train.y.shape[1:]:
            raise UnalikeError(
                f"The labels of {both} differ ({part.classes} and {first.classes} classes): labels must mean the same "
                "in every part; give both the same `classes`."
            )
        if part.label_names and first.label_names and part.label_names != first.label_names:
            raise UnalikeError(f"The names of the labels of {both} differ: labels must mean the same in every part.")
        if part.public_rows != first.public_rows:
            raise UnalikeError(
                f"The public sets of {both} have {part.public_rows} and {first.public_rows} samples: row i must be "
                "the same thing in every part; give all parts as many, or none."
            )
        if part.public is not None and first.public is not None and not _same_labels(part.public, first.public):
            raise UnalikeError(f"The public sets of {both} have different labels: row i must be the same thing.")
    return dict(parts)


def _same_labels(one: Public, other: Public) -> bool:
    return one[1] is None or other[1] is None or torch.equal(one[1].cpu(), other[1].cpu())


def _numbered(parts: Mapping[str, Federation], architecture: Sequence[str] | None) -> list[str]:
    """Return the name of every client's part; raise if the given list does not fit the parts."""
    sizes = {name: len(part) for name, part in parts.items()}
    if architecture is None:
        return [name for name, n in sizes.items() for _ in range(n)]
    counts = Counter(architecture)
    if counts != sizes:
        raise UnalikeError(f"The parts have the clients {sizes}, and {dict(counts)} are numbered: number each once.")
    return [*architecture]


def _names(parts: Mapping[str, Federation], places: Mapping[str, np.ndarray]) -> list[str] | None:
    """Return the clients' names, prefixed with the part's where two would be equal; None if no part has names."""
    if all(part.names is None for part in parts.values()):
        return None
    names = [n for name, part in parts.items() for n in part.names or [f"{name} {k}" for k in range(len(part))]]
    if len(set(names)) < len(names):
        names = [f"{name} {n}" for name, part in parts.items() for n in part.names or range(len(part))]
    return [names[k] for k in np.argsort(np.concatenate([places[name] for name in parts]))]


def _padded(part: Federation, places: np.ndarray, clients: int, names: list[str] | None) -> Federation:
    """Return a part extended to all clients: its own at these places, the others empty."""

    def place(columns: Columns) -> Columns:
        sizes = np.zeros(clients, np.int64)
        sizes[places] = columns.sizes
        return Columns(columns.x, columns.y, offsets_of(sizes))

    planted = {name: placed(values, places, clients) for name, values in part.planted.items()}
    return part.map(place, names=names, planted=planted, drift=None)  # the drift stays with the part as it was given


def _planted(parts: Mapping[str, Federation], places: Mapping[str, np.ndarray], clients: int) -> dict[str, np.ndarray]:
    """Return every client's part as the group "network", and everything planted in the parts; clients of parts without
    it have -1, or NaN for levels."""
    out = {"network": np.zeros(clients, np.int64)}
    for group, (part, where) in enumerate(zip(parts.values(), places.values(), strict=True)):
        out["network"][where] = group
        for name, values in part.planted.items():
            own = placed(values, where, clients)
            before = out.setdefault(name, own)
            if before.dtype != own.dtype:  # groups in one part, levels in another
                before, own = (np.where(v == -1, np.nan, v) if v.dtype.kind == "i" else v for v in (before, own))
            out[name] = np.where(np.isin(np.arange(clients), where), own, before)
    return out
