"""Server optimizers: FedAvgM (Hsu et al., "Measuring the effects of non-identical data distribution for federated
visual classification", 2019) and FedAdagrad, FedYogi, FedAdam (Reddi et al., "Adaptive federated optimization", ICLR
2021).

Clients do FedAvg's work; the server treats the mean update Δ as a gradient:

    FedAvgM     v ← β v + Δ,   w ← w + η v
    the others  m ← β₁ m + (1 − β₁) Δ,   w ← w + η m / (√v + τ)
                Adagrad v ← v + Δ²,   Adam v ← β₂ v + (1 − β₂) Δ²,   Yogi v ← v − (1 − β₂) Δ² sign(v − Δ²)

v starts at τ². No bias correction, as published. Practical truth: η is in units of the weights, not of Δ, and must be
searched together with the clients' rate; τ = 1e-3 is the paper's.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Cohort, Method, Server
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedAvgM(Method):
    """server_lr: η; server_momentum: β (0 with η = 1 is FedAvg)."""

    server_lr: float = 1.0
    server_momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.server_momentum < 1:
            raise UnalikeError(f"FedAvgM server_momentum must lie in [0, 1); got {self.server_momentum!r}.")

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.momentum = torch.zeros_like(server.w)

    def round(self, server: Server, cohort: Cohort) -> None:
        delta = cohort.call(self.client, w=server.w).mean("delta")
        server.momentum = self.server_momentum * server.momentum + delta
        server.w = server.w + self.server_lr * server.momentum


@dc.dataclass(frozen=True)
class Adaptive(Method):
    """server_lr: η; beta1, beta2; tau: τ, how adaptive it is (small: very)."""

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.tau > 0):
            raise UnalikeError(f"{type(self).__name__}: beta1 and beta2 must lie in [0, 1), tau above 0.")

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.momentum = torch.zeros_like(server.w)
        server.square = torch.full_like(server.w, self.tau**2)

    def second(self, square: Tensor, delta: Tensor) -> Tensor:
        """The new v."""
        raise UnalikeError("Use FedAdagrad, FedYogi or FedAdam.")

    def round(self, server: Server, cohort: Cohort) -> None:
        delta = cohort.call(self.client, w=server.w).mean("delta")
        server.momentum = self.beta1 * server.momentum + (1 - self.beta1) * delta
        server.square = self.second(server.square, delta)
        server.w = server.w + self.server_lr * server.momentum / (server.square.sqrt() + self.tau)


@dc.dataclass(frozen=True)
class FedAdagrad(Adaptive):
    def second(self, square: Tensor, delta: Tensor) -> Tensor:
        return square + delta.square()


@dc.dataclass(frozen=True)
class FedYogi(Adaptive):
    def second(self, square: Tensor, delta: Tensor) -> Tensor:
        return square - (1 - self.beta2) * delta.square() * torch.sign(square - delta.square())


@dc.dataclass(frozen=True)
class FedAdam(Adaptive):
    def second(self, square: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * square + (1 - self.beta2) * delta.square()
