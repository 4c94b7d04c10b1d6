"""Def-KT: Li, Chen & Lu, "Decentralized federated learning via mutual knowledge transfer", 2021.

No server: every client has its own model θ_k. In a round clients are paired, a → b. Client a trains on its own data and
sends its model to b, which trains both models at once on its data, each learning from the other's predictions p:

    θ_a ← SGD on a's data,  then on b's data, both from the same forward passes:
    θ_b ← θ_b − η ∇[CE(z_b, y) + KL(p_a ‖ p_b)],     θ_a' ← θ_a' − η ∇[CE(z_a, y) + KL(p_b ‖ p_a)]

b keeps θ_a', the received model that has learned from both; its old one is dropped. a keeps what it sent. The others
rest. Pairs are a function of (seed, round), which every client can compute: a coordinator only carries sealed bytes.
One vector a pair travels, from peer to peer; b sees the whole model of a.

a's training is the run's; `epochs` and `lr` are those of the training in pairs, which is plain SGD: the run's momentum,
clipping and weight decay act on a's training only.

Practical truth: knowledge walks, one client a round: it needs many rounds, and models differ between clients all the
while. Judge it by the mean over clients' own models, and compare with `local-only`. Where both models are the same, the
two KL terms are zero and stay so. All clients begin at the same weights here.
"""

from __future__ import annotations

import dataclasses as dc

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Server, knob
from unalike.methods.reference import OwnModel


@dc.dataclass(frozen=True)
class DefKT(OwnModel):
    epochs: int = knob(1, "E₂, passes over b's data in which both models learn", least=0)
    lr: float | None = knob(None, "rate of the training in pairs (not said: the run's)", above=0)
    strength: float = knob(1.0, "of the two KL terms", least=0, tune=(0.1, 10.0))
    pairs: int | None = knob(None, "a round (not said: all that the participants make)", least=1)

    name = "def-kt"
    serverless = True
    sends = {"theta": Field(read="sealed", what="its model")}

    def teach(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(me.own(s.theta)).then(self.taught)

    def taught(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {"theta": theta}, {"theta": theta}

    def learn(self, me: Me, s: Fields, m: Fields) -> Answer:
        if not self.epochs:
            return {"theta": m.theirs}, {}
        both = torch.stack([me.own(s.theta), m.theirs])
        return me.train(both, step=self.mutual, epochs=self.epochs, lr=self.lr).then(self.learned)

    def mutual(self, both: Tensor, batches: list[Batch], lr: Tensor) -> Tensor:
        """One step of the two models, each with the other's predictions as they are before it."""
        batch = batches[0]

        def loss(vector: Tensor, other: Tensor) -> Tensor:
            mine, theirs = (batch.forward(v)[0].log_softmax(-1) for v in (vector, other))
            return batch.loss(vector) + self.strength * batch.mean((theirs.exp() * (theirs - mine)).sum(-1))

        return both - lr * torch.func.vmap(torch.func.grad(loss))(both, both.flip(0))

    def learned(self, me: Me, s: Fields, m: Fields, both: Tensor) -> Answer:
        return {"theta": both[1]}, {}

    def paired(self, server: Server, cohort: Cohort) -> tuple[np.ndarray, np.ndarray]:
        """Return who sends and who receives: a function of the seed and the round."""
        ids = cohort.ids[np.asarray(server.shuffled("pairs", len(cohort)))]
        count = min(len(ids) // 2, self.pairs or len(ids))
        return ids[:count], ids[count : 2 * count]

    def round(self, server: Server, cohort: Cohort) -> None:
        senders, receivers = self.paired(server, cohort)
        if not len(senders):
            return
        sent = cohort.only(senders).call(self.teach)
        cohort.only(receivers).call(self.learn, theirs=sent.pass_on("theta", to=receivers))
