"""How pages write numbers, and the numbers that papers print: `printed/PAPER.csv` has all, in their own words for rows.

A paper's TOML file says under [printed] where they stand among our rows:

    measures   which of our measures a metric is; under "metric row" that of one of the paper's rows
    rows       text of a row's name and ours in its place, in order; several are readings of one row. "/" becomes "-"
    methods    ours for a method, where the names differ or there are several readings
    tables     the paper's table for one of ours with another name
    also       the same for tables that show a number once more, beside another reading: there it is not counted
    scale      [a, b]: a printed number times a / b is ours
"""

from __future__ import annotations

import csv
import dataclasses as dc
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from unalike.errors import UnalikeError
from unalike.metrics.lines import is_number

FORM = re.compile(r"(>?)\s*(-?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?")
# beginnings of notes where the paper contradicts itself or does not say what it measures; and where it says another
# number too, which is known
DOUBTS = ("uncertain", "inconsistent", "undefined")
OTHER = re.compile(r"or (\d+(?:\.\d+)?): ")
FOLLOWS = ("speedup",)  # metrics that follow from another printed number
# decimals, by unit
DIGITS = {"clusters": 1, "%": 2, "pp²": 1, "rounds": 0, "bytes": 0, "MB": 1, "kB": 2, "s": 3}
TIME = "virtual s"  # three digits at least, and no fractions of longer times
NOTHING = "–"


def number(value: float | None, unit: str, sign: bool = False, like: float | None = None) -> str:
    """Return a number as text; like: the number whose precision it shares, where that depends on its size."""
    if value is None:
        return NOTHING
    size = abs(value if like is None else like)
    digits = max(0, 2 - math.floor(math.log10(size))) if unit == TIME and size else DIGITS.get(unit, 4)
    return f"{value:{'+' if sign else ''}{',' if unit == TIME else ''}.{digits}f}"


@dc.dataclass(frozen=True)
class Printed:
    """A printed number, with its ± if it has one."""

    value: float
    spread: float | None = None
    more_than: bool = False  # "> 600"
    doubt: str = ""  # how the paper contradicts itself, or what it does not define
    other: float | None = None  # what another place of the paper says in its place: the nearer one counts
    table: str = ""
    row: str = ""
    method: str = ""
    metric: str = ""


def parse(given: Any) -> Printed | None:
    """Read a number of a TOML file: 93.1, "93.1 ± 0.4" or "> 600"; other values that are not text give None."""
    if isinstance(given, str):
        found = FORM.fullmatch(given.strip())
        if found is None:
            raise UnalikeError(f'A printed number is written 93.1, "93.1 ± 0.4" or "> 600"; got {given!r}.')
        return Printed(float(found[2]), float(found[3]) if found[3] else None, bool(found[1]))
    return Printed(float(given)) if is_number(given) else None


class Numbers:
    """A paper's printed numbers and their places in our tables."""

    def __init__(self, paper: str, places: Mapping[str, Any]):
        self.places = places
        self.all = [*_read(paper)] if places else []

    def counted(self) -> list[Printed]:
        """Return the numbers of tables and figures that are results and do not follow from another number."""
        return [one for one in self.all if not _why_not(one)]

    def left_out(self) -> Counter[str]:
        """Return how many numbers are not counted, by what they are."""
        return Counter(filter(None, map(_why_not, self.all)))

    def source(self, table: str) -> str | None:
        """Return the paper's table that one of ours repeats; None if ours only shows its numbers again."""
        return None if table in self.places.get("also", {}) else self.places.get("tables", {}).get(table, table)

    def of(self, table: str, measures: Sequence[str]) -> dict[str, dict[str, list[Printed | None]]]:
        """Return the numbers for one of our tables: by row and method, one for each measure."""
        sources = {self.places.get("tables", {}).get(table, table), self.places.get("also", {}).get(table)}
        out: dict[str, dict[str, list[Printed | None]]] = {}
        for one in self.all:
            wanted = self._measures(one) if one.table in sources else []
            for k, measure in enumerate(measures):
                for row in self.rows(one.row) if measure in wanted else ():
                    for method in _several(self.places.get("methods", {}).get(one.method, one.method)):
                        own = out.setdefault(row, {}).setdefault(method, [None] * len(measures))
                        own[k] = own[k] or self._scaled(one)
        return out

    def _measures(self, one: Printed) -> list[str]:
        places = self.places["measures"]
        return _several(places.get(f"{one.metric} {one.row}") or places.get(one.metric, ()))

    def rows(self, row: str) -> list[str]:
        """Return our names of a paper's row."""
        found = [row]
        for text, ours in self.places.get("rows", {}).items():
            found = [name.replace(text, new) for name in found for new in (_several(ours) if text in name else [text])]
        return [name.replace("/", "-") for name in found]

    def _scaled(self, one: Printed) -> Printed:
        new, old = self.places.get("scale", {}).get(one.metric, (1, 1))
        other = None if one.other is None else one.other * new / old
        return dc.replace(one, value=one.value * new / old, other=other)


def _why_not(one: Printed) -> str:
    """Return why a number is not counted; "" if it is."""
    if one.table == "text":
        return "in their text"
    if not one.method:
        return "about data"
    return "that follow from others" if one.metric in FOLLOWS else ""


def _several(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else [*given]


def _read(paper: str) -> Iterator[Printed]:
    text = files("unalike.reproduce").joinpath("printed", f"{paper}.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        notes = [note.strip() for note in line["note"].split(";")]
        more = any(note.partition(":")[0] == "more than" for note in notes)
        doubt = "; ".join(note.partition(": ")[2] or note for note in notes if note.startswith(DOUBTS))
        others = [float(found[1]) for note in notes if (found := OTHER.match(note))]
        place = {name: line[name] for name in ("table", "row", "method", "metric")}
        spread = float(line["spread"]) if line["spread"] else None
        yield Printed(float(line["value"]), spread, more, doubt, others[0] if others else None, **place)
