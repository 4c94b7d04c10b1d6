"""A run of vertical learning: batches, epochs, tests, checkpoints at every party, and prediction."""

from __future__ import annotations

import dataclasses as dc
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.draws import KeyedDraws, SecretDraws, check_seed, generator, key
from unalike.errors import Diverged, UnalikeError, one_of, unknown
from unalike.files import replace
from unalike.nn.metrics import auc_grouped
from unalike.settings import knobs
from unalike.settings.knobs import knob
from unalike.settings.toml import dump_toml
from unalike.vertical.exchange import Hosts, Traffic
from unalike.vertical.facts import write_facts
from unalike.vertical.fields import check_rows
from unalike.vertical.links import ENGINES, Link, ask, introduced
from unalike.vertical.losses import Loss
from unalike.vertical.method import Me, Vertical, kept, settings_of
from unalike.vertical.node import Node, epoch_of
from unalike.vertical.noise import Noise
from unalike.vertical.parties import COORDINATOR, Parties
from unalike.vertical.predict import predicted
from unalike.vertical.sees import Sight, who_sees
from unalike.vertical.sums import FEWEST, summed
from unalike.vertical.tables import prepared

ALONE = "alone.share"  # in a run's folder: the guest's own model
# rows of a batch per column, below which a host's gradient reveals labels: measured, see docs/vertical.md
ROWS_PER_COLUMN = 16


@dc.dataclass(frozen=True)
class Settings:
    """How a method is run."""

    epochs: int = knob(10, "passes over the training rows", least=1)
    batch_size: int | None = knob(None, "rows of a batch; without it, all of them", least=1)
    shuffle: bool = knob(True, "rows in a new order every epoch")
    seed: int = knob(0, "of orders, starts and simulated noise", least=0)
    small_batches: bool = knob(False, "allow batches from which a host can read labels")
    noise: float = knob(0.0, "noise on numbers of single people that cross, in clips", least=0)
    clip: float = knob(0.0, "their greatest length", least=0)
    delta: float = knob(1e-5, "δ of the ε that is stated for the noise", above=0, below=1)
    secure_sum: bool = knob(False, "the guest reads the sum of the hosts' scores and no single host's")
    fallback: str = knob(
        "refuse", "rows without a party are refused, count its part as zero, or go by the guest's own model",
        choices=("refuse", "zero", "alone"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        knobs.check_fields(self, "")
        check_seed(self.seed)
        if self.secure_sum and self.fallback == "zero":
            raise UnalikeError(
                "fallback='zero' would tell single hosts' scores: with secure_sum, take refuse or alone."
            )

    @property
    def alone(self) -> Settings:
        """Return the same settings for a run in which nothing crosses."""
        return dc.replace(self, noise=0.0, clip=0.0, secure_sum=False)


class Session:
    """The guest's end of a run, the same in a simulation and between machines."""

    def __init__(
        self,
        guest: Node,
        links: Sequence[Link],
        method: Vertical,
        settings: Settings,
        train: Tensor,
        test: Tensor,
        scale: str = "standard",
        classes: int | None = None,
        uses: Mapping[str, Sequence[str]] | None = None,
        unmatched: str = "drop",
        coordinator: Link | None = None,
        secret: bool = False,
    ):
        assert guest.table is not None and guest.table.y is not None and guest.positions is not None
        self.guest, self.links, self.method, self.settings = guest, list(links), method, settings
        self.train, self.test, self.scale, self.classes = train, test, scale, classes
        self.uses, self.unmatched, self.secret, self._third = dict(uses or {}), unmatched, secret, coordinator
        self.noise, self.traffic = Noise(settings.noise, settings.clip), Traffic()
        self.releases: dict[str, int] = {}
        names = [link.name for link in links]
        self.flags = [n for n in names if unmatched == "mask" and n in guest.matched and not guest.matched[n].all()]
        self.target: list[float] | None = None  # mean and deviation of a number to predict
        self.loss = method.loss(guest.table.y, classes)
        if self.loss.task not in method.tasks:
            what = {"binary": "one of two classes", "classes": "one of several classes", "number": "a number"}
            raise UnalikeError(f"{type(method).__name__} does not predict {what[self.loss.task]}, which the label is.")
        self.hidden = summed(method) if settings.secure_sum else ()
        if settings.secure_sum:
            self._check_sums()
        if method.coordinated and coordinator is None:
            raise UnalikeError(f"{type(method).__name__} needs a coordinator.")

    def _check_sums(self) -> None:
        """Refuse secure sums that would hide nothing."""
        if not self.hidden:
            raise UnalikeError(f"{self.method.name} needs every host's own numbers: secure_sum is not for it.")
        if len(self.links) < FEWEST:
            raise UnalikeError("A sum of one host's scores is that host's: secure_sum needs two hosts or more.")
        if not all(rows.all() for rows in self.guest.matched.values()):
            raise UnalikeError("The sum of a row that one host lacks is another's: with secure_sum, unmatched='drop'.")

    def set_up(self) -> None:
        """Prepare every party, and check that they agree."""
        outputs = self.loss.outputs(self.classes)
        base: dict[str, Any] = {
            "method": self.method.name, "settings": settings_of(self.method), "outputs": outputs, "scale": self.scale,
            "seed": self.settings.seed, "noise": self.noise.noise, "clip": self.noise.clip, "index": 0,
            "parties": 1 + len(self.links), "secure_sum": self.settings.secure_sum,
        }  # fmt: skip
        columns: dict[str, Any] = {}
        answers = []
        for place, link in enumerate(self.links, 1):
            base["index"] = place
            uses = {"uses": list(self.uses[link.name])} if link.name in self.uses and self.scale != "none" else {}
            header, _ = ask(link, "setup", {"train": self.train}, **base, **uses)
            answers.append(header)
            columns[link.name] = header.get("columns")
            if type(columns[link.name]) is not int or not 0 < columns[link.name] < 1 << 31:
                raise UnalikeError(f"{link.name} does not say how many columns it has.")
        if self.settings.secure_sum:
            introduced(self.links, answers)
        third = None
        if self._third is not None and self.method.coordinated:
            ask(self._third, "setup", **base)
            third = Hosts([self._third], self.method, {self._third.name: 0}, outputs, traffic=self.traffic)
        self._check_batches(columns)
        self.me = self._guest(outputs)
        self.guest.me, self.guest.method = self.me, self.method
        self.guest.others = [link.name for link in self.links]
        self.guest.about = base | {"index": 0, "flags": self.flags, "target": self.target, "task": self.loss.task}
        self.method.start(self.me)
        self.hosts = Hosts(
            self.links, self.method, columns, outputs, self.noise, self.traffic, self._noise_source, coordinator=third,
            hidden=self.hidden,
        )  # fmt: skip
        self.method.begin(self.me, self.hosts)

    def _guest(self, outputs: int) -> Me:
        table, positions = self.guest.table, self.guest.positions
        assert table is not None and table.y is not None and positions is not None
        check_rows(self.train, len(positions), "this run")
        x, self.guest.preparation = prepared(table.x[positions], self.train, table.schema, self.scale)
        x = torch.cat([x, absent(self.guest.matched, self.flags)], 1) if self.flags else x
        me = Me(self.guest.name, "guest", x, outputs, self.settings.seed, parties=1 + len(self.links))
        me.y, me.loss = table.y[positions], self.loss
        if self.loss.task == "number" and self.scale != "none":
            own = me.y[self.train]
            self.target = [float(own.mean()), float(own.std(correction=0)) or 1.0]
            me.y = (me.y - self.target[0]) / self.target[1]
        return me

    def _check_batches(self, columns: Mapping[str, int]) -> None:
        widest = max(columns.values(), default=0)
        least = min((len(batch) for batch in self.batches(0)), default=0)
        if not self.method.protected or least >= ROWS_PER_COLUMN * widest:
            return
        line = (
            f"A batch of {least} rows lets a host with {widest} columns find labels from its own gradient: at least "
            f"{ROWS_PER_COLUMN} × {widest} = {ROWS_PER_COLUMN * widest} rows are needed"
        )
        if not self.settings.small_batches:
            raise UnalikeError(f"{line}; small_batches=True (--small-batches) takes fewer all the same.")
        warnings.warn(f"{line}. Labels are not protected in this run.", stacklevel=4)

    def _noise_source(self, epoch: int, step: int) -> Any:
        if self.secret:
            return SecretDraws(None, dtype=torch.float64)
        name = (self.settings.seed, "vertical noise", self.guest.name, epoch, step)
        return KeyedDraws(torch.tensor(key(*name)), torch.float64)

    def batches(self, epoch: int) -> list[Tensor]:
        """Return the rows of every batch of an epoch. With protection, a short remainder joins the last batch."""
        rows, size = self.train, self.settings.batch_size or len(self.train)
        if self.settings.shuffle and size < len(rows):
            rows = rows[torch.from_numpy(generator(self.settings.seed, "vertical order", epoch).permutation(len(rows)))]
        parts = list(rows.split(size))
        if self.method.protected and len(parts) > 1 and len(parts[-1]) < size:
            parts[-2:] = [torch.cat(parts[-2:])]
        return parts

    def epoch(self, number: int) -> dict[str, Any]:
        """Learn for one epoch, test, and return its line."""
        before = (self.traffic.up, self.traffic.down, self.traffic.exchanges)
        losses, batches = [], self.batches(number)
        releases: dict[str, int] = {}
        for step, rows in enumerate(batches):
            self.hosts.epoch, self.hosts.step = number, step
            self.traffic.releases.clear()
            losses.append((self.method.step(self.me, self.hosts, rows), len(rows)))
            for name, count in self.traffic.releases.items():
                releases[name] = max(releases.get(name, 0), count)
        for name, count in releases.items():
            self.releases[name] = self.releases.get(name, 0) + count
        line: dict[str, Any] = {"epoch": number, **_mean_loss(losses)}
        after = (self.traffic.up, self.traffic.down, self.traffic.exchanges)
        counted = [b - a for a, b in zip(before, after, strict=True)]
        line |= dict(zip(("bytes_up", "bytes_down", "exchanges"), counted, strict=True))
        if not all(torch.isfinite(t).all() for t in _tensors(self.method, self.me)):
            raise Diverged(f"The model became NaN or infinite in epoch {number}: take a smaller lr.", number, [])
        if len(self.test):
            self.hosts.step = len(batches)
            z = self.method.scores(self.me, self.hosts, self.test)
            line |= scored(z, self.me.y[self.test], self.loss, "test_", self.target)
        if self.noise.noise:
            line["epsilon"] = self.noise.spent(max(self.releases.values(), default=0), self.settings.delta).epsilon
        return line

    def save(self, epoch: int) -> None:
        """Keep the model at every party, at the guest last, so that hosts have every epoch that the guest can return
        to."""
        for link in self.links:
            ask(link, "save", epoch=epoch)
        self.guest.save(epoch)

    def restore(self, epoch: int) -> None:
        """Return every party to the state after an epoch."""
        for link in self.links:  # a coordinator keeps nothing: it makes a new key at every start
            ask(link, "restore", epoch=epoch)
        self.guest.restore(epoch)
        self.method.begin(self.me, self.hosts)

    @property
    def sees(self) -> list[Sight]:
        """Return who sees what."""
        hosts = [link.name for link in self.links]
        return who_sees(self.method, self.guest.name, hosts, self.noise, self.settings.secure_sum)


class Run:
    """A finished run: its history, the parties' shares of the model, who sees what, and predictions."""

    def __init__(self, parties: Parties, session: Session, history: list[dict[str, Any]], alone: Session | None):
        self.parties, self.session, self.history, self.alone = parties, session, history, alone
        self.method, self.settings = session.method, session.settings

    @property
    def sees(self) -> list[Sight]:
        """Return the rows of the table "who sees what"; `print(ua.vertical.sight_text(run.sees))` shows them."""
        return self.session.sees

    @property
    def shares(self) -> dict[str, bytes]:
        """Return every party's part of the model, as `export` writes it."""
        nodes = [self.parties.guest, *self.parties.hosts]
        return {node.name: node.share(self.settings.epochs) for node in nodes}

    def export(self, party: str, path: str | Path) -> Path:
        """Write one party's share of the model: everything that this party needs to take part in predictions."""
        if party not in self.shares:
            raise unknown("party", party, self.shares)
        replace(Path(path), self.shares[party])
        return Path(path)

    def predict(self, tables: Mapping[str, Any]) -> Any:
        """Predict rows of the guest's table (and the hosts' rows with the same ids); a party may be missing."""
        alone = None if self.alone is None else self.alone.guest.share(self.settings.epochs)
        return predicted(self.shares, tables, self.parties.ids_by, self.settings.fallback, alone)

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        score = next(
            (f", {n.replace('_', ' ')} {last[n]:.3f}" for n in ("test_auc", "test_accuracy", "test_rmse") if n in last),
            "",
        )
        names = ", ".join(self.parties.names)
        return f"VerticalRun({type(self.method).__name__}, {names}, epoch {len(self.history)}{score})"


def fit(
    method: Vertical,
    parties: Parties,
    protection: str = "none",
    folder: str | Path | None = None,
    resume: bool = False,
    engine: str = "direct",
    **settings: Any,
) -> Run:
    """Train a method on parties in this process.

    protection: "none", "paillier", "ckks" or "coordinator". engine: "direct", or "loopback" (every message as bytes).
    The other settings are those of `Settings`. folder: where every party's part is kept after each epoch; resume
    continues there.
    """
    one_of(_Engine(engine), "engine", *ENGINES)
    chosen, how = method.under(protection), Settings(**settings)
    path = None if folder is None else Path(folder)
    session = simulated(parties, chosen, how, engine, path)
    session.set_up()
    history = begun(path, chosen, how, parties.names, resume)
    for _ in trained(session, history, path):
        if path is not None:
            write_facts(path, session, parties.report, [parties.guest, *parties.hosts])
    alone = trained_alone(session, method) if how.fallback == "alone" else None
    if alone is not None and path is not None:
        keep_alone(path, alone)
    return Run(parties, session, history, alone)


def trained_alone(joint: Session, method: Vertical) -> Session:
    """Train a model on the guest's own columns, without protection, since nothing crosses."""
    plain = joint.settings.alone
    rows = (joint.train, joint.test)
    session = Session(copy_of(joint.guest), [], method.bare, plain, *rows, joint.scale, joint.classes)
    session.set_up()
    for number in range(1, plain.epochs + 1):
        session.epoch(number)
    return session


def keep_alone(folder: Path, alone: Session) -> None:
    """Keep the guest's own model, for rows that a host does not have."""
    replace(folder / ALONE, alone.guest.share(alone.settings.epochs))


def simulated(
    parties: Parties, method: Vertical, settings: Settings, engine: str = "direct", folder: Path | None = None
) -> Session:
    """Return a session over parties in this process."""
    nodes = parties.hosts
    third = Node(None, COORDINATOR) if method.coordinated else None
    for node in (parties.guest, *nodes):
        node.folder = None if folder is None else folder / node.name
    return Session(
        parties.guest, [ENGINES[engine](node) for node in nodes], method, settings, parties.train, parties.test,
        parties.scale, parties.classes, parties.uses, parties.unmatched, ENGINES[engine](third) if third else None,
    )  # fmt: skip


def trained(session: Session, history: list[dict[str, Any]], folder: Path | None) -> Any:
    """Train from where the history ends, extending it; yield every epoch's line."""
    if history:
        session.restore(len(history))
    for number in range(len(history) + 1, session.settings.epochs + 1):
        line = session.epoch(number)
        history.append(line)
        if folder is not None:
            session.save(number)
            write_history(folder, history)
        yield line


def begun(folder: Path | None, method: Vertical, settings: Settings, names: Sequence[str], resume: bool) -> list[dict]:
    """Make the run's folder, or check that it holds this run; return the lines of the epochs that every party has
    kept."""
    if folder is None:
        return []
    config = {
        "vertical": {"method": method.name, "parties": list(names), **settings_of(method)},
        "run": {k: v for k, v in dc.asdict(settings).items() if v is not None},
    }  # fmt: skip
    text, file = dump_toml(config), folder / "config.toml"
    if file.exists():
        free = {f"epochs = {settings.epochs}"}
        old = {line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("epochs = ")}
        new = {line for line in text.splitlines() if not line.startswith("epochs = ")} - free
        if old != new:
            differs = sorted(old ^ new)[0]
            raise UnalikeError(f"{folder} holds another run ({differs}): choose another folder.")
        if not resume and (folder / names[0]).exists():
            raise UnalikeError(
                f"{folder} already holds this run: continue with resume=True (--resume), or choose another."
            )
    elif folder.exists() and any(folder.iterdir()):
        raise UnalikeError(f"{folder} is not empty and holds no run: choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    replace(file, text.encode())
    done = [n for f in (folder / names[0]).glob("epoch-*.share") if (n := epoch_of(f)) is not None]
    return read_history(folder)[: max(done, default=0)]


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's epochs."""
    file = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return [{name: value for name, value in line.items() if name != "round"} for line in lines]


def write_history(folder: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Write the lines of a run's epochs; for readers of all kinds of runs, an epoch is a round."""
    lines = [{"round": line["epoch"], **line} for line in history]
    replace(folder / "rounds.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode(), sync=False)


def absent(matched: Mapping[str, Tensor], hosts: Sequence[str]) -> Tensor:
    """Return the guest's additional columns [rows, hosts]: 1 if a host does not have the row."""
    return torch.stack([(~matched[name]).double() for name in hosts], 1)


def scored(
    z: Tensor, y: Tensor, loss: Loss, prefix: str = "", target: Sequence[float] | None = None
) -> dict[str, float]:
    """Return the loss of outputs and their scores: accuracy and AUC for classes, RMSE for numbers in their own unit."""
    out = {"loss": float(loss.loss(z, y))}
    if loss.task == "number":
        out["rmse"] = float((z[:, 0] - y).square().mean().sqrt()) * (target[1] if target else 1.0)
    else:
        out["accuracy"] = float((loss.likelihood(z).argmax(1) == y).double().mean())
    if loss.task == "binary" and 0 < int(y.sum()) < len(y):
        out["auc"] = float(auc_grouped(z, y, np.array([len(y)]))[0])  # one output: the log-odds of the second class
    return {f"{prefix}{name}": value for name, value in out.items()}


def copy_of(node: Node) -> Node:
    """Return a copy of a party that trains by itself."""
    copy = Node(node.table, node.name)
    copy.role, copy.positions = node.role, node.positions
    return copy


def _mean_loss(losses: Sequence[tuple[float | None, int]]) -> dict[str, float]:
    known = [(value, count) for value, count in losses if value is not None]
    return {"train_loss": sum(v * c for v, c in known) / sum(c for _, c in known)} if known else {}


def _tensors(method: Vertical, me: Me) -> list[Tensor]:
    return list(kept(method, me).values())


@dc.dataclass
class _Engine:
    engine: str
