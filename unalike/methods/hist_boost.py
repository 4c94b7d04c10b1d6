"""HistBoost: gradient-boosted trees on histograms, after Chen & Guestrin, "XGBoost: a scalable tree boosting system", KDD
2016; summed over clients as in SecureBoost's horizontal sibling and XGBoost's own row split.

A round grows one tree (of more than two classes: one each). Clients sum, per node, column and bin, the derivatives of
their rows' losses; the server adds the sums and splits:

    gain = G_L² / (H_L + λ) + G_R² / (H_R + λ) − G² / (H + λ),    leaf = −η G / (H + λ)

It differs from FedAvg in everything but the sums: there is no local training, and the model is a forest (`ua.models.forest`)
that the server writes. Derivatives are rounded to multiples of 2^-30 and added as whole numbers, and cuts of columns
are quantiles over all rows, found by counting; so the trees are those of the pooled table, bit for bit, however rows
lie: label skew, sizes and attributes change nothing.

Practical truth: the strongest method for most tables, and as many exchanges a round as trees are deep. The server sees the sums of every
node (behind secure sums: of all clients together). A part of the clients a round is a sample of the rows by
client. Cuts are values of rows: who must hide them takes fewer bins, or noise. `whole=False` sends real numbers in the place of
whole ones, which clipping and noise can take; then they are rounded. Clients recompute margins from the forest every
round, so that one may stay away and come back.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Layout, Me, Message, Method, Replies, Server, knob
from unalike.errors import UnalikeError
from unalike.trees import bins, client, exact
from unalike.trees.fit import allowed_columns, mean_of
from unalike.trees.grow import Growth
from unalike.trees.settings import Boosting
from unalike.trees.tree import LEAF, Tree

COUNTS = ("present", "counts", "size")  # sums that are no derivatives, losses or labels
PARTS = ("column", "bin", "missing_left", "value")  # of a forest, in messages and in the server's state


@dc.dataclass(frozen=True)
class HistBoost(Boosting, Method):
    whole: bool = knob(True, "sums are whole numbers, bit for bit the pooled ones; off: real numbers, for noise")

    name = "hist-boost"
    needs_model = False
    network = "forest"
    one_network = "grows one forest for all"

    def network_options(self) -> dict[str, int]:
        return {"trees": self.trees, "depth": self.depth}

    @property
    def cells(self) -> int:
        """Bins of a column, and one for missing values."""
        return self.bins + 1

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        return {
            "codes": Field(("samples", "input"), life="round", kind="whole"),
            "pair": Field(("samples", "trees_a_round", 2), life="round", kind="whole"),
            "place": Field(("samples", "trees_a_round"), life="round", kind="whole"),
        }

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        sums = "sums of its rows' derivatives by node, column and bin"
        levels = {f"level{k}": (max(1, 1 << k >> 1)) for k in range(self.depth)}
        counts = Field(("input", self.bins - 1, bins.WAYS - 1), weight="one", what="counts of values below cuts")
        return {
            "size": Field("scalar", weight="one", what="how many rows it has"),
            "label": Field("scalar", weight="one", what="the sum of its labels"),
            "present": Field("input", weight="one", what="how many rows have each column"),
            "counts": counts,
            "loss": Field("scalar", weight="one", what="its validation loss"),
            **{
                name: Field(("trees_a_round", parents, "input", "cells", 2), weight="one", what=sums)
                for name, parents in levels.items()
            },
        }

    def trees_a_round(self, layout: Layout) -> int:
        """How many trees a round grows: told by the model's shape."""
        shapes = {name.rpartition(".")[2]: shape for name, shape in layout.named}
        if "missing_left" not in shapes:
            raise UnalikeError(f"{type(self).__name__} grows a model of its own: give None in the place of a model.")
        return shapes["column"][0] // self.trees

    # ---- a client: cuts by counting

    def ask(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(None, data="train", fn=row).then(self.count_rows)

    def count_rows(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        real = real_rows(me, rows)
        present = (real[:, None] & ~torch.isnan(rows[:, :-1])).sum(0)
        label = torch.where(real, exact.fixed(rows[:, -1].double()), 0).sum()
        sizes = {"present": self.out(me, present, 1), "size": self.out(me, real.sum(), 1)}
        return {}, {**sizes, "label": self.out(me, label)}

    def ask_counts(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(None, data="train", fn=row).then(self.count)

    def count(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        counts = bins.counted(rows[:, :-1], real_rows(me, rows), m.thresholds)
        return {}, {"counts": self.out(me, counts, 1)}

    # ---- a client: a tree

    def begin(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(None, data="train", fn=row).then(self.root)

    def root(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        codes, pair = self.derived(me, m, rows)
        sums = client.root_histograms(codes, pair, self.bins)
        kept: dict[str, Tensor | float] = {"codes": codes, "pair": pair, "place": torch.ones_like(pair[..., 0])}
        return kept, {"level0": self.out(me, sums)}

    def derived(self, me: Me, m: Fields, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes of rows, and the derivatives at the forest so far, zero for rows that are not drawn."""
        codes, margin = self.standing(m, rows[:, :-1])
        pair = exact.derivatives(margin, rows[:, -1], classes_of(me.layout))
        counts = real_rows(me, rows)
        if self.rows < 1:
            counts = counts & (me.uniform("rows", (len(rows),)) < self.rows)
        return codes, torch.where(counts[:, None, None], pair, 0)

    def standing(self, m: Fields, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes of rows and their margins at the forest so far."""
        none = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        codes = bins.codes(x, m.cuts, none).to(torch.int64)
        return codes, client.margins(codes, client.Forest(*(m[name] for name in PARTS)), m.base, self.bins)

    def level(self, me: Me, s: Fields, m: Fields) -> Answer:
        splits = client.Forest(m.column, m.bin, m.missing_left, m.column)
        place, sums = client.next_level(s.codes, s.pair, s.place, splits, m.asked, self.bins)
        level = m.asked.shape[-1].bit_length()
        return {"place": place}, {f"level{level}": self.out(me, sums)}

    def judge(self, me: Me, s: Fields, m: Fields) -> Answer:
        given = {name: m[name] for name in (*PARTS, "cuts", "base")}
        return me.sum(self.row_loss, data="validation", classes=classes_of(me.layout) or 0, **given).then(self.judged)

    def row_loss(self, batch: Batch, classes: int, **m: Tensor) -> Tensor:
        _, margin = self.standing(Fields(m), batch.x.flatten(1))
        return exact.losses(margin, batch.y, classes or None)

    def judged(self, me: Me, s: Fields, m: Fields, loss: Tensor) -> Answer:
        return {}, {"loss": self.out(me, loss)}

    # ---- the server

    def setup(self, server: Server, everyone: Cohort) -> None:
        self.trees_a_round(server.layout)
        first = everyone.call(self.ask)
        search = bins.Search(self.total(first, "present"), self.bins)
        for _ in range(bins.STEPS):
            search.take(self.total(everyone.call(self.ask_counts, thresholds=search.thresholds), "counts"))
        server.cuts, server.count, server.stopped = search.cuts, 0, False
        server.best, server.best_count = float("inf"), 0
        server.base = torch.tensor(self.start(server, first), dtype=torch.float64)
        self.write(server, self.nothing(server))

    def start(self, server: Server, first: Replies) -> float:
        """Return where margins begin."""
        if self.base is not None or classes_of(server.layout) is not None:
            return self.base or 0.0
        return mean_of(int(self.total(first, "label")), max(1, int(self.total(first, "size"))))

    def nothing(self, server: Server) -> dict[str, Tensor]:
        """Return a forest without trees."""
        shape = 0, self.trees_a_round(server.layout), 2 << self.depth
        kinds = torch.int32, torch.int32, torch.bool, torch.float64
        return {name: torch.zeros(shape, dtype=kind) for name, kind in zip(PARTS, kinds, strict=True)}

    def round(self, server: Server, cohort: Cohort) -> None:
        if server.stopped or server.count >= self.trees:
            return
        grown = self.grown(server, cohort)
        self.write(server, {name: torch.cat([server.values[name], grown[name]]) for name in PARTS})
        if self.patience is not None:
            self.watch(server, cohort)

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

    def forest(self, server: Server) -> Message:
        """Return the forest, cuts and start of margins, as clients get them."""
        return {name: server.values[name] for name in (*PARTS, "cuts", "base")}

    def write(self, server: Server, forest: dict[str, Tensor]) -> None:
        """Let these be the server's trees, and write them into the model."""
        for name in PARTS:
            setattr(server, name, forest[name])
        server.count = len(forest["value"])
        server.w = written(server.w, server.layout, forest, server.cuts, float(server.base))

    def watch(self, server: Server, cohort: Cohort) -> None:
        """Look at the validation loss; when it has not fallen for `patience` trees, end with the best number of them."""
        loss = float(self.total(cohort.everyone.call(self.judge, **self.forest(server)), "loss"))
        if loss < server.best:
            server.best, server.best_count = loss, server.count
        if server.count - server.best_count >= self.patience:  # type: ignore[operator]
            server.stopped = True
            self.write(server, {name: server.values[name][: server.best_count] for name in PARTS})

    # ---- whole numbers on their way

    def out(self, me: Me, values: Tensor, unit: int = exact.SCALE) -> Tensor:
        """Return whole numbers as they are sent."""
        return values if self.whole else (values.double() / unit).to(me.n.dtype)

    def total(self, replies: Replies, name: str) -> Tensor:
        """Return a sum over clients as whole numbers."""
        if self.whole:
            return replies.whole(name)
        unit = 1 if name in COUNTS else exact.SCALE
        return torch.round(replies.sum(name).double() * unit).to(torch.int64)


def row(batch: Batch) -> Tensor:
    """A sample's numbers, and its label behind them."""
    x = batch.x.flatten(1)
    return torch.cat([x, batch.y[:, None].to(x.dtype)], 1)


def real_rows(me: Me, rows: Tensor) -> Tensor:
    """Return which rows are samples, and no padding."""
    return torch.arange(len(rows), device=rows.device) < me.n


def classes_of(layout: Layout) -> int | None:
    """Return how many classes a forest tells apart, None where it predicts a number."""
    base = next(shape for name, shape in layout.named if name.endswith("base"))
    return None if base[0] == 1 else base[0]


def instruction(growth: Growth, level: int) -> dict[str, Tensor]:
    """Return what clients are told about a tree after a level: its splits, and of each parent the child wanted."""
    first, last = 1 << level, 2 << level
    asked = torch.full((first,), -1, dtype=torch.int64)
    wanted = torch.from_numpy(growth.asked) if growth.level == level + 1 else torch.empty(0, dtype=torch.int64)
    asked[wanted // 2 - first] = wanted % 2
    column = torch.from_numpy(growth.tree.column[first:last]).clone()
    tree = growth.tree
    bin, missing_left = (torch.from_numpy(part[first:last]) for part in (tree.bin, tree.missing_left))
    return {"column": column, "bin": bin, "missing_left": missing_left, "asked": asked}


def as_tensors(tree: Tree) -> dict[str, Tensor]:
    """Return a tree as a forest has it."""
    whole = {name: torch.from_numpy(getattr(tree, name)).to(torch.int32) for name in ("column", "bin")}
    return {**whole, "missing_left": torch.from_numpy(tree.missing_left), "value": torch.from_numpy(tree.value)}


def stacked(parts: list[dict[str, Tensor]], rounds: bool = False) -> dict[str, Tensor]:
    """Return tensors of several trees as one each."""
    out = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return {name: value[None] for name, value in out.items()} if rounds else out


def written(w: Tensor, layout: Layout, forest: dict[str, Tensor], cuts: Tensor, base: float) -> Tensor:
    """Return the model's vector with these trees in it."""
    views = {name.rpartition(".")[2]: (name, value.clone()) for name, value in layout.views(w).items()}
    parts = {name: value for name, (_, value) in views.items()}
    whole = complete(forest, cuts)
    count = forest["value"].shape[0] * forest["value"].shape[1]
    for name, value in parts.items():
        value.zero_()
        if name == "base":
            value[:] = base
        else:
            value[:count] = whole[name].to(value)
    return layout.flat({full: value for full, value in views.values()})


def complete(forest: dict[str, Tensor], cuts: Tensor) -> dict[str, Tensor]:
    """Return trees as the model has them: values of columns in the place of bins, and leaves all at the bottom."""
    column, bin, missing_left, value = (forest[name].flatten(0, 1).clone() for name in PARTS)
    inner = column.shape[1] // 2
    value = value.clone()
    for place in range(1, inner):  # what ends here, ends in all leaves below
        leaf = column[:, place] == LEAF
        for child in (2 * place, 2 * place + 1):
            value[:, child] = torch.where(leaf, value[:, place], value[:, child])
            if child < inner:
                column[:, child] = torch.where(leaf, LEAF, column[:, child])
    last = torch.full((len(cuts), 1), bins.FARTHEST)
    at = torch.cat([cuts.float().cpu(), last], 1)[column.clamp(min=0).long(), bin.long()]
    split = slice(1, inner)
    return {
        "column": column[:, split].clamp(min=0),
        "cut": at[:, split],
        "missing_left": missing_left[:, split],
        "value": value[:, inner:],
    }
