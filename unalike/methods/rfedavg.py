"""rFedAvg: Wang et al., "Distribution-regularized federated learning on non-IID data", ICDE 2023.

Clients' features drift apart with their data. Each client is pulled to the mean features δ_j of the other participants:

    f_k(θ) + λ / (m − 1) Σ_{j ≠ k} ‖ mean_batch φ(θ) − δ_j ‖²

φ is everything before the head. After training a client reports δ_k, the mean of φ over its data with its own new
model; the server keeps the table of everybody's last δ and shows the participants' rows to each of them. Before round
1 everybody reports δ at the initial model. Down: one vector and m·d numbers; up: one vector and d numbers.

The table is read client by client and shown to peers: no secure aggregation can hide it (rFedAvg+ needs only a sum).
`delta="batch"` and `weights="uniform"` are the authors' program: δ from one mini-batch (they send the whole batch of
features, of which only the mean is used), plain means over clients.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class RFedAvg(Method):
    lam: float = knob(
        1e-4, "λ, strength of the pull", values="1e-4 MNIST, 1e-5 CIFAR-10, 0.1 Sent140", least=0, tune=(1e-5, 1.0)
    )
    delta: str = knob("mean", "δ over all samples or over one mini-batch", choices=("mean", "batch"))
    weights: str = knob(
        "samples", "of clients in the mean (n_k, as published, or equal)", choices=("samples", "uniform")
    )

    name = "rfedavg"
    keeps = {"mean": Field("features")}
    tables = {"means": Field("features")}
    sends = {
        "delta": Field(weight="weights"),
        "mean": Field("features", read="peers", weight="one", what="the mean of its features"),
    }

    @property
    def _over(self) -> str:
        return "batch" if self.delta == "batch" else "samples"

    def setup(self, server: Server, everyone: Cohort) -> None:
        replies = everyone.call(self.measure, w=server.w)
        server.table("means")[replies.ids] = replies.each("mean")

    def measure(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.mean_features(m.w, over=self._over).then(self.measured)

    def measured(self, me: Me, s: Fields, m: Fields, mean: Tensor) -> Answer:
        return {"mean": mean}, {"mean": mean}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, loss=self.regulariser, args={"peers": m.peers, "own": s.mean}).then(self.trained)

    def regulariser(self, batch: Batch, peers: Tensor, own: Tensor) -> Tensor:
        here = batch.mean(batch.features)
        others = (here - peers).square().sum() - (here - own).square().sum()  # the rows of j ≠ k
        return self.lam * others / max(1, peers.shape[0] - 1)

    def trained(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return me.mean_features(theta, over=self._over).then(self.reported, theta=theta)

    def reported(self, me: Me, s: Fields, m: Fields, mean: Tensor, theta: Tensor) -> Answer:
        return {"mean": mean}, {"delta": theta - m.w, "mean": mean}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w, peers=server.table("means")[cohort.ids])
        server.table("means")[replies.ids] = replies.each("mean")
        server.w = server.w + replies.mean("delta")
