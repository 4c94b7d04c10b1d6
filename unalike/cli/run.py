"""Run a method on a federation.

  unalike run --data digits --partition dirichlet:0.1 --clients 50 --method scaffold --rounds 20
  unalike run run.toml                     # the same from a file (see `unalike config schema`)
  unalike run run.toml --lr 0.01           # a file, with some settings changed
  unalike run --resume runs/scaffold-1     # continue a run in its folder

Every setting of a config file is a flag: --lr 0.1, --method.mu 0.5, --no-shuffle. Models, losses, metrics and methods
of your own: --model path/to/file.py:build, --loss file.py:fn, --metrics file.py:fn, --method file.py:Class.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

from unalike import config, typed
from unalike.cli import flags, show
from unalike.errors import UnalikeError
from unalike.simulate import Run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="a TOML file; flags override it")
    parser.add_argument("--resume", metavar="FOLDER", nargs="?", const=True, help="continue the run in this folder")
    parser.add_argument("--dry-run", action="store_true", help="show the settings and what they mean, train nothing")
    every = flags.known({name: {} for name in config.TABLES})
    for table in config.TABLES:
        group = parser.add_argument_group(f"[{table}]")
        for name, (hint, default) in every[table].items():
            short = next((s for s, place in flags.SHORT.items() if place == (table, name)), None)
            if short is None and name in ("name", "file", "folder", "resume"):
                continue
            text = typed.words(hint) or "a number, text or a list"
            given = "" if default in (None, "") or callable(default) or default is type else f" (default {default})"
            # declared for help and completion; `flags.collect` reads them, with those that depend on other choices
            group.add_argument(
                f"--{short or flags.flag(name)}", dest=argparse.SUPPRESS, metavar="…", action="append",
                default=argparse.SUPPRESS, help=f"{text}{given}".replace("%", "%%"),
            )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    tables = _tables(args)
    screen = show.console(args.quiet or args.json)
    settings = flags.absolute(tables)
    config.check(settings)
    folder = settings["run"].pop("folder", None) or _free_folder(settings)
    settings["run"].pop("resume", None)
    if args.dry_run:
        return _dry(settings, args, screen)
    live = show.Live(screen, settings)
    again = f"unalike run --resume {_near(folder)}"
    try:
        run = _go(settings, folder, bool(args.resume), [live])
    except KeyboardInterrupt:
        live.stop()
        screen.print(f"stopped; nothing is lost. Continue with:\n  {again}", soft_wrap=True)
        return 130
    except UnalikeError:
        live.stop()
        raise
    report(run, folder, args, screen)
    return 0


def _go(settings: dict[str, Any], folder: str | None, resume: bool, callbacks: list[Any]) -> Run:
    run_table = {**settings["run"], **({"folder": folder} if folder else {})}
    return config.run({**settings, "run": run_table}, callbacks=callbacks, resume=resume)


def _tables(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """From a file, or from the config of the folder to be continued, overridden by flags."""
    start: dict[str, Any] = {}
    folder = args.resume if isinstance(args.resume, str) else None
    if folder and args.file:
        raise UnalikeError("unalike run: give a file or --resume FOLDER, not both.")
    if folder:
        path = Path(folder) / "config.toml"
        if not path.is_file():
            raise UnalikeError(f"{folder} holds no run: there is no {path}.")
        start = tomllib.loads(path.read_text(encoding="utf-8"))
        if config.FACTS not in start:
            raise UnalikeError(f"{folder} was written by a Python program: continue it there, with resume=True.")
    elif args.file:
        start = config.read_tables(args.file)
    start.pop(config.FACTS, None)
    tables = flags.collect(args.rest, start)
    if folder:
        tables["run"]["folder"] = folder
    if args.resume is True and "folder" not in tables["run"]:
        raise UnalikeError("unalike run: --resume needs the folder of the run to continue.")
    return tables


def _free_folder(settings: dict[str, Any]) -> str:
    """runs/<method>-<data>-<number>, the first number that is free."""
    data, method = settings["data"], settings["method"]
    source = data.get("name") or Path(data.get("folder", "data")).name
    name = method.get("name") or Path(str(method.get("file", "fedavg"))).stem
    stem, number = Path("runs") / f"{name}-{source}", 1
    while Path(f"{stem}-{number}").exists():
        number += 1
    return str(Path(f"{stem}-{number}").resolve())


def _near(path: str | Path) -> str:
    """A path as one would type it here."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _dry(settings: dict[str, Any], args: argparse.Namespace, screen: Any) -> int:
    run = config.run({**settings, "run": {**settings["run"], "rounds": 0}})
    found = show.facts(run)
    if args.json:
        print(json.dumps({"settings": settings, "found": found}))
    else:
        screen.print(show.settings_tree(settings, found))
    return 0


def report(run: Run, folder: str | None, args: argparse.Namespace, screen: Any) -> None:
    """The result, on standard output."""
    summary = run.summary()
    if args.json:
        print(json.dumps({"folder": folder, **summary}))
        return
    final = summary["final"] or {}
    rows = [[k.replace("_", " "), f"{v:.4f}"] for k, v in final.items() if isinstance(v, float) and "seconds" not in k]
    if summary["selected"] and "test_accuracy" in summary["selected"]:
        at = summary["selected"]["round"]
        rows.append(
            [f"test accuracy at round {at}, chosen on validation data", f"{summary['selected']['test_accuracy']:.4f}"]
        )
    rows += [
        ["bytes down, up", f"{show.size(summary['bytes_down'])}, {show.size(summary['bytes_up'])}"],
        ["time", show.span(summary["seconds"])],
    ]
    print_table(f"after {summary['rounds']} rounds", ["", ""], rows)
    if folder:
        screen.print(f"written to {_near(folder)}", soft_wrap=True)


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console

    out = show.table(title, columns, rows)
    out.show_header = any(columns)
    Console(highlight=False).print(out)
