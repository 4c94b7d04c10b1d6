"""APFL: Deng et al., "Adaptive personalized federated learning", 2020.

FedAvg as it is, and beside it every client's own v_k, trained within a mixture with the local model:

    u = α v + (1 − α) θ            on every mini-batch, before either moves
    v ← v − η α ∇f_k(u),    θ ← θ − η ∇f_k(θ)
    adaptive: α ← clip(α − η_α ⟨∇f_k(u), v − θ⟩, 0, 1)   once a round, at its first step

θ begins at the received w and is sent (plain mean); v and α stay. A client predicts with α v + (1 − α) w, w being the
new common model. `reading="program"` is that of Ditto's authors: θ moves first, u is the mixture that the step before
left (also the last one of the client's round before), and a client predicts with the last u.

Practical truth: α = 0 is FedAvg, α = 1 training alone, and the common model is FedAvg's for every α: only plain SGD
is known (a step of its own replaces the optimizer). Programs differ and some are other methods: one overwrites v by the
mixture after every round, one mixes α v + α w, one mixes outputs instead of weights (docs/readings.md).
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Field, Fields, Me, Method, knob


@dc.dataclass(frozen=True)
class APFL(Method):
    alpha: float = knob(
        0.5, "α, a client's own share in its mixture (adaptive: at first)", values="0.25, 0.5, 0.75; from 0.01",
        least=0, most=1, tune=(0.01, 1.0),
    )  # fmt: skip
    alpha_lr: float = knob(0.0, "η_α, rate of an adaptive α (0: α stays)", least=0)
    weights: str = knob("uniform", "of clients in the common model's mean", choices=("uniform", "samples"))
    reading: str = knob("paper", "which mixture the gradient is taken at", choices=("paper", "program"))

    name = "apfl"
    sends = {"delta": Field(weight="weights")}

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        more = {"u": Field()} if self.reading == "program" else {}
        return {"v": Field(), "alpha": Field("scalar"), **more}

    def own(self, me: Me, s: Fields) -> tuple[Tensor, Tensor]:
        """This client's vector and share."""
        return me.own(s.v), me.own(s.alpha, torch.full_like(s.alpha, self.alpha))

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        v, alpha = self.own(me, s)
        state = {"v": v, "alpha": alpha, "taken": torch.zeros_like(alpha)}
        if self.reading == "program":
            state["u"] = me.own(s.u)
        return me.train(m.w, step=self.step, state=state).then(self.end)

    def step(
        self, theta: Tensor, batches: list[Batch], lr: Tensor, v: Tensor, alpha: Tensor, taken: Tensor,
        u: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        slope = batches[0].grad(alpha * v + (1 - alpha) * theta if u is None else u)
        moved = (alpha - self.alpha_lr * (slope * (v - theta)).sum()).clamp(0, 1)
        after = {"v": v - lr * alpha * slope, "alpha": torch.where(taken == 0, moved, alpha), "taken": taken + 1}
        theta = theta - lr * batches[0].grad(theta)
        if u is not None:
            after["u"] = after["alpha"] * after["v"] + (1 - after["alpha"]) * theta
        return theta, after

    def end(self, me: Me, s: Fields, m: Fields, theta: Tensor, taken: Tensor, **own: Tensor) -> Answer:
        return {**own}, {"delta": theta - m.w}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        v, alpha = self.own(me, s)
        if self.reading == "program":
            return me.own(s.u)
        return alpha * v + (1 - alpha) * m.w
