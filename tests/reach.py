"""Small methods, one for each further thing that a method can ask for: public data, parts, states, draws, networks."""

import dataclasses as dc

import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

from unalike.contract import Field, Method


@dc.dataclass(frozen=True)
class Consensus(Method):
    """Outputs on some rows of the public set up, their mean down, and training towards it (FedMD's shape)."""

    taken: int = 7

    keeps = {"theta": Field()}
    sends = {"logits": Field(("taken", "classes"), weight="one")}

    def setup(self, server, everyone):
        server.rows = torch.tensor([3, 1, 4, 0, 9, 2, 6])

    def mine(self, me, s, m):
        return me.own(s.theta, m.w)

    def report(self, me, s, m):
        return me.outputs(self.mine(me, s, m), only=m.rows).then(self.reported)

    def reported(self, me, s, m, logits):
        return {}, {"logits": logits}

    def digest(self, me, s, m):
        rows = {"target": m.mean}
        asked = me.train(self.mine(me, s, m), data="public", only=m.rows, rows=rows, own=0.0, loss=self.gap, epochs=2)
        return asked.then(self.revisit)

    def gap(self, batch):
        return batch.mean((batch.output - batch.rows.target).square().mean(-1))

    def revisit(self, me, s, m, theta):
        return me.train(theta).then(self.kept)

    def kept(self, me, s, m, theta):
        return {"theta": theta}, {}

    def round(self, server, cohort):
        mean = cohort.call(self.report, w=server.w, rows=server.rows).mean("logits")
        cohort.call(self.digest, w=server.w, rows=server.rows, mean=mean)
        server.mean = mean

    def personal(self, me, s, m):
        return self.mine(me, s, m)


class Shared(Method):
    """Training on one's own samples and a share of the public ones, each client a share of its own (data sharing)."""

    def client(self, me, s, m):
        share = me.uniform("share", (11,)).argsort()[:4]
        return me.train(m.w, data=("train", "public"), only=share).then(self.done)


class Mixed(Method):
    """Own samples by their labels, public ones by targets of the client's own making (Cronus' shape)."""

    keeps = {"bias": Field("classes")}

    def client(self, me, s, m):
        return me.outputs(m.w, fn=self.soft, bias=s.bias).then(self.learn)

    def soft(self, batch, bias):
        return (batch.output + bias).softmax(-1)

    def learn(self, me, s, m, targets):
        rows = {"soft": targets}
        return me.train(m.w, data=("train", "public"), rows=rows, own=0.0, loss=self.both).then(self.end)

    def both(self, batch):
        public = batch.source[:, None].to(batch.onehot.dtype)
        target = (1 - public) * batch.onehot + batch.rows.soft  # which is 0 for own samples
        return batch.mean(-(target * batch.output.log_softmax(-1)).sum(-1))

    def end(self, me, s, m, theta):
        return {"bias": 0.1 * me.layout.head(theta)[-3:]}, {"delta": theta - m.w}


class Mutual(Method):
    """Two vectors trained together, each drawn to the other's predictions (Def-KT's shape)."""

    keeps = {"own": Field()}

    def client(self, me, s, m):
        both = torch.stack([m.w, me.own(s.own, 0.9 * m.w)])
        return me.train(both, step=self.step).then(self.done)

    def step(self, thetas, batches, lr):
        (batch,) = batches

        def loss(v, other):
            lp, q = batch.forward(v)[0].log_softmax(-1), batch.forward(other)[0].softmax(-1).detach()
            return batch.loss(v) + batch.mean((q * (q.log() - lp)).sum(-1))

        return thetas - lr * vmap(grad(loss))(thetas, thetas.flip(0))

    def done(self, me, s, m, both):
        return {"own": both[1]}, {"delta": both[0] - m.w}


class Dual(Method):
    """A number for each sample that the client keeps, changed in every step that meets the sample (MOCHA's shape)."""

    keeps = {"alpha": Field("samples")}

    def client(self, me, s, m):
        return me.train(m.w, step=self.step, state={"alpha": s.alpha, "count": torch.zeros_like(me.n)}).then(self.done)

    def step(self, theta, batches, lr, alpha, count):
        (batch,) = batches
        weight = 1 + alpha[batch.index]
        loss = lambda v: batch.mean(weight * F.cross_entropy(batch.forward(v)[0], batch.y, reduction="none"))  # noqa: E731
        changed = batch.put(alpha, 0.5 * alpha[batch.index] + 0.1 * (batch.y + 1))
        return theta - lr * grad(loss)(theta), {"alpha": changed, "count": count + 1}

    def done(self, me, s, m, theta, alpha, count):
        return {"alpha": alpha}, {"delta": (theta - m.w) * count / me.steps}


class Hard(Method):
    """Each sample's last loss is its weight in the next training: rows and outputs of one's own samples."""

    keeps = {"loss": Field("samples")}

    def client(self, me, s, m):
        return me.train(m.w, rows={"loss": s.loss}, loss=self.harder).then(self.look)

    def harder(self, batch):
        return batch.mean(batch.rows.loss * batch.losses)

    def look(self, me, s, m, theta):
        return me.outputs(theta, data="train", fn=self.one).then(self.end, theta=theta)

    def one(self, batch):
        return batch.losses

    def end(self, me, s, m, losses, theta):
        return {"loss": losses}, {"delta": theta - m.w}


class HeadFirst(Method):
    """The head alone, then everything but the head, on the same mini-batches (FedRep's shape); the optimizer of the
    second lives on."""

    keeps = {"optimizer": Field("optimizer")}

    def client(self, me, s, m):
        return me.train(m.w, part="head", pull=0.01, momentum=0.5).then(self.rest)

    def rest(self, me, s, m, theta):
        asked = me.train(theta, part="all but head", same_batches=True, slots=s.optimizer, optimizer="adam", lr=0.01)
        return asked.then(self.end)

    def end(self, me, s, m, theta, slots):
        return {"optimizer": slots}, {"delta": theta - m.w}


class Noisy(Method):
    """Draws in an extra loss: noise on the features, a label that is drawn, a mixture of the batch."""

    def client(self, me, s, m):
        return me.train(m.w, loss=self.noise, args={"table": m.table}).then(self.again)

    def noise(self, batch, table):
        drawn = batch.integers("label", (1,), 3)
        near = batch.features + 0.1 * batch.normal("noise", (batch.features.shape[-1],)) + 0.01 * table[drawn]
        return 0.3 * batch.uniform("weight", ()) * batch.mean(batch.head(batch.vector, near).square().mean(-1))

    def again(self, me, s, m, theta):
        return me.train(theta, step=self.step, steps=2).then(self.done)

    def step(self, theta, batches, lr):
        return theta - lr * (batches[0].grad(theta) + 0.01 * batches[0].normal("kick", tuple(theta.shape)))

    def round(self, server, cohort):
        table = torch.tensor([1.0, 2.0, 3.0], dtype=server.w.dtype, device=server.w.device)
        server.w = server.w + cohort.call(self.client, w=server.w, table=table).mean("delta")


class Fisher(Method):
    """Squared gradients of single samples, and counts of labels without a model (FedCurv's and FedLC's shape)."""

    sends = {"delta": Field(), "fisher": Field(), "counts": Field("classes", weight="one")}

    def client(self, me, s, m):
        return me.train(m.w).then(self.look)

    def look(self, me, s, m, theta):
        return me.average(self.squares, theta).then(self.count, theta=theta)

    def squares(self, batch):
        return batch.gradients(batch.vector).square()

    def count(self, me, s, m, fisher, theta):
        return me.sum(self.labels).then(self.end, theta=theta, fisher=fisher)

    def labels(self, batch):
        return batch.onehot * (1 + batch.index[:, None])  # the index counts too: it must be the same everywhere

    def end(self, me, s, m, counts, theta, fisher):
        return {}, {"delta": theta - m.w, "fisher": fisher, "counts": counts}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        server.counts, server.fisher = replies.sum("counts"), replies.mean("fisher")
        server.w = server.w + replies.mean("delta") / (1 + server.fisher)


class Query(Method):
    """A step on the support samples, then the gradient on the query samples (FedMeta's shape)."""

    sends = {"gradient": Field()}

    def client(self, me, s, m):
        return me.train(m.w, data="support", steps=1).then(self.look)

    def look(self, me, s, m, theta):
        return me.gradient(theta, data="query").then(self.end)

    def end(self, me, s, m, gradient):
        return {}, {"gradient": gradient}

    def round(self, server, cohort):
        server.w = server.w - 0.1 * cohort.call(self.client, w=server.w).mean("gradient")


class Critic(nn.Module):
    """A small network with BatchNorm and dropout, on features and a label."""

    def __init__(self, features, classes):
        super().__init__()
        self.first, self.norm = nn.Linear(features + classes, 4), nn.BatchNorm1d(4)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(4, 1)

    def forward(self, features, labels):
        return self.last(self.drop(self.norm(self.first(torch.cat([features, labels], -1)).relu())))


class Adversary(Method):
    """A further network that every client trains on the features of its samples, against drawn ones (a GAN's shape)."""

    nets = {"critic": lambda sizes: Critic(sizes["features"], sizes["classes"])}
    keeps = {"adam": Field("optimizer critic")}
    sends = {"delta": Field(), "critic": Field("critic")}

    def setup(self, server, everyone):
        server.critic = server.start("critic")

    def client(self, me, s, m):
        asked = me.train(m.critic, net="critic", own=0.0, loss=self.tell, args={"w": m.w}, slots=s.adam, steps=2)
        return asked.then(self.model)

    def tell(self, batch, w):
        real = batch.call("critic", batch.vector, batch.forward(w)[1], batch.onehot, train=True)
        drawn = batch.normal("fake", tuple(batch.forward(w)[1].shape))
        fake = batch.call("critic", batch.vector, drawn, batch.onehot)
        return batch.mean(F.softplus(-real[:, 0]) + F.softplus(fake[:, 0]))

    def model(self, me, s, m, critic, slots):
        return me.train(m.w, loss=self.fool, args={"critic": critic}).then(self.end, critic=critic, slots=slots)

    def fool(self, batch, critic):
        return 0.1 * batch.mean(F.softplus(batch.call("critic", critic, batch.features, batch.onehot)[:, 0]))

    def end(self, me, s, m, theta, critic, slots):
        return {"adam": slots}, {"delta": theta - m.w, "critic": critic}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w, critic=server.critic)
        server.w, server.critic = server.w + replies.mean("delta"), replies.mean("critic")


class Ensemble(Method):
    """A client's model is two vectors, the shared one and its own last: their mean probabilities (`predict`)."""

    keeps = {"own": Field()}

    def done(self, me, s, m, theta):
        return {"own": theta}, {"delta": theta - m.w}

    def predict(self, me, s, m, batch):
        both = [batch.forward(v)[0].softmax(-1) for v in (m.w, me.own(s.own, m.w))]
        return torch.stack(both).mean(0).log()


class Prototypes(Method):
    """No network: class means of the samples, and the nearest of them (`needs_model = False`)."""

    needs_model = False
    sends = {"sums": Field(("classes", "input"), weight="one"), "counts": Field("classes", weight="one")}

    def client(self, me, s, m):
        return me.sum(self.totals).then(self.end)

    def totals(self, batch):
        return {"sums": batch.onehot[:, :, None] * batch.x.flatten(1)[:, None], "counts": batch.onehot}

    def end(self, me, s, m, found):
        return {}, found

    def round(self, server, cohort):
        replies = cohort.call(self.client)
        server.means = replies.sum("sums") / replies.sum("counts").clamp(min=1)[:, None]

    def published(self, server):
        return {"means": server.means}

    def predict(self, me, s, m, batch):
        return -(batch.x.flatten(1)[:, None] - m.means).square().sum(-1)

    def models(self, server):
        return {}


REACHING = (Consensus, Shared, Mixed, Mutual, Dual, Hard, HeadFirst, Noisy, Fisher, Adversary, Ensemble)
