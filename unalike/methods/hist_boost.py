"""HistBoost: gradient-boosted trees on histograms, after Chen & Guestrin, "XGBoost: a scalable tree boosting system",
KDD 2016; summed over clients as in SecureBoost's horizontal sibling and XGBoost's own row split.

A round grows one tree (of more than two classes: one each). Clients sum, per node, column and bin, the derivatives of
their rows' losses; the server adds the sums and splits:

    gain = G_L² / (H_L + λ) + G_R² / (H_R + λ) − G² / (H + λ),    leaf = −η G / (H + λ)

It differs from FedAvg in everything but the sums: there is no local training, and the model is a forest
(`ua.models.forest`) that the server writes. Derivatives are rounded to multiples of 2^-30 and added as whole numbers,
and cuts of columns are quantiles over all rows, found by counting; so the trees are those of the pooled table, bit for
bit, however rows lie: label skew, sizes and attributes change nothing.

Practical truth: the strongest method for most tables, and as many exchanges a round as trees are deep. The server sees
the sums of every node (behind secure sums: of all clients together). A part of the clients a round is a sample of the
rows by client. Cuts are values of rows: who must hide them takes fewer bins, or noise. `whole=False` sends real numbers
in the place of whole ones, which clipping and noise can take; then they are rounded. Clients recompute margins from the
forest every round, so that one may stay away and come back.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Server
from unalike.trees import client, stack
from unalike.trees.fit import allowed_columns
from unalike.trees.forest import ABOUT, PARTS, as_tensors, instruction, stacked
from unalike.trees.grow import Growth
from unalike.trees.growing import Growing


@dc.dataclass(frozen=True)
class HistBoost(Growing):
    name = "hist-boost"
    parts = (*PARTS, *ABOUT)

    @property
    def cells(self) -> int:
        """Bins of a column, and one for missing values."""
        return self.bins + 1

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        return {
            "codes": Field(("samples", "input"), life="round", numbers="byte"),
            "pair": Field(("samples", "trees_a_round", 2), life="round", numbers="whole"),
            "place": Field(("samples", "trees_a_round"), life="round", numbers="whole"),
        }

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        what, shape = "sums of its rows' derivatives by node, column and bin", ("input", "cells", 2)
        levels = {f"level{k}": ("trees_a_round", max(1, 1 << k >> 1), *shape) for k in range(self.depth)}
        return {**super().sends, **{name: Field(own, weight="one", what=what) for name, own in levels.items()}}

    # ---- a client

    def begin(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(None, data="train", fn=client.row).then(self.root)

    def root(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        codes, pair = self.derived(me, m, rows)
        sums = stack.root_sums(codes, pair, me.n, self.bins)
        kept: dict[str, Tensor | float] = {"codes": codes, "pair": pair, "place": torch.ones_like(pair[..., 0])}
        return kept, {"level0": self.out(me, sums)}

    def level(self, me: Me, s: Fields, m: Fields) -> Answer:
        splits = client.Forest(m.column, m.bin, m.missing_left, m.column)
        place, sums = stack.next_level(s.codes, s.pair, s.place, me.n, splits, m.asked, self.bins)
        level = m.asked.shape[-1].bit_length()
        return {"place": place}, {f"level{level}": self.out(me, sums)}

    # ---- the server

    def grown(self, server: Server, cohort: Cohort) -> dict[str, Tensor]:
        """Grow a tree of each output together; return them as a forest of one round."""
        columns = len(server.cuts)
        allowed = allowed_columns(self, server.shuffled("columns", columns))
        plain = torch.zeros(columns, dtype=torch.bool)
        growths = [Growth(self, allowed, plain) for _ in range(self.trees_a_round(server.layout))]
        replies = cohort.call(self.begin, **self.forest(server))
        for level in range(self.depth):
            sums = self.total(replies, f"level{level}")
            for growth, own in zip(growths, sums, strict=True):
                self.advance(growth, level, own)
            if level + 1 == self.depth or not any(len(growth.asked) for growth in growths):
                break
            replies = cohort.call(self.level, **stacked([instruction(growth, level) for growth in growths]))
        return stacked([as_tensors(growth.tree) for growth in growths], rounds=True)

    def advance(self, growth: Growth, level: int, sums: Tensor) -> None:
        """Let a tree take in the sums that it asked for in this level."""
        if len(growth.asked) and growth.level == level:
            parents = growth.asked // 2 - (1 << level >> 1)
            growth.take(sums[torch.from_numpy(parents).clamp(min=0)])
