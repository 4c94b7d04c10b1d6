"""Fine-tuning: FedAvg, and every client trains the common model on before it predicts.

    w ← FedAvg;      client k predicts with `epochs` passes over its own data from w (all of it, or a `part`)

Nothing is kept and nothing more travels: the tuning is done when a model is asked for, with the run's local settings.

Practical truth: the first thing to try, and hard to beat: a client that has samples enough gains, one that has few
overfits (`part="head"` then, or `slower=10`: on 100 speakers of Shakespeare the rate of training itself made 92 of them
worse). It needs no change of a running federation. `epochs=0` is FedAvg.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Fields, Me, Request, knob
from unalike.methods.fedavg import FedAvg


@dc.dataclass(frozen=True)
class FineTune(FedAvg):
    epochs: int = knob(1, "passes over a client's own data before it predicts (0: none)", values="1 to 5", least=0)
    part: str = knob("all", "what moves then: all, head, body, last 2, …")
    slower: float = knob(1.0, "what the run's rate is divided by then", values="1 to 100", above=0, tune=(1.0, 100.0))

    name = "finetune"

    @property
    def adapts(self) -> str:  # type: ignore[override]
        return self.part

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        if not self.epochs:
            return m.w
        part = None if self.part == "all" else self.part
        if self.slower == 1:
            return me.train(m.w, epochs=self.epochs, part=part)
        return me.train(m.w, epochs=self.epochs, part=part, lr=me.lr / self.slower)
