"""A million clients of two samples each, every one with SCAFFOLD's state, beside 10,000 clients.

    python benchmarks/million.py [linear cnn] [--rounds 20] [--checkpoints]

linear: 610 parameters, 1000 clients a round, under 4 GB of anonymous memory. cnn: 100,458 parameters, 200 clients a
round, their state (0.4 MB each) in files, under 6 GB. A round must cost its cohort, not the population: seconds a round
within 1.3×.
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


def small_cnn():
    """100,458 parameters on 1×8×8 pictures."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 688), nn.ReLU(), nn.Linear(688, 10),
    )  # fmt: skip


# model, shape of a sample, clients a round, bytes of client state held in memory, GB of anonymous memory allowed
WORK = {
    "linear": (lambda: nn.Linear(60, 10), (60,), 1000, 2 << 30, 4),
    "cnn": (small_cnn, (1, 8, 8), 200, 256 << 20, 6),
}


def measure(name, clients, rounds, folder):
    build, shape, per_round, state_memory, _ = WORK[name]
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2 * clients, *shape, generator=g)
    y = torch.randint(0, 10, (2 * clients,), generator=g)
    fed = ua.Federation(ua.data.Columns(x, y, np.arange(clients + 1) * 2), global_test=(x[:1000], y[:1000]))
    torch.manual_seed(0)
    watch = Watch()
    run = ua.simulate(
        build(), fed, ua.Scaffold(), rounds=rounds, clients_per_round=per_round, folder=folder,
        local=ua.LocalTraining(epochs=2, batch_size=1, lr=0.05), state_memory=state_memory, callbacks=[watch],
        device="cpu",
    )  # fmt: skip
    return statistics.median(np.diff(watch.moments)), watch.peak, run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*WORK, []], help="linear, cnn; both if none is given")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--checkpoints", action="store_true", help="write a run folder with a checkpoint each round")
    args = parser.parse_args()
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    missed = 0
    for name in args.models or WORK:
        seconds = {}
        for clients in (10_000, 1_000_000):
            with tempfile.TemporaryDirectory() if args.checkpoints else nullcontext() as folder:
                seconds[clients], peak, run = measure(name, clients, args.rounds, folder and f"{folder}/run")
            print(
                f"{name:<7}{clients:>9,} clients: {seconds[clients]:.4f} s a round, {peak / 1e9:.2f} GB anonymous, "
                f"{run.reason}", flush=True,
            )  # fmt: skip
        ratio, limit = seconds[1_000_000] / seconds[10_000], WORK[name][-1]
        ok = ratio <= 1.3 and peak < limit * 1e9
        missed += not ok
        print(
            f"{name:<7}ratio {ratio:.2f}x (at most 1.3x), {peak / 1e9:.2f} GB (under {limit} GB): "
            f"{'reached' if ok else 'NOT reached'}", flush=True,
        )  # fmt: skip
    raise SystemExit(1 if missed else 0)
