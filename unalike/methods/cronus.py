"""Cronus: Chang et al., "Cronus: robust and heterogeneous collaborative learning with black-box knowledge transfer",
2019.

Every client has a model of its own, of any architecture. Only predictions on a public set travel, and the server takes
a mean of them that a few liars cannot move:

    before round 1:   θ_k trains on its own data
    up                p_k = σ(z(θ_k)) on all public rows
    server            for each row u a robust mean p̄(u) of the p_k(u)
    client            trains on its own samples and the public ones together, these with p̄ as soft labels

The robust mean filters by the spectrum: up to f = ⌊ε m⌋ times, where the largest eigenvalue of the covariance of the m
kept predictions is above `tolerance`, the one with the largest projection on its eigenvector is dropped; then the plain
mean. The paper leaves threshold and number open; this rule is ours. `aggregate="median"` is the median of each class,
scaled to sum to 1; `"mean"` (or ε = 0) is the mean, for which the server needs sums only.

4·|U|·C bytes go each way. Public samples need no labels. It is not FedAvg at any setting: compare with `local-only` and
`fedmd`.

Practical truth: ε is the share of liars that is expected, and each row may drop others: with honest clients only it
throws away information. A public set as large as all clients' data together makes own samples a minority.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Server, knob
from unalike.methods.reference import OwnModel


@dc.dataclass(frozen=True)
class Cronus(OwnModel):
    aggregate: str = knob("filter", "the mean of predictions", choices=("filter", "median", "mean"))
    epsilon: float = knob(0.1, "ε, share of clients that may lie", values="0.1", least=0, below=0.5)
    tolerance: float = knob(1e-3, "a variance that needs no filter", least=0)
    warm_epochs: int = knob(20, "passes over its own data before round 1", least=0)

    name = "cronus"
    needs_public = True

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        read, what = "sum" if self.plain else "each", "its predictions for the public set"
        return {"odds": Field(("public", "classes"), read, "one", what=what)}

    @property
    def plain(self) -> bool:
        """Whether the plain mean is taken, which needs no single client's predictions."""
        return self.aggregate == "mean" or (self.aggregate == "filter" and not self.epsilon)

    def setup(self, server: Server, everyone: Cohort) -> None:
        if self.warm_epochs:
            everyone.call(self.warm)

    def warm(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(me.own(s.theta), epochs=self.warm_epochs).then(self.kept)

    def score(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(me.own(s.theta), data="public").then(self.scored)

    def scored(self, me: Me, s: Fields, m: Fields, logits: Tensor) -> Answer:
        return {}, {"odds": logits.softmax(-1)}

    def learn(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(
            me.own(s.theta), data=("train", "public"), rows={"target": m.target}, own=0.0, loss=self.entropy
        ).then(self.kept)

    def entropy(self, batch: Batch) -> Tensor:
        """Cross-entropy with labels, and with the common predictions for public samples."""
        own = (batch.source == 0).to(batch.onehot.dtype)[:, None]
        target = own * batch.onehot + batch.rows.target  # which is zero for own samples
        return -batch.mean((target * batch.output.log_softmax(-1)).sum(-1))

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.score)
        if self.plain:
            target = replies.mean("odds")
        elif self.aggregate == "median":
            target = replies.each("odds").quantile(0.5, dim=0)  # of an even number the mean of both in the middle
            target = target / target.sum(-1, keepdim=True)
        else:
            target, _ = self.filtered(replies.each("odds"))
        cohort.only(replies.ids).call(self.learn, target=target)

    def filtered(self, odds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the robust mean of predictions [m, rows, classes] for each row, and who was kept, [rows, m]."""
        points = odds.double().transpose(0, 1)  # [rows, m, classes]
        kept = torch.ones_like(points[:, :, 0])
        for _ in range(int(self.epsilon * len(odds))):
            mean = (kept[:, :, None] * points).sum(1) / kept.sum(1)[:, None]
            far = kept[:, :, None] * (points - mean[:, None])
            values, vectors = torch.linalg.eigh(far.transpose(1, 2) @ far / kept.sum(1)[:, None, None])
            along = (far @ vectors[:, :, -1:]).abs()[:, :, 0]
            drop = torch.nn.functional.one_hot(along.argmax(1), len(odds)) * (values[:, -1:] > self.tolerance)
            kept = kept * (1 - drop)
        mean = (kept[:, :, None] * points).sum(1) / kept.sum(1)[:, None]
        return mean.to(odds.dtype), kept > 0
