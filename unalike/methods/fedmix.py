"""FedMix: Yoon et al., "FedMix: approximation of mixup under mean augmented federated learning", ICLR 2021.

Mixup with other clients' samples, without seeing them. Once, every client sends means (x̄, ȳ) of `group` of its own
samples at a time; all get all of them. A mini-batch is mixed with one mean, drawn for each step, to first order:

    (1−λ) CE(f((1−λ)x), y) + λ CE(f((1−λ)x), ȳ) + λ ⟨∂CE(f(·), y)/∂x at (1−λ)x, x̄⟩

`variant="naive"` is NaiveMix, the mixup of x and x̄ itself: CE(f((1−λ)x + λx̄), (1−λ)y + λȳ). The exact first-order
coefficient of the last term is λ(1−λ); the paper drops λ², and so does this. A public program (smduan/FedMix) divides
that term by the batch size once more, which leaves nothing of it.

Means are shown to all clients. `group` is the privacy knob: a mean of few samples is nearly raw data. Samples left over
join the mean before; with `short="own"` they have one of their own, and a single one travels as it is. A real client
takes part only where its owner has named the method (`join --methods fedmix`). Means go down with every round:
G (d + C) numbers, as large as the clients' data over `group`.

Practical truth: λ is small (0.05 to 0.2), for f sees (1−λ)x only. The third term is a derivative by x that
is derived once more: a step costs about three, and one more forward pass where there is BatchNorm, whose statistics are
those of samples as they are. It needs inputs that can be averaged: pictures and tables, no tokens.
"""

from __future__ import annotations

import dataclasses as dc

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedMix(Method):
    lam: float = knob(0.05, "λ, share of the mean", values="0.05, 0.1 or 0.2", least=0, below=1, tune=(0.02, 0.3))
    group: int = knob(10, "M, samples of a client in one mean", least=1)
    short: str = knob("joined", "samples left over: in the mean before, or one of their own", choices=("joined", "own"))
    variant: str = knob("fedmix", "first order, or mixup with the mean itself", choices=("fedmix", "naive"))

    name = "fedmix"
    sends = {
        "delta": Field(),
        "x": Field("input", read="peers", weight="one", what="means of groups of its samples"),
        "y": Field("classes", read="peers", weight="one", what="of their labels"),
    }

    def setup(self, server: Server, everyone: Cohort) -> None:
        groups = everyone.samples // self.group  # of each client
        groups = np.maximum(groups, 1) if self.short == "joined" else -(-everyone.samples // self.group)
        found: list[tuple[int, Tensor, Tensor]] = []
        for number in range(int(groups.max())):
            replies = everyone.only(everyone.ids[groups > number]).call(self.mean, number=float(number))
            found += zip(replies.ids.tolist(), replies.each("x"), replies.each("y"), strict=True)
        found.sort(key=lambda each: each[0])  # by client; a client's own stay in order
        server.x, server.y = torch.stack([x for _, x, _ in found]), torch.stack([y for _, _, y in found])

    def mean(self, me: Me, s: Fields, m: Fields) -> Answer:
        groups = me.n / self.group
        last = (groups.floor().clamp(min=1) if self.short == "joined" else groups.ceil()) - 1
        return me.sum(self.members, number=m.number, last=last).then(self.sent)

    def members(self, batch: Batch, number: Tensor, last: Tensor) -> dict[str, Tensor]:
        if not batch.x.is_floating_point():
            raise UnalikeError("FedMix averages inputs: it needs numbers (pictures, tables), no tokens.")
        inside = (torch.minimum(batch.index // self.group, last) == number).to(batch.x.dtype)[:, None]
        return {"n": inside, "x": inside * batch.x.flatten(1), "y": inside * batch.onehot}

    def sent(self, me: Me, s: Fields, m: Fields, total: dict[str, Tensor]) -> Answer:
        return {}, {"x": total["x"] / total["n"], "y": total["y"] / total["n"]}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(m.w, own=0.0, loss=self.mixed, args={"xs": m.x, "ys": m.y}).then(self.done)

    def chosen(self, batch: Batch, count: int) -> Tensor:
        """The number of this step's mean, [1]."""
        return batch.integers("mean", (1,), count)

    def mixed(self, batch: Batch, xs: Tensor, ys: Tensor) -> Tensor:
        batch.learn_statistics()  # of samples as they are, for so they are predicted
        one = self.chosen(batch, len(xs))
        x, y = xs[one].reshape(1, *batch.x.shape[1:]), ys[one]
        scaled, vector = (1 - self.lam) * batch.x, batch.vector
        share = (1 - self.lam) * batch.onehot + self.lam * y

        def entropy(at: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            odds = batch.forward(vector, at)[0].log_softmax(-1)
            return -batch.mean((labels * odds).sum(-1)), odds

        if self.variant == "naive":
            return entropy(scaled + self.lam * x, share)[0]
        slope, odds = torch.func.grad(entropy, has_aux=True)(scaled, batch.onehot)
        return self.lam * (slope * x).sum() - batch.mean((share * odds).sum(-1))

    def round(self, server: Server, cohort: Cohort) -> None:
        server.w = server.w + cohort.call(self.client, w=server.w, x=server.x, y=server.y).mean("delta")
