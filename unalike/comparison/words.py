"""Small words for tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

PLURALS = {"is": "are", "reads": "read", "keeps": "keep", "it": "them"}


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def plural(word: str, things: Sequence[str]) -> str:
    """The word as it goes with one or several things."""
    return word if len(things) == 1 else PLURALS[word]


def number(value: float, digits: int) -> str:
    """So many significant digits; infinity as a sign."""
    return f"{value:.{digits}g}" if math.isfinite(value) else ("∞" if value > 0 else "-∞")
