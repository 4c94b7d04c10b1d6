"""FedAMP and HeurFedAMP: Huang et al., "Personalized cross-silo federated learning on non-IID data", AAAI 2021.

The server keeps every client's model and sends each a cloud model of its own, made mostly of models like its own:

    u_k = (1 − Σ_j ξ_kj) w_k + Σ_{j≠k} ξ_kj w_j
    FedAMP       ξ_kj = α A'(‖w_k − w_j‖²),    A'(d) = exp(−d/σ)/σ
    HeurFedAMP   ξ_kk given,  ξ_kj = (1 − ξ_kk) softmax_{j≠k}(σ cos(w_k, w_j))
    client:      min f_k(w) + λ/(2α) ‖w − u_k‖²,   from u_k (or from its own w_k)

Others are all who have ever taken part, with their latest model. Practical truth: it finds who is like whom by itself,
at the price of a server that reads every model: no secure sums. A' falls fast with the number of weights, so σ must be
of the size of squared distances between models; take HeurFedAMP for deep networks. If Σ ξ_kj grows above 1 the own
weight is negative: take a smaller α. (PFLlib's FedAMP is training alone: its spring has no gradient.)
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Message, Method, PerClient, Server, knob


@dc.dataclass(frozen=True)
class FedAMP(Method):
    lam: float = knob(1.0, "λ, strength of the spring to the cloud model", least=0, tune=(0.01, 10))
    alpha: float = knob(0.1, "α, the server's step", above=0, tune=(1e-3, 1.0))
    sigma: float = knob(1.0, "σ, which distances count as near", above=0, tune=(0.1, 1000.0))
    start: str = knob("cloud", "where local training begins", choices=("cloud", "own"))

    name = "fedamp"
    keeps = {"w": Field()}
    tables = {"models": Field()}
    sends = {"model": Field(read="each", weight="one", what="its model")}

    def attention(self, rows: Tensor, at: Tensor) -> Tensor:
        """ξ [k, n] of the models `at` places among all rows; 0 for oneself."""
        near = torch.cdist(rows[at], rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        weights = self.alpha * torch.exp(-near / self.sigma) / self.sigma
        return weights.scatter(1, at[:, None], 0.0)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        spring = self.lam / self.alpha
        begin = m.u if self.start == "cloud" else me.own(s.w)
        return me.train(begin, pull=spring, push=-spring * m.u).then(self.end)

    def end(self, me: Me, s: Fields, m: Fields, w: Tensor) -> Answer:
        return {"w": w}, {"model": w}

    def clouds(self, server: Server, cohort: Cohort) -> Tensor:
        """A cloud model for each of the cohort."""
        models = server.table("models")
        ids = [k for k in range(cohort.population) if k in set(cohort.ids.tolist()) or bool(models.known([k])[0])]
        rows = torch.where(models.known(ids)[:, None], models[ids], server.begun)
        at = torch.tensor([ids.index(k) for k in cohort.ids.tolist()], device=rows.device)
        weights = self.attention(rows, at)
        return (1 - weights.sum(1, keepdim=True)) * rows[at] + weights @ rows

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.begun, server.clients = server.w, everyone.population

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, u=PerClient(self.clouds(server, cohort)))
        server.table("models")[replies.ids] = replies.each("model")

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.w)

    def published(self, server: Server) -> Message:
        models = server.table("models")
        there = models.known(ids := range(server.clients))
        return {"w": models[ids][there].mean(0) if there.any() else server.begun}

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        return {}


@dc.dataclass(frozen=True)
class HeurFedAMP(FedAMP):
    alpha: float = knob(1.0, "α, which only divides the spring here", above=0)
    sigma: float = knob(25.0, "σ, how sharply the likest are preferred", values="25", least=0)
    self_weight: float = knob(0.5, "ξ_kk, a client's own weight", least=0, most=1)

    name = "heur-fedamp"

    def attention(self, rows: Tensor, at: Tensor) -> Tensor:
        cosine = torch.nn.functional.cosine_similarity(rows[at][:, None], rows[None], dim=-1)
        others = (self.sigma * cosine).scatter(1, at[:, None], -torch.inf)
        return (1 - self.self_weight) * torch.softmax(others, 1) if rows.shape[0] > 1 else torch.zeros_like(cosine)
