"""MOON: Li, He & Song, "Model-contrastive federated learning", CVPR 2021.

FedAvg with a term in the local loss that keeps features z(x) near the received model's and away from those of the
client's own last model:

    CE + μ mean −log( e^{cos(z, z_w)/τ} / (e^{cos(z, z_w)/τ} + e^{cos(z, z_last)/τ}) )
      = CE + μ mean softplus((cos(z, z_last) − cos(z, z_w)) / τ)

A client keeps its last θ_k; bytes and what the server reads are FedAvg's. z is the head's input. The paper puts a
projection of two layers before the head and contrasts its output, which is the head's input there: have such a layer
in the model. (Without one, as in PFLlib, it is the backbone's features that are contrasted.)

A client that takes part for the first time has no last model, and no such term. In the authors' program this is so in
round 1 alone; one that comes later is contrasted with random weights of its own, which is not copied. Its buffer of
more than one last model is filled with copies of one, and is left out.

Practical truth: μ = 0 is FedAvg. A step costs three forward passes in the place of one. A client that comes rarely is
pushed away from a model that is many rounds old.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor
from torch.nn import functional as F

from unalike.contract import Answer, Batch, Field, Fields, Me, Method, knob


@dc.dataclass(frozen=True)
class Moon(Method):
    mu: float = knob(
        1.0, "μ, weight of the contrast", values="5 CIFAR-10, 1 CIFAR-100 and Tiny-ImageNet", least=0, tune=(0.1, 10.0)
    )
    temperature: float = knob(0.5, "τ of the contrast", values="0.5", above=0, tune=(0.1, 2.0))

    name = "moon"
    keeps = {"last": Field()}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        strength = self.mu * (1 - me.first.to(m.w.dtype))  # nothing to be unlike on the first visit
        return me.train(m.w, loss=self.contrast, args={"w": m.w, "last": s.last, "mu": strength}).then(self.done)

    def contrast(self, batch: Batch, w: Tensor, last: Tensor, mu: Tensor) -> Tensor:
        near, far = (F.cosine_similarity(batch.features, batch.forward(v)[1], dim=-1) for v in (w, last))
        return mu * batch.mean(F.softplus((far - near) / self.temperature))

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {"last": theta}, {"delta": theta - m.w}
