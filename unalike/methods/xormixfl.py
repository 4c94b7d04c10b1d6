"""XorMixFL: Shin et al., "XOR mixup: privacy-preserving data augmentation for one-shot federated learning", 2020.

Once, clients send pairs of their own samples with *different* labels, XORed bit by bit, and both labels. The server has
samples of its own and undoes one half of a pair with one that looks like it:

    up        x_i ⊕ x_j with y_i ≠ y_j, and y_i, y_j
    server    (x_i ⊕ x_j) ⊕ b for base samples b of label y_j: noisy samples of label y_i
              trains on base and decoded samples; clients get the model

Base samples are the public set ([data] public), with labels. Samples are whole numbers of `bits` bits between `low`
and `high`: 8-bit pictures in [0, 1] are exact, others are rounded. `samples` is how many pairs a client sends; a
client with one label has no pair. A round is `epochs` passes of the server; nothing travels after the first exchange.
The paper also encodes means of samples.

It ships samples (`--allow-samples`). XOR hides little: a server that has or guesses x_j has x_i exactly, and the XOR of
two pictures that are alike leaves their outlines to see.

Practical truth: decoded samples are as good as base samples are like the clients'. It is not FedAvg at any setting.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class XorMixFL(Method):
    samples: int = knob(100, "pairs that a client sends at most", least=1)
    pairs: str = knob("random", "a random partner, or the next sample of another label", choices=("random", "next"))
    bits: int = knob(8, "of a number", least=1, most=16)
    low: float = knob(0.0, "the number whose bits are all 0")
    high: float = knob(1.0, "the number whose bits are all 1")
    most: int | None = knob(None, "decoded samples of a class at most (not said: all), for balance", least=1)
    epochs: int = knob(5, "passes of the server a round", least=1)
    batch: int = knob(64, "samples a step of the server", least=1)
    lr: float = knob(0.1, "the server's rate", above=0, tune=(1e-3, 1.0))
    shuffle: bool = knob(True, "a new order of the samples every pass")

    name = "xormixfl"
    ships = "pairs of samples, XORed"
    needs_public = True
    sends = {
        "pair": Field(("samples_sent", "input"), read="each", weight="one", what="XORed pairs of its samples"),
        "labels": Field(("samples_sent", 2), read="each", weight="one", what="their labels"),
    }

    @property
    def samples_sent(self) -> int:
        """The size of a field; "samples" as a shape is something else."""
        return self.samples

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise UnalikeError(f"XorMixFL low={self.low} must be below high={self.high}.")

    def setup(self, server: Server, everyone: Cohort) -> None:
        replies = everyone.call(self.look)
        pairs, labels = replies.each("pair").flatten(0, 1), replies.each("labels").flatten(0, 1).round().long()
        there = labels[:, 0] >= 0
        base = server.outputs(None, fn=self.whole)
        if (base[:, -1] < 0).any():
            raise UnalikeError("XorMixFL needs a public set with labels: it decodes by them.")
        x, y = self.decoded(pairs[there], labels[there], base[:, :-1], base[:, -1].round().long())
        kept = self.balanced(server, y)
        x, y = torch.cat([base[:, :-1], x[kept]]), torch.cat([base[:, -1].round().long(), y[kept]])
        server.x, server.y = self.low + x * self.unit, y

    @property
    def unit(self) -> float:
        return (self.high - self.low) / (2**self.bits - 1)

    def whole(self, batch: Batch) -> Tensor:
        """Samples as whole numbers, and the label behind them."""
        if not batch.x.is_floating_point():
            raise UnalikeError("XorMixFL works on numbers of a few bits (pictures), no tokens.")
        x = ((batch.x.flatten(1) - self.low) / self.unit).round().clamp(0, 2**self.bits - 1)
        return torch.cat([x, batch.y[:, None].to(x.dtype)], 1)

    def look(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(None, data="train", fn=self.whole).then(self.mixed)

    def mixed(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        rows = torch.cat([rows, rows.new_zeros(self.samples, rows.shape[1])])  # a small client sends fewer
        place = torch.arange(len(rows), device=rows.device)
        absent = (place >= me.n).to(rows.dtype)
        x, y = rows[:, :-1].long(), rows[:, -1]
        if self.pairs == "next":
            first = place[: self.samples]
            far = torch.remainder(place - first[:, None] - 1, me.n) / me.n
        else:
            first = (me.uniform("first", (len(rows),)) + absent).argsort(stable=True)[: self.samples]
            far = me.uniform("second", (len(rows), self.samples)).T  # a sample's draws, however many follow it
        nearest, second = (far + absent + (y == y[first][:, None]).to(far.dtype)).min(1)
        there = (nearest < 1) & (first < me.n)
        labels = torch.where(there[:, None], torch.stack([y[first], y[second]], 1), -1)
        pair = torch.where(there[:, None], x[first] ^ x[second], 0)
        return {}, {"pair": pair.to(rows.dtype), "labels": labels}

    def decoded(self, pairs: Tensor, labels: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return all pairs decoded by all base samples of their second label: (numbers, first labels)."""
        pair, base = (labels[:, 1:] == y).nonzero(as_tuple=True)
        return (pairs[pair].long() ^ x[base].long()).to(x.dtype), labels[pair, 0]

    def balanced(self, server: Server, y: Tensor) -> Tensor:
        """Return which decoded samples are used."""
        if self.most is None:
            return torch.arange(len(y))
        order = torch.from_numpy(server.shuffled("decoded", len(y)))
        some = [order[y.cpu()[order] == label][: self.most] for label in y.unique().cpu()]
        return torch.cat([order[:0], *some]).sort().values

    def round(self, server: Server, cohort: Cohort) -> None:
        server.w = server.train(
            server.w, data={"x": server.x, "y": server.y}, epochs=self.epochs, batch_size=self.batch, lr=self.lr,
            shuffle=self.shuffle,
        )  # fmt: skip
