"""Remarks about a table, one line each, that a user should read before learning from it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from unalike.data.schema import Schema

# from so many rows on, a different whole number in each looks like a row number
ROWS_OF_NUMBERS = 10
# from so many values on, a category gets a remark
MANY = 100


def missing_by_column(schema: Schema, x: np.ndarray) -> tuple[dict[str, int], np.ndarray]:
    """Return the number of missing cells of each column that has any, and of each row."""
    of_column, first = np.unique(schema.sources, return_index=True)
    gone = np.isnan(x[:, first])
    counts = {schema.columns[k].name: int(gone[:, k].sum()) for k in of_column}
    return {name: count for name, count in counts.items() if count}, gone.sum(1)


def missing_remark(schema: Schema, x: np.ndarray, clients: np.ndarray | None) -> list[str]:
    """Return a remark on the number of missing cells, their columns, and the client with most; empty if none is
    missing."""
    counts, by_row = missing_by_column(schema, x)
    if not counts:
        return []
    where = ""
    if clients is not None:
        names, owners = np.unique(clients, return_inverse=True)
        rows = np.bincount(owners, by_row > 0)
        worst = int(rows.argmax())
        where = f"; most in client {str(names[worst])!r} ({rows[worst]:.0f} of {(owners == worst).sum()} rows)"
    return [f"{counted(counts)}{where}."]


def counted(counts: Mapping[str, int]) -> str:
    """Return counts as text: '19 cells are missing: sex 11, …'."""
    total = sum(counts.values())
    return f"{total:,} {'cell is' if total == 1 else 'cells are'} missing: {each(counts)}"


def each(counts: Mapping[str, int]) -> str:
    """Return columns with their counts as text, largest first."""
    return some([f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1])])


def some(parts: Sequence[str]) -> str:
    """Return the first five parts as text, with a mark if there are more."""
    return ", ".join(parts[:5]) + (f" and {len(parts) - 5} more" if len(parts) > 5 else "")


def feature_remarks(schema: Schema, x: np.ndarray) -> Iterator[str]:
    """Yield remarks on columns that look like a row number, have very many categories, or are constant."""
    at, same = 0, []
    for column in schema.columns:
        width = len(column.features)
        values, values_known = x[:, at], ~np.isnan(x[:, at])
        at += width
        if column.kind == "category":
            constant, rows = width == 1, int(values_known.sum())
            if rows >= ROWS_OF_NUMBERS and width > 0.9 * rows:
                yield _own_number(column.name)
            elif width > MANY:
                yield f"{column.name} has {width} categories, a feature each: is it more than a code?"
        else:
            # a column with missing cells is not constant: a missing cell tells something too
            constant = values.min() == values.max()
            if column.kind == "number" and _numbers_rows(values):
                yield _own_number(column.name)
        if constant and values_known.all():
            same.append(column.name)
    if same:
        yield f"{'One column has' if len(same) == 1 else 'Columns have'} one value in all rows: {some(same)}."


def _own_number(name: str) -> str:
    return f"{name} looks like a row's own number: leave it out with --drop {shlex.quote(name)}."


def _numbers_rows(values: np.ndarray) -> bool:
    """Return whether values are whole numbers, different in every row; measurements repeat, or have fractions."""
    if len(values) < ROWS_OF_NUMBERS or not (values == np.floor(values)).all():
        return False
    return bool((np.diff(np.sort(values)) > 0).all())
