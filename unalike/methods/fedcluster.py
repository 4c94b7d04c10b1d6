"""FedCluster: Chen et al., "FedCluster: boosting the convergence of federated learning via cluster-cycling", 2020.

Clients are divided once into M clusters, which work one after the other in every round, each from the model that the
one before has left:

    for each cluster, in an order drawn anew every round:   w ← w + Σ n_i (θ_i − w) / Σ n_i     (its participants)

M exchanges a round, of a cluster's participants each; clusters without participants are passed over. One cluster is
FedAvg; as many clusters as clients is training in a circle.

The clusters are turns, not kinds of clients: there is one model, and nothing is learned about who is like whom.
`members`: "random" deals clients at random (the paper's default); "alternate" deals them by number (client i to cluster
i mod M) and "blocks" takes neighbours (0 … N/M − 1, …), for clients that are sorted by something, such as time zones.

Practical truth: M times the progress per round for the same work and bytes, where rounds are not what costs, but M
times the waiting. On skewed data the last cluster of a round leaves its mark: take clusters that are each as mixed as
the whole, a smaller rate, or fewer clusters.
"""

from __future__ import annotations

import dataclasses as dc

import numpy as np
import torch

from unalike.contract import Cohort, Field, Method, Server, knob

MEMBERS = ("random", "alternate", "blocks")


@dc.dataclass(frozen=True)
class FedCluster(Method):
    clusters: int = knob(4, "M, how many clusters take turns", least=1, tune=[2, 4, 8])
    members: str = knob("random", "how clients are divided", choices=MEMBERS)
    order: str = knob("drawn", "of the clusters in a round", choices=("drawn", "fixed"))
    weights: str = knob("samples", "of clients in a cluster's mean", choices=("samples", "uniform"))

    name = "fedcluster"
    sees_who = True
    sends = {"delta": Field(weight="weights")}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.turn = torch.from_numpy(self.turns(server, everyone.population))

    def turns(self, server: Server, clients: int) -> np.ndarray:
        """The cluster of each client; their sizes differ by one at most."""
        place = server.shuffled("clusters", clients) if self.members == "random" else np.arange(clients)
        return place * self.clusters // clients if self.members == "blocks" else place % self.clusters

    def round(self, server: Server, cohort: Cohort) -> None:
        turn = server.turn.cpu().numpy()[cohort.ids]
        order = range(self.clusters) if self.order == "fixed" else server.shuffled("order", self.clusters)
        for k in order:
            if (turn == k).any():
                self.take_turn(server, cohort.only(cohort.ids[turn == k]))

    def take_turn(self, server: Server, part: Cohort) -> None:
        """One cluster's exchange."""
        server.w = server.w + part.call(self.client, w=server.w).mean("delta")
