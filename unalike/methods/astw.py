"""ASTW-FedAvg: Chen, Sun, Jin, "Communication-efficient federated deep learning with layerwise asynchronous model
update and temporally weighted aggregation", IEEE TNNLS 2020.

Deep layers travel less often than shallow ones: in the last `deep_rounds` of every `loop` rounds clients exchange the
whole model, in the others all but its deep part, which then stays each client's own. The server keeps what every client
has last sent (at first the first model) and takes the mean of all of them, in which old ones fade:

    w ← Σ_k n_k b^−(t − t_k) θ_k / Σ_k n_k b^−(t − t_k)        (all clients; of w only what came in this round)

b = e/2. It differs from FedAvg in the clients that count: all of them, earlier ones with what they sent then.

Two readings: t_k is the last round in which client k sent anything (`stamp="client"`), or in which it sent these layers
(`stamp="layers"`). The server reads every client's model, and keeps one for each: not under secure sums, and memory
grows with the population.

Practical truth: with few of many clients a round it begins slowly, for the first model counts for whoever has not
come yet.
"""

from __future__ import annotations

import dataclasses as dc
import math

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Replies, Server, knob

STAMPS = ("client", "layers")


@dc.dataclass(frozen=True)
class ASTW(Method):
    loop: int = knob(15, "rounds of a loop", values="15", least=1)
    deep_rounds: int = knob(5, "the last rounds of a loop, in which the deep part travels too", values="5", least=0)
    base: float = knob(math.e / 2, "b, by which what a client sent fades with every round", least=1, tune=(1.0, 2.0))
    deep: str = knob("head", "the deep part: head, last 2, …")
    stamp: str = knob("client", "it fades since the last round of the client, or of its layers", choices=STAMPS)

    name = "astw"
    one_network = "takes the mean of what all clients have last sent"
    sees_who = True

    @property
    def shallow(self) -> str:
        return f"all but {self.deep}"

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        return {"deep": Field(self.deep)}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        return {
            "shallow": Field(self.shallow, read="each", what="its change of the shallow layers"),
            "deep": Field(self.deep, read="each", what="its change of the deep layers"),
        }

    @property
    def tables(self) -> dict[str, Field]:  # type: ignore[override]
        return {"shallow": Field(self.shallow), "deep": Field(self.deep), "rounds": Field((2,))}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.first = server.w

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w).then(self.trained, whole=True)

    def lightly(self, me: Me, s: Fields, m: Fields) -> Answer:
        own = me.own(s.deep, me.layout.part(me.start, self.deep))
        at = me.layout.with_part(me.layout.with_part(me.start, self.deep, own), self.shallow, m.shallow)
        return me.train(at).then(self.trained, whole=False)

    def trained(self, me: Me, s: Fields, m: Fields, theta: Tensor, whole: bool) -> Answer:
        change = theta - me.start  # so that zeros in a table are the first model
        sent: dict[str, Tensor | float] = {
            "shallow": me.layout.part(change, self.shallow),
            "deep": me.layout.part(change, self.deep),
        }
        return {"deep": me.layout.part(theta, self.deep)}, sent if whole else {"shallow": sent["shallow"]}

    def round(self, server: Server, cohort: Cohort) -> None:
        whole = cohort.round % self.loop >= self.loop - self.deep_rounds
        if whole:
            replies = cohort.call(self.client, w=server.w)
        else:
            replies = cohort.call(self.lightly, shallow=server.layout.part(server.w, self.shallow))
        self.note(server, cohort, replies, whole)
        for column, name in enumerate(("shallow", "deep")[: 1 + whole]):
            part = getattr(self, name)
            mean = server.layout.part(server.first, part) + self.faded(server, cohort, name, column)
            server.w = server.layout.with_part(server.w, part, mean)

    def note(self, server: Server, cohort: Cohort, replies: Replies, whole: bool) -> None:
        """Put what came, and when, into the tables."""
        for name in ("shallow", "deep")[: 1 + whole]:
            server.table(name)[replies.ids] = replies.each(name)
        rounds = server.table("rounds")[replies.ids].clone()
        rounds[:, : 1 + (whole or self.stamp == "client")] = cohort.round + 1
        server.table("rounds")[replies.ids] = rounds

    def faded(self, server: Server, cohort: Cohort, name: str, column: int) -> Tensor:
        """Return the mean of what all clients have last sent of a part, old ones fading."""
        everyone = cohort.everyone
        age = cohort.round + 1 - server.table("rounds")[everyone.ids][:, column].double()
        weights = torch.as_tensor(everyone.samples, device=age.device) * self.base**-age
        return (weights / weights.sum() @ server.table(name)[everyone.ids].double()).to(server.w.dtype)
