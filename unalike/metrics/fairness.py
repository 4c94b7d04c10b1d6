"""How evenly a model serves its clients."""

from __future__ import annotations

import numpy as np


def spread(values: np.ndarray, share: float = 0.2, higher: bool = True) -> dict[str, float | None]:
    """Return the mean over clients, the means of the worst and of the best 20 %, and the variance in squared percentage
    points.

    Clients count once each, whatever their size (as in q-FFL's and FedFa's tables; q-FFL takes 10 %). higher: whether
    more is better. All None if there are no clients.
    """
    if not len(values):
        return dict.fromkeys(("mean", "worst20", "best20", "variance_pp2"))
    ordered = np.sort(values) if higher else np.sort(values)[::-1]
    few = max(1, round(share * len(ordered)))
    with np.errstate(invalid="ignore", over="ignore"):  # for a model that is about to diverge
        return {
            "mean": float(ordered.mean()),
            "worst20": float(ordered[:few].mean()),
            "best20": float(ordered[-few:].mean()),
            "variance_pp2": float(ordered.var() * 1e4),
        }
