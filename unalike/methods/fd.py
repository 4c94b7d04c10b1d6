"""FD and FD-FL, federated distillation: Jeong et al., "Communication-efficient on-device machine learning: federated
distillation and augmentation under non-IID private data", 2018 (the companion of FAug).

Clients tell each other, class by class, what their models say on average; each learns from the others:

    up       t_kc, the mean logits of client k's trained model over its samples of class c, and which classes it has
    client   CE + β mean_i KL(σ(t̄_y) ‖ p(x_i)),   t̄_c = mean of t_jc over the *other* clients of the last round with c

Sum and number travel, C (C + 1) numbers each way, and a client that took part subtracts its own; where nobody else has
the class there is no term. The server needs sums only. Clients keep models of their own, of any architecture; with
`average=True` (FD-FL, "FedDistill-FL") models are averaged too, and β = 0 is FedAvg; without it β = 0 is training
alone.

`reading="program"` is FedDistill in FedGen's program: t_kc are sums of logits *met while training* in all rounds so
far, over 1 + their number; the mean is over all participants with oneself, and classes that a client lacks count as
zeros: targets shrink to uniform. It knows plain SGD with momentum. (Another library takes raw logits for soft labels.)

Practical truth: C numbers a class say little about a sample; it helps clients with few samples and costs nearly
nothing. What a client sends tells which classes it has, unless sums are masked.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Method, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FD(Method):
    beta: float = knob(1.0, "β, strength of the others' word", values="1", least=0, tune=(0.01, 10.0))
    average: bool = knob(False, "models are averaged too (FD-FL)")
    reading: str = knob("others", "of the targets: the paper's, or the program's", choices=("others", "program"))

    name = "fd"

    @property
    def buffers(self) -> str | None:  # type: ignore[override]
        return None if self.average else "local"

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        own = {} if self.average else {"theta": Field()}
        return {**own, "total": Field(("classes", "classes")), "count": Field("classes"), "at": Field("scalar")}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        word = {
            "total": Field(("classes", "classes"), weight="one", what="its mean outputs by class"),
            "share": Field("classes", weight="one", what="which classes it has"),
        }
        return {"delta": Field(), **word} if self.average else word

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        begin = m.w if self.average else me.own(s.theta)
        if self.reading == "program":
            return self.meeting(me, s, m, begin)
        if "total" not in m:  # nobody has said anything yet
            return me.train(begin).then(self.trained)
        mine = ((s.at == m.last) & ~me.first).to(begin.dtype)
        share = (m.share - mine * s.count).round()  # sums of ones
        target = (m.total - mine * s.total) / share.clamp(min=1)[:, None]
        return me.train(begin, loss=self.pull, args={"target": target, "share": share}).then(self.trained)

    def pull(self, batch: Batch, target: Tensor, share: Tensor) -> Tensor:
        return self.beta * self.gap(batch, batch.output, target, share)

    def gap(self, batch: Batch, output: Tensor, target: Tensor, share: Tensor) -> Tensor:
        """The mean of KL(σ(t_y) ‖ σ(output)) over samples whose class somebody knows."""
        log_odds = target.log_softmax(-1)[batch.y]
        apart = (log_odds.exp() * (log_odds - output.log_softmax(-1))).sum(-1)
        return batch.mean((share > 0).to(apart.dtype)[batch.y] * apart)

    def trained(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return me.average(of_classes, theta).then(self.spoken, theta=theta)

    def spoken(self, me: Me, s: Fields, m: Fields, mean: dict[str, Tensor], theta: Tensor) -> Answer:
        have = (mean["count"] > 0).to(theta.dtype)
        total = mean["total"] / torch.where(mean["count"] > 0, mean["count"], 1)[:, None]
        return self.end(m, theta, {"total": total, "count": have}, {"total": total, "share": have})

    def end(self, m: Fields, theta: Tensor, kept: dict[str, Tensor], word: dict[str, Tensor]) -> Answer:
        if self.average:
            return {**kept, "at": m.now}, {**word, "delta": theta - m.w}
        return {**kept, "at": m.now, "theta": theta}, {**word}

    # ---- the program's reading: logits as they are met, of all rounds

    def meeting(self, me: Me, s: Fields, m: Fields, begin: Tensor) -> Answer:
        local = me.local
        if local.optimizer != "sgd" or local.nesterov or local.clip_norm is not None:
            raise UnalikeError('FD\'s reading="program" knows SGD with momentum only: no other, no clipping.')
        state = {"velocity": torch.zeros_like(begin), "total": s.total, "count": s.count}
        target = m.total / m.share.clamp(min=1)[:, None] if "total" in m else torch.zeros_like(s.total)
        share = torch.ones_like(s.count) * ("total" in m)
        args = {"target": target, "share": share, "momentum": local.momentum, "decay": local.weight_decay}
        return me.train(begin, step=self.met, state=state, args=args).then(self.recalled)

    def met(
        self, theta: Tensor, batches: list[Batch], lr: Tensor, velocity: Tensor, total: Tensor, count: Tensor,
        target: Tensor, share: Tensor, momentum: float, decay: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        """One step of SGD that adds up the logits before it."""
        batch = batches[0]

        def loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            output = batch.forward(vector)[0]
            own = batch.mean(batch.with_output(output).losses)
            return own + self.beta * self.gap(batch, output, target, share), output

        slope, output = torch.func.grad(loss, has_aux=True)(theta)
        velocity = momentum * velocity + slope + decay * theta
        total = total + batch.sum(batch.onehot[:, :, None] * output[:, None])
        return theta - lr * velocity, {"velocity": velocity, "total": total, "count": count + batch.sum(batch.onehot)}

    def recalled(
        self, me: Me, s: Fields, m: Fields, theta: Tensor, velocity: Tensor, total: Tensor, count: Tensor
    ) -> Answer:
        word = {"total": total / (1 + count)[:, None], "share": torch.ones_like(count)}
        return self.end(m, theta, {"total": total, "count": count}, word)

    def round(self, server: Server, cohort: Cohort) -> None:
        message: Message = {"now": float(cohort.round), **({"w": server.w} if self.average else {})}
        if "total" in server.values:
            message |= {"total": server.total, "share": server.share, "last": server.last}
        replies = cohort.call(self.client, **message)
        server.total, server.share, server.last = replies.sum("total"), replies.sum("share"), float(cohort.round)
        if self.average:
            server.w = server.w + replies.mean("delta")

    def published(self, server: Server) -> Message:
        return {"w": server.w} if self.average else {}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return m.w if self.average else me.own(s.theta)

    def models(self, server: Server) -> dict[str, Tensor]:  # type: ignore[override]
        return {"global": server.w} if self.average else {}


def of_classes(batch: Batch) -> dict[str, Tensor]:
    """The logits in the row of their class, and which row that is."""
    return {"total": batch.onehot[:, :, None] * batch.output[:, None], "count": batch.onehot}
