"""Is the cooperation worth it? The joint model beside each party alone, and beside the pooled table.

All models are trained by the same method, for the same epochs, on the same rows, and tested on the same rows. A host
alone, and the pooled table, are for experiments: they need labels, or columns, that the parties do not have.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.data.schema import Schema
from unalike.draws import generator
from unalike.errors import UnalikeError
from unalike.vertical.method import Vertical
from unalike.vertical.node import Node
from unalike.vertical.parties import Parties
from unalike.vertical.run import Session, Settings, fit, scored
from unalike.vertical.tables import Table

# resamples of the test rows, for the interval of a difference
DRAWS = 2000


@dc.dataclass(frozen=True)
class Line:
    """One model: who has it, its scores on the test rows, and for each row whether it is right (or its error)."""

    name: str
    scores: dict[str, float]
    right: np.ndarray
    needs: str = ""


@dc.dataclass(frozen=True)
class Comparison:
    """The models, the joint one first, and the verdict."""

    lines: list[Line]
    guest: str
    # what `right` holds: "accuracy", or "squared error"
    unit: str

    @property
    def gain(self) -> tuple[float, float, float]:
        """Return the gain of the joint model over the guest's own, and its 95 % interval over resamples of the test
        rows."""
        joint, own = (next(line for line in self.lines if line.name == name).right for name in ("joint", self.guest))
        better = joint - own if self.unit == "accuracy" else own - joint
        draws = generator(0, "vertical compare").integers(0, len(better), (DRAWS, len(better)))
        low, high = np.quantile(better[draws].mean(1), [0.025, 0.975])
        return float(better.mean()), float(low), float(high)

    @property
    def verdict(self) -> str:
        """Return the answer in plain words."""
        mean, low, high = self.gain
        size = f"{100 * mean:+.1f} points" if self.unit == "accuracy" else f"{mean:+.4g} less squared error"
        between = f"{100 * low:+.1f} to {100 * high:+.1f}" if self.unit == "accuracy" else f"{low:+.4g} to {high:+.4g}"
        if low > 0:
            return f"The cooperation is worth it to {self.guest}: {size} ({between}) on {self._rows} test rows."
        if high < 0:
            return f"The joint model is worse than {self.guest}'s own: {size} ({between}) on {self._rows} test rows."
        return f"Whether it is worth it cannot be told from {self._rows} test rows: {size} ({between})."

    @property
    def _rows(self) -> int:
        return len(self.lines[0].right)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the table: column names, and one row of text per model."""
        names = list(self.lines[0].scores)
        cells = [[line.name, *(f"{line.scores[n]:.4f}" for n in names), line.needs] for line in self.lines]
        return ["model", *names, "needs"], cells


def compare(method: Vertical, parties: Parties, protection: str = "none", **settings: Any) -> Comparison:
    """Train the joint model, every party's alone and the pooled one, and compare them."""
    if not len(parties.test):
        raise UnalikeError("A comparison needs test rows: give test=0.2 (--test 0.2).")
    run = fit(method, parties, protection, **settings)
    joint, how = run.session, Settings(**settings)
    lines = [_line("joint", joint, "")]
    nodes = [parties.guest, *parties.hosts]
    for node in nodes:
        needs = "" if node is parties.guest else "the guest's labels"
        lines.append(_line(node.name, _alone([node], parties, method, how), needs))
    lines.append(_line("pooled", _alone(nodes, parties, method, how), "everybody's columns in one place"))
    return Comparison(lines, parties.guest.name, "squared error" if joint.loss.task == "number" else "accuracy")


def _alone(nodes: Sequence[Node], parties: Parties, method: Vertical, settings: Settings) -> Session:
    """Train on the columns of some parties in one place."""
    guest = parties.guest
    assert guest.table is not None and guest.positions is not None
    parts = []
    for node in nodes:
        assert node.table is not None and node.positions is not None
        own = node.table.x[node.positions.clamp(min=0)]
        parts.append(torch.where((node.positions >= 0)[:, None], own, torch.nan))
    y = guest.table.y[guest.positions] if guest.table.y is not None else None
    table = Table(nodes[0].name, [str(k) for k in range(len(parts[0]))], torch.cat(parts, 1), _schema(nodes), y)
    one = Node(table)
    one.role, one.positions = "guest", torch.arange(len(table))
    plain = settings.alone
    session = Session(one, [], method.bare, plain, parties.train, parties.test, parties.scale, parties.classes)
    session.set_up()
    for number in range(1, plain.epochs + 1):
        session.epoch(number)
    return session


def _schema(nodes: Sequence[Node]) -> Schema | None:
    """Return the schema of the parties' columns side by side, so that they are prepared as each prepares its own."""
    schemas = [node.table.schema for node in nodes if node.table is not None and node.table.schema is not None]
    if len(schemas) < len(nodes):
        return None
    return dc.replace(schemas[0], columns=tuple(column for schema in schemas for column in schema.columns))


def _line(name: str, session: Session, needs: str) -> Line:
    z = session.method.scores(session.me, session.hosts, session.test)
    y = session.me.y[session.test]
    return Line(name, scored(z, y, session.loss, target=session.target), _right(z, y, session), needs)


def _right(z: Tensor, y: Tensor, session: Session) -> np.ndarray:
    if session.loss.task == "number":
        return ((z[:, 0] - y).square() * (session.target or [0.0, 1.0])[1] ** 2).numpy()
    return (session.loss.likelihood(z).argmax(1) == y).double().numpy()
