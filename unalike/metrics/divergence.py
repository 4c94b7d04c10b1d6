"""How skewed labels are, and how far a federated model is from one trained on pooled data: Zhao et al. 2018 plot one
against the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.errors import UnalikeError


def label_emd(counts: Any, whole: Any = None) -> np.ndarray:
    """Return the earth mover's distance of each client's labels from all clients', EMD_k = Σ_c |p_k(c) − p(c)|, from 0
    to 2. counts: samples per client and class [N, C] (`fed.label_counts()`, or with a share of public samples added);
    whole: counts that define p (default: the sum of `counts`). A client without samples has NaN."""
    counts = np.asarray(counts, dtype=np.float64)
    if counts.ndim != 2 or (counts < 0).any():
        raise UnalikeError(f"label_emd needs counts of samples [clients, classes]; got shape {list(counts.shape)}.")
    whole = counts.sum(0) if whole is None else np.asarray(whole, dtype=np.float64)
    if whole.shape != counts.shape[1:] or not whole.sum() > 0:
        raise UnalikeError(f"label_emd: whole must have a count for each of {counts.shape[1]} classes, and samples.")
    sizes = counts.sum(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.abs(counts / sizes - whole / whole.sum()).sum(1)


def weight_divergence(w: Tensor, pooled: Tensor) -> float:
    """Return ‖w − w*‖ / ‖w*‖, where w* is the vector of a model trained on all data in one place, with as many steps
    from the same start (`ua.Centralized`)."""
    if w.shape != pooled.shape:
        raise UnalikeError(f"weight_divergence: vectors of {list(w.shape)} and {list(pooled.shape)} are not compared.")
    return float(torch.linalg.vector_norm(w - pooled) / torch.linalg.vector_norm(pooled))
