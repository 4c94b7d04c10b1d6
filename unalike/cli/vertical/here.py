"""Vertical learning with all parties on this machine: align, run, compare, predict."""

from __future__ import annotations

import argparse
import dataclasses as dc
from pathlib import Path
from typing import Any

from unalike.cli import predict, show
from unalike.cli.vertical import between, given
from unalike.errors import UnalikeError


def align(args: argparse.Namespace) -> int:
    parties = given.parties(args)
    report = parties.report
    return show.answer(args, dc.asdict(report), str(report))


def run(args: argparse.Namespace) -> int:
    from unalike import vertical

    method, settings = given.method(args), given.settings(args)
    parties = given.parties(args)
    given.say(args, str(parties.report))
    done = vertical.fit(method, parties, folder=args.out, resume=args.resume, **settings)
    last = done.history[-1]
    text = "\n".join(["who sees what", vertical.sight_text(done.sees), "", _line(last), *given.kept(args)])
    return show.answer(args, {"history": done.history, "sees": [dc.asdict(s) for s in done.sees]}, text)


def compare(args: argparse.Namespace) -> int:
    from unalike.vertical.compare import compare as compared

    method, parties = given.method(args), given.parties(args)
    given.say(args, str(parties.report))
    found = compared(method, parties, **given.settings(args))
    names, rows = found.rows()
    models = {line.name: line.scores for line in found.lines}
    content = {"models": models, "gain": found.gain, "verdict": found.verdict}
    return show.answer(args, content, f"{show.table(names, rows)}\n\n{found.verdict}")


def predicted(args: argparse.Namespace) -> int:
    folder = Path(args.run)
    if not (folder / "config.toml").is_file():
        raise UnalikeError(f"unalike vertical predict: {folder} holds no vertical run.")
    found = between.predicted(args, folder) if args.keys else _here(args, folder)
    return predict.give(args, predict.columns(found))


def _here(args: argparse.Namespace, folder: Path) -> Any:
    from unalike.vertical.predict import predicted as by_shares

    names, fallback = given.of_run(folder)
    tables = given.tables_of(args)
    shares = {name: given.share(folder / name) for name in names if name in tables or name == names[0]}
    ids = given.ids(args, tables)
    return by_shares(shares, tables, ids, fallback, given.alone(folder), args.duplicates, names)


def _line(line: dict[str, Any]) -> str:
    words = {name.replace("_", " "): f"{v:.4g}" if isinstance(v, float) else f"{v:,}" for name, v in line.items()}
    return ", ".join(f"{name} {value}" for name, value in words.items())
