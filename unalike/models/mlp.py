"""The multi-layer perceptron; with 784 features and 10 classes it is the "2NN" of McMahan et al. (2017)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from unalike.errors import UnalikeError
from unalike.models._options import Classes, Features, Widths, whole
from unalike.models.start import remembered
from unalike.settings.knobs import Knob

SKIP = Knob("the head reads the features too, beside the hidden layers")


class Beside(nn.Module):
    """A layer whose output is its input and the inner module's output, concatenated."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.inner(x)], -1)


@remembered("mlp")
def mlp(
    features: Features, hidden: Widths = (200, 200), *, classes: Classes, skip: Annotated[bool, SKIP] = False
) -> nn.Module:
    """Linear and ReLU for each width in `hidden`, then the head. An empty `hidden` is softmax regression. With `skip`
    the head also reads the features themselves: what is linear is learned at once, the rest by the hidden layers."""
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise UnalikeError(f"hidden={hidden!r} was given; it must be a list of layer widths, such as [200, 200].")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = whole("features", features)
    for number, given in enumerate(hidden, start=1):
        next_width = whole(f"hidden[{number - 1}]", given)
        layers[f"fc{number}"] = nn.Linear(width, next_width)
        layers[f"relu{number}"] = nn.ReLU()
        width = next_width
    if skip and len(layers) > 1:
        inner = nn.Sequential(OrderedDict([*layers.items()][1:]))
        layers, width = OrderedDict(flatten=layers["flatten"], beside=Beside(inner)), width + features
    layers["head"] = nn.Linear(width, whole("classes", classes))
    return nn.Sequential(layers)
