"""From nothing to a comparison: FedAvg, FedProx and SCAFFOLD on handwritten
digits, split among 50 clients by Dirichlet(0.1): few classes per client.

It ends with a page to look at, report.html, and checks its own result: every
method must have learned, and SCAFFOLD must be ahead of FedAvg, as it should be
on data this skewed. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

from unalike import config, report
from unalike.cli import show
from unalike.errors import UnalikeError
from unalike.metrics.names import NUMBERS
from unalike.results.evidence import figure, gap
from unalike.text import size, span

METHODS: list[dict[str, Any]] = [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}, {"name": "scaffold"}]
SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "partition": "dirichlet:0.1", "clients": 50, "seed": 0, "test": 0.2},
    "model": {"name": "mlp", "hidden": [32]},
    "method": METHODS[0],
    "local": {"epochs": 5, "batch_size": 10, "lr": 0.1},
    "run": {"rounds": 40, "clients_per_round": 0.2, "seed": 0},
}
SHOWN = [NUMBERS[key] for key in ("test_accuracy", "clients_accuracy_mean", "clients_accuracy_worst20")]
# every method must reach the first; SCAFFOLD must be ahead of FedAvg by the second
LEARNED, AHEAD = 0.75, 0.01


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", default="runs/demo", help="where the runs are written (default runs/demo)")
    parser.add_argument("--rounds", type=int, default=SETTINGS["run"]["rounds"], help="fewer may fail the check")


def main(args: argparse.Namespace) -> int:
    if args.rounds < 1:
        raise UnalikeError(f"unalike demo: --rounds must be at least 1; got {args.rounds}.")
    screen = show.console(args.quiet or args.json)
    began = time.perf_counter()
    screen.print(__doc__.split("\n\n")[0], soft_wrap=True)
    runs = [_settings(args, method) for method in METHODS]
    for settings in runs:
        _clear(settings)
    results = {}
    for settings in runs:
        name = settings["method"]["name"]
        live = show.Live(screen, settings if settings is runs[0] else None, title=f"{name:<8}")
        try:
            results[name] = config.run(settings, callbacks=[report.Record(), live]).summary()
        finally:
            live.stop()
    finals = {name: summary["final"] for name, summary in results.items()}
    ok, sentence = verdict({name: final["test_accuracy"] for name, final in finals.items()})
    page = report.write(args.folder, comparison={"verdict": [sentence.replace("\n\n", " ")]})
    if args.json:
        show.document({"ok": ok, "verdict": sentence, "folder": args.folder, "report": str(page), "final": finals})
        return 0 if ok else 1
    rows = []
    for name, summary in results.items():
        sent = size(summary["bytes_up"] + summary["bytes_down"])
        scores = [figure(number.unit, [summary["final"][number.key]]) for number in SHOWN]
        rows.append([name, *scores, sent, span(summary["seconds"])])
    columns = ["method", *(number.short for number in SHOWN), "bytes", "time"]
    print(f"\naccuracy after {args.rounds} rounds, 10 of 50 clients in each")
    print(show.table(columns, rows))
    print("\n" + show.prose(sentence))
    screen.print(f"{time.perf_counter() - began:.0f} s in all; runs are in {show.near(args.folder)}", soft_wrap=True)
    screen.print(f"look at {show.near(page)}, then at your own data: unalike compare --help", soft_wrap=True)
    return 0 if ok else 1


def _settings(args: argparse.Namespace, method: dict[str, Any]) -> dict[str, dict[str, Any]]:
    run = {**SETTINGS["run"], "rounds": args.rounds, "folder": str(Path(args.folder) / method["name"])}
    return {**SETTINGS, "method": method, "run": run}


def _clear(settings: dict[str, dict[str, Any]]) -> None:
    """Remove the previous run of the demo, and nothing else."""
    folder = Path(settings["run"]["folder"])
    if not (folder / "config.toml").exists():
        return
    there = config.load_toml(folder / "config.toml")
    if any(there.get(table) != settings[table] for table in ("data", "model", "method", "local")):
        raise UnalikeError(f"unalike demo: {folder} holds a run that is not the demo's: give another --folder.")
    shutil.rmtree(folder)


def verdict(accuracy: dict[str, float]) -> tuple[bool, str]:
    """Return whether the result is as expected, and the sentences that report it."""
    lead = accuracy["scaffold"] - accuracy["fedavg"]
    points = gap("percent", lead, [LEARNED])
    expected = (
        f"Expected: all at least {figure('percent', [LEARNED])} on the test set, SCAFFOLD at least "
        f"{gap('percent', AHEAD, [LEARNED])} ahead of FedAvg."
    )
    if min(accuracy.values()) >= LEARNED and lead >= AHEAD:
        return True, f"As expected: SCAFFOLD is {points} ahead of FedAvg on data this skewed.\n\n{expected}"
    got = ", ".join(f"{name} {figure('percent', [value])}" for name, value in accuracy.items())
    return False, f"NOT as expected: {got}.\n\n{expected}"
