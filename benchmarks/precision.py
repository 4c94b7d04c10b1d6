"""Do tf32 and bf16 cost accuracy? The same run on a GPU in each precision, on real images.

    python benchmarks/precision.py mnist.npz     # x [n, 28, 28] uint8, y, x_test, y_test

FedAvg and SCAFFOLD with FedAvg's CNN, Dirichlet(0.3) over 100 clients, 10 a round. Without a GPU or data it says so.
"""

import sys

import numpy as np
import torch

import unalike as ua


def main() -> int:
    if not torch.cuda.is_available() or len(sys.argv) < 2:
        print("skipped: needs a CUDA device and an npz file")
        return 0
    raw = np.load(sys.argv[1], allow_pickle=False)
    images = lambda key: (raw[key].astype(np.float32)[:, None] / 255 - 0.1307) / 0.3081  # noqa: E731
    data = ua.Dataset(images("x"), raw["y"], test=(images("x_test"), raw["y_test"]), classes=10, name="mnist")
    fed = data.split(ua.partition.Dirichlet(0.3), clients=100, seed=0)
    worst = 0.0
    for method in (ua.FedAvg(), ua.Scaffold()):
        reference = None
        for precision in ("highest", "tf32", "bf16"):
            torch.manual_seed(0)
            run = ua.simulate(
                ua.models.cnn_fedavg(1, 28, 10), fed, method, rounds=20, clients_per_round=10, precision=precision,
                local=ua.LocalTraining(epochs=1, batch_size=50, lr=0.05), engine="batched", device="cuda",
            )  # fmt: skip
            last = np.mean([line["test_accuracy"] for line in run.history[-3:]])
            reference = last if reference is None else reference
            worst = max(worst, abs(last - reference))
            seconds = np.median([line["seconds"] for line in run.history[2:]])
            print(
                f"{type(method).__name__:<10}{precision:<9}accuracy (mean of last 3 rounds) {last:.4f}  "
                f"{last - reference:+.4f}  {seconds:.3f} s a round", flush=True,
            )  # fmt: skip
    print(f"largest difference {worst:.4f} (at most 0.01): {'reached' if worst <= 0.01 else 'NOT reached'}")
    return int(worst > 0.01)


if __name__ == "__main__":
    raise SystemExit(main())
