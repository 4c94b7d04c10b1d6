"""A million clients of two samples each: SCAFFOLD on a linear model, 1000 clients a round, beside 10,000 clients.

    python benchmarks/million.py [--rounds 20] [--checkpoints]

A round must cost its cohort, not the population: seconds a round within 1.3×, anonymous memory under 4 GB.
"""

import argparse
import platform
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn

import unalike as ua


def anonymous_bytes():
    """Anonymous memory of this process now (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


class Watch(ua.Callback):
    """Seconds from round to round (checkpoints included), and the largest anonymous memory seen after any."""

    def __init__(self):
        self.peak, self.moments = 0, []

    def on_round(self, run, line):
        self.peak = max(self.peak, anonymous_bytes())
        self.moments.append(time.perf_counter())


def measure(clients, rounds, folder):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2 * clients, 60, generator=g)
    y = torch.randint(0, 10, (2 * clients,), generator=g)
    fed = ua.Federation(ua.data.Columns(x, y, np.arange(clients + 1) * 2), global_test=(x[:1000], y[:1000]))
    torch.manual_seed(0)
    watch = Watch()
    run = ua.simulate(
        nn.Linear(60, 10), fed, ua.Scaffold(), rounds=rounds, clients_per_round=1000, folder=folder,
        local=ua.LocalTraining(epochs=2, batch_size=1, lr=0.05), callbacks=[watch], device="cpu",
    )  # fmt: skip
    return statistics.median(np.diff(watch.moments)), watch.peak, run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--checkpoints", action="store_true", help="write a run folder with a checkpoint each round")
    args = parser.parse_args()
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    seconds = {}
    for clients in (10_000, 1_000_000):
        with tempfile.TemporaryDirectory() if args.checkpoints else nullcontext() as folder:
            seconds[clients], peak, run = measure(clients, args.rounds, folder and f"{folder}/run")
        print(f"{clients:>9,} clients: {seconds[clients]:.4f} s a round, {peak / 1e9:.2f} GB anonymous, {run.reason}")
    ratio = seconds[1_000_000] / seconds[10_000]
    ok = ratio <= 1.3 and peak < 4e9
    print(f"ratio {ratio:.2f}x (at most 1.3x), {peak / 1e9:.2f} GB (under 4 GB): {'reached' if ok else 'NOT reached'}")
    raise SystemExit(0 if ok else 1)
