"""FedLC: Zhang et al., "Federated learning with label distribution skew via logits calibration", ICML 2022.

A client's many samples of one class push the logits of its rare classes down. Its loss counts logits that are lowered
first, the more the rarer the class is at this client, so that they must be learned with a margin:

    cross-entropy of  z_c − τ n_kc^{−1/4};    classes with n_kc = 0 are left out of its softmax

Only the loss sees this; the model predicts with z. The counts stay with the client; bytes are FedAvg's.

Readings: the paper's denominator leaves the true class out, log Σ_{c≠y} e^{…} − (z_y − …): `denominator="others"` (0
for a client of one class). With the true class in it (the default, as in fluke and PFLlib) it is the ordinary
cross-entropy. PFLlib counts over all clients, which is the same shift for everybody and not the method.

Practical truth: τ = 0 is FedAvg (classes are left out only where τ > 0). Logits of missing classes are neither pushed
down nor taught here, and a client of one class learns nothing at all: it is for clients that have every class in very
unequal numbers. Where most classes are missing it is far behind FedAvg (digits, Dirichlet 0.1, 50 small clients, 60
rounds: 0.48, and FedAvg 0.82).
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Fields, Me, Method, knob
from unalike.errors import UnalikeError

NEVER = -1e9  # the logit of a class that is left out


@dc.dataclass(frozen=True)
class FedLC(Method):
    tau: float = knob(1.0, "τ, size of the margins", values="1", least=0, tune=(0.1, 5.0))
    denominator: str = knob(
        "all", "of the softmax: all classes that the client has, or those but the true one", choices=("all", "others")
    )

    name = "fedlc"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w).then(self.done) if self.tau == 0 else me.sum(label).then(self.counted)

    def counted(self, me: Me, s: Fields, m: Fields, counts: Tensor) -> Answer:
        return me.train(m.w, own=0.0, loss=self.calibrated, args={"counts": counts}).then(self.done)

    def calibrated(self, batch: Batch, counts: Tensor) -> Tensor:
        lowered = batch.output - self.tau * counts.clamp(min=1) ** -0.25
        lowered = torch.where(counts > 0, lowered, NEVER)
        if self.denominator == "all":
            return batch.mean(batch.with_output(lowered).losses)
        true = batch.onehot
        others = torch.where(true > 0, NEVER, lowered).logsumexp(-1)
        several = ((counts > 0).sum() > 1).to(others.dtype)
        return several * batch.mean(others - (true * lowered).sum(-1))


def label(batch: Batch) -> Tensor:
    """One row a sample, whose sum counts the classes."""
    if batch.y.is_floating_point() or batch.y.dim() != 1 or batch.onehot.shape[-1] < 2:
        raise UnalikeError(
            "This method tells classes apart: the labels must be one class a sample (no numbers), and the model must "
            "have an output for each class."
        )
    return batch.onehot
