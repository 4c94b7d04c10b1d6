"""Which cluster each client is in, where a method has clusters, and how well they agree with groups that were planted.

A method shows its clusters as `server.cluster`, a number for each client (-1: not known yet), or, where the server is
not to know, as a number `cluster` that each client keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unalike.metrics.clusters import adjusted_rand

if TYPE_CHECKING:
    from unalike.run.run import Run

NAME = "cluster"


def clusters(run: Run) -> np.ndarray | None:
    """Return the cluster of every evaluated client, -1 where it has none yet; None where there are no clusters."""
    ids, held = run.evaluated_clients, run.server.values.get(NAME)
    if isinstance(held, torch.Tensor) and held.shape == (run.population,):
        return held.cpu().numpy()[ids].astype(np.int64)
    if NAME not in run.method.keeps or run.data.remote or run.architectures is not None or not len(ids):
        return None
    state, first = run.clients.read(ids)
    kept = state[NAME].cpu().numpy().round().astype(np.int64)
    return np.where(first.cpu().numpy(), -1, kept)


def cluster_line(run: Run, found: np.ndarray | None) -> dict[str, Any]:
    """Return how many clusters are in use, and the adjusted Rand index against the planted groups, where there are
    any; of clients that have a cluster."""
    if found is None:
        return {}
    known = found >= 0
    line: dict[str, Any] = {"clusters": len(np.unique(found[known]))}
    groups = planted(run)
    if groups is not None and known.any():
        line["cluster_ari"] = adjusted_rand(found[known], groups[run.evaluated_clients][known])
    return line


def planted(run: Run) -> np.ndarray | None:
    """Return the group of every client that a skew made to order put it in; None where none did."""
    return next((values for values in run.data.planted.values() if values.dtype.kind in "iu"), None)
