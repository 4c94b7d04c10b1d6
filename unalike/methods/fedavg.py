"""FedAvg: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Each client runs local SGD from the received model; the server takes the mean of the results, weighted by n_k.

    w ← w + η_g Σ n_k (θ_k − w) / Σ n_k        (sums over this round's participants)

Practical truth: hard to beat when clients are alike. On skewed data clients drift apart between messages; more local
work then makes the mean worse, not better. Some published programs average without the weights
(`weights="uniform"`); with clients of unequal size that is another method.
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import Cohort, Field, Method, Server
from unalike.errors import one_of


@dc.dataclass(frozen=True)
class FedAvg(Method):
    """weights: "samples" (n_k, as published) or "uniform"; server_lr: η_g."""

    weights: str = "samples"
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        one_of(self, "weights", "samples", "uniform")

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        return {"delta": Field(weight="samples" if self.weights == "samples" else "one")}

    def round(self, server: Server, cohort: Cohort) -> None:
        server.w = server.w + self.server_lr * cohort.call(self.client, w=server.w).mean("delta")
