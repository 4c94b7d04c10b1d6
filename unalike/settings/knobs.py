"""A setting described once, where it acts: its words, bounds, choices and tuning range.

    alpha: float = knob(0.1, "strength of the penalty", least=0, tune=(1e-3, 1.0))     # a field of a dataclass
    def split(self, clients: Annotated[int, Knob("how many clients", least=1)] = 10)   # a parameter of a function

The configuration, the flags, the JSON Schema, the documentation and `compare --tune` read it from there.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from unalike.errors import UnalikeError, either, unknown

KNOB = "knob"  # key in a field's metadata


@dc.dataclass(frozen=True)
class Knob:
    """The description of a setting.

    words: what it is, in one line; values: those that papers use, if known. least, above, most, below: bounds of a
    number. choices: the allowed values; noun: what such a value is called. tune: a range (low, high), or a list to
    choose from, for `compare --tune`. written: the annotation for files, if Python accepts more. free: may differ
    between a run and its continuation. how: affects how a run is computed, not its result. fact: is written into a
    run's [facts] under its own name. file: names a file on the machine that reads it.
    """

    words: str = ""
    values: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: Iterable[str] | None = None
    noun: str = ""
    tune: tuple[float, float] | list[Any] | None = None
    written: Any = None
    free: bool = False
    how: bool = False
    fact: bool = True
    file: bool = False

    @property
    def text(self) -> str:
        """Return the words, and the choices."""
        return ": ".join(filter(None, [self.words, ", ".join(self.choices or ())]))

    @property
    def bounds(self) -> str:
        """Return the bounds in words: 'at least 0', 'above 0', 'in [0, 1)'; "" if there are none."""
        low = self.above if self.least is None else self.least
        high = self.below if self.most is None else self.most
        if low is not None and high is not None:
            return f"in {'(' if self.least is None else '['}{low}, {high}{')' if self.most is None else ']'}"
        if low is not None:
            return f"above {low}" if self.least is None else f"at least {low}"
        return "" if high is None else f"below {high}" if self.most is None else f"at most {high}"

    def holds(self, number: Any) -> bool:
        """Return whether a number is within the bounds; NaN never is."""
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )


NONE = Knob()  # for a setting without a description


def knob(default: Any = dc.MISSING, words: str = "", **more: Any) -> Any:
    """Return a dataclass field with its description."""
    return dc.field(default=default, metadata={KNOB: Knob(words, **more)})


def knobs(cls: Any) -> dict[str, Knob]:
    """Return the descriptions of a dataclass's fields by name, for fields that have one."""
    return {f.name: f.metadata[KNOB] for f in dc.fields(cls) if KNOB in f.metadata} if dc.is_dataclass(cls) else {}


def fits(value: Any, kind: str) -> bool:
    """Return whether a value is of a kind, in the words of `typed.WORDS`; if the kind is "", any value is."""
    if kind == "true or false":
        return isinstance(value, bool)
    if kind not in ("a number", "a whole number"):
        return True
    number = isinstance(value, Integral if kind == "a whole number" else Real) and not isinstance(value, bool)
    return number and math.isfinite(value)


def check(where: str, name: str, value: Any, knob: Knob, kind: str = "", optional: bool = False) -> None:
    """Raise an error of one line if a value is not of its kind, not one of the choices or out of bounds."""
    if knob.choices is not None:
        choices = tuple(knob.choices)
        if value in choices:
            return
        if knob.noun:
            raise unknown(knob.noun, value, choices)
        raise UnalikeError(f"{where}{name} must be {either(choices)}; got {value!r}.")
    if value is None and optional:
        return
    try:
        if fits(value, kind) and knob.holds(value):
            return
    except TypeError:  # a text can be compared with no number
        pass
    bounds = knob.bounds
    if kind == "true or false":
        must = "be True or False"
    elif bounds.startswith("in "):
        must = f"lie {bounds}"
    else:
        must = " ".join(["be", *filter(None, [kind, "of" if kind and bounds.startswith("at") else "", bounds])])
    raise UnalikeError(f"{where}{name} must {must}{', or None' * optional}; got {value!r}.")


@functools.lru_cache(maxsize=256)
def _described(cls: Any) -> list[tuple[str, Any, bool, Knob]]:
    """Return the described fields of a dataclass: name, default, whether None is allowed, description."""
    return [
        (f.name, f.default, f.default is None or "None" in str(f.type), f.metadata[KNOB])
        for f in dc.fields(cls)
        if KNOB in f.metadata
    ]


def check_fields(owner: Any, where: str, kinds: Mapping[str, str] = {}) -> None:
    """Check the described fields of a dataclass's instance; kinds: of the fields whose kind is checked too."""
    cls: Any = type(owner)
    for name, default, optional, knob in _described(cls):
        value = getattr(owner, name, default)
        if value is not default:
            check(where, name, value, knob, kinds.get(name, ""), optional)
