"""Privacy of single samples (DP-SGD, Abadi et al. 2016): noise in a client's own steps, from each sample's gradient.

    g = (Σ_i g_i · min(1, C / ‖g_i‖) + N(0, (z·C)²)) / B        over the B samples of a mini-batch

It bounds how much can be learnt about any one of a client's training samples by anyone who sees what the client sends,
including the server. It hides neither that a client takes part nor what its samples have in common; a channel with
noise (client-level) does. A pass takes every sample once, so a sample is in one of its steps: each pass is one Gaussian
release without amplification by sampling, whatever the batch size. Training on the public set uses none of a client's
own samples, and is unchanged.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from unalike.contract import Batch, Request, Train
from unalike.contract.requests import PUBLIC, DataName
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
    # one over the number of real samples: padding samples have weight zero
    deviation = local.sample_noise * local.sample_clip * batch.weights.amax()
    return mean + deviation * batch.normal("sample noise", (vector.shape[-1],))


def reads_own(request: Request) -> bool:
    """Return whether a request reads a client's own samples, of any split."""
    return _names(request) != (PUBLIC,)


def _names(request: Request) -> tuple[str, ...]:
    """Return the splits that a request reads; a request without samples counts as public."""
    data: DataName = getattr(request, "data", PUBLIC)
    return (data,) if isinstance(data, str) else data


def check_request(request: Request, method: str, judging: bool = False) -> None:
    """Refuse a request that would use a client's samples without the noise. judging: the request is part of an
    evaluation, whose scores no guarantee covers; it may use samples that are not trained on."""
    if not reads_own(request):
        return
    if isinstance(request, Train):
        plain = request.loss is None and request.step is None and request.own == 1 and request.net == "model"
        if plain and request.data == "train" and request.only is None:
            return
    elif judging and "train" not in _names(request):
        return
    raise UnalikeError(
        f"sample_clip covers plain training on a client's own training samples, and {method} asks for more than that "
        "(a loss or step of its own, another split or network, averages, outputs): take a method such as FedAvg, "
        "FedProx, SCAFFOLD or FedDyn."
    )


def passes(local: LocalTraining, ids: np.ndarray, sizes: np.ndarray, round: int) -> np.ndarray:
    """Return how often each client uses any one of its samples in a step, in one training with these settings, [c]."""
    return -(-local.counts(ids, sizes, round) // local.per_epoch(sizes))
