"""FedGen: Zhu et al., "Data-free knowledge distillation for heterogeneous federated learning", ICML 2021.

The server learns a small generator G(ε, y) of features (inputs of the head) that all clients' heads take for class y,
and sends it with the model; clients learn from what it makes:

    client, from round 2:  CE + α_t (B_g/B) CE(head(G(ε, ŷ)), ŷ) + β_t KL(σ(head(G(ε', y))) ‖ σ(z(x)))
    server:  G ← N steps of Adam on Σ_k mean_b a_k(y_b) CE(head_k(G(ε_b, y_b)), y_b) + diversity,  then  w ← Σ p_k θ_k
    a_k(y) = share of client k in all samples of class y
    diversity = exp(−mean_ij ‖ε_i − ε_j‖²/dim · mean |G_i − G_j|)

ŷ is drawn from the labels there are, y are the batch's own, ε is uniform. α_t = α 0.98^t. The generator goes down with
the model; heads and label counts go up, which the server reads client by client, and of all else the sum.

The paper's objective has no β term; the program has. In the program the weights a_k are lost by broadcasting (losses
[B] times weights [B, 1], so that only mean loss times mean weight is left): `weights="broadcast"`; the default is what
the paper says. `counts="met"` is the program's too: labels met in this round's training, from 1 up. Its student term
has weight 0 in every setting and is left out. Its clients' rates decay by the last round they took part in: give
`LocalTraining(lr=...)` a function.

Practical truth: it teaches the head only, and only as well as the heads agree. BatchNorm's statistics of the generator
travel in its vector. With α = β = 0 it is FedAvg. Whoever gets the generator can draw features of every class.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable

import torch
from torch import Tensor, nn

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Method, Server, knob


class Generator(nn.Module):
    """Features from noise and a class: two linear layers, BatchNorm between them."""

    def __init__(self, noise: int, hidden: int, classes: int, features: int):
        super().__init__()
        self.first, self.norm = nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, features)

    def forward(self, noise: Tensor, onehot: Tensor) -> Tensor:
        return self.last(self.norm(self.first(torch.cat([noise, onehot], -1))).relu())


@dc.dataclass(frozen=True)
class FedGen(Method):
    alpha: float = knob(10.0, "α, weight of generated features at first", least=0, tune=(0.1, 20.0))
    beta: float = knob(
        10.0, "β, weight of their likeness to the batch at first", values="10, EMNIST 1", least=0, tune=(0.1, 20.0)
    )
    decay: float = knob(0.98, "of α and β, per round", above=0, most=1)
    floor: float = knob(1e-4, "that α and β do not fall below", least=0)
    generated: int = knob(32, "features that are generated a step, at clients and on the server", least=1)
    steps: int = knob(50, "N, of the generator a round", least=0)
    lr: float = knob(3e-4, "rate of the generator's Adam", values="3e-4, 1e-4", above=0, tune=(1e-4, 1e-2))
    lr_decay: float = knob(0.98, "of that rate, per round", above=0, most=1)
    weight_decay: float = knob(1e-2, "of the generator (L2 in the gradient)", least=0)
    noise: int = knob(32, "numbers of ε", least=1)
    hidden: int = knob(256, "width of the generator's hidden layer", least=1)
    weights: str = knob(
        "intended", "of clients in the generator's loss (one a sample, or as the program has it)",
        choices=("intended", "broadcast"),
    )  # fmt: skip
    counts: str = knob("all", "of labels, a client's own or those met in training", choices=("all", "met"))

    name = "fedgen"
    sends = {
        "delta": Field(),
        "head": Field("head", read="each", weight="one", what="its head"),
        "counts": Field("classes", read="each", weight="one", what="its class counts"),
    }

    @property
    def nets(self) -> dict[str, Callable[[dict[str, int]], nn.Module]]:  # type: ignore[override]
        return {"generator": lambda size: Generator(self.noise, self.hidden, size["classes"], size["features"])}

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.generator = server.start("generator")

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        if "generator" not in m:  # round 1
            return me.train(m.w).then(self.count)
        ratio = self.generated / me.local.batch_size if me.local.batch_size else self.generated / me.n
        args = {"generator": m.generator, "labels": m.labels, "alpha": m.alpha * ratio, "beta": m.beta}
        return me.train(m.w, loss=self.guided, args=args).then(self.count)

    def guided(self, batch: Batch, generator: Tensor, labels: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        vector = batch.vector
        wanted = onehot(self.labels(batch, "made", labels), batch.onehot.shape[-1], vector)
        made = batch.call("generator", generator, self.noises(batch, "made", self.generated), wanted)
        teach = -(wanted * batch.head(vector, made).log_softmax(-1)).sum(-1).mean()
        like = batch.call("generator", generator, self.noises(batch, "like", len(batch.y)), batch.onehot)
        target = batch.head(vector, like).log_softmax(-1).detach()
        latent = batch.mean((target.exp() * (target - batch.output.log_softmax(-1))).sum(-1))
        return alpha * teach + beta * latent

    def labels(self, batch: Batch, purpose: str, known: Tensor) -> Tensor:
        """Labels of what is generated, drawn from those there are."""
        return known[batch.integers(f"{purpose} labels", (self.generated,), len(known))]

    def noises(self, batch: Batch, purpose: str, count: int) -> Tensor:
        return batch.uniform(purpose, (count, self.noise))

    def count(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return me.average(label, theta, over="epoch" if self.counts == "met" else "samples").then(self.end, theta=theta)

    def end(self, me: Me, s: Fields, m: Fields, share: Tensor, theta: Tensor) -> Answer:
        counts = me.n * share if self.counts == "all" else 1 + me.steps * (me.local.batch_size or me.n) * share
        return {}, {"delta": theta - m.w, "head": me.layout.head(theta), "counts": counts}

    def fool(self, batch: Batch, heads: Tensor, weights: Tensor, known: Tensor) -> Tensor:
        """The generator's loss on the server, of draws alone. heads [clients, head], weights [clients, classes]."""
        y, noise = self.labels(batch, "taught", known), self.noises(batch, "taught", self.generated)
        wanted = onehot(y, weights.shape[-1], weights)
        made = batch.call("generator", batch.vector, noise, wanted, train=True)
        losses = torch.vmap(lambda head: -(wanted * batch.head(head, made).log_softmax(-1)).sum(-1))(heads)
        shares = weights[:, y] if self.weights == "intended" else weights[:, y].mean(1, keepdim=True)
        far = (noise[:, None] - noise).square().mean(-1) * (made[:, None] - made).abs().mean(-1)
        return (shares * losses).mean(1).sum() + torch.exp(-far.mean())

    def faded(self, strength: float, round: int) -> float:
        return max(min(strength, self.floor), strength * self.decay**round)

    def round(self, server: Server, cohort: Cohort) -> None:
        message: Message = {"w": server.w}
        if cohort.round > 0:
            strengths = {name: self.faded(getattr(self, name), cohort.round) for name in ("alpha", "beta")}
            message |= {"generator": server.generator, "labels": server.labels, **strengths}
        replies = cohort.call(self.client, **message)
        counts = replies.each("counts")
        known = (counts.amax(0) > (1 if self.counts == "met" else 0)).nonzero().flatten()
        args = {"heads": replies.each("head"), "weights": counts / counts.sum(0).clamp(min=1), "known": known}
        if self.steps:
            server.generator = server.train(
                server.generator, net="generator", data=None, own=0.0, loss=self.fool, args=args, steps=self.steps,
                keep="adam", optimizer="adam", lr=self.lr * self.lr_decay**cohort.round, weight_decay=self.weight_decay,
            )  # fmt: skip
        server.labels = known
        server.w = server.w + replies.mean("delta")


def onehot(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    return (labels[:, None] == torch.arange(classes, device=labels.device)).to(like.dtype)


def label(batch: Batch) -> Tensor:
    return batch.onehot
