"""FedNova: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization",
NeurIPS 2020.

Clients that do more local steps pull the mean towards their own optimum. FedNova averages directions instead, each
divided by the weight of the steps in it, and scales the mean by the average work:

    d_k = (w − θ_k) / ‖a_k‖₁,   w ← w − τ Σ p_k d_k,   τ = Σ p_k ‖a_k‖₁,   p_k = n_k / Σ n_k

‖a_k‖₁ is K for plain SGD; with momentum ρ each step adds c ← ρ c + 1; with a spring μ to the received model it becomes
(1 − ημ) ‖a‖₁ + 1 at each step, and τ = Σ p_k K_k. One vector and one number go up (two with a spring).

Local momentum is the run's `LocalTraining(momentum=…)`, zeroed each round. Practical truth: with equal work it is
FedAvg exactly; what it mends is unequal work, not unequal data.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedNova(Method):
    server_momentum: float = knob(0.0, "momentum of the server's steps", least=0, below=1)
    mu: float = knob(0.0, "strength of the spring (FedProx's) in local training", least=0, tune=(1e-3, 1.0))

    name = "fednova"
    asynchronous = "can"
    sends = {
        "direction": Field(what="its mean change of the model per step"),
        "work": Field("scalar", by="network", what="how many steps it made"),
    }

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.momentum = torch.zeros_like(server.w)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, pull=self.mu, push=-self.mu * m.w).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        if me.local.optimizer != "sgd":
            raise UnalikeError(f"FedNova knows the weight of SGD's steps, not of {me.local.optimizer}'s: use sgd.")
        a = accumulated(me.steps, me.local.momentum, me.lr * self.mu, self.mu > 0)
        return {}, {"direction": (m.w - theta) / a, "work": me.steps if self.mu > 0 else a}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w)
        rate = float(cohort.rates.mean())  # the official momentum is kept in units of the learning rate
        step = replies.mean("work") * replies.mean("direction")
        server.momentum = self.server_momentum * server.momentum + step / rate
        server.w = server.w - rate * server.momentum


def accumulated(steps: Tensor, momentum: float, pull: Tensor, spring: bool) -> Tensor:
    """‖a‖₁ after so many steps: c ← ρc + 1 (or nothing, without momentum), a ← (1 − ημ)(a + c) + 1 (or a + c)."""
    if not spring:
        if momentum == 0:
            return steps
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    keep = 1 - pull
    alone = (1 - keep**steps) / (1 - keep)  # Σ keep^(K−k)
    if momentum == 0:
        return alone
    mixed = momentum * (keep**steps - momentum**steps) / (keep - momentum)  # Σ keep^(K−k) ρ^k
    return alone + keep * (alone - mixed) / (1 - momentum)
