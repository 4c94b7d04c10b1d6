"""CCVR: Luo et al., "No fear of heterogeneity: classifier calibration for federated learning with non-IID data",
NeurIPS 2021.

On skewed labels the head suffers most. FedAvg as it is, and then the head alone is trained once more, on the server, on
features h that are drawn from a Gaussian for each class, fitted to all clients' features together:

    up, per class:   n_kc,  Σ h,  Σ h hᵀ          of the features of client k's samples of class c, by the model w
    μ_c = Σ h / N_c,   Σ_c = (Σ h hᵀ − N_c μ_c μ_cᵀ) / (N_c − 1)                            (sums over everybody)
    M features μ_c + Σ_c^{1/2} ε for each class;  `epochs` passes of SGD of the head over them

Σ_c is exactly the covariance of the pooled features; fluke's, of covariances with divisor n_kc, is too small. Up go
C (1 + F + F (F + 1)/2) numbers, of which the server reads sums only. That is what leaves a client: how its features
are spread in each class, hidden in everybody's. A class that one client alone has hides nothing: its sums are that
client's own, and with a single sample that sample's features.

The paper calibrates once, after training. A method does not know which round is the last: the head is calibrated after
every `every` rounds, and training goes on as if it had not been. `server.w` is the calibrated model, `server.trained`
the other (logged as `test_uncalibrated_…`); in rounds between both are the same, so let `rounds` be a multiple of it.

Practical truth: `epochs=0` is FedAvg. All clients are asked (`asked="round"`: this round's), for one pass over their
data; with many features or classes the statistics are larger than the model. It can only be as good as the features.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Replies, Server, knob
from unalike.methods.fedavg import FedAvg
from unalike.methods.fedlc import label


@dc.dataclass(frozen=True)
class CCVR(FedAvg):
    virtual: int = knob(100, "M, features that are drawn for a class", least=1, tune=[50, 200, 1000])
    epochs: int = knob(10, "passes of the head over them (0: no calibration)", least=0)
    lr: float = knob(0.01, "the head's rate on the server", above=0, tune=(1e-3, 0.3))
    batch: int = knob(64, "virtual features a step", least=1)
    shuffle: bool = knob(True, "a new order of the virtual features every pass")
    every: int = knob(1, "rounds after which the head is calibrated", least=1)
    asked: str = knob("all", "for their statistics: all clients, or this round's", choices=("all", "round"))

    name = "ccvr"
    asynchronous = "no"
    one_network = "pools features of one body"
    sends = {
        "delta": Field(weight="weights"),
        "count": Field("classes", weight="one", what="its class counts"),
        "total": Field(("classes", "features"), weight="one", what="sums by class of its features"),
        "square": Field(("classes", "pairs"), weight="one", what="of their products"),
    }

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.trained = server.w

    def round(self, server: Server, cohort: Cohort) -> None:
        server.trained = server.trained + self.server_lr * cohort.call(self.client, w=server.trained).mean("delta")
        server.w = server.trained
        if self.epochs and (cohort.round + 1) % self.every == 0:
            asked = cohort.everyone if self.asked == "all" else cohort
            server.w = self.calibrated(server, asked.call(self.statistics, w=server.trained))

    def statistics(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.sum(label).then(self.counted)

    def counted(self, me: Me, s: Fields, m: Fields, count: Tensor) -> Answer:
        return me.outputs(m.w, data="train", fn=seen).then(self.summed, count=count)

    def summed(self, me: Me, s: Fields, m: Fields, rows: Tensor, count: Tensor) -> Answer:
        """rows [samples, features + classes]: zeros behind a client's own."""
        classes = len(count)
        h, own = rows[:, :-classes], rows[:, -classes:]
        row, column = torch.triu_indices(h.shape[1], h.shape[1], device=h.device)
        square = torch.stack([((h * own[:, c, None]).T @ h)[row, column] for c in range(classes)])
        return {}, {"count": count, "total": own.T @ h, "square": square}

    def calibrated(self, server: Server, replies: Replies) -> Tensor:
        sums = (replies.sum(name).double() for name in ("count", "total", "square"))
        return server.train(
            server.trained, data=self.drawn(server, *pooled(*sums)), part="head", own=0.0, loss=self.entropy,
            epochs=self.epochs, batch_size=self.batch, lr=self.lr, shuffle=self.shuffle,
        )  # fmt: skip

    def drawn(self, server: Server, count: Tensor, mean: Tensor, cov: Tensor) -> dict[str, Tensor]:
        """Virtual features and their classes: one of each class that there is, then another of each, and so on."""
        values, vectors = torch.linalg.eigh(cov)
        rounding = values.shape[-1] * torch.finfo(server.w.dtype).eps * values[:, -1:]  # a root would make it large
        root = vectors * torch.where(values > rounding, values, 0.0).sqrt()[:, None] @ vectors.mT
        noise = self.noise(server, (self.virtual, *mean.shape)).double()
        x, there = mean + torch.einsum("cfg,mcg->mcf", root, noise), (count > 0).nonzero()[:, 0]
        return {"x": x[:, there].flatten(0, 1).to(server.w), "y": there.repeat(self.virtual)}

    def noise(self, server: Server, shape: tuple[int, ...]) -> Tensor:
        return server.normal("virtual", shape)

    def entropy(self, batch: Batch) -> Tensor:
        return batch.mean(batch.with_output(batch.head(batch.vector, batch.x)).losses)

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": server.w, "uncalibrated": server.trained}


def seen(batch: Batch) -> Tensor:
    """The features of a sample, and its class."""
    return torch.cat([batch.features, batch.onehot], -1)


def pooled(count: Tensor, total: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Counts, means and unbiased covariances of the classes, from sums; zeros where there are too few samples."""
    mean = total / count.clamp(min=1)[:, None]
    row, column = torch.triu_indices(mean.shape[1], mean.shape[1], device=mean.device)
    cov = mean.new_zeros(len(mean), mean.shape[1], mean.shape[1])
    cov[:, row, column] = cov[:, column, row] = square
    cov = (cov - count[:, None, None] * mean[:, :, None] * mean[:, None]) / (count - 1).clamp(min=1)[:, None, None]
    return count, mean, cov
