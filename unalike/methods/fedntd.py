"""FedNTD: Lee et al., "Preservation of the global knowledge by not-true distillation in federated learning",
NeurIPS 2022.

A client forgets the classes that it lacks. FedNTD adds to its loss what the received model says about the classes that
are *not* a sample's own, so that the true one can still be learned freely:

    CE + β τ² KL(q̃_w ‖ q̃_θ),    q̃ = softmax(z/τ) over the C − 1 classes other than y        (mean over the batch)

The received model is the teacher, without a gradient. Nothing more travels than with FedAvg, and nothing is kept.

Practical truth: β = 0 is FedAvg, and with two classes the term is always 0. A step costs one more forward pass. What is
preserved is as good as the received model: it is a brake in the first rounds.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Batch, Fields, Me, Method, knob
from unalike.methods.fedlc import label

NEVER = 1e9  # taken from a logit, it leaves a class out of the softmax


@dc.dataclass(frozen=True)
class FedNTD(Method):
    beta: float = knob(1.0, "β, weight of the distillation", values="1", least=0, tune=(0.01, 10.0))
    temperature: float = knob(1.0, "τ of both softmaxes", values="1", above=0, tune=(0.5, 4.0))

    name = "fedntd"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, loss=self.forgotten, args={"w": m.w}).then(self.done)

    def forgotten(self, batch: Batch, w: Tensor) -> Tensor:
        true, tau = label(batch), self.temperature
        student, teacher = ((z / tau - NEVER * true).log_softmax(-1) for z in (batch.output, batch.forward(w)[0]))
        gap = (teacher.exp() * (teacher - student) * (1 - true)).sum(-1)
        return self.beta * tau**2 * batch.mean(gap)
