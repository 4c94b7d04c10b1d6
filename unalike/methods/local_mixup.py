"""Local mixup: mixup (Zhang et al., ICLR 2018) within each client's own mini-batches, otherwise FedAvg.

Per batch one λ ~ Beta(a, a) and one permutation π of its samples:

    x̃_i = λ x_i + (1 − λ) x_π(i),   loss = mean_i [λ CE(f(x̃_i), y_i) + (1 − λ) CE(f(x̃_i), y_π(i))]

`naivemix` and `fedmix` mix with means of other clients' samples instead. Nothing more travels than with FedAvg; a = 0
means λ = 1, which is FedAvg.

Practical truth: it regularises; it does not undo skew, for a client mixes only the classes that it has.
"""

from __future__ import annotations

import dataclasses as dc
import math

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Fields, Me, Method, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class LocalMixup(Method):
    a: float = knob(1.0, "of Beta(a, a), which λ is drawn from", values="1", least=0, tune=(0.1, 2.0))

    name = "local-mixup"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        if not self.a:
            return me.train(m.w).then(self.done)
        return me.train(m.w, own=0.0, loss=self.mixed).then(self.done)

    def mixed(self, batch: Batch) -> Tensor:
        if not batch.x.is_floating_point():
            raise UnalikeError("Local mixup mixes inputs: it needs numbers (pictures, tables), no tokens.")
        batch.learn_statistics()  # of samples as they are, for so they are predicted
        lam, partner = self.lam(batch), self.partners(batch)
        x = lam * batch.x + (1 - lam) * batch.x[partner]
        y = lam * batch.onehot + (1 - lam) * batch.onehot[partner]
        return -batch.mean((y * batch.forward(batch.vector, x)[0].log_softmax(-1)).sum(-1))

    def lam(self, batch: Batch) -> Tensor:
        """Return this step's share λ, by Devroye's formula for a symmetric beta distribution (1986, IX.3.4)."""
        u, v, side = batch.uniform("lambda", (3,)).unbind()
        u = (u + 2.0**-25).clamp(max=1 - 2.0**-24)  # neither 0 nor 1
        far = torch.expm1(-u.log() / self.a) * torch.cos(2 * math.pi * v).square()
        return 0.5 + torch.where(side < 0.5, -0.5, 0.5) * torch.rsqrt(1 + 1 / far.clamp(min=1e-30))

    def partners(self, batch: Batch) -> Tensor:
        """Return a permutation of the real samples, which stand before padding."""
        padding = (batch.weights == 0).to(batch.weights.dtype)
        return (batch.uniform("partners", (len(batch.y),)) + padding).argsort(stable=True)
