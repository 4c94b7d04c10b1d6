"""Optimizers, and the update of a vector by a gradient.

Everything works on `[..., P]` in place: one client's vector and a stack of vectors go through the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from unalike.training.settings import LocalTraining

Slots = dict[str, Tensor]


def _sgd(local: LocalTraining, theta: Tensor, g: Tensor, slots: Slots, lr: Tensor) -> None:
    if local.momentum:
        buffer = slots["momentum"].mul_(local.momentum).add_(g)
        g = g.add_(buffer, alpha=local.momentum) if local.nesterov else buffer
    theta.addcmul_(g, lr, value=-1)


def _rmsprop(local: LocalTraining, theta: Tensor, g: Tensor, slots: Slots, lr: Tensor) -> None:
    square = slots["square"].mul_(local.smoothing).addcmul_(g, g, value=1 - local.smoothing)
    g = g / (square.sqrt() + local.eps)
    if local.momentum:
        g = slots["momentum"].mul_(local.momentum).add_(g)
    theta.addcmul_(g, lr, value=-1)


def _adam(local: LocalTraining, theta: Tensor, g: Tensor, slots: Slots, lr: Tensor) -> None:
    b1, b2 = local.betas
    t = slots["count"].add_(1)
    mean = slots["mean"].mul_(b1).add_(g, alpha=1 - b1)
    square = slots["square"].mul_(b2).addcmul_(g, g, value=1 - b2)
    scale = (square / (1 - b2**t)).sqrt_().add_(local.eps)
    theta.addcmul_(mean / scale, lr / (1 - b1**t), value=-1)


OPTIMIZERS: dict[str, Callable[..., None]] = {"sgd": _sgd, "rmsprop": _rmsprop, "adam": _adam}


def slot_names(local: LocalTraining) -> dict[str, str]:
    """Return the names of the optimizer's state, each with its shape: the model's ("model") or one number ("one")."""
    names: dict[str, str] = {}
    if local.optimizer == "adam":
        names |= {"mean": "model", "square": "model", "count": "one"}
    if local.optimizer == "rmsprop":
        names["square"] = "model"
    if local.momentum and local.optimizer != "adam":
        names["momentum"] = "model"
    return names


def new_slots(local: LocalTraining, theta: Tensor) -> Slots:
    """Return fresh optimizer state for a vector or a stack of vectors."""
    return {
        name: torch.zeros_like(theta) if shape == "model" else theta.new_zeros(*theta.shape[:-1], 1)
        for name, shape in slot_names(local).items()
    }


def plain_step(local: LocalTraining, pull: Tensor | float, push: Tensor | float) -> bool:
    """Return whether a step is `theta - lr * gradient` and nothing else: then `plain_update` makes it."""
    affine = any(isinstance(value, Tensor) or value for value in (pull, push))
    extra = local.momentum or local.weight_decay or local.clip_norm is not None or affine
    return local.optimizer == "sgd" and not extra


def plain_update(tensors: list[Tensor], gradients: list[Tensor], lr: Tensor) -> None:
    """Make a plain step in place, tensor by tensor, so that no vector of gradients need be put together."""
    rate = lr.reshape(())  # also for a parameter that is one number
    if rate.is_cuda:  # one call for all of them
        torch._foreach_sub_(tensors, torch._foreach_mul(gradients, rate))
        return
    for theta, g in zip(tensors, gradients, strict=True):
        theta.addcmul_(g, rate, value=-1)


def update(
    local: LocalTraining,
    theta: Tensor,
    g: Tensor,
    slots: Slots,
    lr: Tensor,
    pull: Tensor | float = 0.0,
    push: Tensor | float = 0.0,
    unclipped: tuple[str, ...] = (),
    live: Tensor | None = None,
    mask: Tensor | None = None,
) -> None:
    """Make one step in place: affine term, clipping, weight decay, optimizer. `lr` is [..., 1]; `live` [..., 1] tells
    whose optimizer state changes (a client that has finished takes part with lr 0); `mask` [P] tells which numbers
    change at all."""

    def affine(late: bool) -> None:
        if ("pull" in unclipped) == late and (isinstance(pull, Tensor) or pull):
            if isinstance(pull, Tensor):
                g.addcmul_(theta, pull)
            else:
                g.add_(theta, alpha=pull)
        if ("push" in unclipped) == late and (isinstance(push, Tensor) or push):
            g.add_(push)

    still = theta.clone() if mask is not None else None
    affine(late=False)
    if mask is not None:
        g.mul_(mask)  # the norm counts only numbers that change
    if local.clip_norm is not None:
        norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        g.mul_((local.clip_norm / (norm + 1e-6)).clamp(max=1.0))
    if local.weight_decay:
        g.add_(theta, alpha=local.weight_decay)
    affine(late=True)
    if mask is not None:
        g.mul_(mask)
    before = {k: v.clone() for k, v in slots.items()} if live is not None or mask is not None else {}
    OPTIMIZERS[local.optimizer](local, theta, g, slots, lr)
    for name, old in before.items():
        if live is not None:
            slots[name].copy_(torch.where(live, slots[name], old))
        if mask is not None and old.shape[-1] == len(mask):
            slots[name].copy_(torch.where(mask, slots[name], old))
    if mask is not None:
        theta.copy_(torch.where(mask, theta, still))  # type: ignore[arg-type]
