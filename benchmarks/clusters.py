"""Are planted groups found? Digits, 40 clients that all take part, in four groups by permuted labels or by rotation,
and of one kind; the adjusted Rand index against the groups, over five seeds, and the clients' mean accuracy.

    python benchmarks/clusters.py [--rounds 80] [--seeds 5] [--only cfl,ifca]
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

import unalike as ua

DATA = {"permuted labels": "iid|permute:4", "rotations": "iid|rotate:4", "one kind": "iid"}
METHODS = {
    "cfl": ua.CFL(),
    "ifca": ua.IFCA(4, starts=5),
    "ifca, one start": ua.IFCA(4),
    "hypcluster": ua.HypCluster(4, starts=5),
    "fesem": ua.FeSEM(4),
    "flhc": ua.FLHC(4),
    "fedavg": ua.FedAvg(),
}


def one(method, partition, seed, rounds):
    """The last line of a run."""
    fed = ua.load("digits", image=True).split(partition, clients=40, seed=seed, test=0.2)
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    local = ua.LocalTraining(epochs=5, batch_size=16, lr=0.1)
    settings = {"engine": "batched", "device": "cpu", "evaluate_every": rounds, "seed": seed}
    return ua.simulate(module, fed, method, rounds=rounds, local=local, **settings).history[-1]


def show(values):
    return " ".join("–" if v is None else f"{v:5.2f}" for v in values)


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=80)
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--only", default=",".join(METHODS).replace(", one start", "+one"))
    given = asked.parse_args()
    chosen = {name: m for name, m in METHODS.items() if name.replace(", one start", "+one") in given.only.split(",")}
    print("| clients | method | ARI, seed by seed | clusters | accuracy | seconds a run |\n|---|---|---|---|---|---|")
    for kind, partition in DATA.items():
        for name, method in chosen.items():
            began = time.process_time()
            lines = [one(method, partition, seed, given.rounds) for seed in range(given.seeds)]
            seconds = (time.process_time() - began) / given.seeds
            found = [line.get("cluster_ari") for line in lines]
            counts = " ".join(str(line.get("clusters", 1)) for line in lines)
            accuracy = 100 * np.mean([line["clients_accuracy_mean"] for line in lines])
            print(f"| {kind} | {name} | {show(found)} | {counts} | {accuracy:.1f} % | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
