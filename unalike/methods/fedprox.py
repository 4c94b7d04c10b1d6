"""FedProx: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

FedAvg with a spring to the received model in the local loss:

    f_k(θ) + μ/2 ‖θ − w‖²,   so the gradient is  ∇f_k(θ) + μ (θ − w)

Clients that have time for fewer epochs are kept (`LocalTraining(epochs=[...])` or a function), not dropped.

Practical truth: μ trades drift for speed; μ = 0 is FedAvg. Two published programs use another scale: rFedAvg's adds
μ‖θ − w‖² (half their μ is ours), FedDC's ignores its μ and uses 1e-4 ‖θ − w‖² (μ = 2e-4 here).
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import Answer, Fields, Me, Method
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedProx(Method):
    """mu: strength of the spring."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise UnalikeError(f"FedProx mu must be at least 0; got {self.mu!r}.")

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, pull=self.mu, push=-self.mu * m.w).then(self.done)
