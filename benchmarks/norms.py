"""Where BatchNorm fails when clients have few labels each and GroupNorm does not, and where it does not fail.

    python benchmarks/norms.py [--seeds 5] [--only pooled]

The digits as 8×8 pictures. `flat` is a small CNN whose head reads every place of the picture, trained by FedAvg (one
pass a round, mini-batches of 8). `pooled` is a CNN whose head reads the mean of each channel, as ResNets have it,
trained synchronously: a round is one step on one mini-batch of 8 from each client (Hsieh et al. 2020, "The non-IID data
quagmire of decentralized machine learning"). BatchNorm takes the batch's mean out of each channel; where all samples of
a batch are of one class and the head sees only channels' means, it takes the class out with it.

Ten clients have samples alike (`iid`), of two classes, or of one. A row says what normalises and what becomes of
BatchNorm's running statistics: averaged with the model, or kept by each client (FedBN keeps scale and shift too).
`test` is the accuracy of the common model on the test set, `own` the mean accuracy of what clients predict with on test
samples of their own (with two classes a much easier question). Mean over seeds, and the standard deviation.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import nn

import unalike as ua
from unalike.models.cnn import NORMS

ROWS = {
    "none": ("none", "average", ua.FedAvg()),
    "GroupNorm": ("group", "average", ua.FedAvg()),
    "BatchNorm, statistics averaged": ("batch", "average", ua.FedAvg()),
    "BatchNorm, statistics kept": ("batch", "local", ua.FedAvg()),
    "BatchNorm, FedBN": ("batch", "local", ua.FedBN()),
}
SPLITS = {"iid": "iid", "two classes": "classes:2", "one class": "classes:1"}


def pooled(norm: str, width: int = 16) -> nn.Module:
    """Return three 3×3 convolutions, each normalised; the head reads the mean of each channel."""
    layers: list[nn.Module] = []
    for channels in (1, width, width):
        layers += [nn.Conv2d(channels, width, 3, padding=1), NORMS[norm](width), nn.ReLU()]
    layers.insert(3, nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


# network, rounds, local training; which splits and rows are in the table
SETTINGS = {
    "flat": (lambda norm: ua.models.small_cnn(1, 8, 10, norm=norm), 20, {"epochs": 1, "lr": 0.05}),
    "pooled": (pooled, 400, {"steps": 1, "lr": 0.1, "lr_decay": 0.995}),
}
TABLES = {"flat": (("iid", "two classes"), tuple(ROWS)), "pooled": (tuple(SPLITS), tuple(ROWS)[:3])}


def trained(setting: str, row: str, split: str, seed: int) -> tuple[float | None, float]:
    """Return the accuracy of the common model (None: there is none) and the mean of clients' own."""
    build, rounds, local = SETTINGS[setting]
    norm, buffers, method = ROWS[row]
    fed = ua.load("digits", image=True).split(SPLITS[split], clients=10, seed=seed, test=0.2)
    torch.manual_seed(seed)
    run = ua.simulate(
        build(norm), fed, method, rounds=rounds, seed=seed, buffers=buffers, evaluate_every=rounds, engine="batched",
        local=ua.LocalTraining(batch_size=8, **local),
    )  # fmt: skip
    last = run.history[-1]
    return last.get("test_accuracy"), last["clients_accuracy_mean"]


def shown(values: list[float]) -> str:
    """Return mean and deviation in per cent."""
    if None in values:
        return "–"
    known = [100 * v for v in values]
    return f"{statistics.mean(known):.1f}" + (f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else "")


def main() -> None:
    """Print a table for each setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=SETTINGS, help="one of the settings")
    args = parser.parse_args()
    for setting in [args.only] if args.only else SETTINGS:
        splits, rows = TABLES[setting]
        print(f"\n| {setting} | " + " | ".join(f"{split}: test | own" for split in splits) + " |")
        print("|---" * (1 + 2 * len(splits)) + "|")
        for row in rows:
            cells = []
            for split in splits:
                found = [trained(setting, row, split, seed) for seed in range(args.seeds)]
                cells += [shown([test for test, _ in found]), shown([own for _, own in found])]
            print(f"| {row} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
