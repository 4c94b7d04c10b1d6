"""Turn the columns of a table into a schema, and by a schema into the x and y of a model.

`found_columns` and `found_label` look at columns and decide what they are; `coded` and `coded_label` turn columns into
numbers by a schema, of this table or of another.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from unalike.data import cells as meaning
from unalike.data.cells import DAY_FIRST, MONTH_FIRST, Words
from unalike.data.formats import as_number
from unalike.data.schema import Column, Kind, Schema
from unalike.data.table_files import Cells
from unalike.errors import UnalikeError
from unalike.settings.typed import short

# up to so many words, a column is taken as a category; up to so many whole numbers, a label is taken as classes
FEW = 20
# from so many whole numbers on, a label taken as classes gets a remark
WORTH_ASKING = 5
EMPTY = "empty in every row"
# more whole numbers than FEW are classes if they are fewer than this share of the rows
REPEATED = 0.05
ROLES = {"number": "is a number", "flag": "is yes or no", "date": "is a date"}


class Source(Protocol):
    """The table that columns come from, as messages name it."""

    what: str

    def place(self, row: int) -> str: ...


# ---- the kind of a column


def found_columns(
    source: Source, cells: Mapping[str, Cells], features: Sequence[str], categorical: Sequence[str]
) -> tuple[Column, ...]:
    """Decide what kind each feature is by looking at its cells; raise one error that names all columns for which this
    is impossible."""
    found = {name: found_column(source, name, cells[name], name in categorical) for name in features}
    bad = {name: column for name, column in found.items() if isinstance(column, str)}
    if bad:
        which, them = ("column", "it") if len(bad) == 1 else ("columns", "them")
        what = ", ".join(f"{name!r} ({why})" for name, why in bad.items())
        raise UnalikeError(
            f"The {which} {what} of {source.what} cannot be learned from: leave {them} out with --drop "
            f"{dropped(*bad)}, or name {them} in `categorical` if these are categories."
        )
    return tuple(column for column in found.values() if isinstance(column, Column))


def dropped(*names: str) -> str:
    """Return column names as one types them after --drop."""
    return shlex.quote(",".join(names))


def found_column(source: Source, name: str, cells: Cells, category: bool = False) -> Column | str:
    """Decide what kind a feature is by looking at its cells; return the reason as text if it cannot be a feature."""
    if not isinstance(cells, Words):
        kind: Kind = {"b": "flag", "M": "date"}.get(cells.dtype.kind, "number")  # type: ignore[assignment]
        if kind != "flag" and (np.isnat(cells) if kind == "date" else np.isnan(cells)).all():
            return EMPTY
        return Column(name, kind)
    filled = cells.filled
    if not filled:
        return EMPTY
    if category:
        return Column(name, "category", tuple(meaning.ordered(filled)))
    if _mostly_numbers(cells):
        return Column(name, "number")
    if any({text.lower() for text in filled} <= set(pair) for pair in meaning.FLAGS):
        return Column(name, "flag")
    if cells.share([text for text in filled if meaning.looks_like_date(text)]) >= 0.5:
        return Column(name, "date", _order(source, name, cells))
    if len(filled) > FEW or len(filled) > len(cells) / 2:
        return f"text, {len(filled)} different values in {len(cells)} rows"
    return Column(name, "category", tuple(meaning.ordered(filled)))


def _mostly_numbers(words: Words) -> bool:
    """Return whether at least half of the cells are numbers; "none" among numbers is then a missing cell."""
    found = words.share([text for text in words.filled if meaning.looks_like_number(text)])
    return found > 0 and found >= (1 - words.share([text for text in words.filled if text.lower() == "none"])) / 2


def _order(source: Source, name: str, words: Words) -> tuple[str, ...]:
    """Return whether the day or the month comes first in dates such as 31/12/2024; empty if no date has slashes."""
    slashed = [text for text in words.filled if "/" in text and meaning.looks_like_date(text)]
    fitting = [o for o in (DAY_FIRST, MONTH_FIRST) if all(meaning.day(text, o) is not None for text in slashed)]
    if not slashed:
        return ()
    if len(fitting) != 1:
        raise UnalikeError(
            f"The column {name!r} of {source.what} has dates such as {slashed[0]}, whose day and month cannot be told "
            f"apart: write them as 2024-12-31, or leave the column out with --drop {dropped(name)}."
        )
    return (fitting[0],)


def found_label(
    source: Source, name: str, words: Words, regression: bool | None
) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the classes in sorted order, or None if the label is a number to predict; and a remark, if there is
    one."""
    values, rows = meaning.ordered(words.filled), int((~words.missing).sum())
    if regression:
        return None, None
    where = f"The label column {name!r} of {source.what}"
    numbers = {value: found for value in values if (found := as_number(value)) is not None}
    endless = next((value for value, found in numbers.items() if not np.isfinite(found)), None)
    if endless is not None:
        place = source.place(words.row(endless))
        raise UnalikeError(f"{where} has {endless} in {place}: fill it in or remove the row.")
    fraction = next((value for value, found in numbers.items() if not found.is_integer()), None)
    if regression is None and fraction is not None and len(numbers) == len(values):
        return None, f"The label {name!r} has fractions such as {fraction}: it is taken as a number to predict."
    if len(values) == rows > 2:
        raise UnalikeError(
            f"{where} has another value in each of {rows} rows: it looks like a regression target or a row's own "
            "number; set `regression`, or name the column of classes."
        )
    if regression is None and len(numbers) == len(values) > max(FEW, REPEATED * rows):
        raise UnalikeError(
            f"{where} has {len(values)} different whole numbers in {rows} rows: say --regression if it is a number to "
            "predict, --no-regression if these are classes."
        )
    if len(values) == 1:
        raise UnalikeError(f"{where} is {values[0]!r} in every row: nothing to learn.")
    if regression is None and len(numbers) == len(values) >= WORTH_ASKING:
        said = f"The label {name!r} has {len(values)} different whole numbers, taken as classes (--no-regression); "
        return tuple(values), said + "--regression if it is a number to predict."
    return tuple(values), None


# ---- from a column to numbers


def coded(
    source: Source, schema: Schema, cells: Mapping[str, Cells], unseen: str = "ignore"
) -> tuple[np.ndarray, dict[str, int]]:
    """Return x float64 [n, features] with NaN for missing cells, and the number of cells by column whose word is not in
    the schema. All features of such a cell are zero; with unseen="refuse" it is an error. A single column of windows or
    pictures keeps its shape and is float32."""
    first = cells[schema.columns[0].name]
    if not isinstance(first, Words) and first.ndim > 1:
        return _windows(source, schema.columns[0].name, first), {}
    rows = len(first)
    x, strange, at = np.zeros((rows, len(schema.features))), {}, 0
    for column in schema.columns:
        values, width = cells[column.name], len(column.features)
        if column.kind == "category":
            advice = UNSEEN_ADVICE if unseen == "refuse" else None
            codes = _codes(source, column.name, _as_words(values), column.values, advice)
            block = x[:, at : at + width]
            known = np.flatnonzero(codes >= 0)
            block[known, codes[known]] = 1
            block[codes == MISSING] = np.nan
            if lost := int((codes == UNSEEN).sum()):
                strange[column.name] = lost
        else:
            x[:, at] = _numbers(source, column, values)
        at += width
    return x, strange


def coded_label(source: Source, schema: Schema, cells: Cells) -> np.ndarray:
    """Return y: int64 class numbers (-1 where missing), or float64 (NaN where missing)."""
    words = _as_words(cells)
    if schema.label_names is None:
        return numbers(source, schema.label, words, "is the target of a regression")
    return np.maximum(_codes(source, schema.label, words, schema.label_names, LABEL_ADVICE), -1)


UNSEEN, MISSING = -1, -2
UNSEEN_ADVICE = "mend it, remove the row, or let such words count as none (unseen: ignore)"
LABEL_ADVICE = "remove the row, or add such rows to the training table"


def _codes(source: Source, name: str, words: Words, known: Sequence[str], advice: str | None) -> np.ndarray:
    """Return each row's index among the known values; UNSEEN or MISSING where it has none. advice: where an unknown
    value is an error, what to do about it."""
    place = {"": MISSING} | {value: k for k, value in enumerate(known)}
    strange = next((value for value in words.values if value not in place), None)
    if advice is not None and strange is not None:
        raise UnalikeError(
            f"The column {name!r} of {source.what} has {short(strange)} in {source.place(words.row(strange))}, which "
            f"the training table never has: {advice}."
        )
    return np.array([place.get(value, UNSEEN) for value in words.values], np.int64)[words.codes]


def _as_words(cells: Cells) -> Words:
    return cells if isinstance(cells, Words) else Words.of([str(value) for value in cells.tolist()])


def _windows(source: Source, name: str, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = values.astype(np.float32)
    finite = np.isfinite(x).reshape(len(x), -1).all(1)
    if not finite.all():
        place = source.place(int(finite.argmin()))
        raise UnalikeError(
            f"The column {name!r} of {source.what} has a number that is missing or infinite in {place}: mend it."
        )
    return x


def _numbers(source: Source, column: Column, cells: Cells) -> np.ndarray:
    """Return each row's number, flag or date as a number, NaN where it is missing."""
    if not isinstance(cells, Words):
        if column.kind == "date" and cells.dtype.kind == "M":
            days = cells.astype("datetime64[us]").astype(np.int64) / 86_400_000_000
            return np.where(np.isnat(cells), np.nan, days)
        if column.kind == "number" or (column.kind == "flag" and cells.dtype.kind == "b"):
            return cells.astype(np.float64)
        cells = Words.of([str(value) for value in cells.tolist()])
    if column.kind == "number":
        return numbers(source, column.name, cells, ROLES["number"])
    order = column.values[0] if column.values else DAY_FIRST
    read = meaning.flag if column.kind == "flag" else lambda text: meaning.day(text, order)
    return _read(source, column.name, cells, read, ROLES[column.kind])


def numbers(source: Source, name: str, words: Words, role: str) -> np.ndarray:
    """Return a column of texts as numbers. Decimals may have points or commas, but not both in one column."""
    filled = words.filled
    decimal = [text for text in filled if "," in text and meaning.COMMA.fullmatch(text)]
    pointed = any("." in text and meaning.number(text) is not None for text in filled)
    unclear = [text for text in filled if meaning.GROUPED.fullmatch(text) and meaning.number(text) is None]
    comma = len(decimal) > 0 and not pointed
    sure = comma and not {*decimal} <= {*unclear}  # 3,5 beside 1,234 shows that commas mark decimals
    if unclear and not (sure and {*unclear} <= {*decimal}):
        place = source.place(words.row(unclear[0]))
        raise UnalikeError(
            f"The column {name!r} of {source.what} {role} but has {unclear[0]!r} in {place}, which may have a sign "
            "between thousands: write its numbers without one."
        )
    return _read(source, name, words, lambda text: meaning.number(text, comma), role)


def _read(source: Source, name: str, words: Words, read: Callable[[str], float | None], role: str) -> np.ndarray:
    found: list[Any] = [np.nan if text.lower() in ("", "none") else read(text) for text in words.values]
    if None in found:
        text = words.values[found.index(None)]
        raise UnalikeError(
            f"The column {name!r} of {source.what} {role} but has {short(text)} in {source.place(words.row(text))}: "
            "mend or empty the cell, name the column in `categorical` if it holds words, or leave it out with --drop."
        )
    return np.array(found, np.float64)[words.codes]
