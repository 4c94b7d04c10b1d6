"""FedBABU: Oh, Kim & Yun, "FedBABU: toward enhanced representation for federated image classification", ICLR 2022.

Only the body is trained and averaged; the head stays at its random start for everybody, until a client predicts:

    body of θ_k: local training with the head held still;    body of w ← mean_k body of θ_k      (plain mean)
    client k predicts with `epochs` passes from w on its own data (of all of it, or of the head)

Practical truth: a common fixed head keeps clients' bodies comparable, and the head is fitted at the end, where it is
wanted. Judge it after fine-tuning: before, its outputs are those of a random head. The program lowers the rate to a
tenth after half and after three quarters of the rounds; that is the run's setting (`[local] lr`).
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Server, knob
from unalike.methods.finetune import FineTune


@dc.dataclass(frozen=True)
class FedBABU(FineTune):
    weights: str = knob("uniform", "of clients in the mean", choices=("uniform", "samples"))
    epochs: int = knob(5, "passes over a client's own data before it predicts (0: none)", values="5", least=0)

    name = "fedbabu"
    asynchronous = "no"
    sends = {"delta": Field("body", weight="weights")}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, part="body").then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {}, {"delta": me.layout.body(theta) - me.layout.body(m.w)}

    def round(self, server: Server, cohort: Cohort) -> None:
        layout, moved = server.layout, cohort.call(self.client, w=server.w).mean("delta")
        server.w = layout.join(layout.body(server.w) + self.server_lr * moved, layout.head(server.w))
