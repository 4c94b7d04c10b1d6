"""Data sharing: Zhao et al., "Federated learning with non-IID data", 2018.

A small set G, uniform over classes, is shared: the server trains the first model on it, and every client adds a share
of it, drawn once, to its own samples.

    w ← `warm_epochs` passes over G              before round 1
    θ_k: local training on D_k ∪ G_k             |G_k| = α |G|, the same rows for the whole run
    w ← Σ (n_k + |G_k|) θ_k / Σ (n_k + |G_k|)

G is the public set ([data] public), with labels; `fed.with_public(..., shipped=True)` counts its bytes. The paper has
|G| = β |D| with β from 5 to 25 %, and α = 50 %. Only which rows are whose goes down; a client's shares are known to
all. `share=0` and `warm_epochs=0` is FedAvg.

The paper explains what is lost on skewed labels by the earth mover's distance of a client's labels from everybody's,
EMD_k = Σ_c |p_k(c) − p(c)|, and shows it against ‖w − w*‖ / ‖w*‖, the distance from the model of pooled data:
`ua.metrics.label_emd` and `ua.metrics.weight_divergence` (docs/metrics.md).

Practical truth: a few percent of uniform data do more on one- or two-class clients than any correction of gradients.
But G must come from somewhere: if it is clients' data, these samples are shown to all.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, PerClient, Server, knob


@dc.dataclass(frozen=True)
class DataSharing(Method):
    share: float = knob(0.5, "α, of the public set for each client", values="0.5", least=0, most=1, tune=(0.05, 1.0))
    warm_epochs: int = knob(5, "passes of the server over the public set before round 1", least=0)
    batch: int = knob(64, "public samples a step of these", least=1)
    lr: float = knob(0.1, "rate of these", above=0, tune=(1e-3, 1.0))
    shuffle: bool = knob(True, "a new order of the public samples every pass of these")

    name = "data-sharing"
    own_rows = ("share",)
    sends = {
        "delta": Field(weight="one"),
        "samples": Field("scalar", weight="one", by="network", what="its number of samples"),
    }

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return bool(self.share or self.warm_epochs)

    def setup(self, server: Server, everyone: Cohort) -> None:
        if self.share:
            server.shares = self.shares(server, everyone)
        if self.warm_epochs:
            server.w = server.train(
                server.w, epochs=self.warm_epochs, batch_size=self.batch, lr=self.lr, shuffle=self.shuffle
            )

    def shares(self, server: Server, everyone: Cohort) -> Tensor:
        """Return the rows of the public set for each client, int64 [clients, rows]; -1: it has fewer."""
        rows = len(server.outputs(None, fn=one))
        count = max(1, round(self.share * rows))
        drawn = [server.shuffled(f"share {client}", rows)[:count] for client in range(everyone.population)]
        return torch.stack([torch.from_numpy(some) for some in drawn])

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        if not self.share:
            return me.train(m.w).then(self.trained, samples=me.n)
        samples = me.n + (m.share >= 0).sum().to(me.n.dtype)
        return me.train(m.w, data=("train", "public"), only=m.share).then(self.trained, samples=samples)

    def trained(self, me: Me, s: Fields, m: Fields, theta: Tensor, samples: Tensor) -> Answer:
        return {}, {"delta": samples * (theta - m.w), "samples": samples}

    def round(self, server: Server, cohort: Cohort) -> None:
        share = {"share": PerClient(server.shares[torch.from_numpy(cohort.ids)])} if self.share else {}
        replies = cohort.call(self.client, w=server.w, **share)
        server.w = server.w + replies.sum("delta") / replies.sum("samples").clamp(min=1)  # 0: nobody came


def one(batch: Batch) -> Tensor:
    """A number for each sample."""
    return batch.weights
