"""MAPPER: Mansour et al., "Three approaches for personalization with applications to federated learning", 2020.

Model interpolation: a client predicts with h = λ_k v_k + (1 − λ_k) w, where λ_k is chosen from a grid:

    for every λ of the grid:   v trained within h, w held still     (gradient λ ∇f(h))
    the λ of the lowest training loss, and its v, are kept          (ties: the first)
    w trained within h, v held still                                (gradient (1 − λ) ∇f(h)); sent: θ − w

Practical truth: the grid [0] is FedAvg, [1] training alone; every candidate costs a local training. Chosen by training
loss, λ leans to the own model: the paper chooses so too. Only plain SGD is known. In the program of Ditto's authors
only the last client of a round moves w, by an accident; that is not copied.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Field, Fields, Me, Method, knob


@dc.dataclass(frozen=True)
class Mapper(Method):
    grid: tuple[float, ...] = knob((0.1, 0.5, 0.9), "the values of λ to choose from")

    name = "mapper"
    keeps = {"v": Field(), "lam": Field("scalar")}

    def own(self, me: Me, s: Fields) -> tuple[Tensor, Tensor]:
        """This client's vector and share; before its first round the start and 0."""
        return me.own(s.v), me.own(s.lam, torch.zeros_like(s.lam))

    def values(self, like: Tensor) -> Tensor:
        return like.new_tensor(self.grid)[:, None]

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        each = self.own(me, s)[0].expand(len(self.grid), -1)
        return me.train(each, step=self.own_step, args={"w": m.w}).then(self.compare)

    def own_step(self, each: Tensor, batches: list[Batch], lr: Tensor, w: Tensor) -> Tensor:
        lam = self.values(w)
        slopes = torch.func.vmap(batches[0].grad)(lam * each + (1 - lam) * w)
        return each - lr * lam * slopes

    def compare(self, me: Me, s: Fields, m: Fields, each: Tensor) -> Answer:
        lam = self.values(m.w)
        return me.losses(lam * each + (1 - lam) * m.w).then(self.choose, each=each)

    def choose(self, me: Me, s: Fields, m: Fields, losses: Tensor, each: Tensor) -> Answer:
        best = (torch.arange(len(self.grid), device=losses.device) == losses.argmin()).to(each.dtype)
        v, lam = best @ each, best @ self.values(m.w)[:, 0]
        return me.train(m.w, step=self.common_step, args={"v": v, "lam": lam}).then(self.end, v=v, lam=lam)

    def common_step(self, w: Tensor, batches: list[Batch], lr: Tensor, v: Tensor, lam: Tensor) -> Tensor:
        return w - lr * (1 - lam) * batches[0].grad(lam * v + (1 - lam) * w)

    def end(self, me: Me, s: Fields, m: Fields, theta: Tensor, v: Tensor, lam: Tensor) -> Answer:
        return {"v": v, "lam": lam}, {"delta": theta - m.w}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        v, lam = self.own(me, s)
        return lam * v + (1 - lam) * m.w
