"""pFedMe: Dinh, Tran & Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020.

A client's own model is the best one near the common vector, and the common vector follows:

    F_k(w) = min_θ f_k(θ) + λ/2 ‖θ − w‖²
    R times (`steps` of local training), each on one mini-batch, from w_k = w:
        K times:  θ ← θ − η_p (∇f_k(θ) + λ (θ − w_k) + μ θ)
        w_k ← w_k − η λ (w_k − θ)                       (η is the run's rate)
    w ← (1 − β) w + β mean_k w_k

θ begins a round at w, goes on from where it was between the R steps (as in the authors' program), and is what the
client predicts with; it is kept for that alone.

Practical truth: λ = 0 or η = 0 and the common model never moves: there is no value at which it is FedAvg. The program
adds a weight decay μ = 0.001 to the inner steps that the paper does not have; weights its mean by samples, the paper
does not; and its "personal" accuracy is that of w_k, not of θ: `judged="w"` reports that one.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class PFedMe(Method):
    lam: float = knob(15.0, "λ, strength of the spring to the common vector", values="15", least=0, tune=(0.1, 50))
    inner_lr: float = knob(0.1, "η_p, rate of the inner steps", values="0.09, 0.1", above=0)
    inner_steps: int = knob(5, "K, inner steps on a mini-batch", values="5", least=1)
    beta: float = knob(1.0, "β, the server's step towards the mean", values="1, 2", least=0)
    decay: float = knob(0.0, "μ, weight decay of the inner steps", values="the program: 0.001", least=0)
    weights: str = knob("uniform", "of clients in the mean (the program: samples)", choices=("uniform", "samples"))
    judged: str = knob("theta", "what a client predicts with (the program: w)", choices=("theta", "w"))

    name = "pfedme"
    keeps = {"own": Field()}
    sends = {"delta": Field(weight="weights")}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, step=self.step, state={"theta": m.w}).then(self.end)

    def step(self, w: Tensor, batches: list[Batch], lr: Tensor, theta: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        for _ in range(self.inner_steps):
            slope = batches[0].grad(theta) + self.lam * (theta - w) + self.decay * theta
            theta = theta - self.inner_lr * slope
        return w - lr * self.lam * (w - theta), {"theta": theta}

    def end(self, me: Me, s: Fields, m: Fields, w: Tensor, theta: Tensor) -> Answer:
        return {"own": theta if self.judged == "theta" else w}, {"delta": w - m.w}

    def round(self, server: Server, cohort: Cohort) -> None:
        server.w = server.w + self.beta * cohort.call(self.client, w=server.w).mean("delta")

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.own, m.w)
