"""OneShot: every client trains to convergence from the common start, sends its model once, and the server averages.

    w = Σ n_k θ_k / Σ n_k        after one single exchange

The baseline of the least possible communication (one vector down, one up, once). "Convergence" is undefined where it is
used as a baseline; here it is a fixed budget of `epochs`: as many as the iterative methods do in all, if the comparison
is to be fair. Rounds after the first do nothing.

Practical truth: with convex models and similar clients it is close to FedAvg; deep models trained apart cannot be
averaged, and the mean is often no better than chance.
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import Answer, Cohort, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class OneShot(Method):
    epochs: int = knob(300, "the local budget, in passes over a client's data", least=1, tune=[10, 30, 100, 300])

    name = "oneshot"

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, epochs=self.epochs).then(self.done)

    def round(self, server: Server, cohort: Cohort) -> None:
        if cohort.round == 0:
            server.w = server.w + cohort.everyone.call(self.client, w=server.w).mean("delta")
