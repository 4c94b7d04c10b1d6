"""Softmax regression: the convex model on which federated methods are compared first."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from unalike.models._options import Classes, Features, whole
from unalike.models.start import remembered


@remembered("linear")
def softmax_regression(features: Features, classes: Classes) -> nn.Module:
    """One linear layer with bias; anything behind the batch dimension is flattened to `features` numbers."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        flatten=nn.Flatten(), head=nn.Linear(whole("features", features), whole("classes", classes))
    )
    return nn.Sequential(layers)
