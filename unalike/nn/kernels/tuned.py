"""Kernels that try their configurations, and what the kernels share."""

from __future__ import annotations

import os

import torch
import triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # it measures nothing
# programs that fill a large GPU several times over
PROGRAMS = 1000


class Tuned:
    """A kernel that tries its configurations once per shape and keeps the fastest, where cuDNN is to do so for its own
    (`search_convolutions`); else it takes the first, so that only one is compiled."""

    def __init__(self, kernel, configs: list[triton.Config], key: list[str]):
        self.kernel, self.configs = kernel, configs
        self.search = triton.autotune(configs, key=key, do_bench=_bench)(kernel)

    def __getitem__(self, grid):
        search = torch.backends.cudnn.benchmark and not INTERPRETED
        return self.search[grid] if search else self.only(grid, self.configs[0])

    def only(self, grid, config: triton.Config):
        """Return the launcher of one configuration."""
        return lambda *args: self.kernel[grid](*args, **config.all_kwargs())


def _bench(call, quantiles):
    return triton.testing.do_bench(call, warmup=3, rep=10, quantiles=quantiles)


def tuned(configs, key):
    """Decorate a kernel with its configurations: constants, warps, stages; the first is the one to begin with."""
    made = [triton.Config(c, num_warps=w, num_stages=s) for c, w, s in configs]
    return lambda kernel: Tuned(kernel, made, key)


def power(n: int) -> int:
    """Return the smallest power of 2 that is at least n and 16."""
    return max(16, triton.next_power_of_2(n))
