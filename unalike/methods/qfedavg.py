"""q-FedAvg: Li et al., "Fair resource allocation in federated learning", ICLR 2020.

The objective Σ F_k^{q+1}/(q+1) gives clients with a large loss more say. With F_k the loss of the received model on all
of client k's data and L a Lipschitz constant (1/η if not given):

    Δw_k = L (w − θ_k),   Δ_k = F_k^q Δw_k,   h_k = q F_k^{q−1} ‖Δw_k‖² + L F_k^q
    w ← w − Σ Δ_k / Σ h_k

q = 0 is the plain (unweighted) mean. One vector and one number go up.

Practical truth: large q makes steps small (h grows with ‖Δw‖²), so it looks fair and slow. `h="rfedavg_repo"` is what
rFedAvg's program computes: ‖Δ_k‖² instead of ‖Δw_k‖², L a constant of its own, and F_k over the complete mini-batches
of one pass only.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob

FLOOR = 1e-10  # added to the loss inside powers, as in the authors' program


@dc.dataclass(frozen=True)
class QFedAvg(Method):
    q: float = knob(1.0, "how much large losses count", least=0, tune=(1e-2, 5.0))
    lipschitz: float | None = knob(None, "L, the Lipschitz constant; None for 1/η", above=0)
    h: str = knob(
        "fair_flearn", "h_k as in the authors' program or in rFedAvg's", choices=("fair_flearn", "rfedavg_repo")
    )

    name = "qfedavg"
    asynchronous = "can"
    sends = {
        "delta": Field(weight="one"),
        "h": Field("scalar", weight="one", by="network", what="a number made of its loss"),
    }

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        over = "epoch" if self.h == "rfedavg_repo" else "samples"
        return me.losses(m.w, over=over).then(self.measured)

    def measured(self, me: Me, s: Fields, m: Fields, loss: Tensor) -> Answer:
        return me.train(m.w).then(self.weighted, loss=loss + FLOOR)

    def weighted(self, me: Me, s: Fields, m: Fields, theta: Tensor, loss: Tensor) -> Answer:
        lipschitz = 1 / me.lr if self.lipschitz is None else self.lipschitz
        step = lipschitz * (m.w - theta)
        delta = loss**self.q * step
        squared = (step if self.h == "fair_flearn" else delta).square().sum()
        h = self.q * loss ** (self.q - 1) * squared + lipschitz * loss**self.q
        return {}, {"delta": delta, "h": h}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w)
        server.w = server.w - replies.sum("delta") / replies.sum("h").clamp(min=1e-30)  # 0 of a network that rests
