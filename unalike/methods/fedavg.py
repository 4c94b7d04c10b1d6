"""FedAvg: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Each client runs local SGD from the received model; the server takes the mean of the results, weighted by n_k.

    w ← w + η_g Σ n_k (θ_k − w) / Σ n_k        (sums over this round's participants)

Practical truth: hard to beat when clients are alike. On skewed data clients drift apart between messages; more local
work then makes the mean worse, not better. Some published programs average without the weights
(`weights="uniform"`); with clients of unequal size that is another method.
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import Cohort, Field, Method, Server, knob


@dc.dataclass(frozen=True)
class FedAvg(Method):
    weights: str = knob(
        "samples", "of clients in the mean (n_k, as published, or equal)", choices=("samples", "uniform")
    )
    server_lr: float = knob(1.0, "η_g, the server's rate")

    name = "fedavg"
    asynchronous = "can"
    sends = {"delta": Field(weight="weights")}

    def round(self, server: Server, cohort: Cohort) -> None:
        server.w = server.w + self.server_lr * cohort.call(self.client, w=server.w).mean("delta")
