"""LG-FedAvg: Liang et al., "Think locally, act globally: federated learning with local and global representations", 2020.

FedPer the other way round: the first layers are every client's own (they learn its kind of input), the last ones are
common:

    θ_k: local training of everything from (own body, shared part of w);   shared part of w ← mean_k of θ_k's

`shared` names the common part: "head" (the last layer), "last 2", … (the paper: the last two or three).

Practical truth: for clients whose inputs differ, and for models of which only the top is worth its bytes. The paper
begins from a model that FedAvg trained; so may you (`[model]` weights from a run). A new device has no body of its own:
it is judged with the mean of the outputs of all bodies that there are in the paper, here with the start's. The
program reports each client's best round by test accuracy: do not compare with that.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob


@dc.dataclass(frozen=True)
class LGFedAvg(Method):
    shared: str = knob("head", "the common part: head, last 2, …", values="last 2, last 3")
    weights: str = knob("uniform", "of clients in the mean", choices=("uniform", "samples"))

    name = "lg-fedavg"

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        return {"body": Field(f"all but {self.shared}")}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        return {"delta": Field(self.shared, weight="weights")}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        rest = f"all but {self.shared}"
        own = torch.where(me.first, me.layout.part(me.start, rest), s.body)
        return me.layout.with_part(m.w, rest, own)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(self.personal(me, s, m)).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        part = me.layout.part
        moved = part(theta, self.shared) - part(m.w, self.shared)
        return {"body": part(theta, f"all but {self.shared}")}, {"delta": moved}

    def round(self, server: Server, cohort: Cohort) -> None:
        common = server.layout.part(server.w, self.shared) + cohort.call(self.client, w=server.w).mean("delta")
        server.w = server.layout.with_part(server.w, self.shared, common)

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        return {}
