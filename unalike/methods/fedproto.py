"""FedProto: Tan et al., "FedProto: federated prototype learning across heterogeneous clients", AAAI 2022.

Every client has a model of its own for the whole run, of any architecture whose head has d inputs. Clients share only
prototypes, the mean features of each class; each is pulled to the mean prototype G of a sample's class:

    CE + λ mean_batch mean_d (h(x) − G_y)²          (0 for classes that have no prototype yet)
    up: class means μ_kc of its features after training;   G_c ← mean of μ_kc over the clients that have class c

A class that nobody brought in a round keeps its old prototype. C (d + 1) numbers go each way; the server needs sums
only. `weights="samples"` weighs a client's μ_kc by its samples of the class. (The paper's formula does so and divides
by the number of clients too, which is no mean; the program takes the plain mean, as here.) `collect="training"` is the
program's: features are collected while training, in the last pass, each batch before its own step; it knows plain SGD
with momentum. The program's λ acts as λ/d on the squared distance, as here.

The program drops a short last batch (`LocalTraining(drop_last=True)`). It reports predictions by the head and by the
nearest prototype: `inference="prototypes"` is the latter, with −mean_d (h(x) − G_c)² as outputs.

Practical truth: nothing but prototypes is shared, so a client learns from others only what its features are drawn to:
compare with `local-only` (which it is with λ = 0), not with FedAvg. What a client sends tells which classes it has
unless sums are masked.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Server, knob
from unalike.errors import UnalikeError
from unalike.methods.reference import OwnModel

FAR = -1e9  # the output of a class without a prototype


@dc.dataclass(frozen=True)
class FedProto(OwnModel):
    lam: float = knob(
        1.0, "λ, strength of the pull", values="1 MNIST and FEMNIST, 0.1 CIFAR-10", least=0, tune=(0.01, 10.0)
    )
    weights: str = knob(
        "uniform", "of clients in a class's prototype: equal, or their samples of it", choices=("uniform", "samples")
    )
    collect: str = knob(
        "after", "features of the trained model, or as met while training", choices=("after", "training")
    )
    inference: str = knob(
        "head", "a client predicts with its head, or the class of the nearest prototype", choices=("head", "prototypes")
    )

    name = "fedproto"
    sends = {
        "total": Field(("classes", "features"), weight="one", what="sums of its features by class"),
        "share": Field("classes", weight="one", what="its class counts"),
    }

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        theta = me.own(s.theta)
        if self.collect == "after":
            known = {name: m[name] for name in ("prototypes", "known") if name in m}  # none in round 1
            return me.train(theta, loss=self.pull if known else None, args=known).then(self.trained)
        if "prototypes" in m:
            return self.collecting(me, s, m, {"total": m.prototypes, "count": m.known})
        return me.average(of_classes, theta).then(self.collecting)  # round 1: only its shapes are used

    def collecting(self, me: Me, s: Fields, m: Fields, like: dict[str, Tensor]) -> Answer:
        local = me.local
        if local.optimizer != "sgd" or local.nesterov or local.clip_norm is not None:
            raise UnalikeError('FedProto\'s collect="training" knows SGD with momentum only: no other, no clipping.')
        theta, nothing = me.own(s.theta), {name: torch.zeros_like(value) for name, value in like.items()}
        batches = me.n / (local.batch_size or me.n)
        last = batches.floor() if local.drop_last else batches.ceil()  # mini-batches of the last pass
        state = {"velocity": torch.zeros_like(theta), "left": me.steps - last, **nothing}
        known = {"prototypes": m.get("prototypes", nothing["total"]), "known": m.get("known", nothing["count"])}
        args = {**known, "momentum": local.momentum, "decay": local.weight_decay}
        return me.train(theta, step=self.met, state=state, args=args).then(self.collected)

    def pull(self, batch: Batch, prototypes: Tensor, known: Tensor) -> Tensor:
        return self.lam * self.distance(batch, batch.features, prototypes, known)

    def distance(self, batch: Batch, features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
        """The mean squared distance of features from their class's prototype."""
        return batch.mean(known[batch.y] * (features - prototypes[batch.y]).square().mean(-1))

    def trained(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return me.average(of_classes, theta).then(self.measured, theta=theta)

    def measured(self, me: Me, s: Fields, m: Fields, mean: dict[str, Tensor], theta: Tensor) -> Answer:
        return self.sent(theta, me.n * mean["total"], me.n * mean["count"])

    def sent(self, theta: Tensor, total: Tensor, count: Tensor) -> Answer:
        """total [classes, features]: the sum of features over a class's samples; count: how many there are."""
        if self.weights == "uniform":
            total, count = total / count.clamp(min=1)[:, None], (count > 0).to(count.dtype)
        return {"theta": theta}, {"total": total, "share": count}

    def met(
        self, theta: Tensor, batches: list[Batch], lr: Tensor, velocity: Tensor, left: Tensor, total: Tensor,
        count: Tensor, prototypes: Tensor, known: Tensor, momentum: float, decay: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        """One step of SGD that collects features once the last pass has begun."""
        batch = batches[0]

        def loss(vector: Tensor) -> Tensor:
            return batch.loss(vector) + self.lam * self.distance(batch, batch.forward(vector)[1], prototypes, known)

        features = batch.forward(theta)[1]
        velocity = momentum * velocity + torch.func.grad(loss)(theta) + decay * theta
        here = (left <= 0).to(theta.dtype)
        total = total + here * batch.sum(batch.onehot[:, :, None] * features[:, None])
        count = count + here * batch.sum(batch.onehot)
        return theta - lr * velocity, {"velocity": velocity, "left": left - 1, "total": total, "count": count}

    def collected(
        self, me: Me, s: Fields, m: Fields, theta: Tensor, velocity: Tensor, left: Tensor, total: Tensor, count: Tensor
    ) -> Answer:
        return self.sent(theta, total, count)

    def there(self, server: Server) -> dict[str, Tensor]:
        """Return the prototypes and which are known; nothing before round 1."""
        return {name: server.values[name] for name in ("prototypes", "known") if name in server.values}

    def round(self, server: Server, cohort: Cohort) -> None:
        before = self.there(server)
        replies = cohort.call(self.client, **before)
        total, share = replies.sum("total"), replies.sum("share")
        old = before.get("prototypes", torch.zeros_like(total))
        server.prototypes = torch.where((share > 0)[:, None], total / share.clamp(min=1e-12)[:, None], old)
        server.known = torch.maximum((share > 0).to(share.dtype), before.get("known", torch.zeros_like(share)))

    @property
    def predicts(self) -> bool:  # type: ignore[override]
        return self.inference == "prototypes"

    def published(self, server: Server) -> Message:
        return {**self.there(server)} if self.predicts else {}

    def predict(self, me: Me, s: Fields, m: Fields, batch: Batch) -> Tensor:
        """Minus the squared distances of features from prototypes; the head's outputs before there are any."""
        output, features = batch.forward(me.own(s.theta))
        if "known" not in m:
            return output
        far = (features[:, None] - m.prototypes).square().mean(-1)
        return torch.where(m.known > 0, -far, FAR)


def of_classes(batch: Batch) -> dict[str, Tensor]:
    """The features in the row of their class, and which row that is."""
    return {"total": batch.onehot[:, :, None] * batch.features[:, None], "count": batch.onehot}
