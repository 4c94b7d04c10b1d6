"""Clients of unequal size beside clients of equal size, the same number of steps in all: what does raggedness cost?

    python benchmarks/ragged.py [part of a model's name ...] [--device cpu|cuda] [--pairs 5]

Sizes are lognormal with sigma 1. Runs of both kinds alternate; the median ratio must be at most 1.7. For the smallest
model in uncompiled steps it is only printed: there a step costs the same however few clients take it, and the longest
client counts.
"""

import argparse
import platform
import statistics

import numpy as np
import torch
from torch import nn

import unalike as ua

SOFTMAX = "softmax regression 60-10"
WORK = {  # model, shape of a sample, clients, mean size, batch
    SOFTMAX: (lambda: nn.Linear(60, 10), (60,), 100, 60, 10),
    "MLP 784-200-200-10": (lambda: ua.models.mlp(784, classes=10), (784,), 100, 300, 50),
    "FedDC's CIFAR CNN": (ua.models.cnn_feddc, (3, 32, 32), 100, 250, 50),
}
# name, clients, mean size, batch; rounds, of which the first is not counted; how
ON_CPU = (
    (SOFTMAX, 100, 60, 10, 4, {"engine": "batched", "compile": False}),
    (SOFTMAX, 100, 60, 10, 40, {"engine": "batched", "compile": True}),
    ("FedDC's CIFAR CNN", 10, 100, 20, 4, {}),
)


def federation(shape, sizes):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(int(sizes.sum()), *shape, generator=g)
    y = torch.randint(0, 10, (len(x),), generator=g)
    return ua.Federation(ua.data.Columns(x, y, np.concatenate([[0], np.cumsum(sizes)])))


def workloads(device):
    """Yield (name, model, shape, clients, mean size, batch, rounds, options)."""
    if device == "cuda":
        for name, (build, shape, *numbers) in WORK.items():
            yield name, build, shape, *numbers, 4, {"compile": True, "precision": "bf16"}
        return
    for name, *numbers, options in ON_CPU:
        yield name, *WORK[name][:2], *numbers, options


def seconds(build, fed, batch, rounds, device, options):
    torch.manual_seed(0)
    run = ua.simulate(
        build(), fed, ua.FedAvg(), rounds=rounds, local=ua.LocalTraining(epochs=2, batch_size=batch, lr=0.01),
        device=device, **options,
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
    for name, build, shape, clients, mean, batch, rounds, options in workloads(args.device):
        if args.models and not any(part in name for part in args.models):
            continue
        drawn = np.random.default_rng(0).lognormal(0, 1, clients)
        batches = np.maximum(1, np.round(drawn / drawn.sum() * clients * mean / batch)).astype(np.int64)
        ragged = batches * batch
        equal = np.full(clients, batches.sum() // clients) + (np.arange(clients) < batches.sum() % clients)
        feds = federation(shape, ragged), federation(shape, equal * batch)
        pairs = [[seconds(build, fed, batch, rounds, args.device, options) for fed in feds] for _ in range(args.pairs)]
        ratio = statistics.median(a / b for a, b in pairs)
        compiled = bool(options.get("compile"))
        asked = name != SOFTMAX or (compiled and args.device == "cpu")
        reached = not asked or ratio <= 1.7
        missed += not reached
        ours, even = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name + ', compiled' * compiled:<36} sizes {ragged.min()} to {ragged.max()}: {1000 * ours:.2f} ms a "
            f"round; all equal {1000 * even:.2f} ms; {ratio:.2f}x"
            + (f" (at most 1.7x): {'reached' if reached else 'NOT reached'}" if asked else ""),
            flush=True,
        )
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
