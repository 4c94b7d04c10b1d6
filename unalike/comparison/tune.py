"""Equal budgets: every method tries the same number of settings, and validation data alone choose.

The first trial is the setting without tuning, so that tuning is never worse than that on the validation data. The
others are drawn at random (Bergstra & Bengio 2012), as a function of the seed, the method and the trial's number: the
same command draws the same settings. Learning rates are the same for all methods, so that none is lucky with them.
Numbers are drawn evenly in their logarithm and rounded to two digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unalike import draws
from unalike.config import own_method
from unalike.methods import METHODS
from unalike.metrics.lines import choose
from unalike.metrics.names import Number
from unalike.results import evidence
from unalike.settings.knobs import knobs

# A range is (low, high); a list has the values to choose from. A method declares it in its knobs; settings chosen
# together are in a class attribute, tune = {"a, b": [[1, 2], [3, 4]]}.
Ranges = dict[str, tuple[float, float] | list[Any]]
LR: tuple[float, float] = (3e-3, 1.0)


def ranges(method: dict[str, Any]) -> Ranges:
    """Return what may be tried for a [method] table, without settings that it fixes."""
    cls: Any = own_method(method["file"]) if "file" in method else METHODS[method["name"]]
    known: Ranges = {name: knob.tune for name, knob in knobs(cls).items() if knob.tune is not None}
    known |= getattr(cls, "tune", {})
    return {names: among for names, among in known.items() if not set(names.split(", ")) & set(method)}


def trials(method: dict[str, Any], rate: bool, count: int, seed: int) -> list[dict[str, dict[str, Any]]]:
    """Return the changes of each trial: {"method": {...}, "local": {...}}; the first changes nothing. rate: whether the
    learning rate is free. A method with nothing free has one trial."""
    own, name = ranges(method), str(method.get("file") or method["name"])
    out: list[dict[str, dict[str, Any]]] = [{"method": {}, "local": {}}]
    for k in range(1, count):
        draw = draws.generator(seed, "tune", name, k)
        local = {"lr": _drawn(LR, draws.generator(seed, "tune", "lr", k))} if rate else {}
        values: dict[str, Any] = {}
        for names, among in own.items():
            value, several = _drawn(among, draw), names.split(", ")
            values |= dict(zip(several, value, strict=True)) if len(several) > 1 else {names: value}
        out.append({"method": values, "local": local})
    return out if own or rate else out[:1]


def _drawn(among: tuple[float, float] | list[Any], draw: Any) -> Any:
    if isinstance(among, list):
        return among[int(draw.integers(len(among)))]
    low, high = map(math.log, among)
    return float(f"{math.exp(draw.uniform(low, high)):.2g}")


def best(outcomes: Sequence[evidence.Outcome], score: Number) -> tuple[int, list[float | None]]:
    """Return the trial with the best validation score (the first of equal ones), and all scores; a trial that diverged
    has None."""
    found: list[float | None] = []
    for outcome in outcomes:
        line = None if outcome.diverged is not None else choose(outcome.lines, score)
        found.append(None if line is None else line[score.validation])
    sign = 1 if score.larger else -1
    ranked = [k for k, value in enumerate(found) if value is not None]
    return max(ranked, key=lambda k: (sign * found[k], -k), default=0), found  # type: ignore[operator]
