"""L2GD: Hanzely & Richtárik, "Federated learning of a mixture of global and local models", 2020.

Every client has a model x_k of its own, drawn to the mean of all; a coin says whether a round trains or mixes:

    min (1/N) Σ_k [ f_k(x_k) + λ/2 ‖x_k − x̄‖² ]
    coin 0 (probability 1 − p):   x_k ← x_k − η/(N(1 − p)) ∇f_k(x_k)
    coin 1 (probability p):       x_k ← x_k − η λ/(N p) (x_k − x̄)

One round is one coin, and η the run's rate. The mean changes only by training, so models travel only when the coin
turns from 0 to 1; where not all clients take part (in the paper they do) it is the participants' mean and travels each
time. `variant="steady"` is Ditto's authors' one without a coin: participants train x_k with the spring λ (x_k − w) as
much as the run says, and w ← w + (m/N) mean_k(x_k − w).

Practical truth: λ = 0 is training alone; with η λ = N p a mixing round sets everybody to the mean. Mind the 1/N in both
rates: η must be about N times what one would take for one model.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class L2GD(Method):
    lam: float = knob(1.0, "λ, strength of the spring to the mean", least=0, tune=(0.01, 10))
    p: float = knob(0.1, "p, chance that a round mixes", above=0, below=1)
    variant: str = knob("coin", "a coin a round, or training with the spring", choices=("coin", "steady"))

    name = "l2gd"
    keeps = {"x": Field()}
    sends = {"x": Field(weight="one", what="its model"), "delta": Field(weight="one")}

    def local(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(me.own(s.x), steps=1, lr=m.scale * me.lr).then(self.kept)

    def kept(self, me: Me, s: Fields, m: Fields, x: Tensor) -> Answer:
        return {"x": x}, {}

    def send(self, me: Me, s: Fields, m: Fields) -> Answer:
        return {}, {"x": me.own(s.x)}

    def mix(self, me: Me, s: Fields, m: Fields) -> Answer:
        x = me.own(s.x)
        return {"x": x - m.scale * me.lr * (x - m.mean)}, {}

    def steady(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(me.own(s.x), pull=self.lam, push=-self.lam * m.w).then(self.drawn)

    def drawn(self, me: Me, s: Fields, m: Fields, x: Tensor) -> Answer:
        return {"x": x}, {"delta": x - m.w}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.fresh = True  # whether server.w is the mean of the clients' models

    def coin(self, server: Server) -> bool:
        return server.coin("mix", self.p)

    def round(self, server: Server, cohort: Cohort) -> None:
        clients = cohort.population
        if self.variant == "steady":
            server.w = server.w + len(cohort) / clients * cohort.call(self.steady, w=server.w).mean("delta")
            return
        if not self.coin(server):
            cohort.call(self.local, scale=1 / (clients * (1 - self.p)))
            server.fresh = False
            return
        if not server.fresh:
            server.w, server.fresh = cohort.call(self.send).mean("x"), len(cohort) == clients
        cohort.call(self.mix, mean=server.w, scale=self.lam / (clients * self.p))

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.x)
