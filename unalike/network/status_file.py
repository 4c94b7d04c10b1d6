"""What a server tells of itself while it runs: status.json in the run's folder, for `unalike status`.

    {"version": 1,                     of this form
     "run": "0123456789abcdef",        the run's name, as clients log it
     "method": "FedAvg", "round": 3, "rounds": 30,
     "time": 1763350000.0,             when it was written, seconds since 1970
     "deadline": 600.0,
     "done": false,                    true after the last round
     "losses": [{"round": 3, "train_loss": 0.4, "clients_loss": 0.5, "test_loss": 0.5, "lost": 1}, …],
                                       of the last ten rounds; what a round has not is left out
     "lost": 2,                        answers that did not come, in all rounds
     "clients": [{"name": "hospital-a",
                  "state": "online",   or "away", "set aside", "not joined"
                  "samples": 120,      training samples, as it says; null where it has not joined
                  "weight": 0.25,      its share of all samples
                  "last_round": 3,     that it answered; null: none
                  "lost": 0,           exchanges without an answer of use from it
                  "reason": ""}, …]}   of the last of them, printable and short

The file is replaced in one step after every round. It says nothing that the server's operator does not see anyway.
Losses that a channel hides are null in the rounds' lines, and so here.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from unalike.files import replace
from unalike.run.callbacks import Callback
from unalike.run.run import Run

if TYPE_CHECKING:
    from unalike.network.server import Clients

STATUS = "status.json"
VERSION = 1
ROUNDS = 10  # rounds whose losses are listed
LOSSES = ("round", "train_loss", "clients_loss", "test_loss", "lost")


class StatusFile(Callback):
    """Writes status.json when a run begins, after every round and at the end."""

    def __init__(self, clients: Clients):
        self.clients = clients

    def on_start(self, run: Run) -> None:
        self._write(run, done=False)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        self._write(run, done=False)

    def on_end(self, run: Run) -> None:
        self._write(run, done=True)

    def _write(self, run: Run, done: bool) -> None:
        if run.folder is not None:
            with run.folder.writing():
                replace(run.folder.path / STATUS, json.dumps(status(run, self.clients, done)).encode(), sync=False)


def status(run: Run, clients: Clients, done: bool) -> dict[str, Any]:
    """Return the content of status.json."""
    lines = run.history[-ROUNDS:]
    return {
        "version": VERSION,
        "run": clients.run,
        "method": type(run.method).__name__,
        "round": run.rounds_done,
        "rounds": run.rounds,
        "time": time.time(),
        "deadline": clients.deadline,
        "done": done,
        "losses": [{name: line[name] for name in LOSSES if name in line} for line in lines],
        "lost": sum(line.get("lost", 0) for line in run.history),
        "clients": _people(run, clients),
    }


def _people(run: Run, clients: Clients) -> list[dict[str, Any]]:
    online, sizes = clients.link.online(), run.engine.sizes
    known = {k: int(sizes[k]) for k, record in enumerate(clients.attendance.records) if record.planned}
    total = sum(known.values())
    out = []
    for k, record in enumerate(clients.attendance.records):
        state = "online" if k in online else "away"
        state = "not joined" if not record.planned else "set aside" if record.set_aside else state
        out.append({
            "name": clients.names[k], "state": state, "samples": known.get(k),
            "weight": known[k] / total if k in known else None,
            "last_round": record.last, "lost": record.lost, "reason": record.reason,
        })  # fmt: skip
    return out
