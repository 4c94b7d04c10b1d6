"""Run a method on a federation.

  unalike run --data digits --partition dirichlet:0.1 --clients 50 \\
              --method scaffold --rounds 20
  unalike run run.toml                        the same, from a file
  unalike run run.toml --lr 0.01              a file, some settings changed
  unalike run --resume runs/scaffold-digits-1 go on where it ended
  unalike run run.toml --seeds 5              five runs, their mean and spread

Every setting of a config file is a flag, and the other way round: --lr 0.1 is
lr = 0.1 under [local]. --local.lr says the table too, --no-shuffle is
shuffle = false, and a list is 32,16. Models, losses, metrics and methods of
your own: --model file.py:build, --loss file.py:fn, --metrics file.py:fn,
--method file.py:Class. Paths are read from where you are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import shtab

from unalike import config
from unalike.cli import show
from unalike.comparison.jobs import with_seed
from unalike.config import defaults, flags
from unalike.data import Federation
from unalike.errors import UnalikeError
from unalike.metrics.names import Number, of, score_in
from unalike.report import Record
from unalike.results.evidence import figure
from unalike.run.callbacks import LOGS, Callback, log
from unalike.run.run import Run
from unalike.settings import typed
from unalike.text import parse_seeds, size, span

METAVARS = {bool: "", int: "N", float: "X", str: "TEXT"}


def arguments(parser: argparse.ArgumentParser, own: Collection[str] = (), without: Collection[str] = ()) -> None:
    """Declare a flag for every setting; own: names of flags that the command uses for something else; without: tables
    and flags that the command has no use for, and refuses in words of its own."""
    parser.usage = "unalike run [FILE] [--SETTING VALUE ...] [--seeds N] [--resume [FOLDER]]"
    file = parser.add_argument("file", nargs="?", metavar="FILE", help="a TOML file; flags override it")
    resume = parser.add_argument("--resume", metavar="FOLDER", nargs="?", const=True, help="go on with the run there")
    file.complete, resume.complete = shtab.FILE, shtab.DIRECTORY  # type: ignore[attr-defined]
    seeds = "as many runs, or these, each in a folder of its own: 3, or 0,1,2"
    parser.add_argument("--seeds", metavar="N", help=seeds)
    logs = f"log into the run's folder too: {', '.join(LOGS)}, or several with commas"
    parser.add_argument("--log", metavar="NAME", default="", help=logs)
    dry = argparse.SUPPRESS if "--dry-run" in without else "show all settings and what they mean; train nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    parser.add_argument("--allow-code", action="store_true", help="run Python files that a run's config.toml names")
    tables = {table: config.every(table) for table in config.TABLES}
    # for help and completion: `flags.split` takes them out before argparse sees them
    for table in [table for table in config.TABLES if table not in without]:
        group, knobs = parser.add_argument_group(f"[{table}]"), config.described(table)
        for name, (hint, default, owners) in tables[table].items():
            if (table in ("model", "method") and name == "file") or name == "resume":
                continue  # --model and --method take files, --resume is above
            flag = flags.flag(table, name)
            others = [t for t in config.TABLES if t != table and name in tables[t]]
            if others and (table, name) not in flags.SHORT.values():  # the bare name would be ambiguous
                flag = f"--{table}.{name.replace('_', '-')}"
            if flag in own:
                continue
            text = knobs[name].text or typed.words(hint)
            if not knobs[name].words or (table == "method" and name != "name"):
                text += f" ({', '.join(owners)})"
            options: dict[str, Any] = {"help": _help(text, default), "dest": f"{table}.{name}"}
            choices = knobs[name].choices or (config.NAMES.get(table) if name == "name" else None)
            if typed.fits(True, hint):
                options |= {"action": "store_true"}
            else:
                metavar = next((m for kind, m in METAVARS.items() if m and typed.words(kind) in typed.words(hint)), "X")
                options |= {"metavar": metavar, "choices": list(choices) if choices else None}
            setting = group.add_argument(flag, **options)
            if name in ("folder", "table"):
                setting.complete = shtab.DIRECTORY if name == "folder" else shtab.FILE  # type: ignore[attr-defined]


def _help(text: str, default: Any) -> str:
    shown = default not in (None, "") and show.writable(default)
    return f"{text} [{str(default).lower() if isinstance(default, bool) else default}]" if shown else text


def main(args: argparse.Namespace) -> int:
    tables = config.check(tables_of(args))
    return _several(args, tables) if args.seeds else _one(args, tables)


def _one(args: argparse.Namespace, tables: dict[str, dict[str, Any]]) -> int:
    settings = config.absolute(tables)
    settings, notes, data = with_defaults(args, settings)
    notes += [config.FEDSGD] if flags.is_fedsgd(args.settings) or config.is_fedsgd(args.file) else []
    if args.dry_run:
        return dry_run(settings, args)
    # the loopback engine prepares features by messages
    here = None if settings["run"].get("engine") == "loopback" else data

    def go(live: show.Live, resume: bool) -> Run:
        for note in notes:
            live.say(f"note: {note}")
        logs = [log(name, Path(settings["run"]["folder"])) for name in names]
        return config.run(settings, callbacks=[live, Record(), *logs], resume=resume, federation=here)

    names = [name.strip() for name in args.log.split(",") if name.strip()]
    for name in names:
        # an unknown log name is reported before anything runs
        log(name, Path())
    return conduct(args, settings, go)


def _several(args: argparse.Namespace, tables: dict[str, dict[str, Any]]) -> int:
    """Run every seed in its own folder, then show the mean and spread of the final numbers. The seed also decides the
    split, as in `unalike compare`."""
    seeds = parse_seeds(args.seeds, "unalike run")
    if args.resume or "seed" in dict(args.settings) or "run.seed" in dict(args.settings):
        raise UnalikeError("unalike run: --seeds makes new runs; leave --seed and --resume out.")
    if args.dry_run:
        return _one(args, with_seed(tables, seeds[0]))
    home = tables["run"].get("folder") or _free_folder(tables)
    summaries: list[dict[str, Any]] = []
    for seed in seeds:
        own = with_seed(tables, seed)
        own["run"]["folder"] = str(Path(home) / f"seed{seed}")
        code = _silently(args, own, summaries)
        if code:
            return code
    return show.answer(args, {"folder": str(home), "seeds": seeds, "runs": summaries}, _spread(summaries, home))


def _silently(args: argparse.Namespace, tables: dict[str, dict[str, Any]], summaries: list[dict[str, Any]]) -> int:
    """Run one seed without printing, and append its summary."""
    held = io.StringIO()
    with contextlib.redirect_stdout(held):
        code = _one(argparse.Namespace(**{**vars(args), "json": True}), tables)
    if code == 0:
        summaries.append(json.loads(held.getvalue()))
    return code


def _spread(summaries: list[dict[str, Any]], home: str) -> str:
    """Return a table of the last round's numbers: mean and standard deviation over the runs."""
    finals = [summary["final"] or {} for summary in summaries]
    names = [k for k, v in finals[0].items() if isinstance(v, float) and of(k).source != "bookkeeping"]
    rows = []
    for name in names:
        values = [final[name] for final in finals if final.get(name) is not None]
        rows.append([name.replace("_", " "), _figure(of(name), values)])
    title = f"after {summaries[0]['rounds']} rounds, mean ± standard deviation over {len(summaries)} seeds"
    look = f"the runs are in {show.near(home)}; unalike report {show.near(home)} shows them"
    return "\n".join([show.table([], rows, title), look])


def _figure(number: Number, values: list[float]) -> str:
    """Return the mean and spread of a result: a share in percent with two decimals, any other number with four."""
    return figure(number.unit, values, digits=2 if number.unit == "percent" else 4)


def with_defaults(
    args: argparse.Namespace, settings: dict[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[str], Federation | None]:
    """Return the settings completed from a user's own data (held-out samples, metrics), remarks about these data, and
    the data themselves, so that they are read once. A run that is resumed has all this in its folder: then nothing is
    changed."""
    if not defaults.own(settings) or isinstance(args.resume, str):
        return settings, [], None
    table, fed, notes = defaults.held_out(settings["data"], "test")
    before, after = ({"": t} if not (parts := config.data_parts(t)) else parts for t in (settings["data"], table))
    for name, own in after.items():
        if own != before[name] and "test" in own:
            whose = f"{name}: " if name else ""
            notes.append(f"{whose}{own['test']:.0%} of every client's samples are held out as its test (--test).")
    return defaults.suited({**settings, "data": table}, fed), notes, fed


def conduct(
    args: argparse.Namespace, settings: dict[str, Any], go: Callable[[show.Live, bool], Run], command: str = "run"
) -> int:
    """Carry out the run that `go` starts: show its progress, report its result, return the exit code. The run's folder
    is among the settings."""
    screen = show.console(args.quiet or args.json)
    resume = bool(args.resume) or settings["run"].get("resume", False)
    folder = settings["run"].setdefault("folder", _free_folder(settings))
    code = " --allow-code" * bool(config.code_in(settings))
    again = f"unalike {command} --resume {show.near(folder)}{code}"
    if not resume and (Path(folder) / "config.toml").exists():
        raise UnalikeError(f"{show.near(folder)} holds a run already: go on with `{again}`, or give another --folder.")
    live = show.Live(screen, settings)
    try:
        run = go(live, resume)
    except KeyboardInterrupt:
        live.stop()
        return _stopped(folder, again, args.json)
    finally:
        live.stop()
    report(run, folder, args.json)
    if not args.quiet and not args.json:
        live.say(f"written to {show.near(folder)}")
    return 0


def _stopped(folder: str, again: str, as_json: bool) -> int:
    begun = (Path(folder) / "config.toml").exists()
    if as_json:
        show.document({"stopped": True, "folder": folder if begun else None, "resume": again if begun else None})
    text = f"stopped; nothing is lost. Go on with:\n  {again}" if begun else "stopped before round 1."
    print(f"\n{text}", file=sys.stderr)
    return 130


def tables_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the settings of a config file, or of the folder to be resumed, overridden by flags."""
    if isinstance(args.resume, str) and args.file is None and Path(args.resume).is_file():
        args.file, args.resume = args.resume, True  # --resume run.toml
    folder = args.resume if isinstance(args.resume, str) else None
    if folder and args.file:
        raise UnalikeError("unalike run: give a file or --resume FOLDER, not both.")
    start: dict[str, Any] = {}
    code = args.allow_code or config.code_in([text for _, text in args.settings])
    if folder:
        path = Path(folder) / "config.toml"
        if not path.is_file():
            raise UnalikeError(f"{folder} holds no run: there is no {path}.")
        if config.FACTS not in config.load_toml(path):
            raise UnalikeError(f"{folder} was written by a Python program: continue it there, with resume=True.")
        start = config.read_tables(path, code)
        start["run"]["folder"] = folder
    elif args.file:
        start = config.read_tables(args.file, code)
    tables = flags.collect(args.settings, start)
    if folder and tables["run"]["folder"] != folder:
        raise UnalikeError("unalike run: --resume FOLDER goes on in that folder: leave --folder out.")
    if args.resume and "folder" not in tables["run"]:
        raise UnalikeError("unalike run: --resume needs the folder of the run to continue: --resume FOLDER.")
    return tables


def _free_folder(settings: dict[str, Any]) -> str:
    """Return runs/<method>-<data>-<number> with the first free number."""
    data, method = settings["data"], settings["method"]
    source = "-".join(config.data_parts(data)) or data.get("name")
    source = source or (Path(data["table"]).stem if "table" in data else Path(data["folder"]).name)
    name = Path(method["file"].rpartition(":")[0]).stem if "file" in method else method.get("name", "fedavg")
    stem, number = Path("runs") / f"{name}-{source}", 1
    while Path(f"{stem}-{number}").exists():
        number += 1
    return str(Path(f"{stem}-{number}").resolve())


def dry_run(settings: dict[str, Any], args: argparse.Namespace, stand_in: str | None = None) -> int:
    """Do everything but the training: load data, build the model, choose the engine (or use `stand_in`)."""
    alone = {k: v for k, v in settings["run"].items() if k not in ("folder", "resume")}
    alone |= {"engine": stand_in} if stand_in else {}
    rounds = alone["rounds"] if "epsilon" in alone else 0  # the noise is calibrated for this number of rounds
    run = config.run({**settings, "run": {**alone, "rounds": rounds}}, callbacks=[_NoRound()])
    found, seen = show.facts(run), run.who_sees(real=stand_in is not None)
    if run.spending is not None:
        each = "one exchange" if run.settings.exchanges == 1 else f"{run.settings.exchanges} exchanges"
        found["privacy"] = f"{run.spending.ahead(alone['rounds'])} after all rounds, if each has {each}"
    found |= {"engine": settings["run"]["engine"], "because": "as asked"} if stand_in else {}
    if args.json:
        show.document({"settings": settings, "found": found, "who_sees": show.sights(seen)})
    else:
        from rich.console import Console

        Console(highlight=False, markup=False).print(show.settings_tree(settings, found))
        print("\n" + show.sight_table(seen))
    return 0


class _NoRound(Callback):
    """End a run before its first round."""

    def on_start(self, run: Run) -> None:
        run.rounds = 0


def report(run: Run, folder: str, as_json: bool) -> None:
    """Print the run's result on standard output."""
    summary = run.summary()
    if as_json:
        show.document({"folder": folder, **summary})
        return
    final, chosen = summary["final"] or {}, summary["selected"] or {}
    found = {k: v for k, v in final.items() if isinstance(v, float) and of(k, run.numbers).source != "bookkeeping"}
    # squared percentage points, of numbers that are not in points
    squared = {k for k in found if k.endswith("_pp2") and of(k, run.numbers).unit != "pp²"}
    private = {k for k in found if "epsilon" in k}  # ε is printed below the table, with its meaning
    shown = [k for k in found if k not in squared | private]
    rows = [[k.replace("_", " "), _figure(of(k, run.numbers), [found[k]])] for k in shown]
    if score := score_in(chosen, run.numbers):
        name = f"{score.key.replace('_', ' ')} of round {chosen['round']}, best on validation"
        rows.append([name, _figure(score, [chosen[score.key]])])
    ways = [way for way in ("down", "up", "peer") if f"bytes_{way}" in summary]
    rows += [[f"bytes {way}", size(summary[f"bytes_{way}"])] for way in ways]
    if summary.get("bytes_up_plain", summary["bytes_up"]) != summary["bytes_up"]:
        rows.append(["bytes up without the channel", size(summary["bytes_up_plain"])])
    if "virtual_seconds" in final:
        rows.append(["virtual time", span(final["virtual_seconds"])])
    rows.append(["time", span(summary["seconds"])])
    count = summary["rounds"]
    print(show.table([], rows, f"after {count} round{'s' * (count != 1)}"))
    if final and not score_in(final, run.numbers):
        print(
            "not scored: there was no test set (serve --test-set FILE), and no client was\n"
            'asked for a score on its own samples (evaluate_clients = "all")'
        )
    for name in ("guarantee", "sample_guarantee"):
        if name in summary:
            print(f"private: {summary[name]}")
