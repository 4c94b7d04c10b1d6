"""Trainable random Fourier features and a linear head: the model of FedAvgR's paper.

    φ(x) = √2 cos(ωᵀx + b),   ω ~ N(0, σ²), b ~ U[0, 2π], both trained;   f(x) = Wᵀφ(x), without a bias

√2, not √(2/D), is what the paper prints (`normalise=True` for the other): it scales every regulariser on φ.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from unalike.models._options import Classes, Features, Width, whole
from unalike.models.start import remembered
from unalike.settings.knobs import Knob


@remembered("fourier")
class FourierFeatures(nn.Module):
    """d inputs (anything behind the batch dimension, flattened), D cosines, C classes: dD + D + DC parameters."""

    def __init__(
        self,
        features: Features,
        classes: Classes,
        width: Width = 100,
        sigma: Annotated[float, Knob("of the kernel that the features stand for")] = 1.0,
        normalise: Annotated[bool, Knob("features over the root of their number")] = False,
    ):
        super().__init__()
        features, width = whole("features", features), whole("width", width)
        self.frequency = nn.Parameter(sigma * torch.randn(features, width))
        self.phase = nn.Parameter(2 * math.pi * torch.rand(width))
        self.scale = math.sqrt(2 / width) if normalise else math.sqrt(2)
        self.head = nn.Linear(width, whole("classes", classes), bias=False)

    def reset_parameters(self) -> None:
        """Draw new parameters (the head resets itself)."""
        nn.init.normal_(self.frequency, std=float(self.frequency.detach().std()) or 1.0)
        nn.init.uniform_(self.phase, 0, 2 * math.pi)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * torch.cos(x.flatten(1) @ self.frequency + self.phase))
