"""Seconds a round of unalike against cohort, population, model size and number of workers, on this machine's CPU.

    python benchmarks/scaling.py               # two minutes or so; prints CSV, draws docs/images/scaling.svg
    python benchmarks/scaling.py --no-page     # print only

FedAvg without evaluation; the median of the rounds after the first. Measurements of an axis go round by round through
all of its points, so that a busy moment does not hit one point alone.
"""

import argparse
import os
import platform
import statistics

import torch
from _peers import page
from engines import cnn_878538, images
from torch import nn

import unalike as ua
from unalike.engines.workers import available_cores


def run(model, data, cohort, batch, epochs, rounds, **options):
    """Seconds of every round after the first, and the engine that ran."""
    torch.manual_seed(0)
    result = ua.simulate(
        model(), ua.Federation(ua.data.Columns(*data)), ua.FedAvg(), rounds=rounds + 1, clients_per_round=cohort,
        local=ua.LocalTraining(epochs=epochs, batch_size=batch, lr=0.05), device="cpu", **options,
    )  # fmt: skip
    return [line["seconds"] for line in result.history[1:]], result.engine.name


def softmax():
    return nn.Linear(60, 10)


def mlp(hidden):
    return lambda: nn.Sequential(nn.Linear(60, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def size(model):
    return sum(p.numel() for p in model().parameters())


def axes():
    """{axis: (its title, {point: arguments of `run`})}."""
    cores = available_cores()
    softmax_clients, few, pictures = images(1000, 60, (60,)), images(10, 60, (60,)), images(10, 100, (3, 32, 32))
    populations = {n: images(n, 2, (60,)) for n in (1_000, 10_000, 100_000)}
    models = [mlp(hidden) for hidden in (16, 128, 1024, 8192)]
    workers = [n for n in (1, 2, 4, 8, 16, 32) if n <= max(2, cores)]
    return {
        "cohort": (
            "clients a round: softmax regression, 30 steps of 10",
            {n: ((softmax, softmax_clients, n, 10, 5), {}) for n in (10, 30, 100, 300, 1000)},
        ),
        "population": (
            "clients in all: softmax regression, 100 a round",
            {n: ((softmax, data, 100, 1, 5), {}) for n, data in populations.items()},
        ),
        "parameters": (
            "parameters: MLP 60-h-10, 10 clients × 6 steps of 10",
            {size(model): ((model, few, 10, 10, 1), {}) for model in models},
        ),
        "workers": (
            "workers: CNN of 878,538 parameters, 10 clients × 5 steps",
            {n: ((cnn_878538, pictures, 10, 20, 1), {"engine": "workers", "workers": n}) for n in workers},
        ),
    }


def measure(points, repeats, rounds):
    """{point: (median seconds, engine)}."""
    times, engines = {point: [] for point in points}, {}
    for _ in range(repeats):
        for point, (work, options) in points.items():
            seconds, engines[point] = run(*work, rounds, **options)
            times[point] += seconds
    return {point: (statistics.median(times[point]), engines[point]) for point in points}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of each repeat, not counting its first")
    parser.add_argument("--no-page", action="store_true", help="print only")
    args = parser.parse_args()
    header = (
        f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{available_cores()} cores, load {os.getloadavg()[0]:.1f} before"
    )
    print(f"# {header}\naxis,value,engine,seconds a round", flush=True)
    lines, panels = [], {}
    for axis, (title, points) in axes().items():
        found = measure(points, args.repeats, args.rounds)
        panels[title] = [(point, seconds) for point, (seconds, _) in found.items()]
        for point, (seconds, engine) in found.items():
            lines.append(f"{axis},{point},{engine},{seconds:.5f}")
            print(lines[-1], flush=True)
    ending = f" and {os.getloadavg()[0]:.1f} after"
    print(f"# load{ending}")
    if not args.no_page:
        alt = "Seconds a round against " + "; ".join(
            f"{title}: " + ", ".join(f"{value:,} {seconds:.3g} s" for value, seconds in panel)
            for title, panel in panels.items()
        )
        page.curves("scaling.svg", alt, panels)
        table = "\n".join(["```", "axis,value,engine,seconds a round", *lines, "```"])
        page.put("scaling", f"![{alt}](images/scaling.svg)\n\n{header}{ending}; both axes are logarithmic.\n\n{table}")


if __name__ == "__main__":
    main()
