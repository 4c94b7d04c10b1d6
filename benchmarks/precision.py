"""Is the GPU's fast path safe? CIFAR-10 trained in strict float32 and in the fast precisions, seeds paired.

    python benchmarks/precision.py [folder with CIFAR-10] [--rounds 60] [--seeds 3] [--precision bf16 tf32]

FedAvg with FedDC's CNN and its augmentation, Dirichlet(0.3) over 100 clients, 15 a round. Compared is the mean test
accuracy of the last ten rounds; it may differ by 0.5 points or by two standard errors of the paired difference,
whichever is larger. Without a GPU it says so.
"""

import argparse

import numpy as np
import torch

import unalike as ua


def accuracy(fed, seed, precision, rounds, **options):
    torch.manual_seed(seed)
    run = ua.simulate(
        ua.models.cnn_feddc(), fed, ua.FedAvg(), rounds=rounds, clients_per_round=15, seed=seed, precision=precision,
        engine="batched", device="cuda", evaluate_clients="none",
        local=ua.LocalTraining(
            epochs=5, batch_size=50, lr=0.1, lr_decay=0.998, weight_decay=1e-3, clip_norm=10.0,
            augment="flip,crop:4:0.5",
        ), **options,
    )  # fmt: skip
    last = 100 * float(np.mean([line["test_accuracy"] for line in run.history[-10:]]))
    return last, float(np.median([line["seconds"] for line in run.history[2:]]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32"])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return 0
    print(f"unalike {ua.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    data = ua.load("cifar10", **({"folder": args.folder} if args.folder else {}))
    got: dict[str, list[float]] = {}
    for seed in range(args.seeds):
        fed = data.split(ua.partition.Dirichlet(0.3), clients=100, seed=seed)
        for precision in ("highest", *args.precision):
            last, seconds = accuracy(fed, seed, precision, args.rounds)
            got.setdefault(precision, []).append(last)
            print(f"seed {seed}  {precision:<9}{last:6.2f} %  {seconds:.3f} s a round", flush=True)
    wrong = 0
    for precision in args.precision:
        difference = np.array(got[precision]) - np.array(got["highest"])
        error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
        limit = max(0.5, 2 * error)
        safe = abs(difference.mean()) <= limit
        wrong += not safe
        print(
            f"{precision} - float32: {difference.mean():+.2f} ± {error:.2f} points over {len(difference)} seeds, "
            f"allowed {limit:.2f}: {'safe' if safe else 'NOT safe'}"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
