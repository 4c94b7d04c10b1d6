"""FedExP: Jhunjhunwala, Wang & Joshi, "FedExP: speeding up federated averaging via extrapolation", ICLR 2023.

FedAvg with a server's rate that is computed anew in every round: the less clients' changes Δ_k agree, the shorter their
mean is against them, and the farther the server goes along it:

    η_g = max(1, ½ Σ p_k ‖Δ_k‖² / (‖Δ̄‖² + ε)),    w ← w + η_g Δ̄,    Δ̄ = Σ p_k Δ_k

One number more goes up, ‖Δ_k‖², of which the server needs the sum only. The iterates swing, so the model that is judged
is the mean of the last two: `server.w`; rounds go on from the last one, `server.last` (`judged="last"` judges that).

`scaling="participants"` is the authors' program: it multiplies ε by the number of participants. There ε falls as the
square of the learning rate does, by 0.998² a round (`epsilon_decay`), and one time already before the first.

Practical truth: ε → ∞ is FedAvg, and so are clients that agree (then ½ < 1). It speeds up where clients pull apart and
each is nearly solved; a small ε with noisy clients goes too far.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class FedExP(Method):
    epsilon: float = knob(1e-3, "ε", values="0.001 CIFAR, 0.1 EMNIST", above=0, tune=(1e-4, 1.0))
    epsilon_decay: float = knob(1.0, "of ε, per round", values="0.998²", above=0, most=1)
    scaling: str = knob("plain", "of ε: as it is, or times participants", choices=("plain", "participants"))
    judged: str = knob(
        "mean", "the model that is reported: the mean of the last two, or the last", choices=("mean", "last")
    )

    name = "fedexp"
    sends = {"delta": Field(), "norm": Field("scalar", by="network", what="the size of that change")}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.last = server.w

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        delta = theta - m.w
        return {}, {"delta": delta, "norm": delta.square().sum()}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.last)
        delta, before = replies.mean("delta"), server.last
        epsilon = self.epsilon * self.epsilon_decay**cohort.round
        epsilon *= replies.count if self.scaling == "participants" else 1
        server.rate = (0.5 * replies.mean("norm") / (delta.square().sum() + epsilon)).clamp(min=1.0)
        server.last = before + server.rate * delta
        alone = self.judged == "last" or cohort.round == 0  # w₀ is no iterate
        server.w = server.last if alone else (before + server.last) / 2
