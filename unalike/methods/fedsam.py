"""FedSAM and FedASAM: Caldarola, Caputo & Ciccone, "Improving generalization in federated learning by seeking flat
minima", ECCV 2022 (and Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022).

FedAvg whose clients look for flat minima: every step uses the gradient of a point nearby where the loss is higher.

    FedSAM     g = ∇f(θ),   ε = ρ g / ‖g‖                                   step with ∇f(θ + ε)
    FedASAM    ε = ρ T² g / ‖T g‖,   T = |θ| + η on weights, 1 on biases    (large weights are moved by more)

Norms are those of the whole vector; "weights" are the tensors with that word in their name. Weight decay, momentum,
clipping and the optimizer are the run's, at θ. Nothing more travels than with FedAvg, and nothing is kept.

Practical truth: ρ = 0 is FedAvg. A step costs two gradients and, where there is BatchNorm, one more forward pass, from
which its statistics are. ρ is a distance in weights: what suits one network and rate need not suit another; too large a
ρ stalls. The paper's averaging of stochastic weights on the server (SWA) is not here.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Fields, Me, Method, knob

TINY = 1e-16  # the program's: a gradient of zero stays one


@dc.dataclass(frozen=True)
class FedSAM(Method):
    rho: float = knob(0.1, "ρ, how far the point is at which the gradient is taken", least=0, tune=(0.01, 1.0))

    name = "fedsam"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, own=0.0, loss=self.sharp).then(self.done)

    def sharp(self, batch: Batch) -> Tensor:
        """The loss at θ + ε, whose gradient is taken as if ε stood still."""
        batch.learn_statistics()  # those of θ
        theta = batch.vector
        return batch.loss(theta + self.uphill(batch, theta.detach()).detach())

    def uphill(self, batch: Batch, theta: Tensor) -> Tensor:
        """ε."""
        slope = batch.grad(theta)
        return self.rho * slope / (slope.norm() + TINY)


@dc.dataclass(frozen=True)
class FedASAM(FedSAM):
    rho: float = knob(0.5, "ρ, how far the point is at which the gradient is taken", least=0, tune=(0.05, 2.0))
    eta: float = knob(0.2, "η, added to the size of a weight", least=0, tune=(0.01, 1.0))

    name = "fedasam"

    def uphill(self, batch: Batch, theta: Tensor) -> Tensor:
        named = [theta.new_full((size,), float("weight" in name)) for name, _, size, _ in batch.layout.places]
        scale = 1 + torch.cat(named) * (theta.abs() + self.eta - 1)
        slope = scale * batch.grad(theta)
        return self.rho * scale * slope / (slope.norm() + TINY)
