"""The proofs every method owes, for the methods here and for yours:

    from unalike.testing import check_method
    check_method(MyMethod(strength=0.5), off=MyMethod(strength=0.0))

runs it on small ragged federations with a linear model, an MLP, a CNN and an LSTM, and checks that every engine gives
the same result, that a resumed run equals an uninterrupted one bit for bit, that it vanishes (with its knob off it is
FedAvg) and that it bites (with its knob on it is not).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unalike.contract import Method, Vectors
from unalike.data.federation import Federation
from unalike.methods.fedavg import FedAvg
from unalike.models import CharLSTM, keep_start, mlp, small_cnn, softmax_regression
from unalike.run.run import Run
from unalike.run.simulate import simulate
from unalike.training.settings import LocalTraining

ENGINES = ("sequential", "workers", "batched", "loopback")
TOLERANCE = {"float32": 1e-5, "float64": 1e-9}
# ragged: short last batches, and a client with one sample
SIZES = (7, 4, 12, 9, 1, 6)
PUBLIC = 11  # rows of the public set


def task(kind: str, seed: int = 0) -> tuple[nn.Module, Federation]:
    """Return a small model ("linear", "mlp", "cnn", "norm" or "lstm") and a ragged federation with per-client test
    data, a public set with labels, and the training samples divided into support and query (a single sample is in
    both)."""
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module = {
            "linear": lambda: softmax_regression(6, 3),
            "mlp": lambda: mlp(6, (8, 5), classes=3),
            "cnn": lambda: small_cnn(1, 8, 3, width=3),
            "norm": lambda: nn.Sequential(  # BatchNorm and dropout
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 3)
            ),
            "lstm": lambda: CharLSTM(vocabulary=11, embedding=3, hidden=5, layers=2, classes=3),
        }[kind]()

    def client(n: int, shift: float) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 3, (n,), generator=draw)
        if kind == "lstm":
            return torch.randint(0, 11, (n, 6), generator=draw), y
        shape = (1, 8, 8) if kind in ("cnn", "norm") else (6,)
        return torch.randn(n, *shape, generator=draw, dtype=torch.float64) + shift, y

    clients = [client(n, 0.3 * k) for k, n in enumerate(SIZES)]
    tests = [client(3, 0.3 * k) for k in range(len(SIZES))]
    whole, public = client(20, 0.5), client(PUBLIC, 0.4)
    cut = [max(1, round(0.4 * n)) for n in SIZES]
    halves = {
        "support": [(x[:c], y[:c]) for (x, y), c in zip(clients, cut, strict=True)],
        "query": [(x[c:], y[c:]) if len(y) > c else (x, y) for (x, y), c in zip(clients, cut, strict=True)],
    }
    data = Federation.from_arrays(clients, test=whole, client_tests=tests, client_splits=halves, classes=3)
    return keep_start(module), data.with_public(*public)


def settings(**changes: Any) -> dict[str, Any]:
    """Return settings for two rounds of at most five steps: so short that rounding errors do not grow."""
    local = LocalTraining(epochs=2, batch_size=5, lr=0.05, clip_norm=10.0, weight_decay=1e-3)
    return {
        "rounds": 2,
        "clients_per_round": [[0, 1, 2, 4, 5], [1, 2, 3, 4]],
        "local": local,
        "seed": 3,
        "allow_samples": True,
        **changes,
    }


def run(method: Method, kind: str, **changes: Any) -> Run:
    """Run the method on a small task."""
    return simulate(*task(kind), method, **settings(**changes))


def difference(a: Run, b: Run) -> float:
    """Return the largest difference between the states of two runs' servers and clients."""
    worst = max([_apart(value, b.server.values[name]) for name, value in a.server.values.items()], default=0.0)
    for client in range(a.population):
        mine, yours = a.clients[client], b.clients[client]
        worst = max([worst, *(_apart(mine[n], yours[n]) for n in mine)])
    return worst


def _apart(a: object, b: object) -> float:
    """Return the largest difference between two values of a state; a NaN on one side alone is infinitely far."""
    if isinstance(a, Vectors) and isinstance(b, Vectors):
        return max(_apart(part, b[name]) for name, part in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return max([_apart(*pair) for pair in zip(a, b, strict=True)], default=0.0)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not a.numel():
        return 0.0
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    a, b = (t.int() if t.dtype == torch.bool else t for t in (a, b))
    return float((a - b).abs().nan_to_num(nan=0.0, posinf=float("inf")).max())


def check_engines(method: Method, kind: str, dtype: str = "float32", engines: tuple[str, ...] = ENGINES) -> None:
    """Check that every engine gives the first engine's result, and the same numbers in every round's line."""
    first = run(method, kind, engine=engines[0], dtype=dtype)
    for engine in engines[1:]:
        other = run(method, kind, engine=engine, dtype=dtype)
        off = difference(first, other)
        if not off <= TOLERANCE[dtype]:
            raise AssertionError(f"{method} on {kind}, {dtype}: {engine} is {off:.1e} away from {engines[0]}")
        for mine, yours in zip(first.history, other.history, strict=True):
            for name in mine:
                if name.startswith("seconds") or mine[name] is None:
                    continue
                if not abs(mine[name] - yours[name]) <= 100 * TOLERANCE[dtype] * (1 + abs(mine[name])):
                    raise AssertionError(f"{method} on {kind}: {name} is {mine[name]} and on {engine} {yours[name]}")


def check_resume(method: Method, kind: str = "mlp", engine: str = "batched") -> None:
    """Check that a run stopped after one round and resumed is bit for bit the uninterrupted one."""
    whole = run(method, kind, engine=engine, rounds=3)
    with tempfile.TemporaryDirectory() as folder:
        run(method, kind, engine=engine, rounds=1, folder=Path(folder) / "run")
        resumed = run(method, kind, engine=engine, rounds=3, folder=Path(folder) / "run", resume=True)
        if difference(whole, resumed) != 0.0:
            raise AssertionError(f"{method}: a resumed run differs by {difference(whole, resumed):.1e}")


def apart(a: Run, b: Run) -> float:
    """Return how far apart two methods' models are: the servers' models, and the losses of the clients' own."""
    own = float(abs(a.client_values["loss"] - b.client_values["loss"]).max())
    if a.method.serverless or b.method.serverless:
        return own
    return max(own, float((a.server.w - b.server.w).abs().max()))


def check_vanishes(off: Method, like: Method, kind: str = "mlp", **changes: Any) -> None:
    """Check that the method with its knob off is `like` (FedAvg)."""
    a, b = (run(m, kind, engine="sequential", dtype="float64", **changes) for m in (off, like))
    distance = apart(a, b)
    if not distance <= 1e-12:
        raise AssertionError(f"{off} should be {like}, and is {distance:.1e} away")


def check_bites(on: Method, like: Method, kind: str = "mlp", **changes: Any) -> None:
    """Check that the method with its knob on is not `like`: this finds a correction that never reaches the model."""
    a, b = (run(m, kind, engine="sequential", dtype="float64", **changes) for m in (on, like))
    distance = apart(a, b)
    if not distance >= 1e-6:
        raise AssertionError(f"{on} should differ from {like}, and is only {distance:.1e} away")


def check_method(
    method: Method,
    *,
    off: Method | None = None,
    like: Method | None = None,
    kinds: tuple[str, ...] = ("linear", "mlp", "cnn", "norm", "lstm"),
    off_changes: dict[str, Any] | None = None,
    say: Callable[[str], object] | None = None,
) -> None:
    """Run all proofs. `off` is the method with its knob at zero, `like` the method that it then equals (default
    FedAvg); `say` is called with what is being checked; by default it is printed on standard error, if that is a
    terminal."""
    say = say or (_on_terminal if sys.stderr.isatty() else lambda text: None)
    name = type(method).__name__
    for number, kind in enumerate(kinds, 1):
        say(f"{name}: every engine gives the same result with a model of the kind {kind} ({number} of {len(kinds)})")
        check_engines(method, kind)
        check_engines(method, kind, "float64")
    say(f"{name}: a resumed run equals an uninterrupted one")
    check_resume(method)
    like = like or FedAvg()
    if off is not None:
        say(f"{name}: with its knob off it is {type(like).__name__}, with its knob on it is not")
        check_vanishes(off, like, **(off_changes or {}))
        check_bites(method, like)


def _on_terminal(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
