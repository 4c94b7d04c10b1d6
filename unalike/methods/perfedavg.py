"""Per-FedAvg: Fallah, Mokhtari & Ozdaglar, "Personalized federated learning: a meta-learning approach", NeurIPS 2020.

Not the model that is best, but the one that is best after one step on a client's own data:

    F_k(w) = f_k(w − α ∇f_k(w))
    a local step, from three mini-batches:   u = t − α ∇f(t; 1),   g = ∇f(u; 2),
        exact         t ← t − β (g − α ∇²f(t; 3) g)
        hessian-free  the product by (∇f(t + δ g; 3) − ∇f(t − δ g; 3)) / 2δ
        first-order   t ← t − β g                        (from two mini-batches)
    w ← mean_k t                                          (plain; β is the run's rate)

Client k predicts with one step of size α from w on all its training samples; `judged="two steps"` is that of pFedMe's
program: a step of size α on one mini-batch, then one of size β on the next.

Practical truth: α = 0 is FedAvg with rate β on every step's second mini-batch. First order is nearly always as good,
and half the work. pFedMe's program has the first-order one only, weights its mean by samples, reads β = 0 as "use α"
and takes the two mini-batches from the *test* samples, which is not copied; Ditto's has the Hessian-free one.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Field, Fields, Me, Method, Request, knob


@dc.dataclass(frozen=True)
class PerFedAvg(Method):
    alpha: float = knob(0.01, "α, size of a client's own step", values="0.01", least=0, tune=(1e-3, 1.0))
    variant: str = knob(
        "hessian-free", "how the second derivative is had", choices=("exact", "hessian-free", "first-order")
    )
    delta: float = knob(1e-3, "δ of the Hessian-free one", values="0.001", above=0)
    weights: str = knob("uniform", "of clients in the mean", choices=("uniform", "samples"))
    judged: str = knob("one step", "what a client predicts with", choices=("one step", "two steps"))

    name = "per-fedavg"
    sends = {"delta": Field(weight="weights")}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, step=self.step, batches=2 if self.variant == "first-order" else 3).then(self.done)

    def step(self, theta: Tensor, batches: list[Batch], lr: Tensor) -> Tensor:
        slope = batches[1].grad(theta - self.alpha * batches[0].grad(theta))
        if self.variant == "exact":
            bent = torch.func.vjp(batches[2].grad, theta)[1](slope)[0]  # the Hessian is symmetric
        elif self.variant == "hessian-free":
            ahead, behind = (batches[2].grad(theta + d * slope) for d in (self.delta, -self.delta))
            bent = (ahead - behind) / (2 * self.delta)
        else:
            return theta - lr * slope
        return theta - lr * (slope - self.alpha * bent)

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        if self.judged == "two steps":
            return me.train(m.w, step=self.two, batches=2, steps=1)
        return me.gradient(m.w).then(self.adapted)

    def two(self, theta: Tensor, batches: list[Batch], lr: Tensor) -> Tensor:
        near = theta - self.alpha * batches[0].grad(theta)
        return near - lr * batches[1].grad(near)

    def adapted(self, me: Me, s: Fields, m: Fields, slope: Tensor) -> Tensor:
        return m.w - self.alpha * slope
