"""rFedAvg+: the second method of rFedAvg's paper (see rfedavg.py).

All mean features are taken at the same, received model, so that one vector of their sum serves everybody:

    exchange 1: down w; up δ_k, the mean of φ(w) over the client's data
    exchange 2: down Σ δ_j; train with f_k(θ) + λ ‖ mean_batch φ(θ) − δ^{−k} ‖²; up θ_k − w
    δ^{−k} = (Σ_j δ_j − δ_k) / (m − 1), which each client computes itself

Down and up: one vector and d numbers each. The server needs sums only, so nobody's δ need be seen. For equal δ the
gradient is rFedAvg's. `include_self=True`, `delta="batch"`, `weights="uniform"` are the authors' program: the mean over
all participants, k included, from one mini-batch each.

Privacy (the paper's Figure 12): each sample's features are cut to norm `clip`, averaged over n_k samples, and noise of
standard deviation noise_std·clip/n_k is added by the client. (The authors' program adds it once on the server, without
cutting, which protects nobody from the server.)
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class RFedAvgPlus(Method):
    lam: float = knob(1e-4, "λ, strength of the pull", least=0, tune=(1e-5, 1.0))
    include_self: bool = knob(False, "whether δ^{−k} is the mean over all participants, k included")
    delta: str = knob("mean", "δ over all samples or over one mini-batch", choices=("mean", "batch"))
    noise_std: float = knob(0.0, "noise on δ, in units of clip/n_k", least=0)
    clip: float | None = knob(None, "norm to which each sample's features are cut", above=0)
    weights: str = knob(
        "samples", "of clients in the mean (n_k, as published, or equal)", choices=("samples", "uniform")
    )

    name = "rfedavg-plus"
    sees_who = True
    keeps = {"mean": Field("features", life="round"), "model": Field(life="round")}
    sends = {"delta": Field(weight="weights"), "mean": Field("features", weight="one", what="the mean of its features")}

    def __post_init__(self) -> None:
        if self.noise_std > 0 and self.clip is None:
            raise UnalikeError("RFedAvgPlus noise_std needs clip: without a bound on features noise protects nothing.")

    def measure(self, me: Me, s: Fields, m: Fields) -> Answer:
        over = "batch" if self.delta == "batch" else "samples"
        return me.average(self.features, m.w, over=over).then(self.measured)

    def features(self, batch: Batch) -> Tensor:
        rows = batch.features
        if self.clip is not None:
            rows = rows * (self.clip / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
        return rows

    def measured(self, me: Me, s: Fields, m: Fields, mean: Tensor) -> Answer:
        if self.noise_std > 0:
            mean = mean + self.noise_std * (self.clip or 1.0) / me.n * me.normal("features", tuple(mean.shape))
        return {"mean": mean, "model": m.w}, {"mean": mean}  # the model is not sent twice

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        others = m.total / m.count if self.include_self else (m.total - s.mean) / (m.count - 1).clamp(min=1)
        alone = (m.count == 1) & (not self.include_self)  # nobody to be pulled to
        weight = self.lam * (~alone).to(others.dtype)
        return me.train(s.model, loss=self.regulariser, args={"target": others, "weight": weight}).then(self.done)

    def regulariser(self, batch: Batch, target: Tensor, weight: Tensor) -> Tensor:
        return weight * (batch.mean(batch.features) - target).square().sum()

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {}, {"delta": theta - s.model}

    def round(self, server: Server, cohort: Cohort) -> None:
        means = cohort.call(self.measure, w=server.w)
        replies = cohort.only(means.ids).call(self.client, total=means.sum("mean"), count=means.count)
        server.w = server.w + replies.mean("delta")
