"""FedProx: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

FedAvg with a spring to the received model in the local loss:

    f_k(θ) + μ/2 ‖θ − w‖²,   so the gradient is  ∇f_k(θ) + μ (θ − w)

Clients that have time for fewer epochs are kept (`LocalTraining(epochs=[...])` or a function), not dropped.

Practical truth: μ trades drift for speed; μ = 0 is FedAvg. Two published programs use another scale: rFedAvg's adds
μ‖θ − w‖² (half their μ is ours), FedDC's ignores its μ and uses 1e-4 ‖θ − w‖² (μ = 2e-4 here).
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import Answer, Fields, Me, Method, knob


@dc.dataclass(frozen=True)
class FedProx(Method):
    mu: float = knob(0.01, "strength of the spring", least=0, tune=(1e-3, 1.0))

    name = "fedprox"
    asynchronous = "can"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, pull=self.mu, push=-self.mu * m.w).then(self.done)
