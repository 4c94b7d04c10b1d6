"""FL+HC: Briggs, Fan & Andras, "Federated learning with hierarchical clustering of local updates to improve training on
non-IID data", IJCNN 2020.

    rounds 1 … R₀        FedAvg
    round R₀ + 1         every client trains from w and sends θ_k − w; the server merges the closest updates, pair by
                         pair, until so many clusters are left
    afterwards           FedAvg within each cluster, starting from w

The clustering round reads every client's own update: it cannot run under secure aggregation. One cluster is FedAvg. On
the global test set the reported number is the mean over clusters of each cluster's model, weighted by its samples.

Practical truth: linkage and metric matter more than anything; `ward` with Euclidean distances is the safe choice.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Message, Method, PerClient, Request, Server, knob
from unalike.errors import UnalikeError

METRICS = ("l2", "l1", "cosine")
# The distance of a merged group to the others from the old ones (Lance & Williams 1967): `a` and `b` are the distances
# of the two parts to everybody, n and m their sizes, k everybody's sizes, d the distance between the two.
LINKAGES: dict[str, Callable[..., np.ndarray]] = {
    "single": lambda a, b, n, m, k, d: np.minimum(a, b),
    "complete": lambda a, b, n, m, k, d: np.maximum(a, b),
    "average": lambda a, b, n, m, k, d: (n * a + m * b) / (n + m),
    "ward": lambda a, b, n, m, k, d: np.sqrt(((n + k) * a**2 + (m + k) * b**2 - k * d**2) / (n + m + k)),
}


def check_clusters(method: Any, clients: int) -> None:
    """Refuse more clusters than there are clients: some would be nobody's."""
    if method.clusters > clients:
        given = f"{type(method).__name__} clusters={method.clusters} of {clients} clients"
        raise UnalikeError(f"{given}: give at most as many as there are clients.")


@dc.dataclass(frozen=True)
class FLHC(Method):
    clusters: int = knob(2, "how many clusters are left", least=1, tune=[2, 3, 4, 6])
    warmup: int = knob(10, "R₀, rounds of FedAvg before clusters are made", least=0)
    linkage: str = knob("ward", "which groups are close", choices=LINKAGES)
    metric: str = knob("l2", "distance of two updates (ward needs l2)", choices=METRICS)

    name = "flhc"
    check_clients = check_clusters
    one_network = "compares clients' models"
    sends = {
        "delta": Field(),
        "own": Field(read="each", weight="one", what="its change of the model in the clustering round"),
    }

    def __post_init__(self) -> None:
        if self.linkage == "ward" and self.metric != "l2":
            raise UnalikeError(f"FLHC linkage='ward' needs metric='l2'; got {self.metric!r}.")

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.models = server.w[None].repeat(self.clusters, 1)
        server.cluster = torch.zeros(everyone.population, dtype=torch.int64)
        server.samples = torch.zeros(self.clusters).double()
        server.samples[0] = float(everyone.samples.sum())

    def probe(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w).then(self.probed)

    def probed(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {}, {"own": theta - m.w}

    def round(self, server: Server, cohort: Cohort) -> None:
        if cohort.round == self.warmup and self.clusters > 1:
            self._cluster(server, cohort.everyone)
            return
        models, mine = server.models.clone(), server.cluster.cpu().numpy()[cohort.ids]
        if cohort.round < self.warmup:
            models[:] = server.models[0] + cohort.call(self.client, w=server.models[0]).mean("delta")
        else:
            for k in np.unique(mine):
                part = cohort.only(cohort.ids[mine == k])
                models[k] = models[k] + part.call(self.client, w=server.models[k]).mean("delta")
        server.models, server.w = models, models[0]

    def _cluster(self, server: Server, everyone: Cohort) -> None:
        replies = everyone.call(self.probe, w=server.models[0])
        updates = replies.each("own").double().cpu().numpy()
        groups, _ = agglomerate(updates, self.clusters, self.linkage, self.metric)
        cluster = torch.zeros_like(server.cluster.cpu())  # a client that did not answer stays with the first
        for k, members in enumerate(groups):
            cluster[torch.from_numpy(replies.ids[members])] = k
        server.cluster = cluster
        sizes = torch.from_numpy(np.asarray(everyone.samples, dtype=np.float64))
        server.samples = torch.zeros(self.clusters).double().index_add(0, cluster, sizes)

    def published(self, server: Server) -> Message:
        own = torch.nn.functional.one_hot(server.cluster, self.clusters).to(server.w)
        return {"models": server.models, "own": PerClient(own)}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return m.own @ m.models

    def arrival(self, me: Me, s: Fields, m: Fields) -> Request:
        return me.losses(m.models).then(self.best)

    def best(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(losses.argmin(-1), self.clusters).to(m.models) @ m.models

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        weights = (server.samples / server.samples.sum()).tolist()
        return {f"cluster{k}": (w, weights[k]) for k, w in enumerate(server.models)}


def agglomerate(rows: np.ndarray, clusters: int, linkage: str, metric: str) -> tuple[list[list[int]], list[Any]]:
    """Merge the two closest groups until `clusters` are left: (groups, merges as (a, b, distance))."""
    if metric == "cosine":
        distance = 1 - cosines(rows)
    else:
        distance = np.stack([np.linalg.norm(rows - row, ord=1 if metric == "l1" else 2, axis=1) for row in rows])
    groups, merges = [[k] for k in range(len(rows))], []
    np.fill_diagonal(distance, np.inf)
    while len(groups) > max(1, clusters):
        a, b = sorted(divmod(int(distance.argmin()), len(groups)))
        best, n, m = distance[a, b], len(groups[a]), len(groups[b])
        merged = LINKAGES[linkage](distance[a], distance[b], n, m, np.array([len(g) for g in groups]), best)
        merges.append((list(groups[a]), list(groups[b]), float(best)))
        groups[a] = sorted(groups[a] + groups.pop(b))
        distance[a], distance[:, a] = merged, merged
        distance = np.delete(np.delete(distance, b, 0), b, 1)
        distance[a, a] = np.inf
    return groups, merges


def bipartition(rows: np.ndarray, linkage: str) -> tuple[list[list[int]], float]:
    """Return two groups of rows by their cosines, and the largest cosine of two rows in different groups."""
    halves, _ = agglomerate(rows, 2, linkage, "cosine")
    return halves, float(cosines(rows)[halves[0]][:, halves[1]].max())


def cosines(rows: np.ndarray) -> np.ndarray:
    """Return the cosine of every two rows; of a row of zeros, 0."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return np.asarray(unit @ unit.T)
