"""FedAvgR: Wei, Li, Liu & Wang, "Federated learning for non-IID data: from theory to algorithm", PRICAI 2021.

FedAvg with three regularisers that a bound on the excess risk asks for, on a model f(x) = Wᵀφ(x):

    f_k + α ‖W‖_* + β ‖φ(X_batch)‖_F + γ ‖ mean φ(batch) − mean Z ‖²

W is the head's weight, φ everything before it. Each client draws Z once a round from the mixture Σ (n_k/n) ρ_k of all
clients' feature distributions, which they report after training (and before round 1) as a Gaussian: a mean with
variances, or with a covariance. The linear kernel of the paper's MMD leaves only the mean of Z.

Down: one vector and K·(2D + 1) numbers, K everybody; up: one vector and 2D (full: D + D(D+1)/2 each). Distributions are
read client by client and shown to all: they are statistics of private data. Without γ they are not sent; without all
three regularisers it is FedAvg.

Readings: the paper names neither the family of ρ (diagonal Gaussian; `distribution="full"`) nor |Z| (`samples`); norms
are over the mini-batch and not squared, MMD is.
"""

from __future__ import annotations

import dataclasses as dc
from typing import Any

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedAvgR(Method):
    trace: float = knob(1e-6, "α, weight of the trace norm ‖W‖_*", values="1e-8…1e-4", least=0, tune=(1e-8, 1e-4))
    frobenius: float = knob(
        1e-4, "β, weight of the features' Frobenius norm", values="1e-6…1e-2", least=0, tune=(1e-6, 1e-2)
    )
    mmd: float = knob(
        1e-2, "γ, weight of the distance to all clients' features", values="1e-4…1e-1", least=0, tune=(1e-4, 1e-1)
    )
    distribution: str = knob("diagonal", "of features (variances or a covariance)", choices=("diagonal", "full"))
    samples: int = knob(100, "how many Z are drawn", least=1)

    name = "fedavgr"

    @property
    def tables(self) -> dict[str, Field]:  # type: ignore[override]
        spread = Field("pairs" if self.distribution == "full" else "features", what="their variances or covariances")
        return {"mean": Field("features", what="the mean of its features"), "spread": spread} if self.mmd else {}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        shown = {name: dc.replace(field, read="peers", weight="one") for name, field in self.tables.items()}
        return {"delta": Field(), **shown}

    def moments(self, batch: Batch) -> dict[str, Tensor]:
        rows = batch.features
        square = rows.square() if self.distribution == "diagonal" else rows[:, :, None] * rows[:, None, :]
        return {"mean": rows, "square": square}

    def fitted(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Mean and variances, or mean and the upper triangle of the covariance."""
        mean = found["mean"]
        if self.distribution == "diagonal":
            return {"mean": mean, "spread": (found["square"] - mean.square()).clamp(min=0)}
        row, column = torch.triu_indices(len(mean), len(mean), device=mean.device)
        return {"mean": mean, "spread": (found["square"] - mean[:, None] * mean)[row, column]}

    def setup(self, server: Server, everyone: Cohort) -> None:
        if self.mmd:
            self._remember(server, everyone.call(self.measure, w=server.w))

    def measure(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.average(self.moments, m.w).then(self.reported)

    def _remember(self, server: Server, replies: Any) -> None:
        for name in self.tables:
            server.table(name)[replies.ids] = replies.each(name)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        args = {"target": self.draw(me, m).mean(0)} if self.mmd else {}
        return me.train(m.w, loss=self.regulariser, args=args).then(self.trained)

    def draw(self, me: Me, m: Fields) -> Tensor:
        """Z: a component of the mixture for each row, then a normal vector of that component."""
        chosen = me.uniform("component", (self.samples,))[:, None] > m.shares.cumsum(0)
        which = chosen.sum(1).clamp(max=m.shares.shape[0] - 1)
        noise = me.normal("sample", (self.samples, m.means.shape[1]))
        if self.distribution == "diagonal":
            return m.means[which] + m.spreads[which].sqrt() * noise
        return m.means[which] + (m.spreads[which] @ noise[:, :, None])[..., 0]

    def regulariser(self, batch: Batch, target: Tensor | None = None) -> Tensor:
        total = batch.weights.sum() * 0
        if self.trace:
            total = total + self.trace * trace_norm(head_weight(batch))
        if self.frobenius:
            total = total + self.frobenius * (batch.sum(batch.features.square()).sum() + 1e-30).sqrt()
        if target is not None:
            total = total + self.mmd * (batch.mean(batch.features) - target).square().sum()
        return total

    def trained(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        if not self.mmd:
            return self.done(me, s, m, theta)
        return me.average(self.moments, theta).then(self.reported, theta=theta)

    def reported(self, me: Me, s: Fields, m: Fields, found: dict[str, Tensor], theta: Tensor | None = None) -> Answer:
        return {}, {**({} if theta is None else {"delta": theta - m.w}), **self.fitted(found)}

    def round(self, server: Server, cohort: Cohort) -> None:
        mixture = self.mixture(server, cohort.everyone) if self.mmd else {}
        replies = cohort.call(self.client, w=server.w, **mixture)
        self._remember(server, replies)
        server.w = server.w + replies.mean("delta")

    def mixture(self, server: Server, everyone: Cohort) -> dict[str, Tensor]:
        """Shares, means and spreads of all clients' distributions (a full covariance as its Cholesky factor)."""
        shares = torch.from_numpy(everyone.samples / everyone.samples.sum()).to(server.w)
        means, spreads = (server.table(name)[everyone.ids] for name in ("mean", "spread"))
        if self.distribution == "full":
            row, column = torch.triu_indices(width := means.shape[1], width, device=means.device)
            full = means.new_zeros(len(means), width, width, dtype=torch.float64)
            full[:, row, column] = full[:, column, row] = spreads.double()
            level = full.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-12)  # rounding must not make it indefinite
            full = full + 1e-6 * level[:, None, None] * torch.eye(width, dtype=full.dtype, device=full.device)
            spreads = torch.linalg.cholesky(full).to(means)
        return {"shares": shares, "means": means, "spreads": spreads}


def head_weight(batch: Batch) -> Tensor:
    """The head's weight matrix at the current vector."""
    name = f"{batch.layout.head_name}.weight" if batch.layout.head_name else "weight"
    weight = batch.layout.views(batch.vector).get(name)
    if weight is None or weight.dim() != 2:
        raise UnalikeError(f"FedAvgR's trace norm needs a head with a weight matrix; there is no {name!r}.")
    return weight


def trace_norm(weight: Tensor, low: float = 1e-5) -> Tensor:
    """‖W‖_* with the gradient UVᵀ = (WWᵀ)^-½ W, from products of small matrices: no decomposition that `vmap` or a CUDA
    graph would balk at. Newton-Schulz steps, each scaled to take singular values in [low, 1] fastest to 1 (Chen & Chow
    2014); those under low · ‖W‖_F count by less, zero ones not at all. In float64: a Gram matrix squares them."""
    flat = weight if weight.shape[0] <= weight.shape[1] else weight.T
    w, eye = flat.detach().double(), torch.eye(len(flat), dtype=torch.float64, device=flat.device)
    root, inverse = w @ w.T / (square := w.square().sum().clamp(min=1e-60)), eye
    while 1 - low > 1e-14:
        scale = (3 / (1 + low + low**2)) ** 0.5
        step = 1.5 * scale * eye - 0.5 * scale**3 * (inverse @ root)
        root, inverse, low = root @ step, step @ inverse, 0.5 * low * scale * (3 - (scale * low) ** 2)
    return (flat * (inverse @ w / square.sqrt()).to(flat.dtype)).sum()
