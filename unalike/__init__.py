"""unalike: federated learning for clients whose data are not alike.

import unalike as ua
fed = ua.load("digits").split(ua.partition.Dirichlet(0.1), clients=50, seed=0)
run = ua.simulate(ua.models.softmax_regression(64, 10), fed, ua.Scaffold(), rounds=20)
"""

__version__ = "0.1.0"

from unalike import callbacks, data, layout, local, methods, metrics, model, models, random, sampling
from unalike.callbacks import JSONL, Callback, Progress, StopAt, TensorBoard
from unalike.contract import Batch, Field, Fields, Me, Method, PerClient
from unalike.data import Dataset, Federation, load, partition, synthetic
from unalike.errors import Diverged, EngineRefused, UnalikeError
from unalike.local import LocalTraining
from unalike.methods import (
    FLHC,
    METHODS,
    Centralized,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedAvgR,
    FedDC,
    FedDyn,
    FedFa,
    FedNova,
    FedProx,
    FedYogi,
    LocalOnly,
    OneShot,
    QFedAvg,
    RFedAvg,
    RFedAvgPlus,
    Scaffold,
)  # fmt: skip
from unalike.simulate import Run, simulate

__all__ = [
    "FLHC", "JSONL", "METHODS", "Batch", "Callback", "Centralized", "Dataset", "Diverged", "EngineRefused",
    "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedAvgR", "FedDC", "FedDyn", "FedFa", "FedNova", "FedProx",
    "FedYogi", "Federation", "Field", "Fields", "LocalOnly", "LocalTraining", "Me", "Method", "OneShot",
    "PerClient", "Progress", "QFedAvg", "RFedAvg", "RFedAvgPlus", "Run", "Scaffold", "StopAt", "TensorBoard",
    "UnalikeError", "callbacks", "data", "layout", "load", "local", "methods", "metrics", "model", "models",
    "partition", "random", "sampling", "simulate", "synthetic",
]  # fmt: skip
