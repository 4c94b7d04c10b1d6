"""NaiveMix: Yoon et al., "FedMix: approximation of mixup under mean augmented federated learning", ICLR 2021.

What FedMix approximates: mixup of a client's samples with means of other clients' samples,

    CE(f((1−λ)x + λx̄), (1−λ)y + λȳ)

with one mean (x̄, ȳ), of `group` samples of one client, drawn for each step. What travels, what `group` hides and λ = 0
(FedAvg) are FedMix's; see there.

Practical truth: it costs one derivative where FedMix costs a second one, and in the paper it is nearly as good.
"""

from __future__ import annotations

import dataclasses as dc

from unalike.contract import knob
from unalike.methods.fedmix import FedMix


@dc.dataclass(frozen=True)
class NaiveMix(FedMix):
    variant: str = knob("naive", "mixup with the mean itself", choices=("naive",))

    name = "naivemix"
