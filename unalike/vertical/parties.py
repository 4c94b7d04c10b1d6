"""The parties of a simulation: a user's tables, aligned as they would be between machines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.draws import generator
from unalike.errors import UnalikeError, unknown
from unalike.vertical.align import Report, align, greet, overlapping
from unalike.vertical.links import Direct
from unalike.vertical.node import Node
from unalike.vertical.tables import Table, identifying, read_table

COORDINATOR = "coordinator"


class Parties:
    """A guest, which holds the labels, and hosts with other columns of the same people; `report` tells how they match.

    train, test: positions among the aligned rows. scale: how each party prepares its columns by itself. ids_by: the
    column of each table that identifies the person.
    """

    def __init__(
        self, guest: Table, hosts: Sequence[Table], unmatched: str = "drop", overlap: str = "refuse", test: float = 0.0,
        seed: int = 0, scale: str = "standard", classes: int | None = None, aligned: bool = False,
        ids_by: Mapping[str, str] | None = None,
    ):  # fmt: skip
        if guest.y is None:
            raise UnalikeError(f"{guest.name} has no label: name the party and column that has it.")
        self.seed, self.scale, self.unmatched, self.ids_by = seed, scale, unmatched, ids_by or {}
        self.classes = classes if classes is not None else _classes(guest)
        self.report = _report(guest, hosts, unmatched)
        used, of_hosts = overlapping(guest.columns, {t.name: t.columns for t in hosts}, overlap)
        self.uses = {guest.name: used, **of_hosts}
        self.guest = Node(guest.without([c for c in guest.columns if c not in used]))
        self.guest.role = "guest"
        self.hosts = [Node(table, psi_key=_key(seed, table.name)) for table in hosts]
        if aligned:
            for node in (self.guest, *self.hosts):
                node.positions = torch.arange(len(guest))
            self.report.matched = {table.name: len(guest) for table in hosts}
            self.guest.matched = {table.name: torch.ones(len(guest), dtype=torch.bool) for table in hosts}
        else:
            links = [Direct(node) for node in self.hosts]
            for link in links:
                greet(link)
            self.report.matched = align(self.guest, links, unmatched, _key(seed, guest.name))
        assert self.guest.positions is not None
        self.report.aligned = len(self.guest.positions)
        self.train, self.test = held_out(len(self.guest.positions), test, seed)

    @classmethod
    def from_tables(
        cls,
        tables: Mapping[str, Any],
        id: str | Mapping[str, str],
        label: tuple[str, str],
        drop: Mapping[str, Sequence[str]] | None = None,
        fold_case: bool = False,
        duplicates: str = "refuse",
        **options: Any,
    ) -> Parties:
        """Read every party's table (a file, a data frame, a dict of columns) and match their rows by `id`.

        label: (party, column); that party is the guest. unmatched: rows that not all parties have are left out
        ("drop"), their cells are missing ("missing"), or zero with a flag at the guest ("mask"). overlap: what to do
        about columns that two parties have.
        """
        owner, column = label
        by = {name: id if isinstance(id, str) else id[name] for name in tables}
        if owner not in tables:
            raise unknown("party", owner, tables)
        read = {
            name: read_table(
                name, source, by[name], column if name == owner else None,
                (drop or {}).get(name, ()), fold_case, duplicates,
            )
            for name, source in tables.items()
        }  # fmt: skip
        return cls(read.pop(owner), list(read.values()), ids_by=by, **options)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], y: Any, classes: int | None = None, scale: str = "none", **options: Any
    ) -> Parties:
        """Make parties from columns whose rows are already aligned; the first party is the guest."""
        labels = torch.as_tensor(np.asarray(y))
        labels = labels.double() if labels.is_floating_point() else labels.long()
        x = {
            name: torch.as_tensor(np.asarray(value)).double().reshape(len(labels), -1) for name, value in arrays.items()
        }
        ids = [str(k) for k in range(len(labels))]
        guest, *hosts = (Table(name, ids, value) for name, value in x.items())
        guest.y = labels
        return cls(guest, hosts, scale=scale, classes=classes, aligned=True, **options)

    @property
    def names(self) -> list[str]:
        """Return the names of all parties, the guest first."""
        return [self.guest.name, *(node.name for node in self.hosts)]

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {len(self.uses[name])} columns" for name in self.names)
        return f"Parties({columns}; {self.report.aligned} rows, {len(self.test)} of them for testing)"


def held_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the positions of training and test rows."""
    if not 0 <= share < 1:
        raise UnalikeError(f"test must lie in [0, 1); got {share!r}.")
    order = generator(seed, "vertical test").permutation(count)
    kept = np.sort(order[round(share * count) :]), np.sort(order[: round(share * count)])
    if not len(kept[0]):
        raise UnalikeError(f"test={share!r} leaves none of {count:,} rows to learn from: take a smaller share.")
    return torch.from_numpy(kept[0]), torch.from_numpy(kept[1])


def _classes(guest: Table) -> int | None:
    if guest.label_names is not None:
        return len(guest.label_names)
    assert guest.y is not None
    return None if guest.y.is_floating_point() else int(guest.y.max()) + 1


def _report(guest: Table, hosts: Sequence[Table], unmatched: str) -> Report:
    shared = {table.name: [c for c in table.columns if c in guest.columns] for table in hosts}
    report = Report(guest.name, {t.name: len(t) for t in (guest, *hosts)}, unmatched=unmatched, shared=shared)
    report.identified = {name: identifying(guest, columns) for name, columns in shared.items() if columns}
    report.twice = {table.name: table.left_out for table in (guest, *hosts)}
    return report


def _key(seed: int, name: str) -> bytes:
    """Return the secret number with which a simulated party masks its ids: a function of the seed, so that a run
    repeats."""
    return hashlib.sha256(f"simulated {seed} {name}".encode()).digest()
