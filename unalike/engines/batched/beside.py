"""Compiling beside the rounds: they begin at once with a step that is captured as it is, and change over when the
compiled one is ready. Only on a GPU and without `deterministic`: which round changes over is a matter of time, and its
numbers differ by rounding."""

from __future__ import annotations

import atexit
import copy
import ctypes
import math
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from unalike.engines.batched.graphs import compiler_switches
from unalike.errors import first_line
from unalike.nn.numerics import search_convolutions

if TYPE_CHECKING:
    from unalike.engines.batched.step import Course, Step

WORTH = 60.0  # seconds that the rest of a run must take: compiling takes some 40, in which rounds slow down
ENOUGH = 3  # rounds after which the pace of a run is known: the first ones capture
SWITCH = 2e-5  # seconds for which a thread keeps the interpreter's lock while one compiles; rounds let go of it often

_running: weakref.WeakSet[Compilation] = weakref.WeakSet()


class Pace:
    """When the rounds of a run began, and so how long the rest of them would take."""

    def __init__(self) -> None:
        self.rounds = 0  # that are planned; 0: nobody knows
        self.last, self.begins = -1, [0.0]

    def begin(self, round: int) -> None:
        """Hear of a call in this round."""
        if round != self.last:
            self.last = round
            self.begins = [*self.begins[-ENOUGH:], time.perf_counter()]

    @property
    def known(self) -> bool:
        """Return whether enough rounds have passed."""
        return len(self.begins) > ENOUGH and self.begins[0] > 0

    @property
    def left(self) -> float:
        """Return the seconds that the remaining rounds take at the present pace."""
        if not self.known:
            return 0.0
        each = min(after - before for before, after in zip(self.begins[:-1], self.begins[1:], strict=True))
        return each * (self.rounds - self.last if self.rounds else math.inf)


class Cancelled(BaseException):
    """The run has ended before the compiler has."""


class Compilation:
    """A step that is being compiled in a thread of its own, with a module of its own."""

    def __init__(self, step: Step, moving: dict[str, Any], course: Course):
        self.step: Step | None = None
        self.error = ""
        pure = copy.deepcopy(step.pure, {id(step.task): step.task})  # a module is called by one thread at a time
        self._thread = threading.Thread(target=self._work, args=(step, pure, moving, course), daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Return whether the thread has ended."""
        return not self._thread.is_alive()

    def _work(self, step: Step, pure: Any, moving: dict[str, Any], course: Course) -> None:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        try:
            compiled = step.again(pure)
            search_convolutions(True)
            with torch.no_grad(), compiler_switches(), _own_stream(course.offset.device):
                compiled.warm(moving, course)
            self.step = compiled
        except Cancelled:
            pass
        except Exception as error:
            self.error = first_line(error) or type(error).__name__
        finally:
            sys.setswitchinterval(interval)

    def cancel(self) -> None:
        """Ask the thread to end; it does where it next runs Python."""
        if not self.done and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(Cancelled))

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the thread's end."""
        self._thread.join(seconds)


class _own_stream:
    """A stream of its own on a GPU, finished at the end; nothing elsewhere."""

    def __init__(self, device: torch.device):
        self.device = device

    def __enter__(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.stream = torch.cuda.Stream(self.device)
            self.stream.wait_stream(torch.cuda.default_stream(self.device))
            torch.cuda.set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        if self.device.type == "cuda":
            self.stream.synchronize()


@atexit.register
def _stop() -> None:
    """End what still compiles before the interpreter takes its modules away."""
    for compilation in list(_running):
        compilation.cancel()
    for compilation in list(_running):
        compilation.wait(10.0)
