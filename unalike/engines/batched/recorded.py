"""Calls of compiled code on a CPU without what PyTorch does before each of them.

A compiled function is called through checks that its arguments are still those it was compiled for, and through several
layers of Python: for a tiny model that takes longer than its step. A step of static buffers gets the same arguments
every time, so that the checks of its first call are enough.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

BACKEND = "inductor"  # PyTorch's own compiler


class Recorder:
    """A back end of `torch.compile` that can tell which compiled code was called, and with which arguments."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] | None = None

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        compiled = torch._dynamo.lookup_backend(BACKEND)(graph, inputs)

        def noted(*args: Any) -> Any:
            if self._calls is not None:
                self._calls.append(functools.partial(compiled, *args))
            return compiled(*args)

        return noted

    def record(self, work: Callable[[], Any]) -> Callable[[], Any] | None:
        """Do the work, and return its call of compiled code; None unless there was exactly one."""
        calls: list[Callable[[], Any]] = []
        self._calls = calls
        try:
            work()
        finally:
            self._calls = None
        return calls[0] if len(calls) == 1 else None
