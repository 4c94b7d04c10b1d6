"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020.

Each client keeps a control variate c_k, the server their mean c; local steps are corrected by their difference:

    θ ← θ − η (g(θ) − c_k + c)
    c_k⁺ = c_k − c + (w − θ) / (K η)                       (Option II)
    w ← w + η_g mean_S(θ_k − w),   c ← c + (1/N) Σ_S (c_k⁺ − c_k)

Two vectors travel each way. `scaling="paper"` uses each client's own number of steps K and this round's rate η.
`scaling="official"` is what the programs of FedDyn and FedDC compute: c enters a client's steps divided by its relative
size, 1/(Kη) takes the first round's rate, and changes of c_k are weighted by relative size; their K is the same for
everybody (give `LocalTraining(steps=...)`), and gradient clipping sees the correction.

Practical truth: strong with full participation and plain SGD. c_k goes stale when clients come rarely. With momentum,
Adam or RMSProp (w − θ)/(Kη) is no gradient estimate, and the correction can do harm. A wrong SCAFFOLD is easily FedAvg
in disguise (rFedAvg's program corrects a temporary copy of the weights): see "it bites" in the contract tests.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class Scaffold(Method):
    server_lr: float = knob(1.0, "η_g, the server's rate", tune=(0.3, 1.5))
    scaling: str = knob("paper", "of c and c_k, as in the paper or in the programs", choices=("paper", "official"))

    name = "scaffold"
    keeps = {"control": Field()}
    sends = {"delta": Field(weight="one"), "control": Field(weight="one", what="the change of its control variate")}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.control = torch.zeros_like(server.w)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        shared = m.control / me.relative_size if self.scaling == "official" else m.control
        return me.train(m.w, push=shared - s.control).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        rate = me.first_lr if self.scaling == "official" else me.lr
        steps = me.mean_steps if self.scaling == "official" else me.steps
        change = (m.w - theta) / (steps * rate) - m.control
        weight = me.relative_size if self.scaling == "official" else 1.0
        return {"control": s.control + change}, {"delta": theta - m.w, "control": weight * change}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w, control=server.control)
        server.w = server.w + self.server_lr * replies.mean("delta")
        server.control = server.control + replies.sum("control") / cohort.populations
