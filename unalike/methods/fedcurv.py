"""FedCurv: Shoham et al., "Overcoming forgetting in federated learning on non-IID data", 2019.

FedAvg, with a local loss that remembers where every other client's loss is steep (elastic weight consolidation):

    min f_k(θ) + λ Σ_{j≠k} (θ − θ_j)ᵀ diag(F_j) (θ − θ_j),      F_j = mean_i (∇f_j,i(θ_j))²

θ_j is what client j sent last, and F_j the diagonal of its Fisher information there: the mean over its samples of
squared gradients. Only sums travel, U = Σ F_j and V = Σ F_j θ_j, from which a client takes its own away:

    gradient of the penalty = 2 λ [(U − F_k) θ − (V − F_k θ_k)]

A client that has not come again counts with what it sent last. In the first round there is nothing to remember: FedAvg.

Practical truth: three vectors each way instead of one, and a pass over the data with a gradient a sample. U grows with
the number of clients, so λ must fall with it: local steps are stable only while η · 2 λ U < 2 in every weight. (The one
program there is, OpenFL's, squares the mean gradient of the last mini-batch, which is no Fisher information.)
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob

NUMBERS = 1 << 26  # of gradients, a sample each, that are held at once


@dc.dataclass(frozen=True)
class FedCurv(Method):
    lam: float = knob(0.01, "λ, strength of the memory of other clients", least=0, tune=(1e-4, 1.0))

    name = "fedcurv"
    keeps = {"fisher": Field(), "anchor": Field()}  # F_k, and F_k θ_k
    sends = {
        "delta": Field(),
        "fisher": Field(weight="one", what="its Fisher information"),
        "anchor": Field(weight="one", what="that times its model"),
    }

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.fisher = server.anchor = torch.zeros_like(server.w)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        pull, push = m.fisher - s.fisher, s.anchor - m.anchor
        return me.train(m.w, pull=2 * self.lam * pull, push=2 * self.lam * push).then(self.steep)

    def steep(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        few = max(1, NUMBERS // theta.shape[-1])
        return me.average(self.squares, theta, at_once=few).then(self.end, theta=theta)

    def squares(self, batch: Batch) -> Tensor:
        return batch.gradients(batch.vector).square()

    def end(self, me: Me, s: Fields, m: Fields, fisher: Tensor, theta: Tensor) -> Answer:
        anchor = fisher * theta
        sent = {"delta": theta - m.w, "fisher": fisher - s.fisher, "anchor": anchor - s.anchor}
        return {"fisher": fisher, "anchor": anchor}, {**sent}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w, fisher=server.fisher, anchor=server.anchor)
        server.w = server.w + replies.mean("delta")
        server.fisher = server.fisher + replies.sum("fisher")
        server.anchor = server.anchor + replies.sum("anchor")
