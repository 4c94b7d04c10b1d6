"""From nothing to a comparison: FedAvg, FedProx and SCAFFOLD on the digits, split among 50 clients by Dirichlet(0.1).

It ends with a check of its own result: SCAFFOLD must be ahead of FedAvg, and all must have learned. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from unalike import config
from unalike.cli import show
from unalike.cli.run import _near, print_table

METHODS: list[dict[str, Any]] = [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}, {"name": "scaffold"}]
SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "partition": "dirichlet:0.1", "clients": 50, "seed": 0, "test": 0.2},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 5, "batch_size": 10, "lr": 0.1},
    "run": {"rounds": 40, "clients_per_round": 0.2, "seed": 0},
}
LEARNED, AHEAD = 0.75, 0.01  # what every method must reach, and by how much SCAFFOLD must be ahead of FedAvg


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", default="runs/demo", help="where the runs are written (default runs/demo)")
    parser.add_argument("--rounds", type=int, default=SETTINGS["run"]["rounds"], help="fewer rounds may fail the check")


def main(args: argparse.Namespace) -> int:
    screen = show.console(args.quiet or args.json)
    began = time.perf_counter()
    screen.print(__doc__.split("\n\n")[0], soft_wrap=True)
    results = {}
    for method in METHODS:
        folder = Path(args.folder) / method["name"]
        settings = {**SETTINGS, "method": method}
        settings["run"] = {**SETTINGS["run"], "rounds": args.rounds, "folder": str(folder)}
        tables = settings if method is METHODS[0] else None
        live = show.Live(screen, tables, title=f"{method['name']:<9}")
        if (folder / "config.toml").exists():  # the demo's own run of before
            shutil.rmtree(folder)
        results[method["name"]] = config.run(settings, callbacks=[live]).summary()
    finals = {name: s["final"] for name, s in results.items()}
    ok, sentence = verdict({name: f["test_accuracy"] for name, f in finals.items()})
    if args.json:
        print(json.dumps({"ok": ok, "verdict": sentence, "folder": args.folder, "final": finals}))
        return 0 if ok else 1
    rows = [
        [
            name,
            f"{f['test_accuracy']:.3f}",
            f"{f['clients_accuracy_mean']:.3f}",
            f"{f['clients_accuracy_worst20']:.3f}",
            show.size(results[name]["bytes_up"] + results[name]["bytes_down"]),
            show.span(results[name]["seconds"]),
        ]
        for name, f in finals.items()
    ]
    print_table(
        f"after {args.rounds} rounds, 10 of 50 clients each",
        ["method", "test", "clients", "worst 20 %", "bytes", "time"],
        rows,
    )
    print(f"\n{sentence}")
    screen.print(f"{time.perf_counter() - began:.0f} s in all; runs are in {_near(args.folder)}", soft_wrap=True)
    return 0 if ok else 1


def verdict(accuracy: dict[str, float]) -> tuple[bool, str]:
    """Whether the result is as expected, and the sentence that says so."""
    lead = accuracy["scaffold"] - accuracy["fedavg"]
    expected = f"expected: all above {LEARNED}, SCAFFOLD at least {AHEAD} above FedAvg"
    ok = min(accuracy.values()) >= LEARNED and lead >= AHEAD
    if ok:
        return True, f"As expected: SCAFFOLD is {lead:.3f} ahead of FedAvg on data this skewed ({expected})."
    return False, f"NOT as {expected}; got " + ", ".join(f"{n} {a:.3f}" for n, a in accuracy.items()) + "."
