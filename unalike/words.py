"""Small pieces of text that several commands read or write."""

from __future__ import annotations

from unalike.errors import UnalikeError


def span(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes // 1440:,} days"


def seeds(text: str, command: str) -> list[int]:
    """--seeds: "3" is 0, 1, 2; "4,7" is 4 and 7; "5," is 5 alone."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() for part in parts):
        raise UnalikeError(f"{command}: --seeds must be how many (3) or which (0,1,2); got {text!r}.")
    found = list(range(int(parts[0]))) if "," not in text else [int(part) for part in parts]
    if not found:
        raise UnalikeError(f"{command}: --seeds 0 runs nothing: give at least 1.")
    if len(set(found)) < len(found):
        raise UnalikeError(f"{command}: --seeds {text} has a seed twice: a paired test counts each once.")
    return found
