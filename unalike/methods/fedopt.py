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

from unalike.contract import Cohort, Method, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedAvgM(Method):
    server_lr: float = knob(1.0, "η, the server's rate")
    server_momentum: float = knob(
        0.9, "β, momentum (0 with η = 1 is FedAvg)", least=0, below=1, tune=[0.5, 0.7, 0.9, 0.95]
    )

    name = "fedavgm"
    asynchronous = "can"

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.momentum = torch.zeros_like(server.w)

    def round(self, server: Server, cohort: Cohort) -> None:
        delta = cohort.call(self.client, w=server.w).mean("delta")
        server.momentum = self.server_momentum * server.momentum + delta
        server.w = server.w + self.server_lr * server.momentum


@dc.dataclass(frozen=True)
class Adaptive(Method):
    server_lr: float = knob(0.01, "η, the server's rate", tune=(1e-3, 1.0))
    beta1: float = knob(0.9, "β₁, memory of the mean update", least=0, below=1)
    beta2: float = knob(0.99, "β₂, memory of its square", least=0, below=1)
    tau: float = knob(1e-3, "τ, how adaptive it is (small: very)", above=0, tune=(1e-4, 1e-1))

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
    name = "fedadagrad"
    asynchronous = "can"

    def second(self, square: Tensor, delta: Tensor) -> Tensor:
        return square + delta.square()


@dc.dataclass(frozen=True)
class FedYogi(Adaptive):
    name = "fedyogi"
    asynchronous = "can"

    def second(self, square: Tensor, delta: Tensor) -> Tensor:
        return square - (1 - self.beta2) * delta.square() * torch.sign(square - delta.square())


@dc.dataclass(frozen=True)
class FedAdam(Adaptive):
    name = "fedadam"
    asynchronous = "can"

    def second(self, square: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * square + (1 - self.beta2) * delta.square()
