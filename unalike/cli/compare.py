"""Compare methods on the same data, and say which one for which wish.

  unalike compare fedavg scaffold feddc --data digits \\
                  --partition dirichlet:0.1 --clients 50 --budget 10m
  unalike compare fedavg fedprox --table my.csv --client hospital \\
                  --label outcome
  unalike compare fedavg fedprox --data-folder clients/ --mu 0.01,0.1,1
  unalike compare run.toml fedavg scaffold --tune 20
  unalike compare fedmd feddf --data digits --clients 20 --data.public 0.1 \\
                  --model small=linear,large=mlp --architecture small:10,large:10

Every setting of `unalike run` is a flag here. A list is a grid: --lr 0.1,0.01
runs both. --mu goes to the methods that have it, --feddc.alpha to FedDC alone.
For every seed all methods get the same split, start and clients; the seed is
also the split's, unless --data-seed is given. Where the data have none, 20 % of
every client's samples are held out as its test, 10 % to choose the round by.
--budget 10m adds seeds until the answer is sure, or the time is spent.
The same command goes on where it ended and repeats nothing.

Exit code: 0 with a verdict, 3 where runs diverged or no method has learned
anything (the output says so), 2 for a mistake in what was asked for.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unalike import config, report
from unalike.cli import show
from unalike.cli.scoreboard import Scoreboard
from unalike.comparison import jobs, results
from unalike.comparison.arms import arms_of, chooses
from unalike.comparison.gains import client_values
from unalike.config import defaults, flags
from unalike.errors import UnalikeError, unknown
from unalike.text import listed, parse_budget, parse_seeds, plural, span

# Settings where neither flags nor a file set them: small, so that an answer comes within minutes on a laptop.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 5, "batch_size": 10, "lr": 0.1},
    "run": {"rounds": 50, "checkpoint_every": 10},
}
SEEDS = 3
MOST_SEEDS = 200  # limit for a comparison with a budget
SCORES = ("clients", "test")  # scores by which methods can be compared
NOT_POOLED = "centralized is left out: it trains one network on all data, and clients have different networks here."
UNSOUND = 3  # exit code of a comparison in which runs diverged, or nothing was learned


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "unalike compare METHOD ... [--SETTING VALUE[,VALUE] ...] [--seeds N | A,B,C]\n"
        "                       [--budget TIME] [--tune N] [--target X] [--score clients | test] [--no-references]\n"
        "                       [--folder OUT]"
    )
    parser.add_argument("methods", nargs="+", metavar="METHOD", help="names, file.py:Class, and at most one TOML file")
    parser.add_argument("--seeds", default=str(SEEDS), metavar="N", help="how many, or which: 3, or 0,1,2 [3]")
    parser.add_argument("--budget", metavar="TIME", help="add seeds until it is decided, or for so long: 10m, 90s, 2h")
    parser.add_argument("--tune", type=int, metavar="N", help="try N settings of each method first, on validation data")
    parser.add_argument("--tune-rounds", type=int, metavar="N", help="rounds of such a trial [half of the rounds]")
    target = "score to count rounds and bytes to [95 %% of FedAvg's]"
    parser.add_argument("--target", type=float, metavar="X", help=target)
    score = "compare by clients' own test data, or by the global test set [clients where a method is personal]"
    parser.add_argument("--score", choices=SCORES, help=score)
    parser.add_argument("--no-references", action="store_true", help="leave out centralized, local-only and FedAvg")
    parser.add_argument("--dry-run", action="store_true", help="check everything and show what would be run")


def main(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    seeds = parse_seeds(args.seeds, "unalike compare")
    budget = parse_budget(args.budget) if args.budget else 0.0
    files = [word for word in args.methods if word.endswith(".toml")]
    if len(files) > 1:
        raise UnalikeError(f"unalike compare: give one config file at most; got {' and '.join(files)}.")
    methods = _methods([word for word in args.methods if word not in files], not args.no_references)
    given = [(name, text) for name, text in args.settings if name != "folder"]
    code = config.code_in([*args.methods, *(text for _, text in given)])
    start = config.read_tables(files[0], code) if files else _defaults(given)
    free_rate = not files or "lr" not in start["local"]
    arms = arms_of(methods, given, start, free_rate)
    personal = list(dict.fromkeys(arm.method for arm in arms if arm.personal and not arm.reference))
    several, notes = jobs.several_networks(arms), []
    if several and "centralized" in methods and "centralized" not in args.methods:
        methods = [name for name in methods if name != "centralized"]
        arms = [arm for arm in arms if arm.method != "centralized"]
        notes.append(NOT_POOLED)
    if personal and "local-only" not in methods:
        arms = arms_of([*methods, "local-only"], given, start, free_rate)
        notes.append(_why_alone(personal))
    rounds = int(arms[0].tables["run"]["rounds"])
    trial_rounds = args.tune_rounds or max(1, round(rounds * jobs.TRIAL_SHARE))
    _check(args, arms, rounds, trial_rounds)
    folder = Path(dict(args.settings).get("folder") or _folder(start, given, args))
    if folder.is_file() or (folder / "config.toml").exists():
        raise UnalikeError(f"unalike compare: {folder} is not a comparison's folder: give another --folder.")

    board = Scoreboard(show.console(args.quiet or args.json))
    by = args.score or ("clients" if personal or several else "")
    arms = jobs.settle(arms, seeds[0], board, bool(args.tune), by)
    _check_score(args.score, arms)
    board.by = by
    facts: dict[str, Any] = {
        "title": f"{_who(arms)} on {_source(arms[0].tables['data'])}",
        "command": _command(args),
        "settings": describe(arms, seeds),
        "seeds": seeds,
        "notes": notes,
    }
    if args.dry_run:
        return _dry(args, arms, seeds, folder, facts)
    board.title(facts["settings"])
    try:
        with board:
            return _conduct(args, arms, seeds, budget, folder, facts, board, trial_rounds, began, by)
    except KeyboardInterrupt:
        if args.json:
            show.document({"stopped": True, "folder": str(folder), "resume": facts["command"]})
        print("\nstopped; nothing is lost. The same command goes on.", file=sys.stderr)
        return 130


def _conduct(
    args: argparse.Namespace,
    arms: list[jobs.Arm],
    seeds: list[int],
    budget: float,
    folder: Path,
    facts: dict[str, Any],
    board: Any,
    trial_rounds: int,
    began: float,
    by: str,
) -> int:
    if args.tune:
        # a seed that is not among the reported ones
        seed = max(seeds) + 1
        arms, found = jobs.tuned(arms, args.tune, trial_rounds, seed, folder, board)
        facts["notes"] += results.tuning_notes(arms, found, trial_rounds, seed)
        facts["tuning"] = {
            name: [{**t["method"], **t["local"], "validation": s} for t, s in zip(f.trials, f.scores, strict=True)]
            for name, f in found.items()
        }
    tuned_on = [max(seeds) + 1] if args.tune else []
    judge = functools.partial(_judge, args, arms, by)
    planned, outcomes, cases = until_decided(arms, seeds, budget, folder, board, judge, tuned_on)
    facts["seeds"] = list(dict.fromkeys(job.seed for job in planned))
    facts["settings"] = describe(arms, facts["seeds"])
    if budget:
        facts["notes"].append(_spent(args.budget, len(seeds), len(facts["seeds"]), cases))
    code = 0 if all(case.sound for case in cases) else UNSOUND
    content = results.write(folder, cases, planned, facts)
    if not args.json:
        print(text(cases, facts))
    begun = any(outcomes[job.arm.name, job.seed].lines for job in planned)
    folders = [job.folder for job in planned]
    page = report.write(folders, folder / "report.html", comparison=content) if begun else None
    if args.json:
        show.document({"folder": str(folder), "report": page and str(page), **content})
        return code
    if not args.quiet:
        look = f"Look at {show.near(page)};" if page else "No run got through a round: there is no page;"
        board.say(
            f"{span(time.perf_counter() - began)} in all. {look}\n"
            f"comparison.md, .csv and .json and the {len(planned)} runs are in {show.near(folder)}."
        )
    return code


Judged = tuple[list[jobs.Job], dict[tuple[str, int], results.Outcome], list[results.Case]]


def until_decided(
    arms: Sequence[jobs.Arm],
    seeds: Sequence[int],
    budget: float,
    folder: Path,
    board: jobs.Watch,
    judge: Callable[[Sequence[jobs.Job], dict[tuple[str, int], results.Outcome]], list[results.Case]],
    skipped: Sequence[int] = (),
) -> Judged:
    """Run the seeds, then add one seed at a time until every case is decided or the next seed would exceed the budget.
    Runs that exist already cost no time. Return all runs, their outcomes and the cases."""
    began = time.perf_counter()
    planned: list[jobs.Job] = []
    outcomes: dict[tuple[str, int], results.Outcome] = {}
    more, longest = [*seeds], 0.0
    while True:
        start = time.perf_counter()
        batch = jobs.plan(arms, more, folder)
        jobs.check_folders(batch)
        board.begin(batch, "runs")
        outcomes |= jobs.make(batch, board)
        board.stop()
        planned += batch
        cases = judge(planned, outcomes)
        longest = max(longest, (time.perf_counter() - start) / len(more))
        spent = time.perf_counter() - began
        done = {job.seed for job in planned}
        if spent + longest > budget or len(done) >= MOST_SEEDS or all(case.verdict.decided for case in cases):
            return planned, outcomes, cases
        more = [next(s for s in itertools.count(max(seeds) + 1) if s not in done and s not in skipped)]


def _judge(
    args: argparse.Namespace,
    arms: Sequence[jobs.Arm],
    by: str,
    planned: Sequence[jobs.Job],
    outcomes: dict[tuple[str, int], results.Outcome],
) -> list[results.Case]:
    places = {(job.arm.name, job.seed): job.folder for job in planned}

    def clients(name: str, seed: int, round: int, metric: str) -> dict[int, float]:
        return client_values(places[name, seed], round, metric)

    seeds = list(dict.fromkeys(job.seed for job in planned))
    return results.conclude(arms, seeds, outcomes, args.target, bool(args.tune), by, clients)


def _spent(budget: str, first: int, seeds: int, cases: Sequence[results.Case]) -> str:
    """Say why seeds were added, and why the program stopped adding them."""
    decided = all(case.verdict.decided for case in cases)
    end = "the answer is sure" if decided else f"the answer is not sure, and {budget} are spent"
    return f"Seeds: {first} and {seeds - first} more; {end}."


# ---------------------------------------------------------------- the request


def _methods(words: list[str], references: bool) -> list[str]:
    """Return the methods to compare, each once and checked, with the baseline and the reference lines unless they are
    switched off."""
    for word in words:
        if words.count(word) > 1:
            raise UnalikeError(f"unalike compare: {word} is listed twice; for two settings give a list, --lr 0.1,1.")
        if word == "fedsgd":
            how = "compare it by itself: unalike compare fedavg --steps 1 --batch-size full"
            raise UnalikeError(f"unalike compare: fedsgd is fedavg with one step on the full batch; {how}.")
        if not config.is_file(word) and word not in config.NAMES["method"]:
            raise unknown("method", word, config.NAMES["method"])
    if not references:
        if not words:
            raise UnalikeError("unalike compare: name the methods to compare (`unalike list methods`).")
        return words
    plain = [word for word in words if word not in jobs.REFERENCES]
    return [*([] if "fedavg" in plain else ["fedavg"]), *plain, *jobs.REFERENCES]


def _defaults(given: Sequence[flags.Given]) -> dict[str, dict[str, Any]]:
    """Return the settings to use where the user set none. If steps are given, epochs are left out; for a user's own
    data, the remaining settings are found from the data."""
    if not any(name in ("data", "data.name") for name, _ in given):
        return {"run": {**DEFAULTS["run"], "rounds": defaults.ROUNDS}}
    start = {table: dict(values) for table, values in DEFAULTS.items()}
    if any(name in ("steps", "local.steps") for name, _ in given):
        del start["local"]["epochs"]
    return start


def _check(args: argparse.Namespace, arms: Sequence[jobs.Arm], rounds: int, trial_rounds: int) -> None:
    grid = len(arms) > len({arm.method for arm in arms})
    if rounds < 1:
        raise UnalikeError(f"unalike compare: --rounds must be at least 1; got {rounds}.")
    if args.tune is not None and args.tune < 1:
        raise UnalikeError(f"unalike compare: --tune must be at least 1 trial; got {args.tune}.")
    if args.tune and grid:
        raise UnalikeError("unalike compare: a list of settings and --tune both choose settings: give one of the two.")
    if args.tune_rounds is not None and (not args.tune or trial_rounds < 1):
        raise UnalikeError("unalike compare: --tune-rounds is at least 1, and goes with --tune.")


def _why_alone(personal: Sequence[str]) -> str:
    whose = f"{listed(personal)} {plural('gives', personal)}"
    return (
        f"local-only is run too, also with --no-references: {whose} clients models of their own, and what these are "
        "worth is seen beside training alone."
    )


def _check_score(asked: str | None, arms: Sequence[jobs.Arm]) -> None:
    """Check that all methods have the score that was asked for."""
    methods = [arm for arm in arms if not arm.reference] or arms
    if asked == "clients" and not all(arm.has_own for arm in methods):
        why = "clients are not evaluated on test samples of their own here (--test 0.2, --evaluate-clients all)."
        raise UnalikeError(f"unalike compare: --score clients cannot be had: {why}")
    none = list(dict.fromkeys(arm.label for arm in methods if not arm.has_global))
    if asked == "test" and len(none) == len({arm.label for arm in methods}):
        raise UnalikeError(
            "unalike compare: --score test cannot be had: the data have no test set beside the clients' own, or no "
            "method has a global model. Leave --score out."
        )
    if asked == "test" and none:
        raise UnalikeError(
            f"unalike compare: --score test compares global models, and {listed(none)} {plural('has', none)} none: "
            "leave --score out, or the method."
        )


def _folder(start: dict[str, Any], given: Sequence[flags.Given], args: argparse.Namespace) -> str:
    """Return runs/compare-<data>-<six digits of a hash>. The same settings give the same folder, so that the same
    command continues, and a further method or seed joins the runs that exist."""
    tables = flags.collect([flag for flag in given if chooses(flag[0])], start)
    what = [start, sorted((n, t or "") for n, t in given), args.tune, args.tune_rounds, str(Path.cwd())]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:6]
    return str(Path("runs") / f"compare-{_source(tables['data'])}-{digest}")


def _who(arms: Sequence[jobs.Arm]) -> str:
    methods = dict.fromkeys(arm.method for arm in arms if not arm.reference) or dict.fromkeys(a.method for a in arms)
    return f"{len(methods)} methods" if len(methods) > 1 else next(iter(methods))


def _source(data: dict[str, Any]) -> str:
    path = data.get("table") or data.get("folder") or "data"
    return str(data.get("name") or Path(path).stem)


def _command(args: argparse.Namespace) -> str:
    settings = [[f"--{name}"] if text is None else [f"--{name}", text] for name, text in args.settings]
    words = ["unalike", "compare", *args.methods, *itertools.chain(*settings), "--seeds", args.seeds]
    words += ["--budget", args.budget] if args.budget else []
    words += ["--tune", str(args.tune)] if args.tune else []
    words += ["--tune-rounds", str(args.tune_rounds)] if args.tune_rounds else []
    words += ["--target", f"{args.target:g}"] if args.target is not None else []
    words += ["--score", args.score] if args.score else []
    words += ["--no-references"] if args.no_references else []
    return shlex.join(words)


# ---------------------------------------------------------------- words


def describe(arms: Sequence[jobs.Arm], seeds: Sequence[int]) -> str:
    """Return all settings that matter in one line; for a grid, every value."""

    def values(table: str, name: str, default: Any = "") -> str:
        found = dict.fromkeys(str(a.tables[table].get(name, default)) for a in arms if not a.reference)
        return " or ".join(filter(None, found))

    steps = values("local", "steps")
    work = f"{steps} steps" if steps else f"{values('local', 'epochs', 1)} epochs"
    share, clients = values("run", "clients_per_round"), values("data", "clients")
    data = [_source(arms[0].tables["data"]), values("data", "partition"), clients and f"{clients} clients"]
    parts = [
        ", ".join(filter(None, data)),
        _networks(arms[0]) or values("model", "name") or values("model", "file") or "linear",
        f"{values('run', 'rounds')} rounds of {'all' if share == '1.0' else share} clients",
        f"{work} in batches of {values('local', 'batch_size', 32)}, lr {values('local', 'lr', 0.1)}",
        f"seeds {', '.join(map(str, seeds))}",
    ]
    return "; ".join(parts)


def _networks(arm: jobs.Arm) -> str:
    """Return the networks and which client has which, where clients have different ones."""
    found = arm.tables.get(config.MODELS_TABLE, {})
    each = ", ".join(f"{name} {table.get('name') or table.get('file', 'linear')}" for name, table in found.items())
    given = arm.tables["run"].get("architecture", "")
    return f"networks {each}" + (f" ({given})" if isinstance(given, str) and given else "") if found else ""


def _dry(
    args: argparse.Namespace, arms: Sequence[jobs.Arm], seeds: Sequence[int], folder: Path, facts: dict[str, Any]
) -> int:
    planned = jobs.plan(arms, seeds, folder)
    jobs.check_folders(planned)
    trials = (args.tune or 0) * len(arms)
    plan = [{"label": job.arm.label, "seed": job.seed, "folder": str(job.folder)} for job in planned]
    table = show.table([], [[job.arm.label, job.arm.case, str(job.seed), show.near(job.folder)] for job in planned])
    count = f"{len(planned)} runs" + (f" after {trials} trials" if trials else "")
    content = {"folder": str(folder), "runs": plan, "trials": trials, **facts}
    return show.answer(args, content, "\n".join([show.prose(facts["settings"]), table, count]))


def text(cases: Sequence[results.Case], facts: dict[str, Any]) -> str:
    """Return the text that ends a comparison: the answer, its table, then the numbers of every method."""
    out = []
    for case in cases:
        short, *notes = case.lines
        out.append((case.name and f"{case.name}\n") + _filled(short))
        if case.answers:
            out.append(_answers(case))
        titles = list(results.columns(case))
        # more than two further metrics get a table of their own
        others = list(case.base.others) if len(case.base.others) > 2 else []
        own = [t for t in (*results.network_titles(case), *results.OF_CLIENTS) if t in titles]
        cut = next(k for k, t in enumerate(titles) if t.startswith("rounds to"))
        first = [t for t in titles[:cut] if t not in (*others, *own)]
        rest = [t for t in titles[cut:] if t not in results.EQUAL]
        for part in (first, *(["method", *some] for some in (others, own, rest) if some)):
            rows = results.rows(case, part)
            kept = _fitting(rows, part, [*reversed(case.base.others)])
            out.append(show.table(kept, [[row[t] for t in kept] for row in rows]))
        out.append("\n".join(map(_filled, notes)))
    out.append("\n".join([*map(_filled, facts["notes"]), "The statistics are in comparison.md."]))
    return "\n\n".join(filter(None, out))


def _answers(case: results.Case) -> str:
    """Return the verdict's table; every column is wrapped to its share of the terminal."""
    wide = show.width() - 4
    widths = [wide * 28 // 100, wide * 34 // 100, wide - wide * 28 // 100 - wide * 34 // 100]
    lines = []
    for row in (results.ANSWER_TITLES, *((a.wish, a.method, a.sure) for a in case.answers)):
        cells = [textwrap.wrap(cell, w, break_on_hyphens=False) for cell, w in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(w) for part, w in zip(parts, widths, strict=True)).rstrip())
    return "\n".join([lines[0], "-" * wide, *lines[1:]])


def _fitting(rows: Sequence[dict[str, str]], titles: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the columns that fit the terminal. Dispensable columns are dropped first, such as metrics other than the
    headline."""
    kept = [*titles]
    wrapped = results.LEAVES  # the last column, which may take several lines
    spares = ("variance pp²", "own data", "clients keep", "last round", *others, "test set", "time", "ahead in")
    for spare in (s for s in spares if s not in (titles[1], titles[min(2, len(titles) - 1)]) or s != "own data"):
        wide = sum(max(len(t), *(len(row[t]) for row in rows)) + 2 for t in kept if t != wrapped) - 2
        if wide + (22 if wrapped in kept else 0) <= show.width():
            break
        kept = [t for t in kept if t != spare]
    return kept


def _filled(line: str) -> str:
    return textwrap.fill(line, show.width() - 1, subsequent_indent="  ", break_on_hyphens=False)
