"""FedFa: Huang et al., "Fairness and accuracy in federated learning" (double momentum and information weights).

Clients run momentum SGD (fresh each round) and send their training accuracy A and how often they took part f. With
shares over this round's participants, the weight of client i is

    α I^a_i + β I^f_i,   I^a_i ∝ −log₂(A_i / ΣA),   I^f_i ∝ −log₂(1 − f_i / Σf),   each normalised to sum one

(a share of 0, or of 1 for f, counts as the small number c). The server then takes a momentum step:

    agg = Σ weight_i θ_i,   m ← γ_s m + η_s (w − agg),   w ← w − m

Two exchanges: numbers up, weight down, weighted update up, so that the server reads two numbers of each client and
otherwise a sum. FedFa-mo (the paper's ablation) is `weighting="uniform"`; "samples" is the other reading of it.

Practical truth: the rule as printed (m ← γm + η(agg − w), w ← w − m, η the client's rate) walks away from the
aggregate: loss rises (`rule="literal"`). c is a real hyper-parameter that the paper does not give: one client with
accuracy 0 can get 40 % of the weight. Always compare with uniform weights at the same rate; see docs/readings.md.
"""

from __future__ import annotations

import dataclasses as dc
import math

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, PerClient, Server, by_network, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedFa(Method):
    alpha: float = knob(0.5, "share of accuracy", least=0)
    beta: float = knob(0.5, "share of participation (alpha + beta = 1)", least=0)
    client_momentum: float = knob(0.5, "γ_c, momentum of local steps")
    server_momentum: float = knob(0.5, "γ_s, momentum of the server's steps")
    server_lr: float = knob(1.0, "η_s, the server's rate")
    every: int = knob(1, "momentum steps in every so many rounds, the plain aggregate in the others", least=1)
    c: float = knob(1e-6, "stands for a share of 0", above=0, below=1)
    weighting: str = knob(
        "information", "of the clients in the aggregate", choices=("information", "uniform", "samples")
    )
    rule: str = knob(
        "corrected", "the server's momentum step, as mended or as printed", choices=("corrected", "literal")
    )

    name = "fedfa"
    tune = {"alpha, beta": [[a / 10, (10 - a) / 10] for a in range(11)]}
    keeps = {"taken": Field("scalar"), "delta": Field(life="round")}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        what = {"accuracy": "its training accuracy", "taken": "how often it took part"}
        numbers = {name: Field("scalar", read="each", by="network", what=words) for name, words in what.items()}
        weight = "samples" if self.weighting == "samples" else "one"
        return {**(numbers if self.weighting == "information" else {}), "delta": Field(weight=weight)}

    def __post_init__(self) -> None:
        if not math.isclose(self.alpha + self.beta, 1.0, abs_tol=1e-9):
            raise UnalikeError(f"FedFa alpha and beta must sum to 1; got {self.alpha!r} and {self.beta!r}.")

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.momentum = torch.zeros_like(server.w)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, momentum=self.client_momentum).then(self.trained)

    def trained(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        if self.weighting != "information":
            return {"taken": s.taken + 1}, {"delta": theta - m.w}
        return me.accuracy(theta).then(self.report, theta=theta)

    def report(self, me: Me, s: Fields, m: Fields, accuracy: Tensor, theta: Tensor) -> Answer:
        taken = s.taken + 1
        return {"taken": taken, "delta": theta - m.w}, {"accuracy": accuracy, "taken": taken}

    def send(self, me: Me, s: Fields, m: Fields) -> Answer:
        return {}, {"delta": m.weight * s.delta}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w)
        if self.weighting == "information":
            weights = by_network(self.information, replies.each("accuracy"), replies.each("taken"))
            update = cohort.only(replies.ids).call(self.send, weight=PerClient(weights)).sum("delta")
        else:
            update = replies.mean("delta")
        literal = self.rule == "literal"
        step = float(cohort.rates.mean()) * update if literal else -self.server_lr * update
        server.momentum = self.server_momentum * server.momentum + step
        momentum_round = (cohort.round + 1) % self.every == 0
        server.w = server.w - server.momentum if momentum_round else server.w + update

    def information(self, accuracy: Tensor, taken: Tensor) -> Tensor:
        """The weights, worked out in float64; a component that says nothing (nobody right, one client) is even."""
        if not len(accuracy):  # a network that nobody brought
            return accuracy
        dtype, accuracy, taken = accuracy.dtype, accuracy.double(), taken.double()
        share = accuracy / accuracy.sum().clamp(min=1e-300)
        rest = 1 - taken / taken.sum()
        parts = [-torch.log2(torch.where(p > 0, p, self.c)) for p in (share, rest)]
        even = torch.full_like(share, 1 / len(share))
        parts = [torch.where(p.sum() > 0, p / p.sum().clamp(min=1e-300), even) for p in parts]
        return (self.alpha * parts[0] + self.beta * parts[1]).to(dtype)
