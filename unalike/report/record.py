"""Record more than rounds.jsonl has, for the report; the run itself writes it into its folder's `record/`.

    clients.json    once: who the clients are, their numbers of samples and labels, what leaves them, who sees it
    rounds.jsonl    one line per round: drift; where clients were evaluated, each one's numbers (float32, base64); in
                    the rounds 1, 3, 10, 30, 100, ... the clients' mean features as two principal components; each
                    client's cluster if the method has clusters
    last.json       the same two components after the last round; recall, precision and F1 of every class; the tree
                    of clusters; boosted trees (`unalike.trees.picture`)

Lines after the checkpoint from which a run continues are dropped, as in rounds.jsonl: a resumed run leaves the same
bytes as one that was never stopped. At most 2,000 clients are recorded.
"""

from __future__ import annotations

import base64
import dataclasses as dc
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unalike.contract import privacy
from unalike.contract.call import Outcome
from unalike.errors import UnalikeError
from unalike.files import replace
from unalike.metrics.drift import Drift
from unalike.metrics.lines import thin
from unalike.run.callbacks import Callback
from unalike.run.clusters import planted
from unalike.run.folder import read_rounds
from unalike.trees import picture

if TYPE_CHECKING:
    from unalike.run.run import Run

FOLDER, CLIENTS, ROUNDS, LAST = "record", "clients.json", "rounds.jsonl", "last.json"
MOST_CLIENTS = 2000
MOST_CLASSES = 30  # most classes in the table of classes
MOST_POINTS = 500  # most clients in the picture of features
# most samples used for the picture; at most 20 per client
MOST_SAMPLES = 4000


class Record(Callback):
    """Record clients, drift and features for `unalike report`. The run needs a folder."""

    def on_start(self, run: Run) -> None:
        self.path = run.home("Record").path / FOLDER
        self.ids = _whom(run)
        self.drift = Drift()
        self.field = _field(run)
        with run.home("Record").writing():
            self.path.mkdir(exist_ok=True)
            replace(self.path / CLIENTS, json.dumps(_clients(run, self.ids)).encode())
            kept = [line for line in read_rounds(self.path / ROUNDS) if line["round"] <= run.rounds_done]
            replace(self.path / ROUNDS, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def on_reply(self, run: Run, outcome: Outcome) -> None:
        if self.field in outcome.up:
            self.drift.add(outcome.up[self.field])

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        round = line["round"]
        out: dict[str, Any] = {"round": round, **self.drift.numbers()}
        self.drift = Drift()
        if run.evaluated(round) and run.client_values:
            values = dict(run.client_values)
            there = values.pop("client")
            rows = np.searchsorted(there, self.ids).clip(max=len(there) - 1)
            missing = there[rows] != self.ids
            for name, column in values.items():
                out[name] = pack(np.where(missing, np.nan, column[rows]))
        out |= self._clusters(run)
        if str(round).rstrip("0") in ("1", "3"):
            out |= _features(run, self.ids)
        with run.home("Record").writing(), (self.path / ROUNDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(out) + "\n")

    def _clusters(self, run: Run) -> dict[str, Any]:
        """Return each recorded client's cluster, NaN if it is not known."""
        if run.clusters is None or not run.evaluated(run.rounds_done):
            return {}
        found = np.full(len(run.data), np.nan)
        found[run.evaluated_clients] = np.where(run.clusters < 0, np.nan, run.clusters)
        return {"clusters": pack(found[self.ids])}

    def on_end(self, run: Run) -> None:
        with run.home("Record").writing():
            last = {"round": run.rounds_done, **_features(run, self.ids), **_by_class(run), **_tree(run)}
            last |= _forest(run)
            replace(self.path / LAST, json.dumps(last).encode())


def _by_class(run: Run) -> dict[str, Any]:
    """Return the metrics of every class, if one of the run's metrics is about classes and there are few classes."""
    if not {"f1", "balanced_accuracy"} & run.higher.keys() or (run.data.classes or 0) > MOST_CLASSES:
        return {}
    try:
        return {"by_class": run.by_class()}
    except UnalikeError:  # no test samples
        return {}


def _tree(run: Run) -> dict[str, Any]:
    """Return the splits that a method has made: round, node, its two new nodes, members (see CFL)."""
    tree = run.server.values.get("tree")
    return {"tree": [row[:4] for row in tree]} if isinstance(tree, list) and tree else {}


def _forest(run: Run) -> dict[str, Any]:
    """Return what the page shows of boosted trees, in the units of the table that they were grown on."""
    model, preparation = run.forest, run.data.preparation
    if model is None:
        return {}
    return {"forest": [picture.view(model) if preparation is None else picture.view(model, preparation.raw)]}


def pack(values: np.ndarray) -> str:
    """Return numbers as text: float32, little-endian, base64."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def unpack(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


def _whom(run: Run) -> np.ndarray:
    """Return the clients to record: all, or if there are many, the evaluated ones or a selection."""
    ids = np.arange(len(run.data))
    if len(ids) > MOST_CLIENTS and len(run.evaluated_clients):
        ids = run.evaluated_clients
    return ids[thin(len(ids), MOST_CLIENTS)]


def _clients(run: Run, ids: np.ndarray) -> dict[str, Any]:
    data, labels = run.data, None
    if data.classes is not None:
        labels = [np.bincount(data.train.of(k)[1].cpu().numpy(), minlength=data.classes).tolist() for k in ids]
    names = [data.names[k] for k in ids] if data.names else None
    who = {"population": len(data), "client": ids.tolist(), "name": names, "samples": data.train.sizes[ids].tolist()}
    groups = planted(run)
    known = {} if groups is None else {"planted": groups[ids].tolist()}
    seen: dict[str, Any] = {"leaves": privacy(run.method), "who_sees": [dc.asdict(row) for row in run.who_sees()]}
    seen |= {"delta": run.settings.delta} if run.private else {}
    return {**who, "labels": labels, "label_names": data.label_names, **known, **seen}


def _field(run: Run) -> str | None:
    """Return the field of a reply that is the client's update: `delta`, or the first of the model's shape. None if
    networks differ, because then updates have no common directions."""
    if run.architectures is not None:
        return None
    fields = [name for name, field in run.method.sends.items() if field.shape == "model"]
    return "delta" if "delta" in fields else next(iter(fields), None)


def _features(run: Run, recorded: np.ndarray) -> dict[str, Any]:
    """Return the clients' mean features (the head's input, for the global model) as two principal components.

    Computed from the Gram matrix, so that 4,096 features cost as much as 32. The signs of components are arbitrary:
    here the client farthest out on an axis is on its positive side.
    """
    vector = next(iter(run.vectors().values()), None)
    columns, task = run.parts[next(iter(run.tasks))].train, run.task
    places = np.flatnonzero(columns.sizes[recorded])
    places = places[thin(len(places), MOST_POINTS)]
    ids = recorded[places]
    if not isinstance(vector, torch.Tensor) or len(ids) < 3:  # different networks have no common features
        return {}
    sizes = np.minimum(columns.sizes[ids], max(1, min(20, MOST_SAMPLES // len(ids))))
    bound = run.bound(vector)
    starts = zip(columns.offsets[ids], sizes, strict=True)
    rows = torch.from_numpy(np.concatenate([start + np.arange(n) for start, n in starts]))
    owners = torch.from_numpy(np.repeat(np.arange(len(ids)), sizes))
    total = torch.zeros(len(ids), task.features, dtype=torch.float64)
    for some, who in zip(rows.split(2048), owners.split(2048), strict=True):
        features = bound.features(columns.x[some.to(columns.x.device)].to(task.device))
        total.index_add_(0, who, features.double().cpu())
    mean = (total / torch.from_numpy(sizes)[:, None]).numpy()
    if not np.isfinite(mean).all():  # trees take samples with missing values, which have no mean
        return {}
    mean -= mean.mean(0)
    values, vectors = np.linalg.eigh(mean @ mean.T)
    scores = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1].clip(min=0))
    scores *= np.sign(scores[np.abs(scores).argmax(0), [0, 1]])
    share = values[:-3:-1] / max(values.sum(), 1e-30)
    return {"places": places.tolist(), "features": pack(scores.ravel()), "explained": share.tolist()}
