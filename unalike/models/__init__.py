"""Models by name. Each is a plain nn.Module whose last Linear, called `head`, reads the features."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.models.cnn import cnn_fedavg, cnn_feddc, small_cnn
from unalike.models.fourier import FourierFeatures
from unalike.models.linear import softmax_regression
from unalike.models.mlp import mlp
from unalike.models.resnet import ResNet18
from unalike.models.text import CharLSTM, TweetLSTM

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": softmax_regression,
    "mlp": mlp,
    "cnn-feddc": cnn_feddc,
    "cnn-fedavg": cnn_fedavg,
    "cnn-small": small_cnn,
    "resnet18": ResNet18,
    "char-lstm": CharLSTM,
    "tweet-lstm": TweetLSTM,
    "fourier": FourierFeatures,
}

__all__ = [
    "MODELS",
    "CharLSTM",
    "FourierFeatures",
    "ResNet18",
    "TweetLSTM",
    "build",
    "cnn_fedavg",
    "cnn_feddc",
    "mlp",
    "small_cnn",
    "softmax_regression",
]


def build(name: str, **options: object) -> nn.Module:
    """The model called `name`. The weights come from torch's generator: seed it before for the same start."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    taken = inspect.signature(MODELS[name]).parameters
    for option in options:
        if option not in taken:
            raise UnalikeError(f"Model {name!r} has no option {option!r}.{did_you_mean(option, taken)}")
    missing = [o for o, p in taken.items() if p.default is p.empty and o not in options]
    if missing:
        raise UnalikeError(f"Model {name!r} needs {' and '.join(missing)}.")
    return MODELS[name](**options)
