"""Use a vertical model: jointly, with a party absent, or one party's share by itself.

A share is one party's part of a model with everything that this party needs to prepare its rows (`Run.export`). Rows
are those of the guest's table; hosts' rows are found by their ids. How a row that a host lacks is treated was decided
when the model was trained: it is refused, the host's part counts as zero, or the guest's own model answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Fields
from unalike.data.schema import Schema
from unalike.errors import UnalikeError, unknown
from unalike.run.predict import Prediction
from unalike.text import listed
from unalike.vertical.exchange import Hosts
from unalike.vertical.fields import answers
from unalike.vertical.links import Direct, Link, introduced
from unalike.vertical.losses import LOSSES
from unalike.vertical.node import Node, read_share
from unalike.vertical.sums import summed
from unalike.vertical.tables import Table, read_table


def predicted(
    shares: Mapping[str, bytes],
    tables: Mapping[str, Any],
    ids_by: Mapping[str, str],
    fallback: str,
    alone: bytes | None = None,
    duplicates: str = "refuse",
    names: Sequence[str] = (),
) -> Any:
    """Predict the rows of the guest's table; the first share is the guest's. duplicates: ids that are twice at a host:
    refused, or rows that the host does not have. names: all parties, where the shares of absent ones are not here."""
    guest_name, *host_names = names or shares
    for name in tables:
        if name not in (guest_name, *host_names):
            raise unknown("party", name, [guest_name, *host_names])
    if guest_name not in tables:
        raise UnalikeError(f"{guest_name} must be there: it holds the top of the model.")
    nodes = {name: _node(name, tables[name], shares[name], ids_by.get(name, ""), duplicates) for name in tables}
    guest = nodes[guest_name]
    check_every_row(guest)
    matched = {name: _match(guest, nodes.get(name)) for name in host_names}
    away = [name for name in host_names if name not in nodes]
    links = [Direct(nodes.get(name) or Node(None, name)) for name in host_names]
    for node in nodes.values():
        node.adopt(shares[node.name])
    if guest.about.get("secure_sum") and not away:
        introduced(links, [nodes[name].ready_for_sums() for name in host_names])
    columns = {name: read_share(shares[name])[0]["columns"] if name in shares else 0 for name in host_names}
    z = joint(guest, links, columns, matched, away)
    return concluded(guest, z, fallen_back(guest, z, matched, fallback, alone))


def check_every_row(guest: Node) -> None:
    """Refuse to predict a table of which rows were left out: predictions come in the order of its rows."""
    if guest.table is not None and guest.table.left_out:
        places = listed([place for where in guest.table.left_out.values() for place in where][:6])
        raise UnalikeError(f"{guest.name} has ids twice ({places}): give each row to be predicted an id of its own.")


def joint(
    guest: Node, links: Sequence[Link], columns: dict[str, int], matched: Mapping[str, Tensor], away: Sequence[str]
) -> Tensor:
    """Return the joint model's outputs for all of the guest's rows."""
    me, method = guest.me, guest.method
    assert me is not None and method is not None
    flags = guest.about.get("flags") or []
    if flags:
        me.x = torch.cat([me.x, torch.stack([(~matched[name]).double() for name in flags], 1)], 1)
    if not guest.about.get("secure_sum"):
        return method.scores(me, Hosts(links, method, columns, me.outputs, away=away), torch.arange(len(me.x)))
    # rows that a host lacks are not asked for: their sum would reveal another host's own number
    z, rows = torch.zeros(len(me.x), me.outputs, dtype=torch.float64), torch.stack([*matched.values()]).all(0).nonzero()
    if len(rows):
        hosts = Hosts(links, method, columns, me.outputs, hidden=summed(method))
        z[rows[:, 0]] = method.scores(me, hosts, rows[:, 0])
    return z


def fallen_back(guest: Node, z: Tensor, matched: Mapping[str, Tensor], fallback: str, alone: bytes | None) -> Tensor:
    """Return outputs with the model's fallback applied to rows that a host does not have."""
    lacking = torch.zeros(len(z), dtype=torch.bool)
    for there in matched.values():
        lacking |= ~there
    if not lacking.any():
        return z
    if fallback == "refuse":
        hosts = listed([f"{name} ({int((~there).sum())})" for name, there in matched.items() if not there.all()])
        raise UnalikeError(
            f"{int(lacking.sum())} of {len(z)} rows are not at every party: missing at {hosts}. Train with "
            "fallback='zero' or 'alone' (--fallback) to predict such rows."
        )
    if fallback == "zero":
        return z
    if alone is None:
        raise UnalikeError("The guest's own model for rows without a host is not there: train with fallback='alone'.")
    by_itself = Node(guest.table, guest.name)
    by_itself.positions = guest.positions
    by_itself.adopt(alone)
    own = joint(by_itself, [], {}, {}, [])
    return torch.where(lacking[:, None], own, z)


def concluded(guest: Node, z: Tensor, outputs: Tensor) -> Any:
    """Return the meaning of outputs: classes with their probabilities, or numbers in their own unit."""
    target = guest.about.get("target")
    names = guest.table.label_names if guest.table else None
    if guest.about.get("task") == "number":
        mean, scale = target or (0.0, 1.0)
        return (outputs[:, 0] * scale + mean).numpy()
    likelihood = LOSSES[str(guest.about["task"])].likelihood(outputs).numpy()
    return Prediction(likelihood.argmax(1), likelihood, names)


class Share:
    """One party's part of a model, used by itself: `Share("shop.share").numbers("shop.csv", "customer")`."""

    def __init__(self, path: str | Path):
        file = Path(path)
        if not file.is_file():
            raise UnalikeError(f"There is no file {path}.")
        self.data = file.read_bytes()
        self.header, _ = read_share(self.data)
        self.party = self.header["party"]

    def numbers(self, table: Any, id: str) -> tuple[list[str], dict[str, np.ndarray]]:
        """Return ids and this party's contribution to their scores: its share z, or its network's outputs."""
        node = _node(self.party, table, self.data, id)
        node.adopt(self.data)
        assert node.me is not None and node.method is not None and node.table is not None
        function = next(f for f in answers(node.method).values() if f.takes == ("rows",))  # type: ignore[attr-defined]
        reply = function(node.me, Fields(rows=torch.arange(len(node.me.x))))
        return node.table.ids, {name: value.detach().numpy() for name, value in reply.items()}


def _node(name: str, source: Any, share: bytes, id: str, duplicates: str = "refuse") -> Node:
    """Return a party with new rows, all of them aligned with themselves."""
    header, _ = read_share(share)
    schema = None if header.get("schema") is None else Schema.from_plain(header["schema"])
    if schema is None:
        x = torch.as_tensor(np.asarray(source)).double()
        table = Table(name, [str(k) for k in range(len(x))], x.reshape(len(x), -1))
    else:
        folded = header.get("fold_case") is True
        table = read_table(name, source, id, None, (), folded, duplicates, schema)
    node = Node(table, name)
    node.positions = torch.arange(len(table))
    return node


def _match(guest: Node, host: Node | None) -> Tensor:
    """Find a host's rows by the guest's ids, and return which of these it has."""
    assert guest.table is not None
    if host is None or host.table is None:
        return torch.zeros(len(guest.table), dtype=torch.bool)
    place = {one: k for k, one in enumerate(host.table.ids)}
    host.positions = torch.tensor([place.get(one, -1) for one in guest.table.ids])
    return host.positions >= 0
