"""FeSEM: Xie et al., "Multi-center federated learning", 2020.

Clustering of clients' models by k-means, a step of it in every round. W_i is the vector with which client i ended its
last local training, which the server keeps:

    r_i = argmin_j ‖W_i − c_j‖²;    W_i: local training from c_{r_i};    c_j ← mean of W_i over the round's members of j

The centre alone goes down; up goes W_i, which the server reads: no secure sums. A centre without members stays. One
centre is FedAvg.

`first`: how a client that has no W_i yet is placed. All begin at a common vector, so that by "distance" they are all
nearest to the same centre and stay there for ever; "draw" is a draw, as in the authors' program; "loss" asks the client
which centre fits its training data best (k models down, once).

`by` names a part of the model by which distances are taken (the program takes one chosen layer); `weights="samples"` is
the n_i mean. Practical truth: distances between trained vectors say more about where training began than about the
data: a client rarely leaves the cluster of its first round, so that `first` decides. Take "loss", and do not expect
kinds of clients to be found (benchmarks/clusters.py). How many clusters? As for IFCA: tune. On the global test set the
reported number is the mean over centres, weighted by their members' samples.
"""

from __future__ import annotations

import dataclasses as dc

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Message, Method, PerClient, Request, Server, knob
from unalike.methods.flhc import check_clusters


@dc.dataclass(frozen=True)
class FeSEM(Method):
    clusters: int = knob(2, "k, how many centres there are", least=1, tune=[2, 3, 4, 6])
    first: str = knob("loss", "how a client is placed at first", choices=("loss", "draw", "distance"))
    by: str = knob("all", "the part of the model by which distances are taken: all, head, last 2, …")
    weights: str = knob("uniform", "of clients in a cluster's mean", choices=("uniform", "samples"))
    inference: str = knob(
        "own", "a client's own model: its cluster's centre, the best by its training loss, or the mean of all outputs",
        choices=("own", "loss", "average"),
    )  # fmt: skip

    name = "fesem"
    check_clients = check_clusters
    tables = {"models": Field()}
    sends = {
        "model": Field(read="each", weight="one", what="its model"),
        "place": Field(("clusters",), read="each", weight="one", what="the cluster that fits it best"),
    }

    # ---- the client

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {}, {"model": theta}

    def place(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.losses(m.centres).then(self.placed)

    def placed(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Answer:
        return {}, {"place": self.nearest(losses)}

    def nearest(self, losses: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(losses.argmin(), self.clusters).to(losses)

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        if self.inference == "average":
            return m.centres
        if self.inference == "own" and "own" in m and "new" not in m:
            return m.own @ m.centres
        return me.losses(m.centres).then(self.best)

    arrival = personal

    def best(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Tensor:
        fits = self.nearest(losses)
        own = torch.where(m.new, fits, m.own) if self.inference == "own" and "new" in m else fits
        return own @ m.centres

    # ---- the server

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.begun, server.centres = server.w, server.init(self.clusters)
        server.cluster = torch.full((everyone.population,), -1)
        server.samples = torch.ones(self.clusters).double()

    def round(self, server: Server, cohort: Cohort) -> None:
        before = server.cluster.cpu()  # a checkpoint brings it back on the device
        cluster = before.clone()
        cluster[cohort.ids] = self.assigned(server, cohort)
        replies = cohort.call(self.client, w=PerClient(server.centres[cluster[cohort.ids]]))
        rows, own = replies.each("model"), cluster[replies.ids]
        server.table("models")[replies.ids] = rows
        server.centres = self.means(server.centres, rows, own, cohort.only(replies.ids).samples)
        server.cluster = before.index_copy(0, torch.from_numpy(replies.ids), own)
        server.samples = member_samples(server.cluster, cohort.everyone.samples, self.clusters)
        server.w = server.centres[0]

    def assigned(self, server: Server, cohort: Cohort) -> Tensor:
        """The cluster of each client of the cohort: the nearest centre, or as `first` says where it is new."""
        table = server.table("models")
        known = table.known(cohort.ids)
        rows = torch.where(known[:, None], table[cohort.ids], server.begun)
        cluster = self.distances(server, rows).argmin(1).cpu()
        new = cohort.ids[~known.cpu().numpy()]
        if len(new) and self.first != "distance":
            ids, first = self.placement(server, cohort.only(new))
            cluster[np.isin(cohort.ids, ids)] = first.cpu()
        return cluster

    def distances(self, server: Server, rows: Tensor) -> Tensor:
        """Squared distances of vectors to the centres, [m, k]."""
        centres = server.centres
        if self.by != "all":
            rows, centres = server.layout.part(rows, self.by), server.layout.part(centres, self.by)
        return torch.stack([(rows - centre).double().square().sum(1) for centre in centres], 1)

    def placement(self, server: Server, new: Cohort) -> tuple[np.ndarray, Tensor]:
        """New clients and their first clusters; those that do not answer are left out."""
        if self.first == "draw":
            return new.ids, server.integers("first", (new.population,), self.clusters)[new.ids]
        replies = new.call(self.place, centres=server.centres)
        return replies.ids, replies.each("place").argmax(1)

    def means(self, centres: Tensor, rows: Tensor, own: Tensor, samples: np.ndarray) -> Tensor:
        """The means of the vectors of each cluster; a centre without members stays."""
        weights = torch.from_numpy(samples) if self.weights == "samples" else torch.ones(len(own))
        hits = (torch.nn.functional.one_hot(own, self.clusters) * weights[:, None]).to(rows).double()
        total, count = hits.T @ rows.double(), hits.sum(0)[:, None]
        return torch.where(count > 0, total / count.clamp(min=1.0), centres.double()).to(centres)

    def published(self, server: Server) -> Message:
        new = server.cluster < 0
        own = torch.nn.functional.one_hot(server.cluster.clamp(min=0), self.clusters).to(server.w)
        flag: Message = {"new": PerClient(new.to(own.device))} if bool(new.any()) else {}
        return {"centres": server.centres, "own": PerClient(own), **flag}

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        weights = (server.samples / server.samples.sum()).tolist()
        return {f"cluster{k}": (w, weights[k]) for k, w in enumerate(server.centres)}


def member_samples(cluster: Tensor, samples: np.ndarray, clusters: int) -> Tensor:
    """The samples of each cluster's members, float64; clients without a cluster count nowhere."""
    sizes = torch.from_numpy(np.asarray(samples, dtype=np.float64))
    known = cluster >= 0
    return torch.zeros(clusters).double().index_add(0, cluster[known], sizes[known])
