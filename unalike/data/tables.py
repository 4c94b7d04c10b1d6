"""A user's own table: CSV, parquet, a data frame or a Hugging Face data set, with a column that names each row's
client.

The kinds of its columns are found by looking (`coding`), and guesses are reported in remarks. Every mistake that would
make training fail, or succeed on nonsense, ends in one line that names the column, the row and what to do.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from unalike.data.cells import Words
from unalike.data.coding import coded, coded_label, found_columns, found_label
from unalike.data.dataset import Dataset
from unalike.data.federation import Federation
from unalike.data.options import Scaling
from unalike.data.remarks import counted, each, feature_remarks, missing_by_column, missing_remark, some
from unalike.data.schema import Schema
from unalike.data.table_files import Cells, Csv, Frame, opened
from unalike.errors import UnalikeError, did_you_mean, either
from unalike.settings.knobs import Knob
from unalike.settings.typed import short

MISSING = ("impute", "drop", "refuse")
UNSEEN = ("ignore", "refuse")


def from_table(
    source: Any,
    client: str,
    label: str,
    features: Sequence[str] | None = None,
    *,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    regression: bool | None = None,
    missing: str = "impute",
    unseen: str = "ignore",
    test: Any = None,
    validation: float = 0.0,
    seed: int = 0,
    delimiter: str | None = None,
    encoding: str = "utf-8-sig",
    scale: str = "standard",
) -> Federation:
    """Return a federation of a table's rows: one client for each value of the column `client`, named after it.

    `source` is a CSV or parquet file, a pandas, polars or pyarrow table, a dict of columns or a list of rows.
    `features` are all other columns where not given, without those in `drop`; those in `categorical` become one 0/1
    feature per value. The label's values become 0, 1, … in sorted order, and `label_names` of the result keeps them;
    with `regression` the label is a number. `missing` and `unseen` are as in `table_dataset`.
    `test` is a share to hold out of every client (0.2), or a second table for the global test set.
    """
    share = test if isinstance(test, (int, float)) else 0.0
    data = table_dataset(
        source, label, features, client=client, drop=drop, categorical=categorical, regression=regression,
        missing=missing, unseen=unseen, test=None if isinstance(test, (int, float)) else test, delimiter=delimiter,
        encoding=encoding, scale=scale,
    )  # fmt: skip
    for line in remarks(data.split(raw=True)):
        warnings.warn(line, stacklevel=2)
    return data.split(test=share, validation=validation, seed=seed)


def table_dataset(
    source: Any,
    label: Annotated[str, Knob("the table's column to be learned")],
    features: Annotated[Sequence[str] | None, Knob("the table's columns to learn from; without it, all others")] = None,
    *,
    client: Annotated[str | None, Knob("the table's column that says whose row it is")] = None,
    time: Annotated[str | None, Knob("the table's column that says when it was, for the partition periods")] = None,
    columns: Sequence[str] = (),
    drop: Annotated[Sequence[str], Knob("columns of the table to leave out, such as a row's number")] = (),
    categorical: Annotated[Sequence[str], Knob("features that are words or codes: one 0/1 feature per value")] = (),
    regression: Annotated[bool | None, Knob("the label is a number, not a class; without it, by looking")] = None,
    missing: Annotated[
        str, Knob("rows with missing cells are filled in, left out or refused", choices=MISSING)
    ] = MISSING[0],
    unseen: Annotated[
        str, Knob("words that only the test table has are no feature, or refused", choices=UNSEEN)
    ] = UNSEEN[0],
    test: Any = None,
    name: str | None = None,
    delimiter: Annotated[str | None, Knob("what divides the table's columns, where it is not found")] = None,
    encoding: Annotated[str, Knob("of the table's text, such as latin-1")] = "utf-8-sig",
    scale: Scaling = "standard",
) -> Dataset:
    """Return the same table as one pooled Dataset, for a partition to deal out; `client`, if any, is its natural
    column, `time` the one that 'periods' goes by: whole numbers, or texts that sort as times do, such as 2024-03-01.

    x is float64 with NaN in every feature of a missing cell (missing="impute": what is done about them is decided
    when the clients' data are prepared); "drop" leaves such rows out, "refuse" raises. A category that only the test
    table has is zero in all features of its column, or an error with unseen="refuse". `schema` of the result says
    what the features are, `notes` what is worth knowing. A single column of windows or pictures keeps its shape, is
    float32 and has no schema.

    `columns` are further columns to keep beside the features, such as a region to partition by. `test` may only be
    a second table here: a share is held out by `Dataset.split`.
    """
    if isinstance(test, (int, float)):
        raise UnalikeError(f"test={test!r} is a share: give it to Dataset.split, or give a second table here.")
    for word, given, choices in (("missing", missing, MISSING), ("unseen", unseen, UNSEEN)):
        if given not in choices:
            raise UnalikeError(f"{word} must be {either(choices)}; got {given!r}.")
    raw = opened(source, delimiter, encoding)
    kept = [*dict.fromkeys([name for name in (client, time, *columns) if name is not None])]
    features = _features(raw, label, features, kept, categorical, drop)
    cells = raw.read([*dict.fromkeys([label, *kept, *features])], [label, *kept, *categorical])
    name = name or (Path(source).stem if isinstance(source, (str, os.PathLike)) else "table")
    if missing != "drop":
        _check_filled(raw, cells, [label, *kept])
    schema, notes = _schema(raw, cells, features, label, categorical, regression)
    part = _part(raw, schema, cells, kept, missing, unseen)
    # classes and categories are found again from the rows that are left
    if part.dropped.any():
        notes = [f"{part.dropped.sum()} of {len(part.dropped)} rows have a missing cell and are left out."]
        whose = None if client is None else _words(cells[client])
        cells = {name: column[~part.dropped] for name, column in cells.items()}
        schema, more = _schema(raw, cells, features, label, categorical, regression)
        if client is not None and whose is not None and (gone := {*whose.filled} - {*_words(cells[client]).filled}):
            notes.append(f"Clients without a row that is left: {some(sorted(gone))}.")
        notes, part = notes + more, _part(raw, schema, cells, kept, missing, unseen)
    if client is not None:
        _check_clients(client, part.columns[client])
    table = part.x.dtype == np.float64  # otherwise a single column of windows
    notes += (
        [*missing_remark(schema, part.x, part.columns.get(client or "")), *feature_remarks(schema, part.x)]
        if table
        else []
    )
    beside: dict[str, Any] = {}
    if test is not None:
        second = _second(opened(test, delimiter, encoding), schema, kept, missing, unseen)
        beside, notes = {"test": (second.x, second.y), "test_columns": second.columns}, notes + second.notes
    names = schema.label_names
    return Dataset(
        part.x, part.y, classes=None if names is None else len(names), name=name, columns=part.columns,
        natural=client, time=time, label_names=names, schema=schema if table else None, notes=notes,
        scale=scale if table else None, **beside,
    )  # fmt: skip


def encoded(
    schema: Schema,
    source: Any,
    *,
    label: bool = True,
    unseen: str = "ignore",
    delimiter: str | None = None,
    encoding: str = "utf-8-sig",
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return rows of another table coded by the schema: x float64 with NaN in missing cells, and y.

    `source` is anything that `from_table` takes, such as a list of dicts. Its columns may be in any order, and there
    may be more than are needed. y is None if the label's column is missing, or with label=False.
    """
    raw = opened(source, delimiter, encoding)
    if not label or schema.label not in raw.names:
        return coded(raw, schema, _read(raw, schema, []), unseen)[0], None
    second = _second(raw, schema, [], "impute", unseen)
    return second.x, second.y


def from_huggingface(
    data: Any,
    client: str,
    label: str,
    features: Sequence[str] | None = None,
    *,
    image: str | None = None,
    **options: Any,
) -> Federation:
    """Return a federation of a Hugging Face `datasets` object, with a client for each value of the column `client`.

    `image` names a column of images, which become floats in 0..1 of shape [channels, height, width]; otherwise the
    columns are taken as `from_table` takes them, with its options. Of a DatasetDict the part "train" is dealt out
    and the part "test", where there is one, is the global test set.
    """
    if isinstance(data, Mapping):
        if "train" not in data:
            raise UnalikeError(f"The data set has the parts {', '.join(data)} but no 'train': give one part of it.")
        if "test" in data and "test" not in options:
            options["test"] = data["test"]
        data = data["train"]
    if not hasattr(data, "column_names") or not hasattr(data, "features"):
        raise UnalikeError(f"A {type(data).__name__} is no Hugging Face data set: use from_table for other tables.")
    fed = from_table(data, client, label, features if image is None else [image], **options)
    names = getattr(data.features[label], "names", None)  # a ClassLabel, whose values are numbers
    if names and fed.label_names:
        return fed.replace(label_names=[names[int(value)] for value in fed.label_names])
    return fed


def remarks(fed: Federation) -> list[str]:
    """Return remarks to read before methods are compared: about the table, and about clients with a single sample or a
    single class."""
    kinds = [(fed.sizes == 1, "one sample", "nothing of theirs can be held out for a test")]
    if fed.classes is not None:
        single = (fed.label_counts() > 0).sum(1) == 1
        kinds.append((single & (fed.sizes > 1), "samples of one class", "their own accuracy says little"))
    found = [(np.flatnonzero(which), what, hence) for which, what, hence in kinds if which.any()]
    clients = [
        f"{len(k)} of {len(fed)} clients have {what} ({fed.some_names(k)}): {hence}." for k, what, hence in found
    ]
    return [*fed.notes, *clients]


# ---- from columns to x and y


@dataclass
class _Part:
    """Rows of a table as numbers. `dropped` marks the rows to be left out because of a missing cell."""

    x: np.ndarray
    y: np.ndarray
    columns: dict[str, np.ndarray]
    dropped: np.ndarray
    notes: list[str]


def _schema(
    raw: Csv | Frame,
    cells: Mapping[str, Cells],
    features: Sequence[str],
    label: str,
    categorical: Sequence[str],
    regression: bool | None,
) -> tuple[Schema, list[str]]:
    """Return what the columns are, and remarks on everything that was guessed."""
    labels, said = found_label(raw, label, _words(cells[label]), regression)
    for name in features:
        shape = getattr(cells[name], "shape", (0,))[1:]
        if shape and len(features) > 1:
            raise UnalikeError(
                f"The column {name!r} of {raw.what} has {list(shape)} numbers per row: such a column must be the only "
                f"feature; write features=[{name!r}]."
            )
    columns = found_columns(raw, cells, features, categorical)
    guessed = [c for c in columns if c.kind == "category" and c.name not in categorical]
    notes = [said] if said else []
    if guessed:
        each = some([f"{c.name} ({len(c.values)} values)" for c in guessed])
        notes.append(f"Columns of words are taken as categories: {each}.")
    return Schema(columns, label, labels), notes


def _part(
    raw: Csv | Frame, schema: Schema, cells: Mapping[str, Cells], kept: Sequence[str], missing: str, unseen: str
) -> _Part:
    """Return columns coded by the schema."""
    words = {name: _words(cells[name]) for name in (schema.label, *kept)}
    x, strange = coded(raw, schema, cells, unseen)
    dropped = np.zeros(len(x), bool)
    if missing == "refuse":
        _check_none_missing(raw, schema, x)
    if missing == "drop":
        dropped = np.isnan(x.reshape(len(x), -1)).any(1) | np.logical_or.reduce(
            [column.missing for column in words.values()]
        )
        if dropped.all():
            raise UnalikeError(f"Every row of {raw.what} has a missing cell: drop columns instead, with --drop.")
    y = coded_label(raw, schema, words[schema.label])
    notes = []
    if strange:
        notes = [f"{raw.what} has words that the training table never has, taken as none: {each(strange)}."]
    return _Part(x, y, {name: _whole_or_text(words[name]) for name in kept}, dropped, notes)


def _second(raw: Csv | Frame, schema: Schema, kept: Sequence[str], missing: str, unseen: str) -> _Part:
    """Return the test table, coded like the training table; it needs no client column."""
    there = [name for name in kept if name in raw.names]
    cells = _read(raw, schema, [schema.label, *there])
    if missing != "drop":
        _check_filled(raw, cells, [schema.label, *there])
    part = _part(raw, schema, cells, there, missing, unseen)
    if not part.dropped.any():
        return part
    left = {name: column[~part.dropped] for name, column in cells.items()}
    line = f"{part.dropped.sum()} of {len(part.dropped)} rows of {raw.what} have a missing cell and are left out."
    part = _part(raw, schema, left, there, missing, unseen)
    part.notes.append(line)
    return part


def _read(raw: Csv | Frame, schema: Schema, others: Sequence[str]) -> dict[str, Cells]:
    """Read the schema's columns and `others` from a table, as far as they are needed."""
    names = [column.name for column in schema.columns]
    _check_names(raw, [*names, *others])
    categories = [column.name for column in schema.columns if column.kind == "category"]
    return raw.read([*names, *others], [*categories, *others])


def _words(cells: Cells) -> Words:
    assert isinstance(cells, Words)  # labels, clients and categories are read as texts
    return cells


def _whole_or_text(words: Words) -> np.ndarray:
    """Return whole numbers if all values are, so that client 2 comes before client 10; else text. '007' is text."""
    texts = words.values
    whole = all(text.removeprefix("-").isdecimal() and len(text) < 19 and str(int(text)) == text for text in texts)
    return (np.array(texts, np.int64) if whole else np.array(texts))[words.codes]


# ---- checks


def _check_clients(client: str, values: np.ndarray) -> None:
    if len(np.unique(values)) == len(values) > 2:
        raise UnalikeError(
            f"The client column {client!r} has another value in each of {len(values)} rows: it looks like a row's "
            "own number; name the column that says whose row it is."
        )


def _check_filled(raw: Csv | Frame, cells: Mapping[str, Cells], names: Sequence[str]) -> None:
    """Raise, with one line, if a row lacks its label or client."""
    for name in names:
        gone = _words(cells[name]).missing
        if gone.any():
            others = f" and in {gone.sum() - 1:,} other rows" if gone.sum() > 1 else ""
            raise UnalikeError(
                f"The column {name!r} of {raw.what} is empty in {raw.place(int(gone.argmax()))}{others}: fill it in, "
                "or leave such rows out with --missing drop."
            )


def _check_none_missing(raw: Csv | Frame, schema: Schema, x: np.ndarray) -> None:
    counts, by_row = missing_by_column(schema, x)
    if counts:
        place = raw.place(int((by_row > 0).argmax()))
        raise UnalikeError(
            f"Of {raw.what} {counted(counts)}; the first in {place}: fill them in, or set `missing` to impute or drop."
        )


def _check_names(raw: Csv | Frame, wanted: Sequence[str]) -> None:
    twice = next((name for i, name in enumerate(raw.names) if name in raw.names[:i]), None)
    if twice is not None:
        raise UnalikeError(f"{raw.what} has two columns called {twice!r}: rename one.")
    for name in wanted:
        if name not in raw.names:
            raise UnalikeError(f"{raw.what} has no column {name!r}.{did_you_mean(str(name), filter(None, raw.names))}")


def _features(
    raw: Csv | Frame,
    label: str,
    features: Sequence[str] | None,
    kept: Sequence[str],
    categorical: Sequence[str],
    drop: Sequence[str],
) -> list[str]:
    """Return the columns to learn from; raise if the given names contradict each other."""
    lists = {"features": features, "categorical": categorical, "columns": kept, "drop": drop}
    for word, given in lists.items():
        if isinstance(given, str):
            raise UnalikeError(f"{word}={given!r} must be a list of column names: write [{given!r}].")
    _check_names(raw, [label, *kept, *(features or []), *categorical, *drop])
    others = [label, *kept]
    if label in kept:
        raise UnalikeError(f"The column {label!r} is the label and also kept as a column: name another.")
    for name in drop:
        if name in others or name in (features or []):
            what = "the label, the client or the time" if name in others else "a feature"
            raise UnalikeError(f"The column {name!r} is {what}: it cannot be dropped.")
    chosen = [name for name in raw.names if name not in (*others, *drop)] if features is None else [*features]
    if "" in chosen:
        raise UnalikeError(
            f"{raw.what} has a column without a name (column {raw.names.index('') + 1}): name it, or save the table "
            "without row numbers (pandas: index=False)."
        )
    for name in chosen:
        if name in others:
            raise UnalikeError(f"The column {name!r} is the label, the client or the time: leave it out of features.")
    for name in categorical:
        if name not in chosen:
            raise UnalikeError(f"The column {name!r} is categorical but not a feature: add it to features.")
    if not chosen:
        beside = " and ".join(map(repr, others))
        raise UnalikeError(f"Of {raw.what} one column or more must be features, besides {beside}.")
    if len(set(chosen)) < len(chosen):
        raise UnalikeError(f"features={short(chosen)} must name each column once.")
    return chosen
