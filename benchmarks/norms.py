"""BatchNorm fails where clients have few labels each; GroupNorm does not: accuracy of one small CNN with either.

    python benchmarks/norms.py [--seeds 5] [--rounds 40] [--batch 8]

The digits as 8×8 pictures, 10 clients, alike (`iid`) or with two classes each; FedAvg, one pass a round in small
mini-batches. Rows: the kind of normalisation and what becomes of BatchNorm's running statistics (averaged with the
model, or kept by each client; FedBN keeps scale and shift too). `common` is the accuracy of the common model on the
test set, `own` the mean accuracy of what clients predict with on their own test samples (a client of two classes has a
much easier question there); `training mode` is the common model's again, but normalised by the statistics of the test
batch itself, which has all classes. Mean over seeds and the standard deviation. Needs torch, numpy and safetensors.
"""

from __future__ import annotations

import argparse
import statistics

import torch

import unalike as ua

ROWS = {
    "none": ("none", "average", ua.FedAvg()),
    "GroupNorm": ("group", "average", ua.FedAvg()),
    "BatchNorm, statistics averaged": ("batch", "average", ua.FedAvg()),
    "BatchNorm, statistics kept": ("batch", "local", ua.FedAvg()),
    "BatchNorm, FedBN": ("batch", "local", ua.FedBN()),
}
SPLITS = {"iid": "iid", "two classes each": "classes:2"}


def trained(row: str, split: str, seed: int, rounds: int, batch: int) -> dict[str, float]:
    """Return the accuracies of one run, by name."""
    norm, buffers, method = ROWS[row]
    fed = ua.load("digits", image=True).split(SPLITS[split], clients=10, seed=seed, test=0.2)
    torch.manual_seed(seed)
    run = ua.simulate(
        ua.models.small_cnn(1, 8, 10, norm=norm), fed, method, rounds=rounds, seed=seed, buffers=buffers,
        evaluate_every=rounds, local=ua.LocalTraining(epochs=1, batch_size=batch, lr=0.05),
    )  # fmt: skip
    last = run.history[-1]
    found = {"common": last.get("test_accuracy"), "own": last["clients_accuracy_mean"]}
    if norm == "batch" and found["common"] is not None:
        model = run.model.train()
        x, y = fed.global_test
        found["training mode"] = float((model(x).argmax(1) == y).double().mean())
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    names = ("common", "own", "training mode")
    print("| normalisation | " + " | ".join(f"{split}: {name}" for split in SPLITS for name in names) + " |")
    print("|---" * (1 + len(SPLITS) * len(names)) + "|")
    for row in ROWS:
        cells = []
        for split in SPLITS:
            found = [trained(row, split, seed, args.rounds, args.batch) for seed in range(args.seeds)]
            cells += [shown([f.get(name) for f in found]) for name in names]
        print(f"| {row} | " + " | ".join(cells) + " |", flush=True)


def shown(values: list[float | None]) -> str:
    """Return mean ± deviation in per cent."""
    known = [100 * v for v in values if v is not None]
    if not known:
        return "–"
    return f"{statistics.mean(known):.1f}" + (f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else "")


if __name__ == "__main__":
    main()
