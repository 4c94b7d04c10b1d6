"""FedDyn: Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

Each client adds to its loss a linear term that remembers its drift h_k and a pull to the received model:

    f_k(θ) + α_k ⟨θ, h_k − w⟩ + (α_k/2) ‖θ‖²,   α_k = α / (n_k over the mean n)
    h_k ← h_k + θ_k − w,   H ← H + (1/N) Σ_S (θ_k − w),   w ← mean_S θ_k + H

so that local stationary points agree with the global one. One vector each way: the server can keep H, the mean of all
h_k, from what it receives. Means over clients are unweighted, as in the authors' program; there the quadratic term is
weight decay, which gradient clipping does not see, and so it is here.

Practical truth: fast and accurate when α fits; H carries the drift of absent clients, and with few participants and a
large α it can blow up.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class FedDyn(Method):
    alpha: float = knob(0.01, "strength of the regulariser", values="0.01", least=0, tune=(1e-3, 1.0))

    name = "feddyn"
    keeps = {"drift": Field()}
    sends = {"delta": Field(weight="one")}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.drift = torch.zeros_like(server.w)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        a = self.alpha / me.relative_size
        return me.train(m.w, pull=a, push=a * (s.drift - m.w), unclipped=("pull",)).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        delta = theta - m.w
        return {"drift": s.drift + delta}, {"delta": delta}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w)
        server.drift = server.drift + replies.sum("delta") / cohort.populations
        server.w = server.w + replies.mean("delta") + server.drift
