"""A sweep: three methods, three strengths of skew, three seeds; a table, and a picture with error bars.

python examples/sweep.py        # writes sweep.csv and sweep.svg here; half a minute
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

import unalike as ua

METHODS = {"FedAvg": ua.FedAvg(), "SCAFFOLD": ua.Scaffold(), "FedDyn": ua.FedDyn(alpha=0.1)}
SKEWS = (0.05, 0.3, 10.0)  # Dirichlet: less is more skewed
COLORS = ("#3e7ff6", "#af2f2d", "#3f997f")
Found = dict[tuple[str, float], list[float]]


def sweep(rounds: int = 15, seeds: int = 3) -> Found:
    """Return the last test accuracy of every method, skew and seed; for one seed all see the same split and start."""
    local = ua.LocalTraining(epochs=2, batch_size=10, lr=0.1)
    found: Found = {}
    for alpha in SKEWS:
        for seed in range(seeds):
            fed = ua.load("digits").split(ua.partition.Dirichlet(alpha), clients=20, seed=seed, test=0.2)
            for name, method in METHODS.items():
                model = ua.models.mlp(64, (32,), classes=10)
                run = ua.simulate(model, fed, method, rounds=rounds, clients_per_round=0.3, local=local, seed=seed)
                found.setdefault((name, alpha), []).append(run.history[-1]["test_accuracy"])
    return found


def write(found: Found, folder: Path) -> None:
    with (folder / "sweep.csv").open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["method", "alpha", "seed", "test_accuracy"])
        table.writerows([name, alpha, k, v] for (name, alpha), values in found.items() for k, v in enumerate(values))
    (folder / "sweep.svg").write_text(picture(found), encoding="utf-8")


def picture(found: Found, width: int = 460, height: int = 300) -> str:
    """Return a plot of means with one standard deviation to both sides, in plain SVG."""
    step = (width - 120) / (len(SKEWS) - 1)
    marks = [f'<text x="{60 + k * step}" y="{height - 12}">α = {alpha:g}</text>' for k, alpha in enumerate(SKEWS)]
    for name, color in zip(METHODS, COLORS, strict=True):
        points = []
        for k, alpha in enumerate(SKEWS):
            values = found[name, alpha]
            mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
            x, y, reach = 60 + k * step, (1 - mean) * (height - 60) + 20, spread * (height - 60)
            marks.append(f'<path d="M{x:.1f} {y - reach:.1f}V{y + reach:.1f}" stroke="{color}"/>')
            points.append(f"{x:.1f},{y:.1f}")
        marks.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>')
        marks.append(f'<text x="{width - 56}" y="{points[-1].split(",")[1]}" fill="{color}">{name}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="11">'
    return f"{head}<title>Test accuracy against skew</title>{''.join(marks)}</svg>\n"


if __name__ == "__main__":
    here = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    results = sweep()
    write(results, here)
    for (name, alpha), values in results.items():
        print(f"{name:9} α = {alpha:<5g} {statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}")
