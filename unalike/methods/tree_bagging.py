"""TreeBagging and TreeCyclic: trees that clients grow by themselves and ship whole, the two usual baselines of
federated boosting (Flower's and NVFlare's examples have them under these names).

Bagging: in a round every client grows one tree on its own rows, from the margins of the forest so far; all trees join
the forest, each shrunk by their number. Cyclic: clients take turns, one a round, and its tree joins as it is.

    F ← F + (1/m) Σ_k tree_k(F; rows of k)         F ← F + tree_k(F; rows of k), k = round mod m

It differs from HistBoost in what is summed: whole trees in the place of histograms. One exchange a round, and no bit of
the pooled model: on skewed labels a client's tree knows its own labels only. Cuts are common, found by counting as
there.

Practical truth: the server reads each client's tree, with its cuts, and leaves that tell label shares of small groups.
Where clients are alike it is nearly as good as HistBoost; where they are not, cyclic forgets and bagging is timid.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Server
from unalike.trees import client
from unalike.trees.forest import PARTS
from unalike.trees.growing import Growing


@dc.dataclass(frozen=True)
class TreeBagging(Growing):
    name = "tree-bagging"

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        part = Field(("trees_a_round", "places"), read="each", weight="one", what="a tree grown on its own rows")
        return {**super().sends, **dict.fromkeys(PARTS, part)}

    @property
    def places(self) -> int:
        """Numbers of splits and leaves of a tree."""
        return 2 << self.depth

    def begin(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(None, data="train", fn=client.row).then(self.alone)

    def alone(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        codes, pair = self.derived(me, m, rows)
        trees = [client.own_tree(codes.to(torch.int64), own, self) for own in pair.unbind(1)]
        parts = {name: torch.stack([getattr(tree, name) for tree in trees]) for name in PARTS}
        return {}, {**parts, "value": parts["value"].to(me.n.dtype)}

    def grown(self, server: Server, cohort: Cohort) -> dict[str, Tensor]:
        replies = cohort.call(self.begin, **self.forest(server))
        found = {name: replies.each(name).to(server.values[name].dtype) for name in PARTS}
        found = {name: value[: self.trees - server.count] for name, value in found.items()}
        return {**found, "value": found["value"] / len(found["value"])}


@dc.dataclass(frozen=True)
class TreeCyclic(TreeBagging):
    name = "tree-cyclic"
    sees_who = True

    def grown(self, server: Server, cohort: Cohort) -> dict[str, Tensor]:
        turn = cohort.ids[cohort.round % len(cohort)]
        return super().grown(server, cohort.only([turn]))
