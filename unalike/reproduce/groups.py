"""Numbers for groups of clients in the last round: clients with the same network, and groups that a skew planted.

    own_small_accuracy      clients with the network "small", each one's own model on its own test samples: the mean
    own_permute0_accuracy   the same for the clients in group 0 of "permute"
    slow_accuracy           recall of the classes that clients with slow devices hold, if the run's clock names them
    fast_accuracy           recall of all others
    common_small_accuracy   clients with the network "small", each one's own model on the common test set: the mean

The last only for networks, because it takes a pass over the test set for every client.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unalike.nn.task import picker
from unalike.run.callbacks import Callback
from unalike.run.predict import predictor
from unalike.run.run import Run

ROWS = 1000  # rows of the test set at a time
FILE = "by_speed.jsonl"
LAST = 5  # evaluations


class BySpeed(Callback):
    """Write the numbers of slow and of fast devices after each of the last evaluations: those of one round are noisy.
    The run needs a folder."""

    def on_start(self, run: Run) -> None:
        run.home("BySpeed").trim(FILE, run.rounds_done)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        late = line["round"] > run.rounds - LAST * run.settings.evaluate_every
        if late and run.evaluated(line["round"]) and (found := _by_speed(run)):
            run.home("BySpeed").append(FILE, {"round": line["round"], **found})


def of_groups(run: Run) -> dict[str, Any]:
    """Return a line with these numbers for the last round; empty if there are no groups."""
    line: dict[str, Any] = {"round": run.rounds_done}
    values = run.client_values
    for name, clients in {**_networks(run), **_planted(run)}.items():
        there = np.isin(values.get("client", ()), clients)
        if "accuracy" in values and there.any():
            line[f"own_{name}_accuracy"] = float(values["accuracy"][there].mean())
    for name, clients in _networks(run).items():
        test = run.parts[name].global_test
        if test is not None and run.data.classes is not None:
            line[f"common_{name}_accuracy"] = float(np.mean([_common(run, int(k), *test) for k in clients]))
    return line | _by_speed(run)


def _by_speed(run: Run) -> dict[str, float]:
    """Return the mean recall of the classes that clients with slow devices hold, and of the others."""
    devices = run.arrivals.devices
    kind, _, classes = ("" if devices is None else devices.clock.slow).partition(":")
    if kind != "classes":
        return {}
    slow = {int(part) for part in classes.split(",")}
    rows = [(k in slow, row["recall"]) for k, row in enumerate(run.by_class()) if row["recall"] is not None]
    found = {
        name: [recall for own, recall in rows if own == which] for name, which in (("slow", True), ("fast", False))
    }
    return {f"{name}_accuracy": float(np.mean(recalls)) for name, recalls in found.items() if recalls}


def _networks(run: Run) -> dict[str, np.ndarray]:
    several = run.architectures
    return {} if several is None else {name: several.clients(name) for name in several.names}


def _planted(run: Run) -> dict[str, np.ndarray]:
    groups = {change: of for change, of in run.data.planted.items() if of.dtype.kind in "iu"}
    return {f"{change}{g}": np.flatnonzero(of == g) for change, of in groups.items() for g in np.unique(of[of >= 0])}


def _common(run: Run, client: int, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the accuracy of a client's own model on the common test set."""
    own = predictor(run, client=client)
    module, pick, right = own.module.eval(), picker(own.output), 0
    with torch.no_grad():
        for some, labels in zip(x.cpu().split(ROWS), y.cpu().split(ROWS), strict=True):
            right += int((pick(module(some)).argmax(-1) == labels).sum())
    return right / len(y)
