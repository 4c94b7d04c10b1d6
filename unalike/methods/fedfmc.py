"""FedFMC: Kopparapu & Lin, "FedFMC: sequential efficient federated learning on non-IID data", 2020.

Fork, merge, consolidate: clients whose updates disagree train different models for a while, the models are merged into
one, and that one is trained by all without forgetting what the forks knew. After `warmup` rounds of FedAvg, in turns:

    fork         F rounds: k models, each trained by the clients that it fits best
    merge        w ← Σ_j n_j c_j / Σ n_j,    n_j: samples of the last fork round's members
    consolidate  C rounds of FedAvg on  f_i(θ) + λ/2 Σ_j (θ − c_j)ᵀ diag(F_j) (θ − c_j)

The paper has no program, and its text was not at hand when this was written: the three phases are the paper's, and
every rule below is ours. In the first round of a fork each participant trains from w, and the server makes k groups of
their updates (complete linkage of cosines; it reads single updates, in this round alone); each group's mean moves a
model of its own. In the others a client takes the model of least training loss, as in IFCA. Merging weighs by samples.
F_j is the diagonal Fisher information at c_j (mean of squared gradients of single samples), averaged over the clients
that c_j fits best, by one more exchange before the first consolidating round; FedCurv's penalty, with factor λ/2. A
client's own model is w, and within a fork the model of least training loss.

With k = 1 and λ = 0 it is FedAvg. Practical truth: forks help while clients of different kinds would undo each other's
steps, and the merge loses most of it again unless models stayed close: keep forks short. A large λ freezes w.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Method, Request, Server, knob
from unalike.methods.flhc import agglomerate, check_clusters

NUMBERS = 1 << 26  # of gradients, a sample each, that are held at once


@dc.dataclass(frozen=True)
class FedFMC(Method):
    clusters: int = knob(2, "k, models in a fork", least=1, tune=[2, 3, 4, 6])
    lam: float = knob(0.1, "λ, how firmly the merged model keeps what forks knew", least=0, tune=(1e-3, 10.0))
    fork: int = knob(5, "F, rounds of a fork", least=1)
    consolidate: int = knob(5, "C, rounds of consolidation", least=0)
    warmup: int = knob(0, "rounds of FedAvg before the first fork", least=0)

    name = "fedfmc"
    check_clients = check_clusters
    one_network = "compares clients' models"
    sends = {
        "delta": Field(),
        "own": Field(read="each", what="its change of the model in a fork's first round"),
        "moved": Field(("clusters", "model"), what="its change of its cluster's model"),
        "fisher": Field(("clusters", "model"), what="its Fisher information"),
        "hits": Field(("clusters",), what="its cluster"),
    }

    def first(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w).then(self.shown)

    def shown(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {}, {"own": theta - m.w}

    def forked(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.losses(m.centres).then(self.chosen)

    def chosen(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Answer:
        hits = self.nearest(losses)
        return me.train(hits @ m.centres).then(self.ended, hits=hits)

    def ended(self, me: Me, s: Fields, m: Fields, theta: Tensor, hits: Tensor) -> Answer:
        return {}, {"moved": hits[:, None] * (theta - hits @ m.centres), "hits": hits}

    def weigh(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.losses(m.centres).then(self.look)

    def look(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Answer:
        hits = self.nearest(losses)
        few = max(1, NUMBERS // m.centres.shape[-1])
        return me.average(self.squares, hits @ m.centres, at_once=few).then(self.weighed, hits=hits)

    def squares(self, batch: Batch) -> Tensor:
        return batch.gradients(batch.vector).square()

    def weighed(self, me: Me, s: Fields, m: Fields, fisher: Tensor, hits: Tensor) -> Answer:
        return {}, {"fisher": hits[:, None] * fisher, "hits": hits}

    def together(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, pull=self.lam * m.stiff, push=-self.lam * m.rest).then(self.done)

    def nearest(self, losses: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(losses.argmin(), self.clusters).to(losses)

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        return m.w if "w" in m else me.losses(m.centres).then(self.best)

    arrival = personal

    def best(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Tensor:
        return self.nearest(losses) @ m.centres

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.centres, server.hits = server.w.expand(self.clusters, -1).clone(), torch.ones(self.clusters).to(server.w)
        server.stiff, server.rest = torch.zeros_like(server.w), torch.zeros_like(server.w)
        server.merged = True

    def round(self, server: Server, cohort: Cohort) -> None:
        when = (cohort.round - self.warmup) % (self.fork + self.consolidate)
        if cohort.round < self.warmup:
            server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")
        elif when < self.fork:
            self._fork(server, cohort, when)
            server.w = server.hits @ server.centres / server.hits.sum()
        else:
            self._consolidate(server, cohort, when)
        server.merged = cohort.round < self.warmup or when >= self.fork - 1

    def _fork(self, server: Server, cohort: Cohort, when: int) -> None:
        if when == 0:
            replies = cohort.call(self.first, w=server.w)
            rows, weights = replies.each("own").double(), torch.from_numpy(cohort.only(replies.ids).samples).double()
            groups, _ = agglomerate(rows.cpu().numpy(), self.clusters, "complete", "cosine")
            sizes = torch.stack([weights[group].sum() for group in groups])
            moved = torch.stack([weights[g].to(rows) @ rows[g] / weights[g].sum() for g in groups])
            few = self.clusters - len(groups)  # fewer participants than models: the others stay at w, without members
            server.centres = server.w + torch.nn.functional.pad(moved, (0, 0, 0, few)).to(server.w)
            server.hits = torch.nn.functional.pad(sizes, (0, few)).to(server.w)
            return
        replies = cohort.call(self.forked, centres=server.centres)
        server.hits = replies.sum("hits")
        server.centres = server.centres + replies.sum("moved") / server.hits.clamp(min=1.0)[:, None]

    def _consolidate(self, server: Server, cohort: Cohort, when: int) -> None:
        if when == self.fork:
            replies = cohort.call(self.weigh, centres=server.centres)
            fisher = replies.sum("fisher") / replies.sum("hits").clamp(min=1.0)[:, None]
            server.stiff, server.rest = fisher.sum(0), (fisher * server.centres).sum(0)
        replies = cohort.call(self.together, w=server.w, stiff=server.stiff, rest=server.rest)
        server.w = server.w + replies.mean("delta")

    def published(self, server: Server) -> Message:
        return {"w": server.w} if server.merged else {"centres": server.centres}

    def models(self, server: Server) -> dict[str, Tensor] | dict[str, tuple[Tensor, float]]:
        if server.merged:
            return {"global": server.w}
        shares = (server.hits / server.hits.sum()).tolist()
        return {f"cluster{k}": (w, shares[k]) for k, w in enumerate(server.centres)}
