"""The common part of methods that grow trees: common cuts of columns by counting, the forest, and its validation loss.

Not a method by itself: see hist_boost.py and tree_bagging.py.
"""

from __future__ import annotations

import dataclasses as dc
from typing import ClassVar

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Layout, Me, Message, Method, Replies, Server, knob
from unalike.trees import bins, client, exact, stack
from unalike.trees.fit import start_margin
from unalike.trees.forest import PARTS, classes_of, no_trees, written
from unalike.trees.settings import Boosting

LARGEST_LOSS = 1 << 62  # larger than any sum of losses
COUNTS = ("present", "counts", "size")  # sums that are not derivatives, losses or labels


@dc.dataclass(frozen=True)
class Growing(Boosting, Method):
    """Trees on bins that all clients have in common; a subclass's `grown` returns a round's trees."""

    whole: bool = knob(True, "sums are whole numbers, bit for bit the pooled ones; off: real numbers, for noise")

    needs_model = False
    network = "forest"
    on_cpu = True  # trees are counted, not multiplied
    one_network = "grows one forest for all"
    parts: ClassVar[tuple[str, ...]] = PARTS  # the arrays of the forest that the server keeps

    def network_options(self) -> dict[str, int]:
        return {"trees": self.trees, "depth": self.depth}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        one = {"size": "how many rows it has", "label": "the sum of its labels", "loss": "its validation loss"}
        cuts = "input", self.bins - 1, bins.WAYS - 1
        return {
            **{name: Field("scalar", weight="one", what=what) for name, what in one.items()},
            "present": Field("input", weight="one", what="how many rows have each column"),
            "counts": Field(cuts, weight="one", what="counts of values below cuts"),
        }

    def trees_a_round(self, layout: Layout) -> int:
        """Return how many trees a round grows, from the model's shape."""
        return exact.outputs(classes_of(layout))

    # ---- a client: cuts by counting

    def ask(self, me: Me, s: Fields, m: Fields) -> Answer:
        rows = me.outputs(None, data="train", fn=client.row)
        return rows.then(self.count if "low" in m else self.count_rows)

    def count_rows(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        real = client.real_rows(rows, me.n)
        present = (real[:, None] & ~torch.isnan(rows[:, :-1])).sum(0)
        label = torch.where(real, exact.fixed(rows[:, -1].double()), 0).sum()
        sizes = {"present": self.out(me, present, 1), "size": self.out(me, real.sum(), 1)}
        return {}, {**sizes, "label": self.out(me, label)}

    def count(self, me: Me, s: Fields, m: Fields, rows: Tensor) -> Answer:
        counts = stack.counted(rows[:, :-1], me.n, m.low, m.step.to(torch.int64))
        return {}, {"counts": self.out(me, counts, 1)}

    # ---- a client: rows, and where they stand

    def derived(self, me: Me, m: Fields, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes of rows, and the derivatives at the current forest, zero for rows that are not drawn."""
        counts = client.real_rows(rows, me.n)
        if self.rows < 1:
            counts = counts & (me.uniform("rows", (len(rows),)) < self.rows)
        forest = m.cuts, m.base, *(m[name] for name in PARTS)
        codes, pair = stack.derived(rows, me.n, counts, *forest, classes_of(me.layout) or 0)
        return codes, pair

    def standing(self, m: Fields, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes of rows and their margins at the current forest."""
        codes = bins.codes(x, m.cuts)
        return codes, client.margins(codes, client.Forest(*(m[name] for name in PARTS)), m.base, self.bins)

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
        first = everyone.call(self.ask)
        search = bins.Search(self.total(first, "present"), self.bins)
        for _ in range(bins.STEPS):
            found = everyone.call(self.ask, low=search.low, step=float(search.step))
            search.take(self.total(found, "counts"))
        server.cuts, server.count, server.stopped = search.cuts, 0, False
        server.best, server.best_count = LARGEST_LOSS, 0
        label, size = (int(self.total(first, name)) for name in ("label", "size"))
        base = start_margin(self, classes_of(server.layout), label, size)
        server.base = torch.tensor(base, dtype=torch.float64)
        self.write(server, no_trees(self.trees_a_round(server.layout), self.depth, self.parts))

    def round(self, server: Server, cohort: Cohort) -> None:
        if server.stopped or server.count >= self.trees:
            return
        grown = self.grown(server, cohort)
        self.write(server, {name: torch.cat([server.values[name], grown[name]]) for name in self.parts})
        if self.patience is not None:
            self.watch(server, cohort)

    def grown(self, server: Server, cohort: Cohort) -> dict[str, Tensor]:
        """Return the round's trees as a forest."""
        raise NotImplementedError

    def forest(self, server: Server) -> Message:
        """Return the forest, cuts and start of margins, as clients get them."""
        return {name: server.values[name] for name in (*PARTS, "cuts", "base")}

    def write(self, server: Server, forest: dict[str, Tensor]) -> None:
        """Set the server's trees, and write them into the model."""
        for name in self.parts:
            setattr(server, name, forest[name])
        server.count = len(server.value)
        server.w = written(server.w, server.layout, forest, server.cuts, float(server.base))

    def watch(self, server: Server, cohort: Cohort) -> None:
        """Compute the validation loss; if it has not fallen for `patience` trees, end with the best number of trees."""
        loss = int(self.total(cohort.everyone.call(self.judge, **self.forest(server)), "loss"))
        if loss < server.best:
            server.best, server.best_count = loss, server.count
        if server.count - server.best_count >= self.patience:  # type: ignore[operator]
            server.stopped = True
            self.write(server, {name: server.values[name][: server.best_count] for name in self.parts})

    # ---- whole numbers in messages

    def out(self, me: Me, values: Tensor, unit: int = exact.SCALE) -> Tensor:
        """Return whole numbers in the form in which they are sent."""
        return values if self.whole else (values.double() / unit).to(me.n.dtype)

    def total(self, replies: Replies, name: str) -> Tensor:
        """Return a sum over clients as whole numbers."""
        unit = 1 if name in COUNTS else exact.SCALE
        return replies.whole(name) if self.whole else (replies.sum(name).double() * unit).round().to(torch.int64)
