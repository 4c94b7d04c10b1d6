"""FedRS: Li & Zhan, "FedRS: federated learning with restricted softmax for label distribution non-IID data", KDD 2021.

Where a client lacks a class, its softmax only ever pushes that class's weights away. FedRS restricts this: while it
trains, logits of missing classes count by α only:

    cross-entropy of  s_c z_c,     s_c = 1 if the client has class c, else α

Only the loss sees this; the model predicts with z. The counts stay with the client; bytes are FedAvg's.

`scaling="share"` is the authors' program, which grades by share: s_c = α + (1 − α) n_kc / max_c n_kc. There the head
has no bias, at least five steps are made, and gradients are clipped to 100: settings of the model and of the run.

Practical truth: α = 1 is FedAvg, α = 0 leaves missing classes at e⁰ in the softmax. The scaled logit has its bias in
it. It does nothing where every client has every class (`scaling="missing"`): it is for shards, not for mild skews.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Batch, Fields, Me, Method, knob
from unalike.methods.fedlc import label


@dc.dataclass(frozen=True)
class FedRS(Method):
    alpha: float = knob(0.5, "α, what logits of missing classes count", values="0.5", least=0, most=1, tune=(0.1, 0.9))
    scaling: str = knob(
        "missing", "of logits: classes that are missing, or all by their share", choices=("missing", "share")
    )

    name = "fedrs"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.sum(label).then(self.counted)

    def counted(self, me: Me, s: Fields, m: Fields, counts: Tensor) -> Answer:
        share = (counts > 0).to(counts.dtype) if self.scaling == "missing" else counts / counts.max().clamp(min=1)
        scale = self.alpha + (1 - self.alpha) * share
        return me.train(m.w, own=0.0, loss=self.restricted, args={"scale": scale}).then(self.done)

    def restricted(self, batch: Batch, scale: Tensor) -> Tensor:
        return batch.mean(batch.with_output(scale * batch.output).losses)
