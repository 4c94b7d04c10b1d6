"""Measure how far apart the clients' features are, as in Figure 2 of FedAvgR's paper.

    centroid_distance   the mean over all pairs of clients of ‖mean φ(X_j) − mean φ(X_k)‖, φ at the global model

The paper prints a "distance among centroids" without a definition: this is one reading, the same for every method.
Measured before round 1 and after every evaluated round, on the training samples; written to centroids.jsonl in the
run's folder. Nothing is measured for a method with several global models.
"""

from __future__ import annotations

from typing import Any

import torch

from unalike.run.callbacks import Callback
from unalike.run.run import Run

FILE = "centroids.jsonl"


class Centroids(Callback):
    """Write the centroid distance of every evaluated round. The run needs a folder."""

    def on_start(self, run: Run) -> None:
        run.home("Centroids").trim(FILE, run.rounds_done)
        if run.rounds_done == 0:
            self._write(run, 0)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        if run.evaluated(line["round"]):
            self._write(run, line["round"])

    def _write(self, run: Run, round: int) -> None:
        models = [vector for vector in run.vectors().values() if isinstance(vector, torch.Tensor)]
        if len(models) == 1:
            run.home("Centroids").append(FILE, {"round": round, "centroid_distance": distance(run, models[0])})


def distance(run: Run, vector: torch.Tensor) -> float:
    bound, columns = run.bound(vector), run.data.train
    parts = [bound.features(columns.of(k)[0]) for k in range(len(columns))]
    means = torch.stack([features.double().mean(0) for features in parts])
    return float(torch.pdist(means).mean())
