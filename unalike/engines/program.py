"""The step of a stack of clients: built once, run eagerly, compiled, or replayed from CUDA graphs."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from unalike import random
from unalike.contract import Batch, Work
from unalike.data.federation import Columns
from unalike.errors import UnalikeError
from unalike.local import LocalTraining, Order, update
from unalike.model import Model, Pure


@dc.dataclass(frozen=True)
class Setting:
    """What a step is built from; equal settings share one compiled step."""

    local: LocalTraining
    loss: Callable[..., Tensor] | None
    step: Callable[..., Tensor] | None
    batches: int
    unclipped: tuple[str, ...]
    fixed: tuple[tuple[str, float], ...]
    args: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, local: LocalTraining, work: Work, fixed: dict[str, float], args: dict[str, Any]) -> Setting:
        # amounts of work and rates are inputs of a step, not part of it
        local = dc.replace(local, epochs=1, steps=None, lr=1.0, lr_decay=1.0)
        setting = cls(
            local,
            work.loss,
            work.step,
            work.batches,
            work.unclipped,
            tuple(sorted(fixed.items())),
            tuple(sorted(args.items())),
        )
        try:
            hash(setting)
        except TypeError as error:
            raise UnalikeError(f"The args of a loss or step must be tensors or plain values: {error}.") from error
        return setting


class Program:
    """`run` takes stacked vectors through all their steps. Clients are longest first: those at work are a prefix."""

    def __init__(self, model: Model, pure: Pure, setting: Setting, compile: bool):
        self.model, self.pure, self.setting = model, pure, setting
        self.fixed, self.args = dict(setting.fixed), dict(setting.args)
        self.graphs: dict[Any, Graph] = {}
        self.compiled = compile
        if compile:
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            self.step = torch.compile(self._step, dynamic=False)
        else:
            self.step = self._step

    # ---- one step of every client of a prefix, in place on `moving`

    def _step(
        self, moving: dict[str, Any], x: Tensor, y: Tensor, weight: Tensor, keys: Tensor, live: Tensor | None
    ) -> Tensor:
        theta, buffers, lr, args = moving["theta"], moving["buffers"], moving["lr"], moving["args"]
        if live is not None:
            lr = torch.where(live, lr, 0.0)
        if self.setting.step is not None:
            new, loss = vmap(self._replaced)(theta, buffers, x, y, weight, keys, lr[:, 0], args)
            theta.copy_(new if live is None else torch.where(live, new, theta))
            return loss
        g, (loss, new_buffers) = vmap(grad(self._objective, has_aux=True))(
            theta, buffers, x[:, 0], y[:, 0], weight[:, 0], keys, args
        )
        update(
            self.setting.local,
            theta,
            g,
            moving["slots"],
            lr,
            moving.get("pull", self.fixed.get("pull", 0.0)),
            moving.get("push", self.fixed.get("push", 0.0)),
            self.setting.unclipped,
            live,
        )
        if self.model.buffer_layout.size:
            buffers.copy_(new_buffers)
        return loss

    def _batch(self, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, **known: Any) -> Batch:
        def call(vector: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            vector = self.model.layout.repack(vector, self.pure.layout)
            out, features, _ = self.pure(vector, buffers, other, key, weight, want_features=True)
            return out, features  # type: ignore[return-value]

        return Batch(x, y, weight, self.model.losses, call, **known)

    def _objective(
        self, theta: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, args: dict
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        extra = self.setting.loss
        output, features, new_buffers = self.pure(theta, buffers, x, key, weight, want_features=extra is not None)
        data_loss = (self.model.losses(output, y) * weight).sum()
        loss = data_loss
        if extra is not None:
            batch = self._batch(buffers, x, y, weight, key, output=output, features=features)
            loss = data_loss + extra(batch, **args, **self.args)
        return loss, (data_loss.detach(), new_buffers.detach())

    def _replaced(
        self,
        theta: Tensor,
        buffers: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor,
        lr: Tensor,
        args: dict,
    ) -> tuple[Tensor, Tensor]:
        assert self.setting.step is not None
        batches = [self._batch(buffers, x[b], y[b], weight[b], key) for b in range(self.setting.batches)]
        own, packed = self.model.layout, self.pure.layout
        new = self.setting.step(packed.repack(theta, own), batches, lr, **args, **self.args)
        return own.repack(new, packed), lr.new_full((), float("nan"))

    # ---- all steps

    def run(
        self,
        data: Columns,
        moving: dict[str, Any],
        plan: Order,
        offsets: np.ndarray,
        steps: np.ndarray,
        keys: np.ndarray,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """(vectors, buffers, optimizer state, mean loss) after `steps[k]` steps of each client."""
        device = moving["theta"].device
        offset = torch.from_numpy(offsets).to(device)[:, None]
        key = torch.from_numpy(keys).to(device)
        total = torch.zeros(len(steps), dtype=moving["theta"].dtype, device=device)
        drive = self._drive_graph if self.compiled and device.type == "cuda" else self._drive
        drive(data, moving, plan, offset, steps, key, total)
        count = torch.from_numpy(steps).to(total)
        return moving["theta"], moving["buffers"], moving["slots"], total / count

    def _blocks(self, plan: Order, steps: np.ndarray, offset: Tensor, dtype: torch.dtype):
        """(first step, rows [K, b, c, B], weights) a block at a time."""
        b = self.setting.batches
        longest, size = int(steps.max()), plan.block_steps()
        for first in range(0, longest, size):
            last = min(first + size, longest)
            index, real = plan.block(first * b, last * b)
            rows = index + offset
            weight = real.to(dtype) / real.sum(-1, keepdim=True).clamp(min=1)
            shape = (last - first, b, *rows.shape[1:])
            yield first, rows.reshape(shape), weight.reshape(shape)

    def _drive(
        self,
        data: Columns,
        moving: dict,
        plan: Order,
        offset: Tensor,
        steps: np.ndarray,
        key: Tensor,
        total: Tensor,
    ) -> None:
        """Step by step from the host. Eager: exactly the clients still at work; compiled: few widths."""
        c, b = len(steps), self.setting.batches
        alive = (steps[None, :] > np.arange(int(steps.max()))[:, None]).sum(1)  # clients at work in each step
        with torch.no_grad():
            for first, rows, weight in self._blocks(plan, steps, offset, total.dtype):
                for k in range(rows.shape[0]):
                    working = int(alive[first + k])
                    width = _width(working, c) if self.compiled else working
                    part = moving if width == c else tree_map(lambda t, w=width: t[:w], moving)
                    at = rows[k, :, :width].transpose(0, 1)  # [c, b, B]
                    drop = random.fold(key[:width], (first + k) * b) if self.pure.keyed else key[:width]
                    live = None
                    if width > working:
                        live = torch.arange(width, device=total.device)[:, None] < working
                    loss = self.step(part, data.x[at], data.y[at], weight[k, :, :width].transpose(0, 1), drop, live)
                    total[:working] += loss[:working]

    def _drive_graph(
        self,
        data: Columns,
        moving: dict,
        plan: Order,
        offset: Tensor,
        steps: np.ndarray,
        key: Tensor,
        total: Tensor,
    ) -> None:
        raise NotImplementedError


def _width(working: int, c: int) -> int:
    """The smallest of a few widths that holds everybody at work: each width is compiled once."""
    return min(w for w in {c, -(-c // 2), -(-c // 4)} if w >= working)


class Graph:
    pass
