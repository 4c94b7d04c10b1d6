"""The order of samples: which of them each step of each client reads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.training.settings import LocalTraining
from unalike.training.transfer import to_device


class Order:
    """Which samples each step of each client reads: `block(first, last)` returns indices [steps, c, batch] into the
    client's own samples, and which of them are real. A function of the clients' keys; padding is at the end."""

    def __init__(
        self,
        local: LocalTraining,
        keys: np.ndarray,
        sizes: np.ndarray,
        device: torch.device | str = "cpu",
        there: Sequence[Tensor] | None = None,
        ends: tuple[np.ndarray, Tensor] | None = None,
    ):
        """there: keys, sizes and passes on the device; ends: how many batches each client reads, on the host and on the
        device. A client's later batches are its last one again, so that they cost nothing."""
        self.width = int(sizes.max()) if local.batch_size is None else local.batch_size
        self.shuffle = local.shuffle and local.batch_size is not None  # the full batch needs no order
        # both on the host and on the device, so that neither waits for a size
        self._counts = local.passes(sizes)
        self.keys, counts = to_device(device, keys, self._counts) if there is None else there
        self.sizes, self.per_epoch = counts
        self._ends = ends
        # tensors that must stay alive for a captured graph
        self.used: list[Any] = []

    def block_steps(self, limit: int = 1 << 22) -> int:
        """Return how many steps a block may have to stay small."""
        return max(1, limit // (len(self.sizes) * self.width))

    def block(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        device = self.sizes.device
        if (self._counts == self._counts[:, :1]).all():
            return self._even(first, last)
        step = torch.arange(first, last, device=device)[:, None]  # [K, 1], or [K, c]
        final = last - 1, first  # type: tuple[Any, Any]
        if self._ends is not None:
            step = torch.minimum(step, self._ends[1] - 1)
            final = tuple(np.minimum(number, self._ends[0] - 1) for number in final)
        epoch, batch = step // self.per_epoch, step % self.per_epoch  # [K, c]
        place = batch[..., None] * self.width + torch.arange(self.width, device=device)  # [K, c, B]
        real = place < self.sizes[:, None]
        place = torch.where(real, place, 0)
        if not self.shuffle:
            return place, real
        # One run of samples per client and pass, laid end to end, so that a client's cost is proportional to its
        # samples.
        sizes, per_epoch = self._counts
        host = final[0] // per_epoch - final[1] // per_epoch + 1  # clients of different sizes are in different passes
        passes = epoch[-1] - epoch[0] + 1  # [c], the same
        numbers = torch.arange(len(sizes), device=device)
        client = numbers.repeat_interleave(passes, output_size=int(host.sum()))  # [runs]
        size, runs = self.sizes[client], torch.arange(int(host.sum()), device=device)
        run = runs.repeat_interleave(size, output_size=int((host * sizes).sum()))  # [samples]
        start, first_run = size.cumsum(0) - size, passes.cumsum(0) - passes
        number = torch.arange(len(run), device=device) - start[run]
        counter = (epoch[0][client] + runs - first_run[client]) * (1 << 32)
        draw = draws.bits(self.keys[client][run], counter[run] + number)
        # sorts by run, and within a run by its draws, in one sort of both: the draw's highest 40 bits follow the run
        order = ((run << 40) + (draw >> 24) + (1 << 39)).argsort(stable=True)
        return number[order][start[first_run + epoch - epoch[0]][..., None] + place], real

    def _even(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return the same as `block` for clients of equal size, with a fraction of the operations: all but the draws is
        known in advance."""
        n, per_epoch = (int(value) for value in self._counts[:, 0])
        used = _passes(n, per_epoch, self.width, first, last, self.shuffle, self.sizes.device)
        self.used.append(used)
        counter, take, real = used
        real = real[:, None].expand(-1, len(self.keys), -1)
        if not self.shuffle:
            return take[:, None].expand_as(real), real
        draw = draws.bits(self.keys[:, None], counter) >> 24
        order = draw.view(len(draw), -1, n).argsort(dim=-1, stable=True)
        return order.flatten(1)[:, take].transpose(0, 1), real


@functools.lru_cache(maxsize=8)
def _passes(
    n: int, per_epoch: int, width: int, first: int, last: int, shuffle: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for a client with `n` samples: the counters of all draws of the passes that these steps lie in, the
    positions of each step's samples within those passes [K, B], and which of them are real."""
    step = np.arange(first, last)
    place = (step % per_epoch)[:, None] * width + np.arange(width)
    real = place < n
    take = np.where(real, place, 0)
    epochs = np.arange(first // per_epoch, (last - 1) // per_epoch + 1)
    if shuffle:
        take = take + (step // per_epoch - epochs[0])[:, None] * n
    counter = ((epochs << 32)[:, None] + np.arange(n)).reshape(-1)
    return tuple(torch.from_numpy(a).to(device) for a in (counter, take, real))  # type: ignore[return-value]
