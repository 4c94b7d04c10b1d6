"""Privacy of single samples (DP-SGD, Abadi et al. 2016): noise in a client's own steps, from each sample's gradient.

    g = (Σ_i g_i · min(1, C / ‖g_i‖) + N(0, (z·C)²)) / B        over the B samples of a mini-batch

What it bounds: how much of any one of a client's samples can be learnt by whoever sees what the client sends, the
server included. It hides neither that a client takes part nor what its samples have in common; a channel with noise
(client-level) does. A pass takes every sample once, so a sample is in one step of it: each pass is one Gaussian release
without amplification by sampling, whatever the size of the batches.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from unalike.contract import Average, Batch, Gradient, Outputs, Train
from unalike.errors import UnalikeError
from unalike.training import LocalTraining

LEAST = 1e-30  # in place of a norm of 0


def private_gradient(batch: Batch, vector: Tensor, local: LocalTraining) -> Tensor:
    """Return the mean of the samples' clipped gradients with noise, [P]."""
    assert local.sample_clip is not None
    each = batch.gradients(vector)
    share = (local.sample_clip / each.norm(dim=1).clamp_min(LEAST)).clamp_max(1.0)
    mean = (batch.weights * share) @ each
    if not local.sample_noise:
        return mean
    # one over the number of real samples: those that only fill a batch weigh nothing
    deviation = local.sample_noise * local.sample_clip * batch.weights.amax()
    return mean + deviation * batch.normal("sample noise", (vector.shape[-1],))


def check_request(local: LocalTraining, request: Train | Average | Outputs | Gradient, method: str) -> None:
    """Refuse what would look at a client's samples past the noise."""
    if local.sample_clip is None or "train" not in request.data:
        return
    plain = isinstance(request, Train) and request.loss is None and request.step is None and request.own == 1
    if not plain or request.data != "train" or request.only is not None:
        raise UnalikeError(
            f"sample_clip covers plain training on a client's own samples, and {method} asks for more than that (a "
            "loss or step of its own, averages, outputs): take a method such as FedAvg, FedProx, SCAFFOLD or FedDyn."
        )


def most_passes(local: LocalTraining, sizes: np.ndarray, round: int) -> int:
    """Return how often the client that takes most has a sample of its own in a step, in one training."""
    ids = np.arange(len(sizes))
    return int(np.max(-(-local.counts(ids, sizes, round) // local.per_epoch(sizes))))
