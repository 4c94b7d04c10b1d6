"""Seconds a round of unalike's engines on a CPU beside a bare hand-written PyTorch loop, in one run.

    python benchmarks/engines.py [part of a name ...]

Rounds of both alternate; the ratio is the median over pairs, against the better of 1 and 2 threads for the loop. The
first round, which compiles where there is something to compile, is printed beside. (For a GPU: benchmarks/gpu.py.)
"""

import argparse
import copy
import multiprocessing
import platform
import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import unalike as ua
from unalike.engines.costs import compiler


def cnn_878538():
    """Two 5×5 convolutions without padding, 1600-512-10: 878,538 parameters on 3×32×32."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def images(clients, n, shape, classes=10):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(clients * n, *shape, generator=g)
    y = torch.randint(0, classes, (clients * n,), generator=g)
    return x, y, np.arange(clients + 1) * n


def tokens(clients, n, length=80, vocabulary=80):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, vocabulary, (clients * n, length), generator=g)
    return x, torch.randint(0, vocabulary, (clients * n,), generator=g), np.arange(clients + 1) * n


SOFTMAX = (lambda: nn.Linear(60, 10), lambda: images(1000, 60, (60,)), 100, 10, 5)
# name: model, (x, y, offsets), clients a round, batch, epochs; what must hold (ours is so many times faster); options
CPU = {
    "softmax regression, eager": (*SOFTMAX, 5.0, {"engine": "batched", "compile": False}),
    "softmax regression, compiled": (*SOFTMAX, 15.0, {"engine": "batched", "compile": True}),
    "CNN of 878,538 parameters": (cnn_878538, lambda: images(10, 100, (3, 32, 32)), 10, 20, 1, 1.3, {}),
    "two-layer char LSTM": (lambda: ua.models.CharLSTM(), lambda: tokens(10, 200), 10, 10, 1, 1 / 0.55, {}),
}


class BareLoop:
    """FedAvg as one would write it by hand."""

    def __init__(self, module, x, y, offsets, per_round, batch, epochs, lr=0.05):
        self.module, self.x, self.y, self.offsets = copy.deepcopy(module), x, y, offsets
        self.per_round, self.batch, self.epochs, self.lr = per_round, batch, epochs, lr

    def round(self):
        clients = torch.randperm(len(self.offsets) - 1)[: self.per_round].tolist()
        start = {k: v.clone() for k, v in self.module.state_dict().items()}
        total, mean = 0, {k: torch.zeros_like(v) for k, v in start.items()}
        for c in clients:
            self.module.load_state_dict(start)
            x, y = self.x[self.offsets[c] : self.offsets[c + 1]], self.y[self.offsets[c] : self.offsets[c + 1]]
            optimizer = torch.optim.SGD(self.module.parameters(), lr=self.lr)
            for _ in range(self.epochs):
                order = torch.randperm(len(y))
                for i in range(0, len(y), self.batch):
                    rows = order[i : i + self.batch]
                    optimizer.zero_grad()
                    F.cross_entropy(self.module(x[rows]), y[rows]).backward()
                    optimizer.step()
            total += len(y)
            for k, v in self.module.state_dict().items():
                mean[k] += len(y) * v
        self.module.load_state_dict({k: v / total for k, v in mean.items()})


def bare_process(pipe, name):
    """The bare loop in a process of its own, as somebody's script would run it: a round for every number of threads."""
    build, data, per_round, batch, epochs, *_ = CPU[name]
    torch.manual_seed(0)
    loop = BareLoop(build(), *data(), per_round, batch, epochs)
    while (threads := pipe.recv()) is not None:
        torch.set_num_threads(threads)
        began = time.perf_counter()
        loop.round()
        pipe.send(time.perf_counter() - began)


class Beside(ua.Callback):
    """After each of our rounds, a round of the bare loop with 1 and with 2 threads."""

    def __init__(self, name, warm=1):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=bare_process, args=(theirs, name), daemon=True)
        self.process.start()
        self.warm, self.times = warm, []

    def on_round(self, run, line):
        times = []
        for threads in (1, 2):
            self.pipe.send(threads)
            times.append(self.pipe.recv())
        if line["round"] > self.warm:
            self.times.append((line["seconds"], *times))

    def close(self):
        self.pipe.send(None)
        self.process.join()


def main(names, pairs):
    print(
        f"{'workload':<30}{'engine':<10}{'first':>8}{'ours':>9}{'loop, 1 thread':>16}{'2 threads':>11}{'ratio':>8}"
        f"{'must be':>9}"
    )
    passed = True
    for name, (build, data, per_round, batch, epochs, goal, options) in CPU.items():
        if names and not any(n in name for n in names):
            continue
        if options.get("compile") and not compiler():
            print(f"{name:<30}skipped: there is no C++ compiler")
            continue
        torch.manual_seed(0)
        module, (x, y, offsets) = build(), data()
        beside = Beside(name)
        fed = ua.Federation(ua.data.Columns(x, y, offsets))
        run = ua.simulate(
            module, fed, ua.FedAvg(), rounds=pairs + 1, clients_per_round=per_round, device="cpu",
            local=ua.LocalTraining(epochs=epochs, batch_size=batch, lr=0.05), callbacks=[beside], **options,
        )  # fmt: skip
        beside.close()
        ours, one, two = (statistics.median(t[k] for t in beside.times) for k in range(3))
        best = 1 if one <= two else 2
        ratio = statistics.median(t[best] / t[0] for t in beside.times)
        passed &= ratio >= goal
        print(
            f"{name:<30}{run.engine.name:<10}{run.history[0]['seconds']:>7.1f}s{ours:>8.4f}s{one:>15.4f}s{two:>10.4f}s"
            f"{ratio:>7.2f}x{goal:>8.2f}x", flush=True,
        )  # fmt: skip
    return passed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help="parts of names of workloads; all if none is given")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    ok = main(args.workloads, args.pairs)
    print("every ratio is reached" if ok else "NOT every ratio is reached")
    raise SystemExit(0 if ok else 1)
