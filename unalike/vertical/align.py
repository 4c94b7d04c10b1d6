"""Find the rows that parties have in common, by private set intersection, and report the result."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import unalike
from unalike.errors import UnalikeError, unknown
from unalike.text import listed
from unalike.vertical import psi
from unalike.vertical.links import Link, answered, ask
from unalike.vertical.node import MOST_COLUMNS, Node
from unalike.vertical.tables import WIDE

UNMATCHED = ("drop", "missing", "mask")
OVERLAP = ("refuse", "guest", "host", "both")


@dc.dataclass(frozen=True)
class Greeting:
    """What a party tells about itself at first."""

    name: str
    role: str
    columns: tuple[str, ...]
    rows: int


@dc.dataclass
class Report:
    """The result of alignment, and what each side learned by it."""

    guest: str
    rows: dict[str, int]
    matched: dict[str, int] = dc.field(default_factory=dict)  # of each host
    aligned: int = 0
    unmatched: str = "drop"
    shared: dict[str, list[str]] = dc.field(default_factory=dict)  # for each host, columns that the guest has too
    # for each host, the share of its rows that these columns identify
    identified: dict[str, float] = dc.field(default_factory=dict)
    twice: dict[str, dict[str, list[str]]] = dc.field(default_factory=dict)

    @property
    def before(self) -> list[str]:
        """Return remarks to read before ids are compared."""
        lines = []
        for host, columns in self.shared.items():
            share = self.identified.get(host, 0.0)
            if columns and share > WIDE:
                verbs = ("is", "tells") if len(columns) == 1 else ("are", "tell")
                lines.append(
                    f"{listed(columns)} {verbs[0]} at {self.guest} and at {host}, and {verbs[1]} {share:.0%} of "
                    f"{self.guest}'s people apart: who has both tables finds them without an id."
                )
        return lines

    @property
    def lines(self) -> list[str]:
        """Return the report in plain words."""
        out = [*self.before]
        for host, matched in self.matched.items():
            out.append(
                f"{matched:,} matched; {self.guest} alone {self.rows[self.guest] - matched:,}; {host} alone "
                f"{self.rows[host] - matched:,}"
            )
        for party, ids in self.twice.items():
            if ids:
                places = ", ".join(place for where in ids.values() for place in where)
                out.append(f"{len(ids)} {'id' if len(ids) == 1 else 'ids'} twice in {party} ({places[:120]}): left out")
        what = {"drop": "rows that all have", "missing": "all of the guest's rows", "mask": "all of the guest's rows"}
        out.append(f"{self.aligned:,} rows are learned from: {what[self.unmatched]}")
        for host in self.matched:
            out.append(
                f"{self.guest} learned how many ids {host} has and which of its own are among them; {host} learned the "
                f"same of {self.guest}. Neither learned an id that it does not have."
            )
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines)


def greet(link: Link) -> Greeting:
    """Ask a party for its greeting."""
    header, _ = ask(link, "hello", version=unalike.__version__)
    columns, rows, role = header.get("columns"), header.get("rows"), header.get("role")
    right = isinstance(columns, list) and len(columns) <= MOST_COLUMNS and all(isinstance(c, str) for c in columns)
    if (
        not right
        or type(rows) is not int
        or rows < 0
        or role not in ("host", "coordinator")
        or header.get("name") != link.name
    ):
        raise UnalikeError(f"{link.name} answered with something else than who it is.")
    return Greeting(link.name, role, tuple(columns), rows)  # type: ignore[arg-type]


def overlapping(
    guest: Sequence[str], hosts: Mapping[str, Sequence[str]], overlap: str
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the columns that the guest and each host use, where several parties have the same column.

    "guest" keeps the guest's copy (among hosts, the first's), "host" the first host's, "both" every copy.
    """
    if overlap not in OVERLAP:
        raise unknown("overlap", overlap, OVERLAP)
    order = {**hosts, "": guest} if overlap == "host" else {"": guest, **hosts}
    used, taken = {}, set()
    for name, columns in order.items():
        twice = [column for column in columns if column in taken]
        if twice and overlap == "refuse":
            raise UnalikeError(
                f"{listed(twice)} of {name or 'the guest'} {'is' if len(twice) == 1 else 'are'} at another party too: "
                "say whose counts, overlap='guest', 'host' or 'both' (--overlap), or drop it."
            )
        used[name] = [column for column in columns if overlap == "both" or column not in taken]
        taken |= {*columns}
        if not used[name]:
            raise UnalikeError(f"{name or 'the guest'} has no column that is not another's too.")
    return used.pop(""), used


def align(
    guest: Node, links: Sequence[Link], unmatched: str = "drop", psi_key: bytes | None = None, alignment: str = ""
) -> dict[str, int]:
    """Compare ids with every host, and tell each which of its rows are used, in an order that reveals nothing.

    Return how many rows each host shares with the guest.
    """
    if unmatched not in UNMATCHED:
        raise unknown("way with rows that do not match", unmatched, UNMATCHED)
    assert guest.table is not None
    for link in links:
        # sent to all at once, so that hosts mask ids while the guest masks its own
        link.send({"kind": "points", "columns": guest.table.columns}, {})
    side = psi.Side(guest.table.ids, psi_key)
    pairs = [_pairs(side, link) for link in links]
    found = [dict(pair) for pair in pairs]
    if unmatched == "drop":
        first = [mine for mine, _ in pairs[0]] if pairs else range(len(guest.table))
        order = [mine for mine in first if all(mine in of for of in found)]
    else:
        order = [*range(len(guest.table))]
    if not order:
        raise UnalikeError("No id is at all parties: are these the same people, written in the same way?")
    for link, of in zip(links, found, strict=True):
        ask(link, "align", {"places": torch.tensor([of.get(mine, -1) for mine in order])}, alignment=alignment)
    guest.positions = torch.from_numpy(side.order)[torch.tensor(order)]
    guest.alignment = alignment
    guest.matched = {
        link.name: torch.tensor([mine in of for mine in order]) for link, of in zip(links, found, strict=True)
    }
    return {link.name: len(of) for link, of in zip(links, found, strict=True)}


def _pairs(side: psi.Side, link: Link) -> list[tuple[int, int]]:
    """Return positions (guest's, host's) of common ids; both sides multiply the other's points at the same time."""
    _, tensors = answered(link)
    theirs = _points(tensors, link.name)
    link.send({"kind": "mask"}, {"points": side.once})
    their_twice = side.twice(theirs, link.name)
    _, tensors = answered(link)
    own_twice = _points(tensors, link.name)
    if own_twice.shape != side.once.shape:
        raise UnalikeError(f"{link.name} sent {len(own_twice)} points for {len(side.once)}.")
    return psi.matches(own_twice, their_twice, link.name)


def _points(tensors: dict[str, Any], who: str) -> torch.Tensor:
    if set(tensors) != {"points"}:
        raise UnalikeError(f"{who} sent something else than points.")
    psi.as_points(tensors["points"], who)
    return tensors["points"]
