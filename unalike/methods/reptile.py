"""Reptile after FedAvg: Jiang et al., "Improving federated learning personalization via model agnostic meta learning",
2019.

FedAvg is Reptile with much local work; so FedAvg for `warm` rounds, then Reptile with little:

    w ← w + ε mean_k(θ_k − w)          (plain mean; θ_k after K steps)
    client k predicts with as many local steps from w

`steps` is K; without it a round's local work stays the run's. ε = 1 with clients of equal size is FedAvg.

Practical truth: what is looked for is a common model that a few steps make good, not one that is good itself: compare
its personal accuracy with `finetune`'s. The paper uses Adam at the server in the second stage; here the plain step.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Request, Server, knob


@dc.dataclass(frozen=True)
class Reptile(Method):
    epsilon: float = knob(1.0, "ε, the server's step", above=0, tune=(0.05, 1.0))
    steps: int | None = knob(None, "K, local steps of a round and before predicting (not said: the run's)", least=1)
    warm: int = knob(0, "rounds of FedAvg before", least=0)

    name = "reptile"
    sends = {"delta": Field(weight="one"), "weighted": Field(weight="samples", what="its change of the model")}

    def few(self, me: Me, at: Tensor) -> Request:
        return me.train(at) if self.steps is None else me.train(at, steps=self.steps)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return self.few(me, m.w).then(self.done)

    def average(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w).then(self.averaged)

    def averaged(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {}, {"weighted": theta - m.w}

    def round(self, server: Server, cohort: Cohort) -> None:
        if cohort.round < self.warm:
            server.w = server.w + cohort.call(self.average, w=server.w).mean("weighted")
        else:
            server.w = server.w + self.epsilon * cohort.call(self.client, w=server.w).mean("delta")

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        return self.few(me, m.w)
