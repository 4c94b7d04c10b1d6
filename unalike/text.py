"""Small pieces of text that several packages write or read: sizes, times, lists, seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from unalike.errors import UnalikeError

PLURALS = {
    "is": "are",
    "has": "have",
    "gives": "give",
    "reads": "read",
    "keeps": "keep",
    "learns": "learn",
    "it": "them",
}


def size(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def span(seconds: float) -> str:
    """Return seconds in words."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes // 1440:,} days"


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def listed(parts: Sequence[str]) -> str:
    """Return parts as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def plural(word: str, things: Sequence[str]) -> str:
    """Return the word in the singular or plural, as the number of things requires."""
    return word if len(things) == 1 else PLURALS[word]


def printable(said: object, most: int = 300) -> str:
    """Return another party's text as one line that is safe to print: control characters and marks that reverse the
    direction of writing become escapes, and a long text is cut."""
    text = str(said)
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def number(value: float, digits: int) -> str:
    """Return a number with this many significant digits, and infinity as ∞."""
    return f"{value:.{digits}g}" if math.isfinite(value) else ("∞" if value > 0 else "-∞")


def parse_seeds(text: str, command: str) -> list[int]:
    """Return the seeds of --seeds: "3" means 0, 1, 2; "4,7" means 4 and 7; "5," means 5 alone."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() for part in parts):
        raise UnalikeError(f"{command}: --seeds must be how many (3) or which (0,1,2); got {text!r}.")
    found = list(range(int(parts[0]))) if "," not in text else [int(part) for part in parts]
    if not found:
        raise UnalikeError(f"{command}: --seeds 0 runs nothing: give at least 1.")
    if len(set(found)) < len(found):
        raise UnalikeError(f"{command}: --seeds {text} has a seed twice: a paired test counts each once.")
    return found


def decimal(value: float) -> str:
    """Return a number without needless zeros: 12, or 2.5."""
    return f"{value:.1f}".removesuffix(".0")


def parse_budget(text: str) -> float:
    """Return the seconds of a --budget: 25m, 90s, 2h, or a number of seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        value = float(text.rstrip("smh")) * units.get(text[-1:], 1)
    except ValueError:
        value = -1.0
    if not 0 < value < math.inf:
        raise UnalikeError(f"--budget must be a time such as 25m, 90s or 2h; got {text!r}.")
    return value


def named(name: str, reason: str) -> str:
    """Return a reason with its client's name: "site-0 has …" for "it has …"."""
    return f"{name} {reason.removeprefix('it ')}" if reason.startswith("it ") else f"{name}: {reason}"
