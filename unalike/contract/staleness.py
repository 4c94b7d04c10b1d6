"""How much a reply counts that began with an older version of the model: a function of its age in versions."""

from __future__ import annotations

from unalike.errors import UnalikeError

STALENESS = "how a reply counts by its age: constant, polynomial:A, (1 + age)^-A, or hinge:A:B, 1 / (A (age - B) + 1)"


def staleness_weight(text: str, age: int) -> float:
    """Return how much a reply of this age counts, in (0, 1]."""
    kind, numbers = parse_staleness(text)
    if kind == "constant":
        return 1.0
    if kind == "polynomial":
        return float((1 + age) ** -numbers[0])
    a, b = numbers
    return 1.0 if age <= b else 1 / (a * (age - b) + 1)


def parse_staleness(text: str) -> tuple[str, list[float]]:
    """Return the kind and its numbers."""
    kind, *rest = text.split(":") if isinstance(text, str) else [""]
    try:
        numbers = [float(part) for part in rest]
        if {"constant": 0, "polynomial": 1, "hinge": 2}[kind] != len(numbers) or not all(n >= 0 for n in numbers):
            raise ValueError
    except (KeyError, ValueError):
        raise UnalikeError(f"staleness must be constant, polynomial:A or hinge:A:B; got {text!r}.") from None
    return kind, numbers
