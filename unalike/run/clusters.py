"""Which cluster each client is in, for methods with clusters, and how well the clusters agree with groups planted in
the data.

A method shows its clusters as `server.cluster`, one number per client (-1: not known yet). Where the server must not
know them, each client keeps its own number `cluster`.
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
    """Return the cluster of every evaluated client, -1 where it has none yet; None if the method has no clusters."""
    ids, held = run.evaluated_clients, run.server.values.get(NAME)
    if isinstance(held, torch.Tensor) and held.shape == (run.population,):
        return held.cpu().numpy()[ids].astype(np.int64)
    if NAME not in run.method.keeps or run.data.remote or run.architectures is not None or not len(ids):
        return None
    state, first = run.clients.read(ids)
    kept = state[NAME].cpu().numpy().round().astype(np.int64)
    return np.where(first.cpu().numpy(), -1, kept)


def cluster_line(run: Run, found: np.ndarray | None) -> dict[str, Any]:
    """Return the number of clusters in use and, where groups were planted, the adjusted Rand index between clusters and
    groups. Clients without a cluster are left out."""
    if found is None:
        return {}
    known = found >= 0
    line: dict[str, Any] = {"clusters": len(np.unique(found[known]))}
    groups = planted(run)
    if groups is not None and known.any():
        line["cluster_ari"] = adjusted_rand(found[known], groups[run.evaluated_clients][known])
    return line


def planted(run: Run) -> np.ndarray | None:
    """Return the group that a made-to-order skew assigned to every client; None if there are no such groups."""
    return next((values for values in run.data.planted.values() if values.dtype.kind in "iu"), None)
