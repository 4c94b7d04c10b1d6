"""Hybrid-FL: Yoshida et al., "Hybrid-FL for wireless networks: cooperative learning mechanism using non-IID data",
2020.

Voluntary uploads: a few clients send some of their samples to the server, once. The server trains on them as one more
client, whose data are less skewed than anybody's:

    w ← w + (Σ n_k Δ_k + n_s Δ_s) / (Σ n_k + n_s)       Δ_s: the server's own training on the n_s uploaded samples

Who volunteers is drawn (`volunteers`), and which of its samples each sends (`samples`); the paper chooses clients by
their links and label counts too. Nobody volunteers: FedAvg.

It ships samples (`--allow-samples`), as they are. In a real federation every client must allow it, volunteer or not:
the server draws who it is.

Practical truth: it is data sharing without a public set, and shows the samples to the server only. The server's part is
n_s samples among Σ n_k: raise `weight` where it is too small to be heard.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class HybridFL(Method):
    volunteers: float = knob(0.1, "share of clients that upload", least=0, most=1, tune=(0.01, 0.3))
    samples: int = knob(100, "that each of them sends at most", least=1)
    weight: float = knob(1.0, "of an uploaded sample in the mean of models", least=0)
    epochs: int = knob(5, "passes of the server a round", least=1)
    batch: int = knob(64, "samples a step of the server", least=1)
    lr: float = knob(0.1, "the server's rate", above=0, tune=(1e-3, 1.0))

    name = "hybrid-fl"
    one_network = "trains one more model, on samples of all"
    ships = "samples as they are"
    sends = {
        "delta": Field(),
        "x": Field(("samples_sent", "input"), read="each", weight="one", what="samples as they are, if it is drawn"),
        "y": Field(("samples_sent",), read="each", weight="one", what="their labels"),
    }

    @property
    def samples_sent(self) -> int:
        """The size of a field; "samples" as a shape is something else."""
        return self.samples

    def setup(self, server: Server, everyone: Cohort) -> None:
        count = min(len(everyone), max(1, round(self.volunteers * len(everyone)))) if self.volunteers else 0
        if not count:
            return
        volunteers = everyone.only(everyone.ids[sorted(server.shuffled("volunteers", len(everyone))[:count])])
        replies = volunteers.call(self.look)
        sizes = everyone.only(replies.ids).samples
        there = torch.arange(self.samples) < torch.from_numpy(sizes)[:, None]
        there = there.to(replies.each("y").device)
        server.x, server.y = replies.each("x")[there], replies.each("y")[there]

    def look(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(None, data="train", fn=whole).then(self.upload)

    def upload(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        rows = torch.cat([rows, rows.new_zeros(self.samples, rows.shape[1])])  # a small client sends fewer
        absent = (torch.arange(len(rows), device=rows.device) >= me.n).to(rows.dtype)
        some = rows[(me.uniform("which", (len(rows),)) + absent).argsort(stable=True)[: self.samples]]
        return {}, {"x": some[:, :-1], "y": some[:, -1]}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w)
        theirs = replies.mean("delta")
        if "x" in server.values:
            given = {"x": server.x, "y": server.y}
            own = server.train(server.w, data=given, epochs=self.epochs, batch_size=self.batch, lr=self.lr) - server.w
            size = self.weight * len(server.x)
            share = size / (size + float(cohort.only(replies.ids).samples.sum()))
            theirs = (1 - share) * theirs + share * own
        server.w = server.w + theirs


def whole(batch: Batch) -> Tensor:
    """Samples as rows of numbers, and the label behind them."""
    x = batch.x.flatten(1).to(batch.weights.dtype)
    return torch.cat([x, batch.y.reshape(len(x), -1)[:, :1].to(x.dtype)], 1)
