"""Models by name. Each is a plain nn.Module whose last Linear, called `head`, reads the features.

A run draws their weights from its seed, unless they were changed after they were built: weights that you have loaded or
set are kept (and `keep_start(model)` keeps any).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.models import start
from unalike.models.cnn import cnn_fedavg, cnn_feddc, small_cnn
from unalike.models.forest import forest
from unalike.models.fourier import FourierFeatures
from unalike.models.mlp import mlp
from unalike.models.resnet import ResNet18
from unalike.models.softmax import softmax_regression
from unalike.models.start import keep_start
from unalike.models.text import CharLSTM, TweetLSTM

# Every model by its name on the command line: ua.models.linear(64, 10), ua.models.resnet18(classes=10)
linear, cnn_small = softmax_regression, small_cnn
resnet18, char_lstm, tweet_lstm, fourier = (
    start.function(kind) for kind in (ResNet18, CharLSTM, TweetLSTM, FourierFeatures)
)

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
    "forest": forest,
}

__all__ = [
    "MODELS",
    "CharLSTM",
    "FourierFeatures",
    "ResNet18",
    "TweetLSTM",
    "build",
    "char_lstm",
    "cnn_fedavg",
    "cnn_feddc",
    "cnn_small",
    "forest",
    "fourier",
    "keep_start",
    "linear",
    "mlp",
    "resnet18",
    "small_cnn",
    "softmax_regression",
    "start_of",
    "tweet_lstm",
]


def build(name: str, **options: object) -> nn.Module:
    """Return the model called `name`."""
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


def start_of(model: nn.Module | Callable[..., Any], seed: int) -> nn.Module:
    """Return the module with which a run with this seed starts.

    The weights of a model built by a function, and of an untouched model of `ua.models`, are drawn from the seed; any
    other module is taken as it is.
    """
    if not isinstance(model, nn.Module):
        return start.own(model, seed)
    built = start.untouched(model)
    return start.redrawn(model, lambda: MODELS[built.name](**built.options), seed) if built else model
