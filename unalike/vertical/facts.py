"""What a report shows of a vertical run beside its numbers, as vertical.json in the run's folder: who takes part, how
people were matched, who sees what, and the coefficients that are in this folder.

In a simulation that is every party's; between machines the guest's own, since hosts keep theirs.
"""

from __future__ import annotations

import dataclasses as dc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unalike.files import replace
from unalike.vertical.align import Report
from unalike.vertical.node import Node

if TYPE_CHECKING:
    from unalike.vertical.run import Session

FILE = "vertical.json"
INTERCEPT = "(intercept)"


def write_facts(folder: Path, session: Session, report: Report, nodes: Sequence[Node]) -> None:
    """Write the file. nodes: the parties whose part of the model is in this folder, the guest first."""
    columns = {session.guest.name: session.me.columns, **session.hosts.columns}
    parties = [{"name": n, "rows": report.rows.get(n), "columns": k} for n, k in columns.items()]
    content = {
        "parties": parties,
        "matching": report.lines,
        "rows": {"training": len(session.train), "test": len(session.test)},
        "sees": [dc.asdict(sight) for sight in session.sees],
        "coefficients": [found for node in nodes if (found := coefficients(node))],
    }
    replace(folder / FILE, json.dumps(content).encode(), sync=False)


def coefficients(node: Node) -> dict[str, Any] | None:
    """Return a party's own coefficients by the names of its columns, one per output; None if its model has no
    coefficients. They are of prepared columns: per standard deviation, if columns are standardised."""
    if node.me is None or not isinstance(getattr(node.me, "theta", None), torch.Tensor):
        return None
    names = [*_columns(node), *(f"no row at {host}" for host in node.about.get("flags") or ())]
    rows = dict(zip(names, node.me.theta.tolist(), strict=False))
    if node.me.is_guest:
        # in Hardy's way it is the coefficient of one more column
        rows[INTERCEPT] = (node.me.theta[-1] if len(node.me.theta) > len(names) else node.me.b).tolist()
    classes = [*((node.table.label_names if node.table else None) or ())]
    outputs = classes if len(classes) == node.me.outputs else [f"class {k}" for k in range(node.me.outputs)]
    return {"party": node.name, "outputs": outputs, "columns": [*rows], "values": [*rows.values()]}


def _columns(node: Node) -> list[str]:
    """Return the names of the columns that a party's model sees."""
    prepared = node.preparation.features if node.preparation else None
    table = node.table
    if prepared is not None or table is None:
        return prepared or []
    return table.schema.features if table.schema is not None else table.columns
