"""Checks shared by the model builders: a size that cannot be is refused in one line, before torch sees it."""

from __future__ import annotations

import operator

from unalike.errors import UnalikeError


def whole(name: str, value: object, least: int = 1) -> int:
    """`value` as an int, or the error that says what `name` must be."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    # True counts as 1 in Python; as a number of classes it is a slip.
    if number is None or isinstance(value, bool) or number < least:
        raise UnalikeError(f"{name}={value!r} was given; it must be a whole number of at least {least}.")
    return number
