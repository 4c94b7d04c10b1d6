"""Ditto: Li et al., "Ditto: fair and robust federated learning through personalization", ICML 2021.

FedAvg as it is, and beside it every client's own model v_k, held near the common one by a spring:

    θ_k:  local training from w                            (sent: θ_k − w; the server takes the plain mean)
    v_k ← v_k − η (∇f_k(v_k) + λ (v_k − w))                (kept; as many steps, on the same mini-batches)

w is the vector received. A client's own model moves only in the rounds it takes part in, and begins at the run's start.

Practical truth: λ = 0 is training alone, a large λ the common model; the right λ grows with how alike clients are and
falls with how many samples they have. The common model is FedAvg's for every λ, so nothing is lost by asking for it;
it costs twice the local work and no byte. `weights="samples"` is FedAvg's usual mean, the authors' program has the
plain one. Its option to choose λ for each client from three values by validation loss is not here: `--tune`.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Field, Fields, Me, Method, knob


@dc.dataclass(frozen=True)
class Ditto(Method):
    lam: float = knob(
        1.0, "λ, strength of the spring to the common model", values="0.05 to 2", least=0, tune=(0.01, 10)
    )
    weights: str = knob("uniform", "of clients in the common model's mean", choices=("uniform", "samples"))

    name = "ditto"
    keeps = {"v": Field()}
    sends = {"delta": Field(weight="weights")}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w).then(self.mine)

    def mine(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        near = {"pull": self.lam, "push": -self.lam * m.w}
        return me.train(me.own(s.v), **near, same_batches=True).then(self.both, theta=theta)

    def both(self, me: Me, s: Fields, m: Fields, v: Tensor, theta: Tensor) -> Answer:
        return {"v": v}, {"delta": theta - m.w}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.v)
