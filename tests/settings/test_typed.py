"""Annotations as the source of checks, words and JSON Schema."""

import dataclasses as dc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small import refused

from unalike.settings import typed
from unalike.training.settings import LocalTraining


@pytest.mark.parametrize(
    "hint,good,bad",
    [
        (bool, [True, False], [0, 1, "true", None]),
        (int, [0, -5, 2**64 - 1], [True, 1.0, "1", 2**64, -(2**63) - 1, 10**30]),
        (float, [0, 0.5, -3], [True, "0.5", float("nan"), float("inf"), 10**30]),
        (str, ["", "größe"], [1, None, ["a"], "a\0b"]),
        (Path, ["a/b", Path("a")], [1, "a\0b"]),
        (int | None, [1, None], ["1"]),
        (float | Sequence[float] | Callable[[int, int], float], [1, 0.5, [1, 2.5]], ["x", ["x"], {}, [[1]]]),
        (tuple[float, float], [[0.9, 1], (1, 2)], [[1], [1, 2, 3], "ab", 1]),
        (tuple[int, ...], [[], [1, 2]], [[1.5], 1]),
        (list[list[int]], [[], [[]], [[1, 2], [3]]], [[1], [[1.5]]]),
        (Callable[[int], int], [], [1, "f", None]),
        (Any, [1, None, {}, "x"], []),
    ],
)
def test_what_fits(hint, good, bad):
    assert all(typed.fits(value, hint) for value in good)
    assert not any(typed.fits(value, hint) for value in bad)
    assert all(typed.misfit(value, hint).startswith("must be ") for value in bad)


def test_words():
    assert typed.words(int | str | None) == "a whole number or text"
    assert typed.words(list[list[int]]) == "a list of lists of whole numbers"
    assert typed.words(tuple[float, float]) == "a list of 2 numbers"
    assert typed.words(float | str | list[list[int]]) == "a number or text or a list of lists of whole numbers"
    assert typed.words(Callable[[int], int]) == ""


def test_schema():
    assert typed.schema(int | None) == {"type": "integer"}
    assert typed.schema(float | Sequence[float]) == {
        "anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]
    }
    assert typed.schema(tuple[float, float])["maxItems"] == 2
    assert typed.schema(Any) == {}


def test_hints_of_functions_classes_and_dataclasses():
    def function(a: int, *rest, b: "str" = "x", **more): ...

    def odd(a: "Nowhere" = 1): ...  # noqa: F821

    class Plain:
        def __init__(self, width: int = 3): ...

    class Bare: ...

    @dc.dataclass
    class Record:
        size: "int"
        names: list[str] = dc.field(default_factory=list)

    assert list(typed.hints(function)) == ["a", "b"] and typed.hints(function)["b"][:2] == (str, "x")
    assert typed.hints(odd) == {"a": typed.Setting(Any, 1)}
    assert typed.hints(Plain) == {"width": typed.Setting(int, 3)}
    assert typed.hints(Bare) == {}
    assert typed.hints(Record)["size"][0] is int
    assert typed.hints(LocalTraining)["momentum"][:2] == (float, 0.0)


def test_hints_are_read_once_and_nobody_changes_those_of_others():
    @dc.dataclass
    class Callable:  # equal to others of its kind, and hence without a hash
        times: int = 1

        def __call__(self, x: int): ...

    def function(a: int = 1): ...

    typed.hints(function)["b"] = typed.hints(function).pop("a")
    assert typed.hints(function) == {"a": typed.Setting(int, 1)}
    assert list(typed.hints(Callable())) == ["x"]


def test_errors_are_one_short_line():
    known = {"rounds": (int, 1)}
    with refused(r"\[run\] has no setting 'round'. Did you mean 'rounds'\?"):
        typed.check("[run]", {"round": 1}, known)
    with refused("must be a whole number; got 'x"):
        typed.check("[run]", {"rounds": "x" * 10_000}, known)
    with refused("fits in 64 bits; got a number of thousands of digits"):
        typed.check("[run]", {"rounds": 16**9000}, known)
    assert len(typed.short([[["x" * 500] * 500] * 500] * 500)) <= 120
