"""FedRep: Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021.

FedPer whose two parts are trained one after the other:

    own head:   `head_epochs` passes over the client's data with the body held still
    body:       `body_epochs` passes with that head held still;     body of w ← mean_k body of θ_k

Practical truth: many head passes make the head fit the common body before the body moves, which is what the analysis
asks for (10 and 1, or 5, in the paper). The authors' program has `newcomer="mean"`: the parts of clients that never
took part are aliases of the common model there. In its old PyTorch a part held still went on moving by its momentum;
here held still means so. After the last round the program trains every client's head on: `tune_epochs=10`.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Fields, Me, knob
from unalike.methods.fedper import FedPer


@dc.dataclass(frozen=True)
class FedRep(FedPer):
    head_epochs: int = knob(10, "passes for the head", values="10", least=0)
    body_epochs: int = knob(1, "passes for the body", values="1, 5", least=0)

    name = "fedrep"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        whole = self.whole(me, s, m)
        if not self.head_epochs:
            return self.then_body(me, s, m, whole)
        return me.train(whole, part=self.stays, epochs=self.head_epochs).then(self.then_body)

    def then_body(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        if not self.body_epochs:
            return self.done(me, s, m, theta)
        return me.train(theta, part=self.travels, epochs=self.body_epochs).then(self.done)
