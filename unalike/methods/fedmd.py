"""FedMD: Li & Wang, "FedMD: heterogenous federated learning via model distillation", 2019.

Every client has a model of its own, of any architecture, for the whole run. Only predictions travel: logits on rows of
a public set that everybody has.

    before round 1:   θ_k trains on the public set (labelled), then on its own data
    consensus         z̄ = mean_k z(θ_k) on A public rows, drawn anew each round
    digest            θ_k fits its logits to z̄ there:  mean |z(θ) − z̄|
    revisit           θ_k trains on its own data

4·A·C bytes go each way and nothing else; the server needs the sum only, and clients see the mean only. A is `rows`
(all public rows if not said). Local training is the run's in "revisit" and in the second part of the warm-up; the rate
`lr` and the optimizer are the digest's.

In the authors' program both optimizers of a client live through the run: `keep_optimizer` does so for the digest, the
run's own setting of that name for the rest. It stops the warm-up early by the *test* accuracy, which is not copied.
`warm_public=0` where the public set has no labels. `starts="own"` sends every client a first vector of its own.

Practical truth: without the digest (`digest_epochs=0`) it is training alone, not FedAvg: compare with `local-only`. The
public set must be near the clients' data, and there must be a label in the head for all that it shows. The absolute
loss pulls as hard when the models agree as when they do not; take the squared one to end near the consensus.
"""

from __future__ import annotations

import dataclasses as dc
from typing import Any

from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, PerClient, Server, Vectors, knob
from unalike.methods.reference import OwnModel


@dc.dataclass(frozen=True)
class FedMD(OwnModel):
    rows: int | None = knob(None, "A, public samples a round (not said: all)", values="5000", least=1)
    digest_epochs: int = knob(1, "passes over these rows a round", least=0)
    batch: int = knob(256, "public samples a step", least=1)
    lr: float = knob(1e-3, "rate of the digest", above=0, tune=(1e-4, 1e-1))
    optimizer: str = knob("adam", "of the digest", choices=("adam", "sgd", "rmsprop"))
    keep_optimizer: bool = knob(False, "the digest's optimizer lives through the run, as in the authors' program")
    stratify: bool = knob(True, "every class by its share among these rows (needs public labels)")
    distance: str = knob("absolute", "between logits and consensus", choices=("absolute", "squared"))
    starts: str = knob("common", "weights at first: one start a network, or one a client", choices=("common", "own"))
    warm_public: int = knob(20, "passes over the labelled public set before round 1", values="up to 20", least=0)
    warm_own: int = knob(25, "passes over its own data after that", values="up to 25", least=0)

    name = "fedmd"
    sees_who = True

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return bool(self.digest_epochs or self.warm_public)

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        return {"theta": Field(), **({"digest": Field("optimizer")} if self.keep_optimizer else {})}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        rows = "public" if self.rows is None else "rows"
        return {"logits": Field((rows, "classes"), weight="one", what="its outputs for the public set")}

    def setup(self, server: Server, everyone: Cohort) -> None:
        if self.starts == "own":  # the first client of a network begins where the network does
            each: Any = everyone.populations
            several = isinstance(each, Vectors)
            rows: Any = Vectors({n: server.init(k)[n] for n, k in each.items()}) if several else server.init(each)
            everyone.call(self.begin, start=PerClient(rows))
        if self.warm_public or self.warm_own:
            everyone.call(self.warm)

    def begin(self, me: Me, s: Fields, m: Fields) -> Answer:
        return {"theta": m.start}, {}

    def warm(self, me: Me, s: Fields, m: Fields) -> Answer:
        if not self.warm_public:
            return self.warmed(me, s, m, me.own(s.theta))
        request = me.train(me.own(s.theta), data="public", epochs=self.warm_public, batch_size=self.batch)
        return request.then(self.warmed)

    def warmed(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        if not self.warm_own:
            return self.kept(me, s, m, theta)
        return me.train(theta, epochs=self.warm_own).then(self.kept)

    def score(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(me.own(s.theta), data="public", only=m.get("rows")).then(self.scored)

    def scored(self, me: Me, s: Fields, m: Fields, logits: Tensor) -> Answer:
        return {}, {"logits": logits}

    def digest(self, me: Me, s: Fields, m: Fields) -> Answer:
        going = {"slots": s.digest} if self.keep_optimizer else {}
        return me.train(
            me.own(s.theta), data="public", only=m.get("rows"), rows={"target": m.consensus}, own=0.0, loss=self.gap,
            epochs=self.digest_epochs, batch_size=self.batch, lr=self.lr, optimizer=self.optimizer, **going,
        ).then(self.revisit)  # fmt: skip

    def gap(self, batch: Batch) -> Tensor:
        """The mean distance of logits from the consensus, over samples and classes."""
        gap = batch.output - batch.rows.target
        return batch.mean((gap.abs() if self.distance == "absolute" else gap.square()).mean(-1))

    def revisit(self, me: Me, s: Fields, m: Fields, theta: Tensor, slots: Tensor | None = None) -> Answer:
        return me.train(theta).then(self.done, slots=slots)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor, slots: Tensor | None = None) -> Answer:
        return {"theta": theta, **({} if slots is None else {"digest": slots})}, {}

    def alone(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(me.own(s.theta)).then(self.kept)

    def alignment(self, server: Server, cohort: Cohort) -> dict[str, Tensor]:
        """Return the public rows of this round, as a part of the message; nothing: all."""
        return {} if self.rows is None else {"rows": server.draw("alignment", self.rows, stratify=self.stratify)}

    def round(self, server: Server, cohort: Cohort) -> None:
        if not self.digest_epochs:
            cohort.call(self.alone)
            return
        rows = self.alignment(server, cohort)
        replies = cohort.call(self.score, **rows)
        cohort.only(replies.ids).call(self.digest, **rows, consensus=replies.mean("logits"))
