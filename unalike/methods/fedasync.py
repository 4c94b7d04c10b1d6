"""FedAsync: Xie, Koyejo, Gupta, "Asynchronous federated optimization", OPT 2020.

The server does not wait: every model that arrives is mixed into its own at once, less the older the version is that
the client began with (τ versions ago):

    w ← (1 − α_t) w + α_t θ_k,   α_t = α s(τ)
    s = 1,   or (1 + τ)^−a,   or 1 if τ ≤ b, else 1 / (a (τ − b) + 1)

A round is one arrival; `clients_per_round` are at work at any time, and arrive as the run's clock says. Clients may
have FedProx's spring μ to the model that they began with.

It differs from FedAvg in that nobody is waited for and no mean is taken: θ_k itself is mixed in, whatever n_k.

Practical truth: with many at work τ is about as large as their number, so α must be small or s steep, and a single
client's skew shows in every step; FedBuff is calmer. Fast clients count more often: where slow ones hold something
rare, it is seen less. The published experiments mix only models of a bounded age; here every one counts.
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import (
    STALENESS,
    Answer,
    Cohort,
    Fields,
    Me,
    Method,
    Server,
    knob,
    parse_staleness,
    staleness_weight,
)


@dc.dataclass(frozen=True)
class FedAsync(Method):
    alpha: float = knob(0.6, "α, how much of a fresh model is mixed in", above=0, most=1, tune=(0.05, 1.0))
    staleness: str = knob("polynomial:0.5", f"s: {STALENESS}", values="polynomial:0.5, hinge:10:4")
    mu: float = knob(0.0, "strength of the spring", least=0)

    name = "fedasync"
    asynchronous = "is"

    def __post_init__(self) -> None:
        parse_staleness(self.staleness)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, pull=self.mu, push=-self.mu * m.w).then(self.done)

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.start(self.client, w=server.w)
        for age, replies, began in cohort.arrived(1):
            share = self.alpha * staleness_weight(self.staleness, age)
            cohort.share_of_statistics(share)
            server.w = (1 - share) * server.w + share * (began.w + replies.mean("delta"))
