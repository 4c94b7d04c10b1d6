"""The meaning of one cell of a table: missing, a number, yes or no, a date, or a word."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

import numpy as np

from unalike.data.formats import as_number

# in upper or lower case; and None, as Python writes it
MISSING = {"", "nan", "na", "n/a", "<na>", "nat", "null", "?", "-", "."}
FLAGS = ({"false": 0.0, "true": 1.0}, {"no": 0.0, "yes": 1.0}, {"n": 0.0, "y": 1.0}, {"f": 0.0, "t": 1.0})
LARGEST = float(np.finfo(np.float32).max)  # models compute in float32
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
COMMA = re.compile(r"[+-]?\d+(,\d+)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}([,.' ]\d{3})+([.,]\d+)?", re.ASCII)  # 1,234 or 1.234.567,8
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
DATE = re.compile(r"(\d{1,2})([./])(\d{1,2})\2(\d{4})(?: (\d{1,2}):(\d\d)(?::(\d\d))?)?", re.ASCII)
DAY_FIRST, MONTH_FIRST = "D/M/Y", "M/D/Y"
EPOCH = dt.datetime(1970, 1, 1)


class Words:
    """A column of texts: its distinct values, and for each row the index of its value. "" is a missing cell."""

    def __init__(self, values: list[str], codes: np.ndarray):
        self.values, self.codes = values, codes

    @classmethod
    def of(cls, texts: Sequence[str]) -> Words:
        """Make a column from texts. Spaces around them are removed; every mark of a missing cell becomes ""."""
        spelled: dict[str, int] = {}
        codes = np.fromiter((spelled.setdefault(text, len(spelled)) for text in texts), np.int64, len(texts))
        clean = [text.strip() for text in spelled]
        # in a column with +, a - means the opposite and not a missing cell
        signs = "+" in clean
        first: dict[str, int] = {}
        places = [
            first.setdefault("" if missing(text) and not (signs and text == "-") else text, len(first))
            for text in clean
        ]
        return cls([*first], np.array(places, np.int64)[codes])

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: np.ndarray) -> Words:
        """Return some of the rows, with only the values that occur in them."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        return Words([self.values[k] for k in used], codes)

    @property
    def filled(self) -> list[str]:
        """Return the values that are not missing."""
        return [value for value in self.values if value]

    @property
    def missing(self) -> np.ndarray:
        """Return for each row whether its cell is missing."""
        return self.codes == (self.values.index("") if "" in self.values else -1)

    def row(self, value: str) -> int:
        """Return the first row that has this value."""
        return int(np.argmax(self.codes == self.values.index(value)))

    def share(self, chosen: Sequence[str]) -> float:
        """Return the share of rows with one of these values, among the rows that are not missing."""
        counts = dict(zip(self.values, np.bincount(self.codes, minlength=len(self.values)), strict=True))
        return sum(counts[value] for value in chosen) / max(1, len(self) - counts.get("", 0))


def missing(text: str) -> bool:
    """Return whether a text marks a missing cell. "none" does not: it may well be a category."""
    return text == "None" or text.lower() in MISSING


def ordered(values: Sequence[str]) -> list[str]:
    """Return values in sorted order; as numbers if all are numbers, so that 2 comes before 10."""
    numbers = {value: as_number(value) for value in values}
    all_numbers = None not in numbers.values()
    return sorted(values, key=lambda value: (numbers[value] if all_numbers else 0.0, value))


def number(text: str, comma: bool = False) -> float | None:
    """Return a text as a number; None if it is not a number or too large for float32. With `comma`, 3,5 is 3.5.

    1_000, infinity and digits of other scripts are numbers to Python, but slips in a table: they are refused.
    """
    if not (COMMA if comma else NUMBER).fullmatch(text):
        return None
    found = float(text.replace(",", "."))
    return found if abs(found) <= LARGEST else None


def looks_like_number(text: str) -> bool:
    """Return whether a text is meant as a number, even one that cannot be read with certainty."""
    return bool(number(text) is not None or COMMA.fullmatch(text) or GROUPED.fullmatch(text))


def day(text: str, order: str = DAY_FIRST) -> float | None:
    """Return the days from 1970-01-01 to a date, or a date and time: ISO 8601, 31.12.2024, or with slashes in this
    order."""
    try:
        if ISO.fullmatch(text):
            return _days(dt.datetime.fromisoformat(text))
        if found := DATE.fullmatch(text):
            first, sign, second, year, hour, minute, seconds = found.groups(default="0")
            month, date = (first, second) if sign == "/" and order == MONTH_FIRST else (second, first)
            return _days(dt.datetime(*map(int, (year, month, date, hour, minute, seconds))))  # type: ignore[arg-type]
    except (ValueError, OverflowError):  # such as the 31st of February
        pass
    return None


def _days(time: dt.datetime) -> float:
    if time.tzinfo is not None:
        time = time.astimezone(dt.UTC).replace(tzinfo=None)
    return (time - EPOCH) / dt.timedelta(days=1)


def looks_like_date(text: str) -> bool:
    """Return whether a text is a date, with the day or the month first."""
    return day(text, DAY_FIRST) is not None or day(text, MONTH_FIRST) is not None


def flag(text: str) -> float | None:
    """Return 1 for true, yes and 1, and 0 for false, no and 0; None for any other word."""
    known = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}.get(text)
    return next((pair[text.lower()] for pair in FLAGS if text.lower() in pair), known)
