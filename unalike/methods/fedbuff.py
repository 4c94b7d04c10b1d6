"""FedBuff: Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.

Clients begin and arrive when they can; the server makes a step with every K-th arrival, whatever version the clients of
the buffer began with (τ_k versions ago):

    w ← w + η_g / K Σ s(τ_k) (θ_k − w_started),   s(τ) = (1 + τ)^−½

A round is a step of the server; `clients_per_round` are at work at any time, and arrive as the run's clock says. It
differs from FedAvg in that nobody is waited for; with K clients at work that take equally long it is FedAvg with
uniform weights.

Practical truth: the sum is divided by K, not by Σ s, as published, so that stale buffers make small steps. A run of
any plain method with `asynchronous = "buffer:10"` divides by Σ s. K = 10 is the paper's; larger ones are calmer and
slower. The published program adds noise for differential privacy; here that is refused: arrivals are not drawn.
"""

from __future__ import annotations

import dataclasses as dc

import torch

from unalike.contract import STALENESS, Cohort, Field, Method, Server, knob, parse_staleness, staleness_weight


@dc.dataclass(frozen=True)
class FedBuff(Method):
    buffer: int = knob(10, "K, arrivals in a step of the server", values="10", least=1, tune=[5, 10, 20])
    server_lr: float = knob(1.0, "η_g, the server's rate")
    staleness: str = knob("polynomial:0.5", f"s: {STALENESS}")

    name = "fedbuff"
    asynchronous = "is"
    sends = {"delta": Field(weight="one")}

    def __post_init__(self) -> None:
        parse_staleness(self.staleness)

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.start(self.client, w=server.w)
        total, count = torch.zeros_like(server.w), 0.0
        for age, replies, _ in cohort.arrived(self.buffer):
            total, count = total + staleness_weight(self.staleness, age) * replies.sum("delta"), count + replies.count
        server.w = server.w + self.server_lr * total / count
