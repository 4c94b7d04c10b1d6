"""LG-FedAvg: Liang et al., "Think locally, act globally: federated learning with local and global representations",
2020.

FedPer the other way round: the first layers are every client's own (they learn its kind of input), the last are common:

    θ_k: local training of everything from (own body, shared part of w);   shared part of w ← mean_k of θ_k's

`shared` names the common part: "head" (the last layer), "last 2", … (the paper: the last two or three). With `mu` above
0 the body learns from its inputs too: every client has a decoder d_k of its own, from the features (the head's input)
back to the input, and a step on a mini-batch is one of the joint gradient

    (θ_k, d_k) ← (θ_k, d_k) − η ∇ [ f_k(θ_k) + μ mean ‖d_k(features) − x‖² / numbers in x ]

A new client has no body. With `newcomer="logits"` one that takes no part at all predicts with the mean of the outputs
of all clients' models. For that bodies travel: the server keeps the last of each client and shows them to new ones
(`read="peers"`; as many bytes up as FedAvg, and as many models down as there are clients).

Practical truth: for clients whose inputs differ, and for models of which only the top is worth its bytes. With μ only
plain SGD is known (a step of its own replaces the optimizer). The paper begins with a model that FedAvg trained. The
program has no decoder, and reports each client's best round by test accuracy: do not compare with that.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable

import torch
from torch import Tensor, nn

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Request, Server, knob
from unalike.errors import UnalikeError
from unalike.methods.fedper import Divided


@dc.dataclass(frozen=True)
class LGFedAvg(Divided):
    newcomer: str = knob(
        "initial", "own part of a client that never took part: the start's, the others' mean, or their mean outputs",
        choices=("initial", "mean", "logits"),
    )  # fmt: skip
    shared: str = knob("head", "the common part: head, last 2, …", values="last 2, last 3")
    mu: float = knob(0.0, "μ, weight of the error of rebuilding the input (0: no decoder)", least=0, tune=(0.01, 10.0))
    hidden: int = knob(64, "width of the decoder's hidden layer", least=1)

    name = "lg-fedavg"

    def __post_init__(self) -> None:
        if self.mu and self.shared != "head":
            about = f"LGFedAvg mu={self.mu} with shared={self.shared!r}"
            raise UnalikeError(f"{about}: a decoder reads the head's input. Take shared='head', or mu=0.")

    @property
    def stays(self) -> str:
        return f"all but {self.shared}"

    @property
    def travels(self) -> str:
        return self.shared

    @property
    def nets(self) -> dict[str, Callable[[dict[str, int]], nn.Module]]:  # type: ignore[override]
        return {"decoder": self.decoder} if self.mu else {}

    def decoder(self, size: dict[str, int]) -> nn.Module:
        return nn.Sequential(nn.Linear(size["features"], self.hidden), nn.ReLU(), nn.Linear(self.hidden, size["input"]))

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        return {**super().keeps, **({"decoder": Field("decoder")} if self.mu else {})}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        more = (
            {"body": Field(self.stays, read="peers", weight="one", what="its own layers")}
            if self.newcomer == "logits"
            else {}
        )
        return {**super().sends, **more}

    @property
    def tables(self) -> dict[str, Field]:  # type: ignore[override]
        return {"bodies": Field(self.stays)} if self.newcomer == "logits" else {}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        if not self.mu:
            return super().client(me, s, m)
        decoder = me.own(s.decoder, me.start_of("decoder"))
        return me.train(self.whole(me, s, m), step=self.both, state={"decoder": decoder}).then(self.done)

    def both(self, theta: Tensor, batches: list[Batch], lr: Tensor, decoder: Tensor) -> tuple[Tensor, dict]:
        batch, x = batches[0], batches[0].x
        if not x.is_floating_point():
            raise UnalikeError("LGFedAvg mu: samples are tokens, which no decoder rebuilds as numbers. Take mu=0.")

        def loss(theta: Tensor, decoder: Tensor) -> Tensor:
            output, features = batch.forward(theta)
            error = (batch.call("decoder", decoder, features) - x.flatten(1)).square().mean(-1)
            return batch.mean(batch.with_output(output).losses + self.mu * error)

        slopes = torch.func.grad(loss, argnums=(0, 1))(theta, decoder)
        return theta - lr * slopes[0], {"decoder": decoder - lr * slopes[1]}

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor, **decoder: Tensor) -> Answer:
        kept, sent = super().done(me, s, m, theta)  # type: ignore[misc]
        more = {"body": kept["own"]} if self.newcomer == "logits" else {}
        return {**kept, **decoder}, {**sent, **more}

    def take(self, server: Server, cohort: Cohort) -> Tensor:
        replies = cohort.call(self.client, **self.message(server))
        if self.newcomer == "logits":
            server.table("bodies")[replies.ids], server.clients = replies.each("body"), cohort.population
        return replies.mean("delta")

    def published(self, server: Server) -> Message:
        if self.newcomer != "logits":
            return super().published(server)
        bodies, ids = server.table("bodies"), range(server.values.get("clients", 0))
        rows = bodies[ids][bodies.known(ids)]
        models = server.layout.with_part(server.w.expand(len(rows), -1), self.stays, rows)
        return {"w": server.w, "models": models if len(rows) else server.w[None]}

    def arrival(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        return m.models if self.newcomer == "logits" else super().arrival(me, s, m)
