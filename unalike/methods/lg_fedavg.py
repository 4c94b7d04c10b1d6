"""LG-FedAvg: Liang et al., "Think locally, act globally: federated learning with local and global representations",
2020.

FedPer the other way round: the first layers are every client's own (they learn its kind of input), the last ones are
common:

    θ_k: local training of everything from (own body, shared part of w);   shared part of w ← mean_k of θ_k's

`shared` names the common part: "head" (the last layer), "last 2", … (the paper: the last two or three).

Practical truth: for clients whose inputs differ, and for models of which only the top is worth its bytes. The paper
begins with a model that FedAvg trained. The program reports each client's best round by test accuracy: do not compare
with that.
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import knob
from unalike.methods.fedper import Divided


@dc.dataclass(frozen=True)
class LGFedAvg(Divided):
    shared: str = knob("head", "the common part: head, last 2, …", values="last 2, last 3")

    name = "lg-fedavg"

    @property
    def stays(self) -> str:
        return f"all but {self.shared}"

    @property
    def travels(self) -> str:
        return self.shared
