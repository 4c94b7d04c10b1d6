"""Quicker steps made beside the rounds: these begin at once with a step that is captured as it is, change over to
layers with kernels of their own when these are made, and in a long run to a compiled step. Only on a GPU and without
`deterministic`: which round changes over is a matter of time, and its numbers differ by rounding."""

from __future__ import annotations

import atexit
import ctypes
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from unalike.engines.batched.graphs import compiler_switches
from unalike.errors import EngineRefused, first_line
from unalike.nn.numerics import search_convolutions

if TYPE_CHECKING:
    from unalike.engines.batched.step import Course, Step
    from unalike.nn.task import FunctionalModule

SOON = 8.0  # seconds that the rest of a run must take for its fast layers to be made, which takes some 4
SLACK = 0.1  # by how much a step with fast layers may differ, as in `Task`: only a wrong gradient must be found
WORTH = 60.0  # seconds that the rest of a run must take: compiling takes some 40, in which rounds slow down
ENOUGH = 3  # rounds after which the pace of a run is known: the first ones capture
LONG = 0.05  # seconds of a round in which the device has so much to do that another thread would wait for it
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
    def round_seconds(self) -> float:
        """Return the seconds of a round at the present pace; 0 if that is not known."""
        if not self.known:
            return 0.0
        return min(after - before for before, after in zip(self.begins[:-1], self.begins[1:], strict=True))

    @property
    def left(self) -> float:
        """Return the seconds that the remaining rounds take at the present pace."""
        if not self.known:
            return 0.0
        return self.round_seconds * (self.rounds - self.last if self.rounds else math.inf)


class Cancelled(BaseException):
    """The run has ended before the compiler has."""


class Compilation:
    """A step that is being made in a thread of its own, with a module of its own: one with all fast layers, if the step
    lacks some, or a compiled one."""

    def __init__(self, step: Step, moving: dict[str, Any], course: Course, seconds: float, room: int):
        """seconds: what a round takes meanwhile; room: how many clients the step is made for."""
        self.room = room
        # The first call of each kernel waits until the device is idle. So where rounds are long they give it one step
        # at a time: with a whole round in the queue each of some hundred kernels would wait for the end of it.
        self.by_steps = seconds > LONG
        self.step: Step | None = None
        self.error = ""
        self.layers = bool(step.pure.slow_to_make)
        pure = step.pure.duplicate()
        work = self._quicker if self.layers else self._compiled
        self._thread = threading.Thread(target=self._work, args=(work, step, pure, moving, course), daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Return whether the thread has ended."""
        return not self._thread.is_alive()

    def _compiled(self, step: Step, pure: FunctionalModule, moving: dict[str, Any], course: Course) -> Step:
        compiled = step.again(pure, self.room)
        search_convolutions(True)
        with compiler_switches():
            compiled.warm(moving, course)
        return compiled

    def _quicker(self, step: Step, pure: FunctionalModule, moving: dict[str, Any], course: Course) -> Step:
        from unalike.nn.fast import compile_ahead

        want = step.again(pure, step.width, early=True).tried(moving, course)
        quicker = step.again(pure.quicker(), self.room, early=True)
        compile_ahead(lambda: quicker.tried(moving, course), course.offset.device)
        found = quicker.tried(moving, course)
        if not float((found - want).norm()) <= SLACK * float(want.norm()):  # (NaN is not)
            raise EngineRefused("the fast layers do not give the same gradient here")
        quicker.warm(moving, course)
        return quicker

    def _work(self, work: Callable[..., Step], step: Step, *given: Any) -> None:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        try:
            with torch.no_grad(), _own_stream(given[-1].offset.device):
                self.step = work(step, *given)
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
            # ahead of the rounds, whose kernels fill the device: it has little to do there
            self.stream = torch.cuda.Stream(self.device, priority=-1)
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
