"""CFL: Sattler, Müller & Samek, "Clustered federated learning: model-agnostic distributed multi-task optimization
under privacy constraints", 2019.

All clients begin as one cluster. Each trains from its cluster's model and sends Δ_i = θ_i − w, which the server reads.
A cluster is split where its mean stands still while members still pull, each its own way:

    ‖mean Δ‖ < ε₁   and   max ‖Δ_i‖ > ε₂   and   more than 2 participants   and   round > `after`

into the two groups that the cosines of updates make; then each moves by its mean Δ. Clusters are leaves of a tree:
`server.tree` has a row for each split (round, node, its two new nodes, its members), `server.cluster` each client's
node, `server.criteria` the last round's (node, ‖mean Δ‖, max ‖Δ‖, split). Split nodes stay.

`halves`: "complete" is the program's linkage, "optimal" the paper's, for which the largest cosine α across the cut is
least (single linkage: a lone client falls out easily). A split also needs √((1 − α)/2) > γ: the paper's test, which the
program lacks (γ = 0); 0.6 asks that no two updates across the cut have a cosine above 0.28. A client that was absent
when its cluster was split goes down the tree when it comes back, and so does one that is new: to the node of less
training loss (ours). `level` judges models higher up in the tree.

Practical truth: updates grow with the rate, the local steps and the number of weights, so that a paper's ε are worth
nothing on another task. `thresholds="relative"` (ours) measures ε₁ in the members' mean ‖Δ_i‖ and ε₂ in the first
round's largest ‖Δ_i‖ at this round's rate: clients of one kind come to rest below 0.8, several kinds in one cluster do
not. Do several local epochs, or updates are too noisy to be told apart, and let everybody take part.
"""

from __future__ import annotations

import dataclasses as dc

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Message, Method, PerClient, Request, Server, knob
from unalike.methods.flhc import bipartition

RIGHT = Field("scalar", read="each", weight="one", what="which half fits it better")
LINKAGE = {"complete": "complete", "optimal": "single"}


@dc.dataclass(frozen=True)
class CFL(Method):
    eps1: float = knob(0.25, "ε₁, a mean update below this stands still", values="0.4, absolute", least=0)
    eps2: float = knob(0.8, "ε₂, a largest update above this still pulls", values="1.6, absolute", least=0)
    thresholds: str = knob("relative", "units of ε₁ and ε₂", choices=("relative", "absolute"))
    after: int = knob(20, "rounds without a split at the beginning", values="20", least=0)
    halves: str = knob("complete", "how a cluster is cut in two", choices=LINKAGE)
    gamma: float = knob(0.6, "γ, how clear a split must be; 0: any, as in the program", least=0, below=1)
    weights: str = knob("uniform", "of clients in a cluster's mean", choices=("uniform", "samples"))
    level: int | None = knob(None, "judge models at most so many splits below the root; None: the leaves", least=0)

    name = "cfl"
    one_network = "compares clients' models"
    sends = {"delta": Field(read="each", weight="one"), "right": RIGHT}

    def down(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.losses(m.pair).then(self.turned)

    def turned(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Answer:
        return {}, {"right": (losses[1] < losses[0]).to(losses)}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        return m.own @ m.models if "own" in m and "lost" not in m else me.losses(m.models).then(self.leaf)

    arrival = personal

    def leaf(self, me: Me, s: Fields, m: Fields, losses: Tensor) -> Tensor:
        """The model at the end of the way down, from the client's own node, or from the root."""
        nodes = torch.eye(len(losses), dtype=losses.dtype, device=losses.device)
        left, right = nodes[m.children[:, 0]], nodes[m.children[:, 1]]
        steps = torch.where((right @ losses < left @ losses)[:, None], right, left)  # a leaf's is to itself
        at = m.own if "own" in m else nodes[0]
        for _ in range(len(losses) // 2):
            at = at @ steps
        return at @ m.models

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.models, server.cluster = server.w[None], torch.zeros(everyone.population, dtype=torch.int64)
        server.samples = torch.from_numpy(np.asarray(everyone.samples, dtype=np.float64))
        server.tree, server.criteria, server.largest = [], [], 0.0

    def round(self, server: Server, cohort: Cohort) -> None:
        server.models, server.cluster, server.criteria = server.models.clone(), server.cluster.cpu().clone(), []
        cohort = self._settled(server, cohort)
        if not len(cohort):
            return
        replies = cohort.call(self.client, w=PerClient(server.models[server.cluster[cohort.ids]]))
        updates, node = replies.each("delta").double(), server.cluster[replies.ids].numpy()
        weights = (server.samples if self.weights == "samples" else torch.ones_like(server.samples)).cpu()[replies.ids]
        server.largest = server.largest or float(updates.norm(dim=1).max()) / float(cohort.rates.mean())
        for k in np.unique(node).tolist():
            own = torch.from_numpy(node == k)
            self._move(server, cohort, k, replies.ids[node == k], updates[own], weights[own].to(updates))
        server.w = server.models[0]

    def _settled(self, server: Server, cohort: Cohort) -> Cohort:
        """Send clients whose cluster was split while they were absent down the tree; return those that have arrived."""
        children, ids = self.children(server), cohort.ids
        while True:
            node = server.cluster[ids]
            lost = (children[node, 0] != node).numpy()
            if not lost.any():
                return cohort.only(ids)
            replies = cohort.only(ids[lost]).call(self.down, pair=PerClient(server.models[children[node[lost]]]))
            server.cluster[replies.ids] = children[server.cluster[replies.ids], replies.each("right").long().cpu()]
            ids = ids[~lost | np.isin(ids, replies.ids)]

    def _move(self, server: Server, cohort: Cohort, k: int, ids: np.ndarray, updates: Tensor, weights: Tensor) -> None:
        """Split a cluster where the criteria say so, and move its model, or those of its halves."""
        size, norms = float((weights @ updates).norm() / weights.sum()), updates.norm(dim=1)
        parts, nodes, unit = [list(range(len(ids)))], [k], server.largest * float(cohort.rates.mean())
        if len(ids) > 2 and cohort.round >= self.after and self.stands(size, norms, unit):
            halves, across = bipartition(updates.cpu().numpy(), LINKAGE[self.halves])
            parts = halves if ((1 - min(across, 1.0)) / 2) ** 0.5 > self.gamma else parts
        server.criteria = [*server.criteria, [k, size, float(norms.max()), len(parts) > 1]]
        if len(parts) > 1:
            nodes = [len(server.models), len(server.models) + 1]
            members = (server.cluster == k).nonzero()[:, 0].tolist()
            server.tree = [*server.tree, [cohort.round + 1, k, *nodes, *members]]
            server.models = torch.cat([server.models, server.models[k].expand(2, -1)])
        for node, part in zip(nodes, parts, strict=True):
            server.cluster[ids[part]] = node
            server.models[node] += (weights[part] @ updates[part] / weights[part].sum()).to(server.models)

    def stands(self, size: float, norms: Tensor, unit: float) -> bool:
        """Whether a cluster's mean stands still while its members pull."""
        units = (float(norms.mean()), unit) if self.thresholds == "relative" else (1.0, 1.0)
        return size < self.eps1 * units[0] and float(norms.max()) > self.eps2 * units[1]

    def children(self, server: Server, level: int | None = None) -> Tensor:
        """The two nodes below each, [nodes, 2]; of a leaf, and of a node at this level, itself twice."""
        out, depth = torch.arange(len(server.models))[:, None].repeat(1, 2), {0: 0}
        for _, k, left, right, *_ in server.tree:
            depth[left] = depth[right] = depth[k] + 1
            if level is None or depth[k] < level:
                out[k] = torch.tensor([left, right])
        return out

    def published(self, server: Server) -> Message:
        children, node = self.children(server, self.level), server.cluster.cpu().clone()
        for _, k, left, right, *_ in reversed(server.tree):
            if children[k, 0] == k:
                node[(node == left) | (node == right)] = k
        own = torch.nn.functional.one_hot(node, len(children)).to(server.w)
        lost: Message = {"lost": 1.0} if bool((children[node, 0] != node).any()) else {}
        return {"models": server.models, "children": children.to(own.device), "own": PerClient(own), **lost}

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        sizes = torch.zeros(len(server.models)).double().index_add(0, server.cluster.cpu(), server.samples.cpu())
        shares = (sizes / sizes.sum()).tolist()
        return {f"cluster{k}": (server.models[k], share) for k, share in enumerate(shares) if share > 0}
