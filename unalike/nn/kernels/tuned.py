"""Kernels that are compiled ahead, several at a time, or try their configurations; and what the kernels share."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton

from unalike.nn.fast.operation import AHEAD

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # it measures nothing
# programs that fill a large GPU several times over
PROGRAMS = 1000


@contextmanager
def compiled_ahead() -> Iterator[None]:
    """Compile the kernels that are called within, side by side, and run none of them: what is computed within is
    meaningless. Only calls on a stream of its own count, so other threads go on."""
    stream = torch.cuda.Stream(priority=-1)
    found: list[Any] = []
    stream.wait_stream(torch.cuda.current_stream())
    AHEAD[stream.cuda_stream] = found
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        del AHEAD[stream.cuda_stream]
        stream.synchronize()
    for one in found:
        one.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0))), thread_name_prefix="kernels")


def _launch(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
    found = AHEAD.get(torch.cuda.current_stream().cuda_stream) if AHEAD else None
    if found is None:
        kernel[grid](*args, **options)
    else:
        found.append(_threads().submit(_compile, torch.cuda.current_device(), kernel, grid, args, options))


def _compile(device: int, kernel: Any, grid: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    with torch.cuda.device(device):
        made = kernel.warmup(*args, grid=grid, **options)
        # what launches it is compiled too, by the system's C compiler, which takes as long again
        getattr(made, "_init_handles", lambda: None)()


class Launched:
    """A kernel that can be compiled ahead."""

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return functools.partial(_launch, self.kernel, grid)


class Tuned:
    """A kernel that tries its configurations once per shape and keeps the fastest, where cuDNN is to do so for its own
    (`search_convolutions`); else it takes the first, so that only one is compiled."""

    def __init__(self, kernel, configs: list[triton.Config], key: list[str]):
        self.kernel, self.configs = kernel, configs
        self.search = triton.autotune(configs, key=key, do_bench=_bench)(kernel)

    def __getitem__(self, grid):
        # nothing can be measured while other kernels are compiled
        search = torch.backends.cudnn.benchmark and not INTERPRETED and not AHEAD
        return self.search[grid] if search else self.only(grid, self.configs[0])

    def only(self, grid, config: triton.Config):
        """Return the launcher of one configuration."""
        return functools.partial(_launch, self.kernel, grid, **config.all_kwargs())


def _bench(call, quantiles):
    return triton.testing.do_bench(call, warmup=3, rep=10, quantiles=quantiles)


def tuned(configs, key):
    """Decorate a kernel with its configurations: constants, warps, stages; the first is the one to begin with."""
    made = [triton.Config(c, num_warps=w, num_stages=s) for c, w, s in configs]
    return lambda kernel: Tuned(kernel, made, key)


def power(n: int) -> int:
    """Return the smallest power of 2 that is at least n and 16."""
    return max(16, triton.next_power_of_2(n))
