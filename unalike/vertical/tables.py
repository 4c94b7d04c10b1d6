"""One party's table: the person of each row (`id`), its columns as numbers, and at the guest the label."""

from __future__ import annotations

import dataclasses as dc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.data.coding import coded, coded_label, found_columns, found_label
from unalike.data.columns import Columns
from unalike.data.preparation import Preparation, Recipe, prepare
from unalike.data.schema import Schema
from unalike.data.table_files import opened
from unalike.errors import UnalikeError, did_you_mean, one_of
from unalike.vertical.psi import normal

NO_LABEL = ""
# if shared columns identify more than this share of rows, there is a warning
WIDE = 0.05


@dc.dataclass
class Table:
    """A party's rows. x: float64 [n, features] with NaN for missing cells; y: labels, at the guest; left_out: ids that
    occur twice, with the positions of their rows."""

    name: str
    ids: list[str]
    x: Tensor
    schema: Schema | None = None
    y: Tensor | None = None
    left_out: dict[str, list[str]] = dc.field(default_factory=dict)
    fold_case: bool = False  # whether ids are compared without their capitals

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def columns(self) -> list[str]:
        """Return the names of its columns."""
        if self.schema is None:
            return [f"{self.name} {k}" for k in range(self.x.shape[1])]
        return [column.name for column in self.schema.columns]

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Return the classes of the label, if it has classes."""
        return None if self.schema is None else self.schema.label_names

    def without(self, names: Sequence[str]) -> Table:
        """Return the table without some columns."""
        if not names or self.schema is None:
            return self
        kept = [k for k, source in enumerate(self.schema.sources) if self.schema.columns[source].name not in names]
        if not kept:
            raise UnalikeError(f"{self.name} has no column that is its own: {', '.join(names)} are others' too.")
        columns = tuple(column for column in self.schema.columns if column.name not in names)
        return dc.replace(self, x=self.x[:, kept], schema=dc.replace(self.schema, columns=columns))


def read_table(
    name: str,
    source: Any,
    id: str,
    label: str | None = None,
    drop: Sequence[str] = (),
    fold_case: bool = False,
    duplicates: str = "refuse",
    schema: Schema | None = None,
) -> Table:
    """Read a party's table: a CSV or parquet file, a data frame, a dict of columns, a list of rows.

    schema: of an earlier table, whose columns these must have; the label's column may then be missing.
    """
    one_of(_Duplicates(duplicates), "duplicates", "refuse", "drop")
    raw = opened(source)
    raw.what = str(source) if isinstance(source, (str, Path)) else f"the table of {name}"
    wanted = [id, *([label] if label and schema is None else []), *drop]
    wanted += [] if schema is None else [column.name for column in schema.columns]
    for column in wanted:
        if column not in raw.names:
            raise UnalikeError(f"{raw.what} has no column {column!r}.{did_you_mean(column, filter(None, raw.names))}")
    taken = {id, label, *drop}
    features = [c for c in raw.names if c not in taken] if schema is None else [c.name for c in schema.columns]
    if not features:
        raise UnalikeError(f"{raw.what} has no column beside {id!r} to learn from.")
    there = [label] if label and label in raw.names else []
    words = [id, *there, *([c.name for c in schema.columns if c.kind == "category"] if schema else [])]
    cells = raw.read([*dict.fromkeys([id, *there, *features])], words)
    ids = [normal(text, fold_case) for text in np.array(cells[id].values, object)[cells[id].codes].tolist()]  # type: ignore[union-attr]
    _check_ids(raw, id, ids)
    if schema is None:
        names = found_label(raw, label, cells[label], None)[0] if label else None  # type: ignore[arg-type]
        schema = Schema(found_columns(raw, cells, features, ()), label or NO_LABEL, names)
    x = torch.from_numpy(np.ascontiguousarray(coded(raw, schema, cells)[0], np.float64))
    y = torch.from_numpy(coded_label(raw, schema, cells[there[0]])) if there else None
    if y is not None and bool((y.isnan() if y.is_floating_point() else y < 0).any()):
        raise UnalikeError(f"The label {label!r} of {raw.what} is missing in some rows: fill it in or remove them.")
    twice = {one for one, count in Counter(ids).items() if count > 1}
    places = {one: [raw.place(k) for k, other in enumerate(ids) if other == one] for one in sorted(twice)[:20]}
    if twice and duplicates == "refuse":
        lines = ", ".join(place for where in places.values() for place in where)
        raise UnalikeError(
            f"{_times(len(twice))} in {raw.what} ({lines[:200]}): mend it, or leave them out with duplicates='drop' "
            "(--duplicates drop)."
        )
    kept = [k for k, one in enumerate(ids) if one not in twice]
    chosen = None if y is None else y[kept]
    return Table(name, [ids[k] for k in kept], x[kept], schema, chosen, places, fold_case)


def _times(count: int) -> str:
    return "1 id is twice" if count == 1 else f"{count:,} ids are twice"


def prepared(x: Tensor, train: Tensor, schema: Schema | None, scale: str) -> tuple[Tensor, Preparation | None]:
    """Return a party's aligned rows as its model sees them, and their preparation: standardised by its own training
    rows."""
    if scale == "none":
        return torch.nan_to_num(x, nan=0.0), None
    rows = x[train].numpy()
    recipe = Recipe.of(schema, x.shape[1], scale)
    found = prepare(Columns(torch.from_numpy(rows), torch.zeros(len(rows)), np.array([0, len(rows)])), recipe)
    return found.apply(x).double(), found


def identifying(table: Table, names: Sequence[str]) -> float:
    """Return the share of rows that these columns alone identify."""
    if table.schema is None or not len(table):
        return 0.0
    places = [k for k, s in enumerate(table.schema.sources) if table.schema.columns[s].name in names]
    rows = [row.tobytes() for row in np.nan_to_num(table.x[:, places].numpy(), nan=-1e300)]
    counts = Counter(rows)
    return sum(counts[row] == 1 for row in rows) / len(rows)


def _check_ids(raw: Any, column: str, ids: list[str]) -> None:
    if "" in ids:
        raise UnalikeError(f"The column {column!r} of {raw.what} is empty in {raw.place(ids.index(''))}: fill it in.")


@dc.dataclass
class _Duplicates:
    duplicates: str
