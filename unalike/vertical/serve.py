"""The guest between machines: wait for the hosts, match people, train, and continue after a party was lost."""

from __future__ import annotations

import dataclasses as dc
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from unalike.errors import UnalikeError
from unalike.vertical.align import Report, align, greet, overlapping
from unalike.vertical.facts import write_facts
from unalike.vertical.line import Listener
from unalike.vertical.links import Direct, Gone, Link, ask, introduced
from unalike.vertical.method import Vertical, settings_of
from unalike.vertical.node import Node
from unalike.vertical.parties import COORDINATOR, held_out
from unalike.vertical.predict import check_every_row, concluded, fallen_back, joint
from unalike.vertical.run import Session, Settings, begun, keep_alone, read_history, trained_alone, write_history
from unalike.vertical.tables import Table, identifying


@dc.dataclass
class Guest:
    """What the guest needs for a run between machines."""

    table: Table
    listener: Listener
    hosts: Sequence[str]
    folder: Path
    patience: float = 60.0
    unmatched: str = "drop"
    overlap: str = "refuse"
    test: float = 0.2
    scale: str = "standard"
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.node = Node(self.table, folder=self.folder / self.table.name, secret=True)
        self.node.role = "guest"
        self.report = Report(self.table.name, {self.table.name: len(self.table)}, unmatched=self.unmatched)
        self.uses: dict[str, list[str]] = {}

    def meet(
        self, method: Vertical | None = None, secure_sum: bool = False, kept: bool = True
    ) -> tuple[list[Link], Link | None]:
        """Wait for all parties, ask them whether they take part, and match people unless that was done before.

        kept: keep the alignment, for a run that may be resumed.
        """
        coordinated = method is not None and method.coordinated
        names = [*self.hosts, *([COORDINATOR] if coordinated else [])]
        links: list[Link] = list(self.listener.links(names, self.patience))
        third = links.pop() if coordinated else None
        if third is not None and greet(third).role != COORDINATOR:
            raise UnalikeError(f"{third.name} must come without a table.")
        columns = {}
        for link in links:
            about = greet(link)
            if about.role != "host":
                raise UnalikeError(f"{link.name} came without a table.")
            columns[link.name], self.report.rows[link.name] = about.columns, about.rows
            if method is not None:
                ask(link, "agree", method=method.name, settings=settings_of(method), secure_sum=secure_sum)
        self.report.shared = {n: [c for c in names if c in self.table.columns] for n, names in columns.items()}
        self.report.identified = {
            n: identifying(self.table, shared) for n, shared in self.report.shared.items() if shared
        }
        own, self.uses = overlapping(self.table.columns, columns, self.overlap)
        self.node.table = self.table.without([c for c in self.table.columns if c not in own])
        for line in self.report.before:
            self.say(line)
        self._align(links, kept)
        return links, third

    def _align(self, links: list[Link], kept: bool) -> None:
        """Use the alignment that every party has kept, or make a new one."""
        if kept and self.node.load_alignment():
            for link in links:
                if ask(link, "alignment")[0].get("alignment") != self.node.alignment:
                    raise UnalikeError(f"{link.name} was matched for another run: choose another folder.")
        else:
            align(self.node, links, self.unmatched, alignment=secrets.token_hex(8) if kept else "")
            self.node.keep_alignment()
        assert self.node.positions is not None
        self.report.matched = {name: int(rows.sum()) for name, rows in self.node.matched.items()}
        self.report.aligned = len(self.node.positions)

    def train(self, method: Vertical, settings: Settings, classes: int | None, resume: bool = False) -> Session:
        """Train; if a party is lost, wait for it, and return to the last epoch that all parties have kept."""
        history = begun(self.folder, method, settings, [self.table.name, *self.hosts], resume)
        while True:
            try:
                session = self._session(method, settings, classes)
                if history:
                    session.restore(len(history))
                for number in range(len(history) + 1, settings.epochs + 1):
                    line = session.epoch(number)
                    session.save(number)
                    history.append(line)
                    write_history(self.folder, history)
                    write_facts(self.folder, session, self.report, [self.node])
                    self.say(", ".join(f"{k.replace('_', ' ')} {_short(v)}" for k, v in line.items()))
                if settings.fallback == "alone":
                    keep_alone(self.folder, trained_alone(session, method))
                return session
            except Gone as error:
                self.say(f"{error} Waiting up to {self.patience:g} s for it.")
                # also those that are there: their answers to the lost batch may be on the way
                for name in self.listener.names:
                    self.listener.forget(name)
                history[:] = read_history(self.folder)

    def _session(self, method: Vertical, settings: Settings, classes: int | None) -> Session:
        links, third = self.meet(method, settings.secure_sum)
        assert self.node.positions is not None
        train, test = held_out(len(self.node.positions), self.test, settings.seed)
        session = Session(
            self.node, links, method, settings, train, test, self.scale, classes, self.uses, self.unmatched, third,
            secret=True,
        )  # fmt: skip
        session.set_up()
        return session

    def predict(self, share: bytes, fallback: str, alone: bytes | None, trained: Sequence[str] = ()) -> Any:
        """Predict all rows of the table with the connected hosts, by the parts that every party has kept.

        trained: all hosts of the training, if some are not connected.
        """
        check_every_row(self.node)
        links, _ = self.meet(kept=False)
        answers = [ask(link, "adopt")[0] for link in links]
        columns = {link.name: int(header.get("columns") or 0) for link, header in zip(links, answers, strict=True)}
        self.node.adopt(share)
        if self.node.about.get("secure_sum") and len(links) == self.node.about["parties"] - 1:
            introduced(links, answers)
        assert self.node.me is not None
        there = {link.name: link for link in links}
        away = [name for name in trained if name not in there]
        none = torch.zeros(len(self.node.me.x), dtype=torch.bool)
        every = {name: there.get(name) or Direct(Node(None, name)) for name in trained or there}
        matched = {name: self.node.matched.get(name, none) for name in every}
        z = joint(self.node, [*every.values()], dict.fromkeys(every, 0) | columns, matched, away)
        outputs = fallen_back(self.node, z, matched, fallback, alone)
        back = torch.empty_like(outputs)
        assert self.node.positions is not None
        back[self.node.positions] = outputs
        return concluded(self.node, z, back)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
