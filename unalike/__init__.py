"""unalike: federated learning for clients whose data are not alike.

import unalike as ua
fed = ua.load("digits").split(ua.partition.Dirichlet(0.1), clients=50, seed=0)
run = ua.simulate(ua.models.softmax_regression(64, 10), fed, ua.Scaffold(), rounds=20)
"""

__version__ = "0.2.0"

from typing import Any

from unalike import channel, data, draws, methods, metrics, models, trees, vertical
from unalike import draws as random
from unalike import training as local
from unalike.contract import (
    Batch,
    Best,
    Cohort,
    Field,
    Fields,
    Me,
    Method,
    PerClient,
    Replies,
    Request,
    Server,
    Vectors,
)
from unalike.data import Dataset, Federation, load, partition, skew, synthetic
from unalike.errors import Diverged, EngineRefused, UnalikeError
from unalike.methods import CLASSES, METHODS
from unalike.nn import layout
from unalike.nn import task as model
from unalike.run import callbacks, sampling
from unalike.run import forests as _forests  # noqa: F401 (by it, trees.fit grows trees through a channel)
from unalike.run.callbacks import JSONL, Callback, MLflow, Progress, StopAt, TensorBoard, WandB
from unalike.run.clock import Clock
from unalike.run.deploy import load_model
from unalike.run.predict import Prediction, Predictor
from unalike.run.run import Run
from unalike.run.simulate import simulate
from unalike.settings.knobs import Knob, knob
from unalike.training import LocalTraining

__all__ = [
    "JSONL", "METHODS", "Batch", "Best", "Callback", "Clock", "Cohort", "Dataset", "Diverged", "EngineRefused",
    "Federation",
    "Field", "Fields", "Knob", "LocalTraining", "MLflow", "Me", "Method", "PerClient", "Prediction", "Predictor",
    "Progress",
    "Replies", "Request", "Run", "Server", "StopAt", "TensorBoard", "UnalikeError", "Vectors",
    "WandB", "callbacks", "channel", "data",
    "draws", "knob", "layout", "load", "load_model", "local", "methods", "metrics", "model", "models", "partition",
    "random", "sampling", "simulate", "skew", "synthetic", "trees", "vertical", *CLASSES,
]  # fmt: skip


def __getattr__(name: str) -> Any:  # ua.Scaffold
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return CLASSES[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *CLASSES})
