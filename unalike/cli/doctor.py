"""Versions, devices, threads, compiler, and a speed probe of about five seconds."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import statistics
import time
from typing import Any

import torch

import unalike
from unalike.cli import show
from unalike.engines.workers import available_cores
from unalike.run.run import Run

PACKAGES = ("torch", "numpy", "safetensors", "scikit-learn", "rich")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-probe", action="store_true", help="skip the speed probe")


def main(args: argparse.Namespace) -> int:
    gpus = range(torch.cuda.device_count())
    compiler = shutil.which("g++") or shutil.which("clang++")
    facts: dict[str, Any] = {
        "unalike": unalike.__version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cores": available_cores(),
        "PyTorch threads": torch.get_num_threads(),
        "C++ compiler": compiler or "none: compile = true will run eagerly on a CPU",
        "devices": ", ".join(["cpu", *(f"cuda:{k} {torch.cuda.get_device_name(k)}" for k in gpus)]),
    }
    found = [] if args.no_probe else probe()
    text = show.table([], [[k, str(v)] for k, v in facts.items()])
    if found:
        rows = [[p["workload"], f"{p['milliseconds']:.1f} ms", p["engine"]] for p in found]
        text += "\n\n" + show.table(["speed of FedAvg", "a round", "engine"], rows)
    return show.answer(args, {**facts, "probe": found}, text)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def probe(seconds: float = 5.0) -> list[dict[str, Any]]:
    """Return the time per round of FedAvg on two standard workloads, with the engine that `auto` chooses."""
    import numpy as np

    draw = torch.Generator().manual_seed(0)
    cases: dict[str, Any] = {
        "softmax 60-10, 100 clients × 30 steps": (torch.nn.Linear(60, 10), (60,), 100, 60, 10, 5),
        "MLP 784-200-200-10, 10 clients × 12 steps": (unalike.models.mlp(784, classes=10), (784,), 10, 600, 50, 1),
    }
    out: list[dict[str, Any]] = []
    for name, (module, shape, clients, n, batch, epochs) in cases.items():
        x = torch.randn(clients * n, *shape, generator=draw)
        y = torch.randint(0, 10, (clients * n,), generator=draw)
        fed = unalike.Federation(unalike.data.Columns(x, y, np.arange(clients + 1) * n))
        until = _Until(time.perf_counter() + seconds / len(cases))
        run = unalike.simulate(
            module, fed, unalike.FedAvg(), rounds=10_000, callbacks=[until],
            local=unalike.LocalTraining(epochs=epochs, batch_size=batch, lr=0.01),
        )  # fmt: skip
        times = [line["seconds"] for line in run.history[1:]] or [run.history[0]["seconds"]]
        engine = run.reason.partition(":")[0]
        out.append({"workload": name, "milliseconds": 1000 * statistics.median(times), "engine": engine})
    return out


class _Until(unalike.Callback):
    def __init__(self, moment: float):
        self.moment = moment

    def on_round(self, run: Run, line: dict[str, Any]) -> bool:
        return time.perf_counter() >= self.moment
