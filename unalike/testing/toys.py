"""Small methods that use the unusual parts of the contract: examples to read beside docs/methods.md, used by the tests
of engines, messages and networks."""

import dataclasses as dc

import torch
from torch.func import grad

from unalike.contract import Field, Method, PerClient


@dc.dataclass(frozen=True)
class FeatureMean(Method):
    """Two exchanges: mean features up, their total down, an extra loss on the batch's mean (rFedAvg+'s shape)."""

    strength: float = 0.3

    keeps = {"mine": Field("features", life="round")}
    sends = {"delta": Field(), "mean": Field("features", weight="one")}

    def measure(self, me, s, m):
        return me.mean_features(m.w).then(self.measured)

    def measured(self, me, s, m, mean):
        return {"mine": mean}, {"mean": mean}

    def client(self, me, s, m):
        target = (m.total - s.mine) / (m.count - 1)
        return me.train(m.w, loss=self.extra, args={"target": target}).then(self.done)

    def extra(self, batch, target):
        return self.strength * (batch.mean(batch.features) - target).square().sum()

    def round(self, server, cohort):
        means = cohort.call(self.measure, w=server.w)
        replies = cohort.call(self.client, w=server.w, total=means.sum("mean"), count=means.count)
        server.w = server.w + replies.mean("delta")


@dc.dataclass(frozen=True)
class Clustered(Method):
    """Several global models; each client trains the one that fits it best (IFCA's shape)."""

    clusters: int = 2

    sends = {"delta": Field(("clusters", "model"), weight="one"), "count": Field(("clusters",), weight="one")}

    def setup(self, server, everyone):
        server.models = server.init(self.clusters)

    def client(self, me, s, m):
        return me.losses(m.models).then(self.pick)

    def pick(self, me, s, m, losses):
        chosen = torch.nn.functional.one_hot(losses.argmin(), self.clusters).to(losses.dtype)
        return me.train(chosen @ m.models).then(self.done, chosen=chosen)

    def done(self, me, s, m, theta, chosen):  # type: ignore[override]
        return {}, {"delta": chosen[:, None] * (theta - chosen @ m.models), "count": chosen}

    def round(self, server, cohort):
        replies = cohort.call(self.client, models=server.models)
        server.models = server.models + replies.sum("delta") / replies.sum("count").clamp(min=1)[:, None]
        server.w = server.models[0]

    def published(self, server):
        return {"models": server.models}

    def personal(self, me, s, m):
        return me.losses(m.models).then(self.best)

    def best(self, me, s, m, losses):
        return torch.nn.functional.one_hot(losses.argmin(), self.clusters).to(losses.dtype) @ m.models

    def models(self, server):
        return {f"cluster{k}": w for k, w in enumerate(server.models)}


@dc.dataclass(frozen=True)
class SharedBody(Method):
    """Only the layers before the head are shared; the head is the client's own state (FedPer's shape)."""

    keeps = {"head": Field("head")}
    sends = {"delta": Field("body")}

    def start(self, me, s, m):
        head = me.own(s.head, me.layout.head(m.w))
        return me.layout.join(me.layout.body(m.w), head)

    def client(self, me, s, m):
        return me.train(self.start(me, s, m)).then(self.done)

    def done(self, me, s, m, theta):
        body, head = me.layout.body(theta), me.layout.head(theta)
        return {"head": head}, {"delta": body - me.layout.body(m.w)}

    def round(self, server, cohort):
        mean = cohort.call(self.client, w=server.w).mean("delta")
        layout = server.layout
        server.w = layout.join(layout.body(server.w) + mean, layout.head(server.w))

    def personal(self, me, s, m):
        return self.start(me, s, m)


@dc.dataclass(frozen=True)
class SecondOrder(Method):
    """A replaced step that differentiates through an inner step, on two batches (Per-FedAvg's shape)."""

    inner: float = 0.1

    def client(self, me, s, m):
        return me.train(m.w, step=self.step, batches=2).then(self.done)

    def step(self, theta, batches, lr):
        first, second = batches
        return theta - lr * grad(lambda t: second.loss(t - self.inner * first.grad(t)))(theta)


@dc.dataclass(frozen=True)
class ScalarsFirst(Method):
    """Weights that depend on scalars sent first: train and send the accuracy, get a weight, send the weighted update
    (FedFa's shape). The trained vector waits in state that lives for the round."""

    power: float = 1.0

    keeps = {"trained": Field(life="round"), "seen": Field("scalar")}
    sends = {"delta": Field(weight="one"), "accuracy": Field("scalar", read="each")}

    def client(self, me, s, m):
        return me.train(m.w).then(self.trained)

    def trained(self, me, s, m, theta):
        return me.accuracy(theta).then(self.report, theta=theta)

    def report(self, me, s, m, accuracy, theta):
        return {"trained": theta, "seen": s.seen + 1}, {"accuracy": accuracy}

    def send(self, me, s, m):
        return {}, {"delta": m.weight * (s.trained - m.w)}

    def round(self, server, cohort):
        accuracy = cohort.call(self.client, w=server.w).each("accuracy")
        weight = (1 + accuracy) ** self.power
        replies = cohort.call(self.send, w=server.w, weight=PerClient(weight / weight.sum()))
        server.w = server.w + replies.sum("delta")


@dc.dataclass(frozen=True)
class PeerTable(Method):
    """A declared table on the server, shown to peers, filled by an exchange before round 1 (rFedAvg's shape); noise
    from the client's own counter; only part of the cohort is called."""

    strength: float = 0.2

    sends = {"delta": Field(), "mean": Field("features", read="peers", weight="one")}
    tables = {"means": Field("features")}

    def setup(self, server, everyone):
        replies = everyone.call(self.measure, w=server.w)
        server.table("means")[replies.ids] = replies.each("mean")

    def measure(self, me, s, m):
        return me.mean_features(m.w).then(self.measured)

    def measured(self, me, s, m, mean):
        return {}, {"mean": mean + 0.01 * me.normal("noise", tuple(mean.shape))}

    def client(self, me, s, m):
        return me.train(m.w, loss=self.extra, args={"peers": m.peers}).then(self.trained)

    def extra(self, batch, peers):
        return self.strength * (batch.mean(batch.features) - peers).square().sum(-1).mean()

    def trained(self, me, s, m, theta):
        return me.mean_features(theta).then(self.reported, theta=theta)

    def reported(self, me, s, m, mean, theta):
        return {}, {"delta": theta - m.w, "mean": mean}

    def round(self, server, cohort):
        part = cohort.only(cohort.ids[:-1])
        replies = part.call(self.client, w=server.w, peers=server.table("means")[part.ids])
        server.table("means")[replies.ids] = replies.each("mean")
        server.w = server.w + replies.mean("delta")


@dc.dataclass(frozen=True)
class FullGradient(Method):
    """The gradient over all samples, with a pull that is a vector and two trainings with settings of their own."""

    def client(self, me, s, m):
        return me.gradient(m.w).then(self.got)

    def got(self, me, s, m, g):
        pull = 0.1 * g.abs()
        work = me.train(m.w, pull=pull, push=-pull * m.w, unclipped=("pull",), steps=3, momentum=0.5, lr=0.5 * me.lr)
        return work.then(self.again)

    def again(self, me, s, m, theta):
        return me.train(theta, epochs=1).then(self.done)


@dc.dataclass(frozen=True)
class Ring(Method):
    """No server: every client trains its own model and passes it to the next in the ring, which takes the mean of both.
    The server draws the order of the ring."""

    share: float = 0.5  # weight of the other client's model

    serverless = True
    keeps = {"theta": Field()}
    sends = {"theta": Field(read="sealed")}

    def personal(self, me, s, m):
        return me.own(s.theta)

    def train(self, me, s, m):
        return me.train(self.personal(me, s, m)).then(self.trained)

    def trained(self, me, s, m, theta):
        return {"theta": theta}, {"theta": theta}

    def meet(self, me, s, m):
        return {"theta": (1 - m.share) * s.theta + m.share * m.theirs}, {}

    def round(self, server, cohort):
        order = cohort.ids[server.shuffled("ring", len(cohort))]
        sent = cohort.only(order).call(self.train)
        cohort.call(self.meet, share=self.share, theirs=sent.pass_on("theta", to=[*order[1:], order[0]]))


@dc.dataclass(frozen=True)
class OpenRing(Ring):
    """The same, but the server may read what it passes on."""

    serverless = False
    sends = {"theta": Field(read="peers")}

    def published(self, server):
        return {}

    def models(self, server):
        return {}


TOYS = [FeatureMean(), Clustered(), SharedBody(), SecondOrder(), ScalarsFirst(), PeerTable(), FullGradient()]
