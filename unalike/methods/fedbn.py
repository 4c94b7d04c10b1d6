"""FedBN: Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021.

All that belongs to normalisation layers (scale, shift, and BatchNorm's running statistics) stays with the client, the
rest is averaged:

    θ_k: local training from (rest of w, own norm);   rest of w ← mean_k rest of θ_k

A client predicts with the common rest and its own norm; one that never took part with the norm of the start.

Practical truth: for clients whose inputs differ in style, scale or noise, not in labels. Without normalisation layers
it is FedAvg, and says so. There is no common model worth the name: the server's norm stays as it began, so look at
clients' own numbers. Weights: the authors' program has 1/N for all.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob

SHARED = "all but norm"


@dc.dataclass(frozen=True)
class FedBN(Method):
    weights: str = knob("uniform", "of clients in the mean", choices=("uniform", "samples"))

    name = "fedbn"
    buffers = "local"
    keeps = {"norm": Field("norm")}
    sends = {"delta": Field(SHARED, weight="weights")}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        own = me.own(s.norm, me.layout.part(me.start, "norm"))
        return me.layout.with_part(m.w, "norm", own)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(self.personal(me, s, m)).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        moved = me.layout.part(theta, SHARED) - me.layout.part(m.w, SHARED)
        return {"norm": me.layout.part(theta, "norm")}, {"delta": moved}

    def round(self, server: Server, cohort: Cohort) -> None:
        shared = server.layout.part(server.w, SHARED) + cohort.call(self.client, w=server.w).mean("delta")
        server.w = server.layout.with_part(server.w, SHARED, shared)

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        return {}
