"""A client that is asked by hand, without a server: plans and requests as a hostile server could make them."""

import numpy as np
import torch

import unalike as ua
from unalike.contract.call import EVALUATION, Call, Evaluate
from unalike.messages import wire
from unalike.messages.request import request_header
from unalike.network.client import Client
from unalike.network.policy import Policy

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
LOCAL = {"steps": 4, "batch_size": 8, "lr": 0.1}
P = 5 * 3 + 3  # numbers of the linear model


def samples(count=40, test=12, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count + test, 5)).astype(np.float32)
    y = (np.arange(count + test) % 3).astype(np.int64)
    tests = [(x[count:], y[count:])] if test else None
    return ua.Federation.from_arrays([(x[:count], y[:count])], client_tests=tests, classes=3)


def client(folder, data=None, said=None, **settings):
    policy = Policy(**{"repeatable": True, **settings})
    return Client(
        samples() if data is None else data, folder, policy, "cpu", [].append if said is None else said.append
    )


def plan(local=None, method=None, model=None, settings=None, **changes):
    tables = {"model": model or {"name": "linear"}, "method": method or {"name": "fedavg"}, "local": local or LOCAL}
    return {
        "version": ua.__version__, "clients": 4, "client": 1, "classes": 3, "mean": 40.0, "tables": tables,
        "files": {}, "run": settings or {}, "preparation": None, "network": None, "public": None, **changes,
    }  # fmt: skip


def tell(client, message, tensors=None):
    """(header, fields) of the answer."""
    return wire.decode(client.answer([wire.encode(message, tensors or {})]))


def told(client, run=RUN, **given):
    """The refusal of a plan, or nothing."""
    return tell(client, {"kind": "plan", "run": run, "plan": plan(**given)})[0].get("reason", "")


def ask(client, round=0, exchange=0, method=None, function="client", run=RUN, acknowledged=None, **fields):
    header = request_header(method or ua.FedAvg(), Call(function, {}, {}, round, exchange))
    fields = {"w": torch.zeros(P), **fields}
    return tell(client, {**header, "run": run, "acknowledged": acknowledged}, fields)


def judge(client, round=0, split="test", run=RUN):
    header = request_header(ua.FedAvg(), Call(Evaluate(split), {}, {}, round, EVALUATION))
    return tell(client, {**header, "run": run}, {"w": torch.zeros(P)})
