"""FedPer: Arivazhagan et al., "Federated learning with personalization layers", 2019.

The last layers are every client's own, the layers before them are common:

    θ_k: local training of everything from (common part of w, own part);   common part of w ← mean_k of θ_k's

`own` names what stays: "head" (the last layer), "last 2", …. A client that has not taken part has the start's; with
`newcomer="mean"` the mean of what others have (their own parts then travel too, for that alone).

Practical truth: for clients that call different things by the same label, or have few classes each: the head learns
these. Where clients are alike an own head only loses samples. There is no common model: look at clients' own numbers.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Message, Method, Request, Server, knob


@dc.dataclass(frozen=True)
class Divided(Method):
    """A model of which a part stays with each client and the rest is averaged."""

    weights: str = knob("uniform", "of clients in the mean", choices=("uniform", "samples"))
    newcomer: str = knob(
        "initial", "own part of a client that never took part: the start's, or the others' mean",
        choices=("initial", "mean"),
    )  # fmt: skip

    tune_epochs: int = knob(
        0, "passes for a client's own part before it predicts", values="FedRep's program: 10", least=0
    )

    @property
    def stays(self) -> str:
        """The part that stays with a client."""
        raise NotImplementedError

    @property
    def travels(self) -> str:
        return f"all but {self.stays}"

    @property
    def adapts(self) -> str:  # type: ignore[override]
        return self.stays

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        return {"own": Field(self.stays)}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        return {"delta": Field(self.travels if self.newcomer != "mean" else "model", weight="weights")}

    def common(self, me: Me, m: Fields) -> Tensor:
        """The server's vector: what travels of it, and the start's own part, which everybody has."""
        return m.w if "w" in m else me.layout.with_part(me.start, self.travels, m.shared)

    def whole(self, me: Me, s: Fields, m: Fields) -> Tensor:
        """The common part and this client's own."""
        w = self.common(me, m)
        return me.layout.with_part(w, self.stays, me.own(s.own, me.layout.part(w, self.stays)))

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        whole = self.whole(me, s, m)
        return me.train(whole, part=self.stays, epochs=self.tune_epochs) if self.tune_epochs else whole

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(self.whole(me, s, m)).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        moved = theta - self.common(me, m)
        if self.newcomer != "mean":
            moved = me.layout.part(moved, self.travels)
        return {"own": me.layout.part(theta, self.stays)}, {"delta": moved}

    def message(self, server: Server) -> Message:
        """What this round's clients get."""
        if self.newcomer == "mean":
            return {"w": server.w}
        return {"shared": server.layout.part(server.w, self.travels)}

    def take(self, server: Server, cohort: Cohort) -> Tensor:
        """Call this round's clients; return their mean step."""
        return cohort.call(self.client, **self.message(server)).mean("delta")

    def round(self, server: Server, cohort: Cohort) -> None:
        moved, layout = self.take(server, cohort), server.layout
        if self.newcomer != "mean":  # the server's own part stays as it began
            moved = layout.with_part(torch.zeros_like(server.w), self.travels, moved)
        server.w = server.w + moved

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        return {}


@dc.dataclass(frozen=True)
class FedPer(Divided):
    own: str = knob("head", "what stays with a client: head, last 2, …")

    name = "fedper"

    @property
    def stays(self) -> str:
        return self.own
