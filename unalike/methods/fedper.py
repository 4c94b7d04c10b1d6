"""FedPer: Arivazhagan et al., "Federated learning with personalization layers", 2019.

The last layers (the `head`) are every client's own, the layers before them are common:

    θ_k: local training of everything from (body of w, own head);   body of w ← mean_k body of θ_k

A client that has not taken part predicts with the head of the start; with `newcomer="mean"` with the mean of the heads
that others sent (FedRep's program, which also compares with FedPer, does so without meaning to).

Practical truth: for clients that call different things by the same label, or have few classes each: the head learns
these. Where clients are alike an own head only loses samples. Which layers are the head is the model's to say
(`[model] head`, `Field("last 2")` in a method of one's own).
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Method, Server, knob

NEWCOMER = knob("initial", "the head of a client that never took part", choices=("initial", "mean"))


@dc.dataclass(frozen=True)
class FedPer(Method):
    weights: str = knob("uniform", "of clients in the mean", choices=("uniform", "samples"))
    newcomer: str = NEWCOMER

    name = "fedper"
    keeps = {"head": Field("head")}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        """The body; the head too where newcomers get the others' mean."""
        return {"delta": Field("body" if self.newcomer == "initial" else "model", weight="weights")}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        head = torch.where(me.first, me.layout.head(m.w), s.head)
        return me.layout.join(me.layout.body(m.w), head)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(self.personal(me, s, m)).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        layout, moved = me.layout, theta - m.w
        return {"head": layout.head(theta)}, {"delta": layout.body(moved) if self.newcomer == "initial" else moved}

    def round(self, server: Server, cohort: Cohort) -> None:
        moved, layout = cohort.call(self.client, w=server.w).mean("delta"), server.layout
        if self.newcomer == "mean":
            server.w = server.w + moved
        else:  # the server's head stays the start's
            server.w = layout.join(layout.body(server.w) + moved, layout.head(server.w))

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        return {}
