"""A module's result as one tensor: the part of a tuple, a dict or an object that holds the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unalike.errors import UnalikeError

Output = str | int | Callable[[Any], Any] | None


def picker(output: Output) -> Callable[[Any], Any]:
    """Return the function that picks the outputs: by a key or attribute, by a position, or by the user's own
    function."""
    if output is None:
        return lambda returned: returned
    if callable(output):
        return output
    if isinstance(output, bool) or not isinstance(output, str | int):
        raise UnalikeError(f"output={output!r} must be a key such as 'logits', a position such as 0, or a function.")
    return lambda returned: _part(returned, output)


def _part(returned: Any, key: str | int) -> Any:
    if isinstance(returned, Mapping) and key in returned:
        return returned[key]
    if isinstance(key, str) and hasattr(returned, key):
        return getattr(returned, key)
    if isinstance(key, int) and isinstance(returned, tuple | list) and -len(returned) <= key < len(returned):
        return returned[key]
    raise UnalikeError(f"The model returned {_kind(returned)}, which has no {key!r}: give another output.")


def _kind(returned: Any) -> str:
    """Return a description of a module's result, with the names or the number of its parts."""
    kind = f"a {type(returned).__name__}"
    if isinstance(returned, Mapping):
        return f"{kind} of {', '.join(repr(key) for key in list(returned)[:5])}"
    return f"{kind} of {len(returned)}" if isinstance(returned, tuple | list) else kind
