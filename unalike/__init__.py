"""unalike: federated learning for clients whose data are not alike.

import unalike as ua
fed = ua.load("digits").split(ua.partition.Dirichlet(0.1), clients=50, seed=0)
run = ua.simulate(ua.models.softmax_regression(64, 10), fed, ua.Scaffold(), rounds=20)
"""

__version__ = "0.1.0"

from unalike import data, draws, methods, metrics, models
from unalike import draws as random
from unalike import training as local
from unalike.contract import Batch, Cohort, Field, Fields, Me, Method, PerClient, Replies, Request, Server
from unalike.data import Dataset, Federation, load, partition, synthetic
from unalike.errors import Diverged, EngineRefused, UnalikeError
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
)
from unalike.nn import layout
from unalike.nn import task as model
from unalike.run import callbacks, sampling
from unalike.run.callbacks import JSONL, Callback, Progress, StopAt, TensorBoard
from unalike.run.run import Run
from unalike.run.simulate import simulate
from unalike.training import LocalTraining

__all__ = [
    "FLHC", "JSONL", "METHODS", "Batch", "Callback", "Centralized", "Cohort", "Dataset", "Diverged", "EngineRefused",
    "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedAvgR", "FedDC", "FedDyn", "FedFa", "FedNova", "FedProx",
    "FedYogi", "Federation", "Field", "Fields", "LocalOnly", "LocalTraining", "Me", "Method", "OneShot",
    "PerClient", "Progress", "QFedAvg", "RFedAvg", "RFedAvgPlus", "Replies", "Request", "Run", "Scaffold", "Server",
    "StopAt", "TensorBoard", "UnalikeError", "callbacks", "data", "draws", "layout", "load", "local", "methods",
    "metrics", "model", "models", "partition", "random", "sampling", "simulate", "synthetic",
]  # fmt: skip
