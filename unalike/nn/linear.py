"""Linear layers on CPUs for which PyTorch's usual library multiplies slowly.

PyTorch multiplies matrices with Intel's MKL, which does not use AVX-512 on AMD's processors. oneDNN, which PyTorch has
for convolutions, does: 2.1 times as fast for a batch of 20 to 50 through 1600-512 or 3136-512, forward and backward
(AMD EPYC of 2024, one thread, torch 2.13). Below some size its fixed cost is more than it saves: by itself, again and
again, from some 2 million products on it is faster, but between the other work of training only from some 6 million.
"""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# products (samples × inputs × outputs) and samples from which oneDNN's way is shorter
PRODUCTS, SAMPLES = 6_000_000, 8


@functools.cache
def better() -> bool:
    """Return whether oneDNN multiplies faster here. By the processor's maker, not by the clock: the same machine must
    compute the same numbers every time."""
    if sys.platform != "linux" or not torch.backends.mkl.is_available():
        return False
    with suppress(OSError, AttributeError):  # nothing to read there, or a build without oneDNN
        amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
        able = torch.backends.mkldnn.is_available() and callable(torch.ops.mkldnn._linear_pointwise)
        return amd and able and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return False


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a times b transposed, plus a bias."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx, g: Tensor):
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():  # it will be differentiated again, which oneDNN's products cannot be
            by_x, by_weight = (g @ weight if to_x else None), (g.mT @ x if to_weight else None)
        else:
            by_x, by_weight = (multiply(g, weight.mT) if to_x else None), (multiply(g.mT, x.mT) if to_weight else None)
        return by_x, by_weight, g.sum(0) if to_bias else None


class DirectLinear(nn.Linear):
    """nn.Linear that multiplies with oneDNN where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        # the cheapest question first: most layers are small
        if input.numel() * self.out_features < PRODUCTS or not self._fits(input):
            return F.linear(input, self.weight, self.bias)
        rows = input.numel() // self.in_features
        out: Tensor = _Linear.apply(input.reshape(rows, -1), self.weight, self.bias)
        return out.reshape(*input.shape[:-1], -1)

    def _fits(self, x: Tensor) -> bool:
        """Return whether oneDNN's way is for such an input; of a wrong one PyTorch's error says what is wrong."""
        right = x.dim() > 1 and x.shape[-1] == self.in_features and x.numel() >= SAMPLES * self.in_features
        return right and x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
