"""Who gains: the clients that a method serves better than another does, each on its own test data.

The values of single clients are in the run folders' records (report/record.py), one line per round. Two runs of one
seed have the same clients; only those that were evaluated in both are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from unalike.report import record
from unalike.results.evidence import Evidence
from unalike.run.evaluate import SAME
from unalike.run.folder import read_rounds

ClientValues = dict[int, float]  # by client
Values = Callable[[str, int, int], ClientValues]  # by an arm's label, seed and round


def client_values(folder: Path, round: int, metric: str) -> ClientValues:
    """Return the clients' values after this round, without clients that were not evaluated or have no value; empty if
    nothing was recorded."""
    home = folder / record.FOLDER
    try:
        ids = json.loads((home / record.CLIENTS).read_text(encoding="utf-8"))["client"]
        line = next(line for line in read_rounds(home / record.ROUNDS) if line["round"] == round)
        values = record.unpack(line[metric]).astype(np.float64)
        found = dict(zip(ids, values.tolist(), strict=True))
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return {}
    return {client: value for client, value in found.items() if np.isfinite(value)}


def share(mine: Mapping[int, float], theirs: Mapping[int, float], larger: bool) -> float | None:
    """Return the share of clients whose value in `mine` is better than in `theirs`, among those in both; differences
    from rounding do not count. None if there are no such clients."""
    both = [(mine[client], theirs[client]) for client in mine if client in theirs]
    if not both:
        return None
    a, b = np.asarray(both).T
    ahead = (a - b) * (1 if larger else -1)
    return float((ahead > SAME * np.maximum(1, np.abs(b))).mean())


def count(found: Sequence[Evidence], judged: Sequence[Evidence], values: Values, larger: bool) -> None:
    """Add to each of `found` the shares of clients that gain, and lose, against FedAvg's model and against training
    alone, if these are among the judged; each run counts in the round in which it is judged."""
    for name, method in (("fedavg", "fedavg"), ("alone", "local-only")):
        other = next((e for e in judged if e.method == method), None)
        if other is None:
            continue
        theirs = _by_seed(other, values)
        for e in (e for e in found if e is not other):
            mine = _by_seed(e, values)
            setattr(e, f"gain_{name}", [share(mine[seed], theirs[seed], larger) for seed in e.seeds])
            setattr(e, f"lose_{name}", [share(theirs[seed], mine[seed], larger) for seed in e.seeds])


def by_network(found: Sequence[Evidence], values: Values, networks: Sequence[str]) -> None:
    """Add to each of `found` the mean over the clients of each network, in the round in which it is judged; networks:
    each client's, by number."""
    for e in found if networks else ():
        mine = _by_seed(e, values)
        for name in dict.fromkeys(networks):
            own = [[v for k, v in mine[seed].items() if networks[k] == name] for seed in e.seeds]
            e.networks[name] = [float(np.mean(some)) if some else None for some in own]


def _by_seed(e: Evidence, values: Values) -> dict[int, ClientValues]:
    """Return the clients' values by seed; empty for a seed that diverged."""
    through = [seed for seed in e.seeds if seed not in e.diverged]
    rounds = dict(zip(through, e.selected_round, strict=True))
    return {seed: values(e.label, seed, rounds[seed]) if seed in rounds else {} for seed in e.seeds}
