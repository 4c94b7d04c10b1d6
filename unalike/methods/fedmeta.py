"""FedMeta: Chen et al., "Federated meta-learning with fast convergence and efficient communication", 2018.

MAML between clients, each of whose training samples are a support and a query set:

    u = w − a ∘ ∇f_S(w),                                     a = α everywhere, or learned (Meta-SGD)
    maml       g = (I − ∇²f_S(w) diag a)ᵀ ∇f_Q(u)
    fomaml     g = ∇f_Q(u)
    meta-sgd   g as in maml, and for a:  g_a = −∇f_S(w) ∘ ∇f_Q(u)
    w ← w − β mean_k g,   a ← a − β mean_k g_a                (plain means)

Client k predicts with u. The sets are the federation's splits "support" and "query":
`fed.named_splits(support=0.5, query=0.5)`, `[data] splits = {support = 0.5, query = 0.5}`.

Practical truth: one exchange is one step, so it needs many rounds; the paper has Adam at the server, here it is the
plain step. a = 0 is one step of gradient descent on the query sets.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Method, Request, Server, knob


@dc.dataclass(frozen=True)
class FedMeta(Method):
    alpha: float = knob(0.01, "α, size of a client's own step (Meta-SGD: at first)", least=0, tune=(1e-3, 1.0))
    beta: float = knob(0.01, "β, the server's rate", above=0, tune=(1e-3, 1.0))
    variant: str = knob("maml", "whose gradient", choices=("maml", "fomaml", "meta-sgd"))

    name = "fedmeta"

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        more = {"g_a": Field(weight="one", what="that of the rates")} if self.variant == "meta-sgd" else {}
        return {"g": Field(weight="one", what="its gradient"), **more}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.a = torch.full_like(server.w, self.alpha)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.gradient(m.w, data="support").then(self.query)

    def query(self, me: Me, s: Fields, m: Fields, slope: Tensor) -> Answer:
        return me.gradient(m.w - m.a * slope, data="query").then(self.back, slope=slope)

    def back(self, me: Me, s: Fields, m: Fields, g: Tensor, slope: Tensor) -> Answer:
        if self.variant == "fomaml":
            return {}, {"g": g}
        return me.train(
            m.w, step=self.bend, state={"bent": torch.zeros_like(g)}, args={"along": m.a * g}, data="support",
            batch_size=None, steps=1,
        ).then(self.end, g=g, slope=slope)  # fmt: skip

    def bend(
        self, theta: Tensor, batches: list[Batch], lr: Tensor, bent: Tensor, along: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The Hessian of the support set's loss, times a vector."""
        return theta, {"bent": torch.func.vjp(batches[0].grad, theta)[1](along)[0]}

    def end(self, me: Me, s: Fields, m: Fields, theta: Tensor, bent: Tensor, g: Tensor, slope: Tensor) -> Answer:
        more = {"g_a": -slope * g} if self.variant == "meta-sgd" else {}
        return {}, {"g": g - bent, **more}

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w, a=server.a)
        server.w = server.w - self.beta * replies.mean("g")
        if self.variant == "meta-sgd":
            server.a = server.a - self.beta * replies.mean("g_a")

    def published(self, server: Server) -> Message:
        return {"w": server.w, "a": server.a}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        return me.gradient(m.w, data="support").then(self.adapted)

    def adapted(self, me: Me, s: Fields, m: Fields, slope: Tensor) -> Tensor:
        return m.w - m.a * slope
