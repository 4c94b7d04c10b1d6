"""Seconds a round of engine="ray" with 1 and with 2 workers of one core each, in one run.

    python benchmarks/ray_scaling.py            # needs the extra: pip install 'unalike[ray]'

The CNN of 878,538 parameters of benchmarks/engines.py, 10 clients of 100 samples. Short runs with one and with two
workers alternate; each gives the median of its rounds after the first, and the ratio is that of the medians over the
pairs. How long workers take to start is printed beside.
"""

import argparse
import os
import platform
import statistics
import time

import torch
from engines import CPU

import unalike as ua
from unalike.engines.ray import load_ray, local_ray
from unalike.engines.workers import available_cores

GOAL = 1.4
NAME = "CNN of 878,538 parameters"


def one(workers, rounds):
    """Seconds a round, seconds until the first round began, and the final weights."""
    build, data, per_round, batch, epochs, *_ = CPU[NAME]
    torch.manual_seed(0)
    fed = ua.Federation(ua.data.Columns(*data()))
    began = time.perf_counter()
    run = ua.simulate(
        build(), fed, ua.FedAvg(), rounds=rounds, clients_per_round=per_round, engine="ray", workers=workers,
        device="cpu", local=ua.LocalTraining(epochs=epochs, batch_size=batch, lr=0.05),
    )  # fmt: skip
    started = time.perf_counter() - began - run.seconds_total
    return statistics.median(line["seconds"] for line in run.history[1:]), started, run.server.w


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6, help="of each run; the first is not counted")
    args = parser.parse_args()
    cores = available_cores()
    print(
        f"unalike {ua.__version__}, ray {load_ray().__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {cores} cores, load {os.getloadavg()[0]:.1f}"
    )
    if cores < 2:
        print("one core: nothing to compare")
        return True
    with local_ray(2):
        pairs = [(one(1, args.rounds), one(2, args.rounds)) for _ in range(args.pairs)]
    for k, (a, b) in enumerate(pairs):
        print(f"pair {k + 1}: {a[0]:.3f} s a round with 1 worker, {b[0]:.3f} s with 2, {a[0] / b[0]:.2f}x")
    single, double = (statistics.median(pair[k][0] for pair in pairs) for k in (0, 1))
    start = statistics.median(result[1] for pair in pairs for result in pair)
    same = all(torch.equal(a[2], b[2]) for a, b in pairs)
    ratio = single / double
    print(f"{NAME}, 10 clients: 1 worker {single:.3f} s, 2 workers {double:.3f} s a round")
    print(f"ratio {ratio:.2f}x (must be {GOAL}x); final weights equal: {same}; a run's workers start in {start:.1f} s")
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return ratio >= GOAL and same


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
