"""Clients of unequal size beside clients of equal size, the same number of steps in all: what does raggedness cost?

    python benchmarks/ragged.py [part of a model's name ...] [--device cpu|cuda] [--pairs 5]

Sizes are lognormal with sigma 1. Runs of both kinds alternate; the median ratio must be at most 1.7. For the smallest
model it is only printed: there a step costs the same however few clients take it, and the longest client counts.
"""

import argparse
import platform
import statistics

import numpy as np
import torch
from torch import nn

import unalike as ua

WORK = {  # model, shape of a sample, clients, mean size, batch
    "softmax regression 60-10": (lambda: nn.Linear(60, 10), (60,), 100, 60, 10),
    "MLP 784-200-200-10": (lambda: ua.models.mlp(784, classes=10), (784,), 100, 300, 50),
    "FedDC's CIFAR CNN": (ua.models.cnn_feddc, (3, 32, 32), 100, 250, 50),
}
ON_CPU = {"softmax regression 60-10": (100, 60, 10), "FedDC's CIFAR CNN": (10, 100, 20)}  # clients, mean size, batch
NO_GOAL = ("softmax regression 60-10",)


def federation(shape, sizes):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(int(sizes.sum()), *shape, generator=g)
    y = torch.randint(0, 10, (len(x),), generator=g)
    return ua.Federation(ua.data.Columns(x, y, np.concatenate([[0], np.cumsum(sizes)])))


def seconds(build, fed, batch, rounds, device):
    torch.manual_seed(0)
    run = ua.simulate(
        build(), fed, ua.FedAvg(), rounds=rounds, local=ua.LocalTraining(epochs=2, batch_size=batch, lr=0.01),
        device=device, precision="bf16" if device == "cuda" else "highest",
        **({"compile": True} if device == "cuda" else {}),
    )  # fmt: skip
    return statistics.median(line["seconds"] for line in run.history[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {args.device}")
    missed = 0
    for name, (build, shape, clients, mean, batch) in WORK.items():
        if args.models and not any(part in name for part in args.models):
            continue
        if args.device == "cpu":
            if name not in ON_CPU:
                continue
            clients, mean, batch = ON_CPU[name]
        drawn = np.random.default_rng(0).lognormal(0, 1, clients)
        batches = np.maximum(1, np.round(drawn / drawn.sum() * clients * mean / batch)).astype(np.int64)
        ragged = batches * batch
        equal = np.full(clients, batches.sum() // clients) + (np.arange(clients) < batches.sum() % clients)
        feds = federation(shape, ragged), federation(shape, equal * batch)
        pairs = [[seconds(build, fed, batch, 4, args.device) for fed in feds] for _ in range(args.pairs)]
        ratio = statistics.median(a / b for a, b in pairs)
        reached = name in NO_GOAL or ratio <= 1.7
        missed += not reached
        ours, even = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name:<26} sizes {ragged.min()} to {ragged.max()}: {1000 * ours:.2f} ms a round; all equal "
            f"{1000 * even:.2f} ms; {ratio:.2f}x"
            + ("" if name in NO_GOAL else f" (at most 1.7x): {'reached' if reached else 'NOT reached'}"),
            flush=True,
        )
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
