"""Your own table: CSV, parquet, a data frame or a Hugging Face data set, with a column that says whose row it is.

A table must be clean: every mistake that would make training fail, or succeed on nonsense, ends with one line that
names the column, the row and what to do.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import itertools
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from unalike.data.dataset import Dataset
from unalike.data.federation import Federation
from unalike.data.formats import as_number
from unalike.data.options import Scaling
from unalike.data.safety import reading
from unalike.errors import UnalikeError, did_you_mean
from unalike.settings.knobs import Knob
from unalike.settings.typed import short

DELIMITERS = ",;\t|"


@dataclass
class Table:
    """What was read: x float32 [n, …], y, its names, and the other columns that were asked for.

    `features` are the columns that x is made of, `feature_names` the names of x's columns ("sex=f" for a category).
    """

    x: np.ndarray
    y: np.ndarray
    features: list[str]
    feature_names: list[str]
    label_names: list[str] | None
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    categories: dict[str, list[str]] = field(default_factory=dict)


def from_table(
    source: Any,
    client: str,
    label: str,
    features: Sequence[str] | None = None,
    *,
    categorical: Sequence[str] = (),
    regression: bool = False,
    test: Any = None,
    validation: float = 0.0,
    seed: int = 0,
    delimiter: str | None = None,
    encoding: str = "utf-8-sig",
    scale: str = "standard",
) -> Federation:
    """A federation of a table's rows: one client for each value of the column `client`, named after it.

    `source` is a CSV or parquet file, a pandas, polars or pyarrow table, or a dict of columns. `features` are all
    other columns where not given; those in `categorical` become one 0/1 feature a value. The label's values become
    0, 1, … in sorted order, and `label_names` of the result keeps them; with `regression` the label is a number.
    `test` is a share to hold out of every client (0.2), or a second table for the global test set.
    """
    share = test if isinstance(test, (int, float)) else 0.0
    data = table_dataset(
        source, label, features, client=client, categorical=categorical, regression=regression,
        test=None if isinstance(test, (int, float)) else test, delimiter=delimiter, encoding=encoding,
        scale=scale,
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
    columns: Sequence[str] = (),
    categorical: Annotated[Sequence[str], Knob("features that are words or codes: one 0/1 feature a value")] = (),
    regression: Annotated[bool, Knob("the label is a number, not a class")] = False,
    test: Any = None,
    name: str | None = None,
    delimiter: Annotated[str | None, Knob("what divides the table's columns, where it is not found")] = None,
    encoding: Annotated[str, Knob("of the table's text, such as latin-1")] = "utf-8-sig",
    scale: Scaling = "standard",
) -> Dataset:
    """The same table as one pooled Dataset, for a partition to deal out; `client`, if any, is its natural column.

    `columns` are further columns to keep beside the features, such as a region to partition by. `test` may only be
    a second table here: a share is held out by `Dataset.split`.
    """
    if isinstance(test, (int, float)):
        raise UnalikeError(f"test={test!r} is a share: give it to Dataset.split, or give a second table here.")
    options: dict[str, Any] = {"categorical": categorical, "regression": regression}
    kept = [*dict.fromkeys([*([] if client is None else [client]), *columns])]
    table = read_table(_opened(source, delimiter, encoding), label, features, columns=kept, **options)
    if client is not None and len(np.unique(table.columns[client])) == len(table.y) > 2:
        raise UnalikeError(
            f"The client column {client!r} has another value in each of {len(table.y)} rows: it looks like a row's "
            "own number; name the column that says whose row it is."
        )
    beside: dict[str, Any] = {}
    if test is not None:
        raw = _opened(test, delimiter, encoding)
        there = [name for name in kept if name in raw.names]  # a test table need not say whose row it is
        second = read_table(raw, label, table.features, columns=there, like=table, **options)
        beside = {"test": (second.x, second.y), "test_columns": second.columns}
    name = name or (Path(source).stem if isinstance(source, (str, os.PathLike)) else "table")
    classes = None if table.label_names is None else len(table.label_names)
    return Dataset(
        table.x, table.y, classes=classes, name=name, columns=table.columns, natural=client,
        label_names=table.label_names, scale=scale if table.x.ndim == 2 else None, **beside,
    )  # fmt: skip


def from_huggingface(
    data: Any,
    client: str,
    label: str,
    features: Sequence[str] | None = None,
    *,
    image: str | None = None,
    **options: Any,
) -> Federation:
    """A federation of a Hugging Face `datasets` object, with a client for each value of the column `client`.

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
    names = getattr(data.features[label], "names", None)  # of a ClassLabel, whose values are numbers
    if names and fed.label_names:
        return fed.replace(label_names=[names[int(value)] for value in fed.label_names])
    return fed


def read_table(
    source: Any,
    label: str,
    features: Sequence[str] | None = None,
    *,
    columns: Sequence[str] = (),
    categorical: Sequence[str] = (),
    regression: bool = False,
    like: Table | None = None,
) -> Table:
    """Features, labels and further columns of a table, checked. `like` is a table whose codes are to be used."""
    for word, given in (("features", features), ("categorical", categorical), ("columns", columns)):
        if isinstance(given, str):
            raise UnalikeError(f"{word}={given!r} must be a list of column names: write [{given!r}].")
    raw = source if isinstance(source, (_Csv, _Frame)) else _opened(source, None, "utf-8-sig")
    _check_names(raw, [label, *columns, *(features or []), *categorical])
    if label in columns:
        raise UnalikeError(f"The column {label!r} is the label and also kept as a column: name another.")
    if features is None:
        features = [name for name in raw.names if name not in (label, *columns)]
    _check_features(raw, features, categorical, [label, *columns])
    numbers = [name for name in features if name not in categorical]
    found, texts = raw.read(numbers, [*dict.fromkeys([label, *columns, *categorical])])
    y, label_names = _labels(raw, label, texts[label], regression, like)
    kept = {name: _whole_or_text(texts[name]) for name in columns}
    table = Table(np.zeros(0), y, list(features), [], label_names, kept)
    blocks = []
    for name in features:
        if name in categorical:
            values, codes = _coded(raw, name, texts[name], None if like is None else like.categories[name])
            blocks.append(np.eye(len(values), dtype=np.float32)[codes])
            table.feature_names += [f"{name}={value}" for value in values]
            table.categories[name] = values
        else:
            blocks.append(found[name] if len(features) == 1 < found[name].ndim else found[name].reshape(len(y), -1))
            table.feature_names.append(name)
    table.x = np.concatenate(blocks, axis=1) if len(blocks) > 1 else blocks[0]
    return table


def remarks(fed: Federation) -> list[str]:
    """What is worth knowing of the clients before methods are compared: those with one sample, or one class."""
    kinds = [(fed.sizes == 1, "one sample", "nothing of theirs can be held out for a test")]
    if fed.classes is not None:
        single = (fed.label_counts() > 0).sum(1) == 1
        kinds.append((single & (fed.sizes > 1), "samples of one class", "their own accuracy says little"))
    found = [(np.flatnonzero(which), what, hence) for which, what, hence in kinds if which.any()]
    return [f"{len(k)} of {len(fed)} clients have {what} ({fed.some_names(k)}): {hence}." for k, what, hence in found]


# ---- what a column means


def _labels(
    raw: _Csv | _Frame, label: str, texts: list[str], regression: bool, like: Table | None
) -> tuple[np.ndarray, list[str] | None]:
    if regression:
        return _as_numbers(raw, label, texts, "is the target of a regression"), None
    values, codes = _coded(raw, label, texts, None if like is None else like.label_names)
    if like is not None:
        return codes, values
    numbers = {value: number for value in values if (number := as_number(value)) is not None}
    endless = next((value for value, number in numbers.items() if not math.isfinite(number)), None)
    if endless is not None:
        place = raw.place(texts.index(endless))
        raise UnalikeError(
            f"The label column {label!r} of {raw.what} has {endless} in {place}: fill it in or remove the row."
        )
    fractions = [f"has fractions such as {value}" for value, number in numbers.items() if not number.is_integer()]
    if fractions or len(values) == len(texts) > 2:
        why = fractions[0] if fractions else f"has another value in each of {len(texts)} rows"
        raise UnalikeError(
            f"The label column {label!r} of {raw.what} {why}: it looks like a regression target or a row's own number; "
            "set `regression`, or name the column of classes."
        )
    if len(values) == 1:
        raise UnalikeError(f"The label column {label!r} of {raw.what} is {values[0]!r} in every row: nothing to learn.")
    return codes, values


def _coded(raw: _Csv | _Frame, name: str, texts: list[str], known: list[str] | None) -> tuple[list[str], np.ndarray]:
    """The values and their place in sorted order, or in the order of the table that was trained on."""
    values, codes = _numbered(texts)
    if known is None:
        return values, codes
    place = {value: i for i, value in enumerate(known)}
    for value in values:
        if value not in place:
            row = texts.index(value)
            raise UnalikeError(
                f"The column {name!r} of {raw.what} has {short(value)} in {raw.place(row)}, which the training table "
                "never has: remove the row, or add such rows to the training table."
            )
    return known, np.array([place[value] for value in values], np.int64)[codes]


def _numbered(texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Distinct values in sorted order (as numbers where all are) and the place of each."""
    first: dict[str, int] = {}
    codes = np.array([first.setdefault(text, len(first)) for text in texts], np.int64)
    values = list(first)
    numbers = [as_number(value) for value in values]
    all_numbers = None not in numbers
    order = sorted(range(len(values)), key=lambda i: (numbers[i] if all_numbers else 0.0, values[i]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return [values[i] for i in order], rank[codes]


def _whole_or_text(texts: list[str]) -> np.ndarray:
    """Whole numbers where all are, so that client 2 comes before client 10; else text. '007' is text."""
    whole = all(text.removeprefix("-").isdecimal() and len(text) < 19 and str(int(text)) == text for text in texts)
    return np.array(texts, np.int64) if whole else np.array(texts)


def _as_numbers(raw: _Csv | _Frame, name: str, values: Any, role: str) -> np.ndarray:
    """float32 of a column, or the line that says which row is no number."""
    try:
        if any(isinstance(value, str) and not _plain(value) for value in values):
            raise ValueError  # 1_000 and digits of other scripts are numbers to Python and a slip in a table
        with np.errstate(over="ignore"):
            numbers = np.asarray(values, np.float64).astype(np.float32)
    except (ValueError, TypeError):
        numbers = np.zeros(0, np.float32)
    if len(numbers) != len(values) or not np.isfinite(numbers).all():
        row = next(i for i, value in enumerate(values) if not _finite(value))
        value, place = values[row], raw.place(row)
        value = value.item() if isinstance(value, np.generic) else value
        if _missing(value):
            raise UnalikeError(f"The column {name!r} of {raw.what} is empty in {place}: fill it in or remove the row.")
        cure = "mend it, name the column in `categorical` if it holds words, or leave it out of `features`"
        raise UnalikeError(f"The column {name!r} of {raw.what} {role} but has {short(value)} in {place}: {cure}.")
    return numbers


def _plain(text: str) -> bool:
    return text.isascii() and "_" not in text


def _finite(value: Any) -> bool:
    if isinstance(value, str) and not _plain(value):
        return False
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(value, np.float64).astype(np.float32)).all())
    except (ValueError, TypeError):
        return False


def _missing(value: Any) -> bool:
    """None, an empty cell, NaN in a frame, or pandas' own marks."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
        or type(value).__name__ in ("NAType", "NaTType")
    )


def _filled(raw: _Csv | _Frame, name: str, texts: list[str]) -> list[str]:
    if not all(texts):
        place = raw.place(texts.index(""))
        raise UnalikeError(f"The column {name!r} of {raw.what} is empty in {place}: fill it in or remove the row.")
    return texts


def _check_names(raw: _Csv | _Frame, wanted: Sequence[str]) -> None:
    twice = next((name for i, name in enumerate(raw.names) if name in raw.names[:i]), None)
    if twice is not None:
        raise UnalikeError(f"{raw.what} has two columns called {twice!r}: rename one.")
    for name in wanted:
        if name not in raw.names:
            raise UnalikeError(f"{raw.what} has no column {name!r}.{did_you_mean(str(name), filter(None, raw.names))}")


def _check_features(
    raw: _Csv | _Frame, features: Sequence[str], categorical: Sequence[str], others: Sequence[str]
) -> None:
    if "" in features:
        raise UnalikeError(
            f"{raw.what} has a column without a name (column {raw.names.index('') + 1}): name it, or save the table "
            "without row numbers (pandas: index=False)."
        )
    for name in features:
        if name in others:
            raise UnalikeError(f"The column {name!r} is the label or the client: leave it out of features.")
    for name in categorical:
        if name not in features:
            raise UnalikeError(f"The column {name!r} is categorical but not a feature: add it to features.")
    if not features:
        beside = " and ".join(map(repr, others))
        raise UnalikeError(f"Of {raw.what} one column or more must be features, besides {beside}.")
    if len(set(features)) < len(features):
        raise UnalikeError(f"features={short(list(features))} must name each column once.")


# ---- where the columns come from


class _Csv:
    """A CSV file. numpy reads it; where numpy stumbles it is read again row by row, to say exactly where and why."""

    def __init__(self, path: Path, delimiter: str | None, encoding: str):
        self.path, self.what, self.encoding = path, str(path), encoding
        with self._reading():
            with open(path, encoding=encoding, newline="") as file:
                head = next(filter(str.strip, file), "")
            self.delimiter = delimiter or max(DELIMITERS, key=head.count)
            self.names = [name.strip() for name in next(self._rows(), [])]
        if not any(self.names):
            raise UnalikeError(f"{path} is empty: its first line must name the columns.")
        if len(self.names) == 1:
            raise UnalikeError(
                f"{path} has a single column {short(self.names[0])}: set `delimiter` if another sign divides them."
            )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with reading(self.path, "CSV table"):
            try:
                yield
            except UnicodeDecodeError:
                kind = self.encoding.removesuffix("-sig")
                raise UnalikeError(
                    f"{self.what} is not {kind} text: save it so, or set `encoding`, such as latin-1 or utf-16."
                ) from None
            except csv.Error as error:
                raise UnalikeError(f"{self.what}, line {self.reader.line_num} is no CSV ({error}): mend it.") from None

    def _rows(self) -> Iterator[list[str]]:
        """Every row that is not blank, the names first."""
        with open(self.path, encoding=self.encoding, newline="") as file:
            self.reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            yield from filter(None, self.reader)

    def place(self, row: int) -> str:
        """How messages call a data row: by its line in the file, found by reading again."""
        for _ in itertools.islice(self._rows(), row + 2):
            pass
        return f"line {self.reader.line_num}"

    def read(self, numbers: Sequence[str], texts: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
        with self._reading():
            columns = self._at_once(numbers, texts) or self._row_by_row(numbers, texts)
        filled = {name: _filled(self, name, [text.strip() for text in columns[name]]) for name in texts}
        return {name: columns[name] for name in numbers}, filled

    def _at_once(self, numbers: Sequence[str], texts: Sequence[str]) -> dict[str, Any] | None:
        """Every column by name, or None where anything is not as it should be."""
        kinds = {name: "f8" for name in numbers} | {name: "O" for name in texts}
        places = {name: f"f{i}" for i, name in enumerate(self.names)}
        dtype = np.dtype([(places[name], kinds.get(name, "U1")) for name in self.names])  # U1: looked at by nobody
        with open(self.path, encoding=self.encoding, newline="") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, of a file without rows
            next(filter(None, csv.reader(file, delimiter=self.delimiter)))
            try:
                rows = np.loadtxt(file, dtype, comments=None, delimiter=self.delimiter, quotechar='"', ndmin=1)
            except (ValueError, TypeError):
                return None
        found = {name: rows[places[name]] for name in kinds}
        with np.errstate(over="ignore"):
            found |= {name: found[name].astype(np.float32) for name in numbers}
        return found if len(rows) and all(np.isfinite(found[name]).all() for name in numbers) else None

    def _row_by_row(self, numbers: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
        rows = list(self._rows())[1:]
        if not rows:
            raise UnalikeError(f"{self.what} has column names but no rows: add some.")
        for i, cells in enumerate(rows):
            if len(cells) != len(self.names):
                raise UnalikeError(
                    f"{self.what} has {len(cells)} cells in {self.place(i)} and {len(self.names)} column names: "
                    "mend the line, or set `delimiter`."
                )
        columns = dict(zip(self.names, zip(*rows, strict=True), strict=True))
        found = {name: _as_numbers(self, name, columns[name], "is a number") for name in numbers}
        return found | {name: columns[name] for name in texts}


class _Frame:
    """A table in memory: pandas, polars, pyarrow, Hugging Face, or a dict of columns."""

    def __init__(self, frame: Any):
        self.frame, self.what = frame, "the table"
        names = getattr(frame, "column_names", None)  # pyarrow, Hugging Face
        names = getattr(frame, "columns", None) if names is None else names  # pandas, polars
        if names is None and isinstance(frame, Mapping):
            names = list(frame)
        if names is None:
            raise UnalikeError(
                f"A {type(frame).__name__} is no table: give a CSV or parquet file, a data frame or a dict of columns."
            )
        self.names = [str(name) for name in names]
        self.keys = dict(zip(self.names, names, strict=True))

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def column(self, name: str) -> np.ndarray:
        values = self.frame[self.keys[name]]
        if hasattr(values, "to_numpy"):
            return values.to_numpy()
        values = list(values)
        pictures = values and hasattr(values[0], "getbands")  # Pillow's
        try:
            return np.stack([_pixels(image) for image in values]) if pictures else np.asarray(values)
        except ValueError:
            unequal = f"The column {name!r} of {self.what} has rows of unequal shape: make them equal."
            raise UnalikeError(unequal) from None

    def read(self, numbers: Sequence[str], texts: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
        columns = {name: self.column(name) for name in [*numbers, *texts]}
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise UnalikeError(f"The columns of {self.what} have unequal lengths {short(sizes)}: make them equal.")
        if not next(iter(sizes.values())):
            raise UnalikeError(f"{self.what} has columns but no rows: add some.".capitalize())
        return (
            {name: _as_numbers(self, name, columns[name], "is a number") for name in numbers},
            {name: _filled(self, name, _texts(columns[name])) for name in texts},
        )


def _pixels(image: Any) -> np.ndarray:
    """A Pillow image as floats in 0..1, [channels, height, width]."""
    plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
    pixels = np.asarray(plain, np.float32) / 255
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _texts(values: np.ndarray) -> list[str]:
    """Every value as text; missing ones as ""; whole numbers that pandas made floats as whole numbers."""
    if values.dtype.kind == "f":
        whole = bool(np.all(np.isnan(values) | (np.floor(values) == values)))
        return ["" if value != value else str(int(value)) if whole else str(value) for value in values.tolist()]
    return ["" if _missing(value) else str(value).strip() for value in values.tolist()]


def _opened(source: Any, delimiter: str | None, encoding: str) -> _Csv | _Frame:
    if not isinstance(source, (str, os.PathLike)):
        return _Frame(source)
    path = Path(source)
    if path.suffix.lower() not in (".parquet", ".pq"):
        return _Csv(path, delimiter, encoding)
    with reading(path, "parquet table"):
        frame = _Frame(_parquet(path))
    frame.what = str(path)
    return frame


def _parquet(path: Path) -> Any:
    """Through whichever of the three is installed; the first is what the others use."""
    for module, function in (("pyarrow.parquet", "read_table"), ("polars", "read_parquet"), ("pandas", "read_parquet")):
        try:
            read = getattr(importlib.import_module(module), function)
        except ImportError:
            continue
        return read(path)
    raise UnalikeError(f"Reading {path} needs pyarrow, polars or pandas: pip install pyarrow, or save it as CSV.")
