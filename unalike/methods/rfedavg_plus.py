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

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server
from unalike.errors import UnalikeError, one_of


@dc.dataclass(frozen=True)
class RFedAvgPlus(Method):
    """lam: λ; include_self, delta, weights: readings (see above); noise_std, clip: noise on δ."""

    lam: float = 1e-4
    include_self: bool = False
    delta: str = "mean"
    noise_std: float = 0.0
    clip: float | None = None
    weights: str = "samples"

    keeps = {"mean": Field("features", life="round"), "model": Field(life="round")}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        weight = "samples" if self.weights == "samples" else "one"
        return {"delta": Field(weight=weight), "mean": Field("features", weight="one")}

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise UnalikeError(f"RFedAvgPlus lam must be at least 0; got {self.lam!r}.")
        one_of(self, "delta", "mean", "batch")
        one_of(self, "weights", "samples", "uniform")
        if self.noise_std < 0 or (self.clip is not None and not self.clip > 0):
            raise UnalikeError("RFedAvgPlus noise_std must be at least 0 and clip above 0, or None.")
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
