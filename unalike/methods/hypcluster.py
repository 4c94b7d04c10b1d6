"""HypCluster: Mansour et al., "Three approaches for personalization with applications to federated learning", 2020.

The server keeps k models (centres) and sends all of them. Each client takes the one with the least loss on all its
training data and trains that alone; a centre becomes the mean of its members' results, weighted by n_i:

    j = argmin_j f_i(c_j);    θ_i: local training from c_j;    c_j ← c_j + Σ n_i (θ_i − c_j) / Σ n_i   (members of j)

A centre without members stays. One centre is FedAvg. IFCA is the same with equal weights.

What travels: k models down; up, a client sends its change in its cluster's place among k, zeros in the others, so that
the server needs nothing but sums and never learns who is in which cluster. A client keeps its `cluster`.

`starts` sets of centres are tried side by side in the first `trial` rounds, each by all participants (which costs that
many times the work and the bytes); the set with the least mean training loss at its clients' best centres goes on. In
these rounds a client's `cluster` is its place in the set that was tried last. On the global test set the reported
number is the mean over centres, weighted by the members of the last round.

Practical truth: all hangs on the start. Of centres drawn at random one often wins everybody in round 1: try five
starts. Too few clusters mix kinds for ever; too many divide the samples (four centres for clients of one kind cost 2.5
points of accuracy on digits). How many? Run a few and look at the clients' validation accuracy (`--tune` does).
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Message, Method, Replies, Request, Server, knob
from unalike.methods.flhc import check_clusters


@dc.dataclass(frozen=True)
class Centres(Method):
    """Several models on the server, of which each client chooses one by its own training loss."""

    clusters: int = knob(2, "k, how many centres there are", least=1, tune=[2, 3, 4, 6])
    starts: int = knob(1, "sets of centres that are tried", values="5", least=1)
    trial: int = knob(10, "rounds until the best of several starts is chosen", least=1)
    inference: str = knob(
        "loss", "a client's own model: the best centre by its training loss, or the mean of all centres' outputs",
        choices=("loss", "average"),
    )  # fmt: skip
    weights: str = knob("samples", "of clients in a cluster's mean", choices=("samples", "uniform"))

    one_network = "compares clients' models"
    check_clients = check_clusters
    keeps = {"cluster": Field("scalar")}
    sends = {
        "delta": Field(("clusters", "model"), weight="weights", what="its change of its cluster's model"),
        "hits": Field(("clusters",), weight="weights", what="its cluster"),
        "loss": Field("scalar", weight="one", what="its training loss"),
    }

    # ---- the client

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.losses(self.centres(me, m)).then(self.chosen)

    def chosen(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Answer:
        own = self.nearest(losses)
        return self.work(me, own @ self.centres(me, m)).then(self.end, own=own, best=losses.min())

    def work(self, me: Me, centre: Tensor) -> Request:
        """What a client does at its centre."""
        return me.train(centre)

    def end(self, me: Me, s: Fields, m: Fields, theta: Tensor, own: Tensor, best: Tensor) -> Answer:
        change = self.change(me, theta, own @ self.centres(me, m))
        place = own @ torch.arange(self.clusters, dtype=own.dtype, device=own.device)
        return {"cluster": place}, {**self.reply(me, change, own), "hits": own, "loss": best}

    def change(self, me: Me, theta: Tensor, centre: Tensor) -> Tensor:
        """What is added to a centre, before the mean."""
        return theta - centre

    def reply(self, me: Me, change: Tensor, own: Tensor) -> dict[str, Tensor | float]:
        return {"delta": own[:, None] * change}

    def nearest(self, losses: Tensor) -> Tensor:
        """The centre of least loss, as a row of zeros and a one; of equal ones the first."""
        return torch.nn.functional.one_hot(losses.argmin(), self.clusters).to(losses)

    def centres(self, me: Me, m: Fields) -> Tensor:
        """The models that a message brought, [k, P]."""
        return m.centres

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        centres = self.centres(me, m)
        return centres if self.inference == "average" else me.losses(centres).then(self.best)

    arrival = personal

    def best(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Tensor:
        return self.nearest(losses) @ self.centres(me, m)

    # ---- the server

    def setup(self, server: Server, everyone: Cohort) -> None:
        sets = self.drawn(server).reshape(self.starts, self.clusters, -1)
        server.centres, server.hits = sets[0], torch.ones_like(sets[0, :, 0])
        server.sets = sets if self.starts > 1 else sets[:0]

    def drawn(self, server: Server) -> Tensor:
        """The centres of all starts; the first is the run's model."""
        return server.init(self.starts * self.clusters)

    def round(self, server: Server, cohort: Cohort) -> None:
        sets = server.sets if len(server.sets) else server.centres[None]
        calls = [cohort.call(self.client, **self.message(server, centres)) for centres in sets]
        moved = [self.moved(server, cohort, *pair) for pair in zip(sets, calls, strict=True)]
        server.centres, server.hits = moved[0]
        if len(server.sets):  # after the last trial none is left but the best
            losses = [float(replies.mean("loss")) for replies in calls]
            server.centres, server.hits = moved[losses.index(min(losses))]
            more = cohort.round + 1 < self.trial
            server.sets = torch.stack([centres for centres, _ in moved]) if more else sets[:0]
        server.w = server.centres[0]

    def moved(self, server: Server, cohort: Cohort, centres: Tensor, replies: Replies) -> tuple[Tensor, Tensor]:
        """The new centres, and the weight of each one's members."""
        hits = replies.sum("hits")
        return centres + replies.sum("delta") / self.parts(hits)[:, None], hits

    def parts(self, hits: Tensor) -> Tensor:
        """What each cluster's sum is divided by."""
        return torch.where(hits > 0, hits, 1.0)

    def message(self, server: Server, centres: Tensor) -> Message:
        return {"centres": centres}

    def published(self, server: Server) -> Message:
        return self.message(server, server.centres)

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        weights = (server.hits / server.hits.sum()).tolist()
        return {f"cluster{k}": (w, weights[k]) for k, w in enumerate(server.centres)}


@dc.dataclass(frozen=True)
class HypCluster(Centres):
    name = "hypcluster"
