"""Astraea: Duan et al., "Astraea: self-balancing federated learning for improving classification accuracy of mobile
deep learning applications", ICCD 2019.

Two remedies for skewed labels, after every client has told the server its class counts:

    augmentation   a class c with fewer samples than the mean class: each of its samples gets ⌊(mean / total_c)^α⌋
                   augmented copies on its client
    mediators      groups of γ clients, made greedily so that KL(their labels together ‖ uniform) is small; the model
                   goes through a group's clients one after another (E_m times), then the mean over groups by samples

`alpha` not given is no augmentation (α = 0 gives a copy each); with that, γ = 1 and E_m = 1 it is FedAvg, and with γ =
N one model that goes round. The paper's number of copies is a real number; we round down, and stop at `most`. Its
copies are shifted, turned, sheared and zoomed pictures, made once; ours have Gaussian noise of standard deviation
`noise`, drawn anew each step, which tables can have too.

The server sees every client's class counts, and its model; each client starts from the model of the one before it in
its group. A round has γ E_m exchanges, one after another.

Practical truth: mediators help as long as γ clients together have all classes; then a round costs γ times the wait.
"""

from __future__ import annotations

import dataclasses as dc
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Method, PerClient, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Astraea(Method):
    alpha: float | None = knob(None, "α, strength of augmentation (not given: none)", values="0.67", least=0)
    gamma: int = knob(5, "γ, clients of a mediator", values="2 to 10", least=1, tune=[2, 5, 10])
    passes: int = knob(1, "E_m, how often the model goes through a group", values="1 or 2", least=1)
    noise: float = knob(0.1, "of augmented copies, a standard deviation", least=0)
    most: int = knob(10, "copies of a sample at most", least=1)

    name = "astraea"
    one_network = "passes a model from client to client"
    sends = {
        "delta": Field(read="peers", weight="one"),  # the next client of a group begins with it
        "counts": Field("classes", read="each", weight="one", what="its class counts"),
    }

    def setup(self, server: Server, everyone: Cohort) -> None:
        replies = everyone.call(self.look)
        counts = torch.zeros(everyone.population, replies.each("counts").shape[1]).to(server.w)
        counts[torch.from_numpy(replies.ids).to(counts.device)] = replies.each("counts")
        copies = self.copies(counts.sum(0))
        server.counts = counts * (1 + copies)  # with augmented copies
        server.copies = (torch.arange(int(copies.max())).to(copies) < copies[:, None]).to(copies)  # 1 for each copy

    def look(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.sum(label).then(self.counted)

    def counted(self, me: Me, s: Fields, m: Fields, counts: Tensor) -> Answer:
        return {}, {"counts": counts}

    def copies(self, totals: Tensor) -> Tensor:
        """Return how many copies each sample of a class gets, [classes]."""
        if self.alpha is None:
            return torch.zeros_like(totals)
        more = (totals.mean() / totals.clamp(min=1)).pow(self.alpha)
        more = (more + 1e-6).floor().clamp(max=self.most)  # a whole number may come out a little below
        return torch.where((totals > 0) & (totals < totals.mean()), more, 0)

    # ---- a client's part

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        if "copies" not in m:
            return me.train(m.w).then(self.done)
        return me.outputs(None, data="train", fn=label).then(self.grown)

    def grown(self, me: Me, s: Fields, m: Fields, labels: Tensor) -> Answer:
        """Train on every sample and, behind it, its copies."""
        samples, width = len(labels), 1 + m.copies.shape[1]
        real = (torch.arange(samples, device=labels.device) < me.n).to(labels.dtype)[:, None]
        there = (real * torch.cat([torch.ones_like(labels[:, :1]), labels @ m.copies], 1)).flatten() > 0
        order = (~there).long().argsort(stable=True)
        only = torch.where(torch.arange(len(order), device=order.device) < there.sum(), order // width, -1)
        rows = self.rows(s, (order % width > 0) & (only >= 0))
        return me.train(m.w, data="train", only=only, rows=rows, own=0.0, loss=self.loss).then(self.done)

    def rows(self, s: Fields, copy: Tensor) -> dict[str, Tensor]:
        """Return what a step knows of each sample: whether it is a copy."""
        return {"copy": copy.to(torch.get_default_dtype())}

    def moved(self, batch: Batch) -> Tensor:
        """Return the samples of a batch, with noise on copies."""
        copy = batch.rows.copy.to(batch.x.dtype).reshape(-1, *([1] * (batch.x.dim() - 1)))
        return batch.x + self.noise * copy * batch.normal("copies", tuple(batch.x.shape))

    def loss(self, batch: Batch) -> Tensor:
        if not batch.x.is_floating_point():
            raise UnalikeError("Astraea augments numbers (pictures, tables), no tokens: leave alpha out.")
        batch.learn_statistics()
        return batch.mean(batch.with_output(batch.forward(batch.vector, self.moved(batch))[0]).losses)

    # ---- mediators

    def round(self, server: Server, cohort: Cohort) -> None:
        copies = {"copies": server.copies} if server.copies.shape[1] else {}
        sizes = server.counts.sum(1)
        found, _ = schedule(server.counts[torch.from_numpy(cohort.ids)].double().cpu().numpy(), self.gamma)
        groups = [cohort.ids[group] for group in found]
        models = server.w[None].repeat(len(groups), 1)
        for step in [*range(self.gamma)] * self.passes:
            here = {int(group[step]): g for g, group in enumerate(groups) if step < len(group)}
            if not here:
                continue
            part = cohort.only(list(here))
            replies = part.call(self.client, w=PerClient(models[list(here.values())]), **copies)
            models[[here[int(k)] for k in replies.ids]] += replies.each("delta")
        weights = torch.stack([sizes[torch.from_numpy(group)].sum() for group in groups])
        server.models = models
        server.w = (weights[:, None] * models).sum(0) / weights.sum()


def label(batch: Batch) -> Tensor:
    return batch.onehot


def schedule(counts: np.ndarray, gamma: int) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Return groups of rows of `counts` [clients, classes], and how each row was chosen."""
    left, groups, trace = list(range(len(counts))), [], []  # type: ignore[var-annotated]
    while left:
        groups.append([])
        while left and len(groups[-1]) < gamma:
            pooled = counts[groups[-1]].sum(0) + counts[left]
            p = pooled / np.maximum(pooled.sum(1, keepdims=True), 1e-300)
            apart = (p * np.log(np.maximum(p, 1e-300) * counts.shape[1])).sum(1)
            chosen = left[int(apart.argmin())]
            trace.append({"mediator": len(groups) - 1, "candidates": [*left], "kl": apart.tolist(), "chosen": chosen})
            groups[-1].append(chosen)
            left.remove(chosen)
    return groups, trace
