"""Sources of a table's columns: a CSV or parquet file, a data frame, a dict of columns, rows as dicts."""

from __future__ import annotations

import contextlib
import csv
import importlib
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unalike.data.cells import LARGEST, Words, missing, number
from unalike.data.safety import reading
from unalike.errors import UnalikeError
from unalike.settings.typed import short

DELIMITERS = ",;\t|"
# first rows that decide which columns of a file are tried as numbers
LOOKED_AT = 100
# marks that float() refuses
AS_NAN = {mark: "nan" for mark in ("", " ", "NA", "N/A", "null", "NULL", "None", "?", "-", ".")}

# A column: float64 [n] (or [n, ...]) with NaN for missing cells, datetime64 [n], bool [n], or texts.
Cells = np.ndarray | Words


class Csv:
    """A CSV file. numpy reads it; if numpy fails, it is read again row by row, to say exactly where and why."""

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
        """Yield every row that is not blank, the names first."""
        with open(self.path, encoding=self.encoding, newline="") as file:
            self.reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            yield from filter(None, self.reader)

    def place(self, row: int) -> str:
        """Return how messages refer to a data row: by its line in the file, found by reading again."""
        for _ in itertools.islice(self._rows(), row + 2):
            pass
        return f"line {self.reader.line_num}"

    def read(self, names: Sequence[str], words: Iterable[str]) -> dict[str, Cells]:
        """Return these columns; those in `words` stay texts, the others become numbers if all cells are."""
        with self._reading():
            numbers = self._numbers([name for name in names if name not in {*words}])
            return self._at_once(numbers, names) or self._row_by_row(numbers, names)

    def _numbers(self, names: Sequence[str]) -> dict[str, bool]:
        """Return the columns that are numbers, judged by the first rows, and whether these rows have no missing
        cell."""
        rows = [*itertools.islice(self._rows(), LOOKED_AT + 1)][1:]
        place = {name: k for k, name in enumerate(self.names)}
        cells = {name: [row[place[name]].strip() for row in rows if len(row) > place[name]] for name in names}
        whole = {name: [number(cell) is not None for cell in cells[name]] for name in names}
        return {
            name: all(whole[name])
            for name in names
            if all(good or missing(cell) for good, cell in zip(whole[name], cells[name], strict=True))
        }

    def _at_once(self, numbers: dict[str, bool], names: Sequence[str]) -> dict[str, Cells] | None:
        """Return the columns as numpy reads them, or None if anything is not as it should be."""
        kinds = {name: "f8" if numbers.get(name) else "O" for name in names}
        places = {name: f"f{i}" for i, name in enumerate(self.names)}
        # U1: columns that are not used
        dtype = np.dtype([(places[name], kinds.get(name, "U1")) for name in self.names])
        with open(self.path, encoding=self.encoding, newline="") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's warning about a file without rows
            next(filter(None, csv.reader(file, delimiter=self.delimiter)))
            try:
                rows = np.loadtxt(file, dtype, comments=None, delimiter=self.delimiter, quotechar='"', ndmin=1)
            except (ValueError, TypeError):
                return None
        read = {name: rows[places[name]] for name in names}
        if not len(rows) or not all(_in_range(read[name]) for name in names if kinds[name] == "f8"):
            return None
        return {
            name: np.array(cells) if kinds[name] == "f8" else _numbers_or_words(cells.tolist(), name in numbers)
            for name, cells in read.items()
        }

    def _row_by_row(self, numbers: Iterable[str], names: Sequence[str]) -> dict[str, Cells]:
        rows = [*self._rows()][1:]
        if not rows:
            raise UnalikeError(f"{self.what} has column names but no rows: add some.")
        for i, cells in enumerate(rows):
            if len(cells) != len(self.names):
                raise UnalikeError(
                    f"{self.what} has {len(cells)} cells in {self.place(i)} and {len(self.names)} column names: "
                    "mend the line, or set `delimiter`."
                )
        columns = dict(zip(self.names, zip(*rows, strict=True), strict=True))
        return {name: _numbers_or_words(columns[name], name in numbers) for name in names}


def _numbers_or_words(texts: Sequence[str], numbers: bool) -> Cells:
    """Return a long column of numbers with some empty cells as numbers, the quick way; otherwise as texts, to be
    examined one by one."""
    joined = "".join(texts) if numbers else ""
    if numbers and joined.isascii() and "_" not in joined:
        with contextlib.suppress(ValueError):
            found = np.array([AS_NAN.get(text, text) for text in texts], np.float64)
            if _in_range(found):
                return found
    return Words.of(texts)


def _in_range(numbers: np.ndarray) -> bool:
    """Return whether all numbers are missing or fit into float32."""
    return bool((np.isnan(numbers) | (np.abs(numbers) <= LARGEST)).all())


class Frame:
    """A table in memory: pandas, polars, pyarrow, Hugging Face, a dict of columns, or a list of rows as dicts."""

    def __init__(self, frame: Any, what: str = "the table"):
        if isinstance(frame, (list, tuple)) and frame and all(isinstance(row, Mapping) for row in frame):
            frame = {name: [row.get(name) for row in frame] for name in dict.fromkeys(n for row in frame for n in row)}
        self.frame, self.what = frame, what
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
        """Return how messages refer to a row."""
        return f"row {row + 1}"

    def read(self, names: Sequence[str], words: Iterable[str]) -> dict[str, Cells]:
        """Return these columns; those in `words` become texts."""
        columns = {name: self._column(name) for name in names}
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise UnalikeError(f"The columns of {self.what} have unequal lengths {short(sizes)}: make them equal.")
        if not next(iter(sizes.values())):
            raise UnalikeError(f"{self.what[:1].upper()}{self.what[1:]} has columns but no rows: add some.")
        return {name: self._cells(name, values, name in {*words}) for name, values in columns.items()}

    def _column(self, name: str) -> np.ndarray:
        values = self.frame[self.keys[name]]
        if str(getattr(values, "type", "")).startswith("dictionary"):  # pyarrow's, whose to_numpy fills missing cells
            values = values.to_pylist()
        if hasattr(values, "to_numpy"):
            return values.to_numpy()
        values = list(values)
        pictures = values and hasattr(values[0], "getbands")  # Pillow images
        try:
            return np.stack([pixels(image) for image in values]) if pictures else np.asarray(values)
        except ValueError:
            unequal = f"The column {name!r} of {self.what} has rows of unequal shape: make them equal."
            raise UnalikeError(unequal) from None

    def _cells(self, name: str, values: np.ndarray, words: bool) -> Cells:
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim > 1 and values.dtype.kind in "biuf" and not words:
            return values
        if values.ndim > 1:
            raise UnalikeError(
                f"The column {name!r} of {self.what} has {list(values.shape[1:])} values per row: give one per row."
            )
        if values.dtype.kind == "M":
            return Words.of(np.datetime_as_string(values).tolist()) if words else values
        if values.dtype.kind == "b" and not words:
            return values
        if values.dtype.kind in "iuf" and not words:
            numbers = values.astype(np.float64)
            if _in_range(numbers):
                return numbers
        return Words.of(_texts(values))


def pixels(image: Any) -> np.ndarray:
    """Return a Pillow image as floats in 0..1, [channels, height, width]."""
    plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
    values = np.asarray(plain, np.float32) / 255
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def _texts(values: np.ndarray) -> list[str]:
    """Return every value as text; missing ones as ""; whole numbers that pandas turned into floats as whole numbers."""
    if values.dtype.kind == "f":
        finite = values[np.isfinite(values)]
        whole = bool(np.all(np.floor(finite) == finite))
        return [str(int(v)) if whole and np.isfinite(v) else str(v) for v in values.tolist()]
    return ["" if value is None else str(value) for value in values.tolist()]  # pandas' marks are <NA> and NaT


def opened(source: Any, delimiter: str | None = None, encoding: str = "utf-8-sig") -> Csv | Frame:
    """Return a table of which only the column names have been read."""
    if not isinstance(source, (str, os.PathLike)):
        return Frame(source)
    path = Path(source)
    if path.suffix.lower() not in (".parquet", ".pq"):
        return Csv(path, delimiter, encoding)
    with reading(path, "parquet table"):
        return Frame(_parquet(path), str(path))


def _parquet(path: Path) -> Any:
    """Read a parquet file with pyarrow, pandas or polars, whichever is installed; the first is what the others use."""
    for module, function in (("pyarrow.parquet", "read_table"), ("polars", "read_parquet"), ("pandas", "read_parquet")):
        try:
            read = getattr(importlib.import_module(module), function)
        except ImportError:
            continue
        return read(path)
    raise UnalikeError(f"Reading {path} needs pyarrow, polars or pandas: pip install pyarrow, or save it as CSV.")
