"""Data interpolation (Dapper): Mansour et al., "Three approaches for personalization with applications to federated
learning", 2020.

Every client trains a model of its own on a mixture of its own data and of a sample of everybody's, the public set here:

    min_θ  λ f_k(θ) + (1 − λ) f_public(θ)

No model travels at all. Practical truth: λ = 1 is `local-only`; at a small λ all clients have nearly the same model,
that of the public set. It needs labelled public data like the clients'; `--public 0.1` sets some aside. The paper
chooses λ for each client by validation; here it is one knob (`--tune`).
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob

BOTH = ("train", "public")


@dc.dataclass(frozen=True)
class Dapper(Method):
    lam: float = knob(0.5, "λ, weight of a client's own data", least=0, most=1, tune=(0.01, 1.0))

    name = "dapper"
    needs_public = True
    keeps = {"theta": Field()}
    sends = {}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.sum(self.is_public, data=BOTH).then(self.train)

    def is_public(self, batch: Batch) -> Tensor:
        return batch.source.to(batch.weights.dtype)

    def train(self, me: Me, s: Fields, m: Fields, public: Tensor) -> Answer:
        args = {"own": me.n, "public": public}
        return me.train(me.own(s.theta), data=BOTH, own=0.0, loss=self.mixture, args=args).then(self.kept)

    def mixture(self, batch: Batch, own: Tensor, public: Tensor) -> Tensor:
        """A mini-batch of both, weighted as if each set had its own mean."""
        weight = torch.where(batch.source == 0, self.lam / own, (1 - self.lam) / public) * (own + public)
        return batch.mean(weight * batch.losses)

    def kept(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {"theta": theta}, {}

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.client)

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.theta)

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        return {}
