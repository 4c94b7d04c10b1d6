"""IFCA: Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020.

The server keeps k models (centres) and sends all of them; each client works on the one that fits its training data
best:

    j = argmin_j f_i(c_j)
    models       θ_i: local training from c_j;     c_j ← c_j + mean over the members of j of (θ_i − c_j)
    gradients    c_j ← c_j − η/m Σ over the members of j of ∇f_i(c_j),    m: ALL participants, of j or not

A centre without members stays. One centre is FedAvg with equal weights (FedSGD). Start, several starts and what is
shown are HypCluster's, which is the same with means weighted by n_i.

`clustered` names the part of the model that every cluster has for itself ("head", "last 2"): the layers before it are
averaged over everybody, as in the paper's FEMNIST, and travel once. `choice="told"`: a client sends one change and its
cluster, as published, and the server reads both client by client; "hidden": it sends its change in its cluster's place
among k, and the server reads sums only, k times the bytes.

Practical truth: with random centres try five starts (`starts=5`); one start in two or three merges two kinds for ever.
The gradients' rule divides by all participants, so that small clusters move slowly; take models. Where kinds differ in
their labels only, `clustered="head"` learns features from everybody. (In the synthetic program the `em` score prefers
the worst centre; FlexCFL's IFCA counts one member.)
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Cohort, Field, Fields, Me, Message, Replies, Request, Server, knob
from unalike.methods.hypcluster import Centres


@dc.dataclass(frozen=True)
class IFCA(Centres):
    weights: str = knob("uniform", "of clients in a cluster's mean", choices=("uniform", "samples"))
    averaging: str = knob("models", "what is averaged in a cluster", choices=("models", "gradients"))
    clustered: str = knob("all", "the part that each cluster has for itself: all, head, last 2, …")
    choice: str = knob("hidden", "whether the server learns a client's cluster", choices=("hidden", "told"))

    name = "ifca"

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        part, told = "model" if self.clustered == "all" else self.clustered, self.choice == "told"
        moved, placed = "its change of its cluster's model", "its cluster"
        out = {**Centres.sends, "delta": Field(("clusters", part), weight="weights", what=moved)}
        if told:
            out["delta"] = Field(part, "each", "weights", what=moved)
            out["hits"] = Field(("clusters",), "each", "weights", what=placed)
        common = Field(self._common, weight="weights", what="its change of the common layers")
        return out if self.clustered == "all" else {**out, "common": common}

    @property
    def _common(self) -> str:
        return f"all but {self.clustered}"

    # ---- the client

    def work(self, me: Me, centre: Tensor) -> Request:
        return me.train(centre) if self.averaging == "models" else me.gradient(centre)

    def change(self, me: Me, theta: Tensor, centre: Tensor) -> Tensor:
        return theta - centre if self.averaging == "models" else -me.lr * theta

    def reply(self, me: Me, change: Tensor, own: Tensor) -> dict[str, Tensor | float]:
        part = change if self.clustered == "all" else me.layout.part(change, self.clustered)
        common = {} if self.clustered == "all" else {"common": me.layout.part(change, self._common)}
        return {"delta": part if self.choice == "told" else own[:, None] * part, **common}

    def centres(self, me: Me, m: Fields) -> Tensor:
        if self.clustered == "all":
            return m.centres
        common = me.layout.with_part(me.start, self._common, m.common)
        return me.layout.with_part(common.expand(self.clusters, -1), self.clustered, m.centres)

    # ---- the server

    def drawn(self, server: Server) -> Tensor:
        drawn = super().drawn(server)
        if self.clustered == "all":
            return drawn
        own = server.layout.part(drawn, self.clustered)  # what is common begins as the run's model
        return server.layout.with_part(drawn[:1].expand(len(drawn), -1), self.clustered, own)

    def message(self, server: Server, centres: Tensor) -> Message:
        if self.clustered == "all":
            return {"centres": centres}
        common = server.layout.part(centres[0], self._common)
        return {"centres": server.layout.part(centres, self.clustered), "common": common}

    def moved(self, server: Server, cohort: Cohort, centres: Tensor, replies: Replies) -> tuple[Tensor, Tensor]:
        total, hits = self._sums(cohort, replies)
        change = total / self.parts(hits)[:, None]
        if self.clustered != "all":
            common = replies.mean("common").expand(self.clusters, -1)
            whole = server.layout.with_part(torch.zeros_like(centres), self._common, common)
            change = server.layout.with_part(whole, self.clustered, change)
        return centres + change, hits

    def _sums(self, cohort: Cohort, replies: Replies) -> tuple[Tensor, Tensor]:
        """The changes of each cluster's members and their weights, summed: [k, …] and [k]."""
        if self.choice == "hidden":
            return replies.sum("delta"), replies.sum("hits")
        delta, hits = replies.each("delta"), replies.each("hits").double()
        if self.weights == "samples":
            hits = hits * torch.from_numpy(cohort.only(replies.ids).samples).to(hits)[:, None]
        return (hits.T @ delta.double()).to(delta), hits.sum(0).to(delta)

    def parts(self, hits: Tensor) -> Tensor:
        return super().parts(hits) if self.averaging == "models" else hits.sum().expand(self.clusters)
