"""Work of a GPU, captured once as a CUDA graph and then repeated without Python."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


def capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def graphed(
    work: Callable[[], Any], device: torch.device, warm: Callable[[], Any] | None = None, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a CUDA graph of this work, and its results; it is warmed up first, because nothing may be compiled within
    a graph."""
    ours, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(ours)
    with torch.cuda.stream(side), quiet():
        (warm or work)()
    ours.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    try:
        # another thread may be compiling: what it does with the device is no part of this
        how = {"pool": pool, "stream": side, "capture_error_mode": "thread_local"}
        with torch.cuda.device(device), _nothing_collected(), torch.cuda.graph(graph, **how), quiet():
            out = work()
    except BaseException:
        torch.cuda.set_stream(ours)  # a capture that fails leaves its own behind
        _put_right(pool, device)
        raise
    return graph, out


def _put_right(pool: Any, device: torch.device) -> None:
    """Mend what a failed capture leaves behind in torch: a memory pool that no other capture may use, and before torch
    2.13 a random generator that refuses to draw until a capture has ended well."""
    index = torch.cuda.current_device() if device.index is None else device.index
    # it fails where the failure was Python's alone, and torch has ended the capture; torch before 2.8 has not this
    with suppress(RuntimeError, AttributeError):
        torch.cuda.memory._cuda_endAllocateToPool(index, pool)
        torch.cuda.memory._cuda_releasePool(index, pool)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    trivial = torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local")
    # (what failed first is what is told)
    with suppress(RuntimeError), torch.cuda.device(device), _nothing_collected(), trivial:
        torch.zeros(1, device=device)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Keep Python's garbage until the capture is over: freeing an older graph would break it. Of two threads in here,
    the last one lets it be collected again."""
    with _process.lock:
        if not _process.capturing:
            _process.collects = gc.isenabled()
            gc.disable()
        _process.capturing += 1
    try:
        yield
    finally:
        with _process.lock:
            _process.capturing -= 1
            if not _process.capturing and _process.collects:
                gc.enable()


@contextmanager
def quiet() -> Iterator[None]:
    """The compiler's advice about settings that `precision` has already decided is not the user's business. Two threads
    may be in here: the filters are those of the process, and the last one puts them back."""
    with _process.lock:
        if not _process.inside:
            _process.before = warnings.catch_warnings()
            _process.before.__enter__()
            warnings.simplefilter("ignore")
        _process.inside += 1
    try:
        yield
    finally:
        with _process.lock:
            _process.inside -= 1
            if not _process.inside:
                _process.before.__exit__(None, None, None)


class _process:
    """How many are in `quiet` and how many capture, and what was set before."""

    lock, inside, capturing, collects = threading.Lock(), 0, 0, True
    before: warnings.catch_warnings
