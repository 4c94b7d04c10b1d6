"""Run the papers' tables again, and print the papers' numbers beside ours.

  unalike reproduce --list                   papers, tables, rows
  unalike reproduce feddc --quick            minutes: does the paper's claim hold?
  unalike reproduce feddc table3 'cifar10-*' --full --budget 25m
  unalike reproduce --resume                 go on with the last command
  unalike reproduce feddc table3             what there is, what is missing
  unalike reproduce --pages                  write docs/results from results

Without --quick or --full nothing is trained. A run that has left its result is
never made again, and one that was stopped or killed goes on: give the same
command, or --resume. Results are lines of JSON in experiments/PAPER/results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from unalike import report
from unalike.errors import UnalikeError
from unalike.files import replace
from unalike.nn.numerics import PRECISIONS
from unalike.reproduce import choose, define, measure, overview, pages
from unalike.reproduce.define import Job, Paper, Row, Table
from unalike.reproduce.jobs import STACKS, Clock, NoData, OutOfTime, Queue
from unalike.reproduce.results import Results
from unalike.text import parse_budget, parse_seeds, span

# the last command in a folder, for --resume
LAST = "last.json"
KEPT = (
    "paper", "table", "rows", "quick", "full", "seeds", "device", "engine", "precision", "stacks", "data", "results",
)  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paper", nargs="?", metavar="PAPER", help=f"one of {', '.join(define.names())}")
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a table, figure or study of it (--list)")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="some rows of it; a pattern such as 'mnist-*' works")
    parser.add_argument("--list", action="store_true", help="what there is, and how much of it has been run")
    parser.add_argument("--quick", action="store_true", help="the paper's claim on little data and few rounds")
    parser.add_argument("--full", action="store_true", help="the paper's own settings")
    parser.add_argument("--budget", metavar="TIME", help="stop after this time (25m, 2h); go on with --resume")
    parser.add_argument("--resume", action="store_true", help="go on with the last command in the folder")
    parser.add_argument("--seeds", metavar="N", help="how many, or which: 3, or 0,1,2 [the table's]")
    parser.add_argument("--device", metavar="D", help="auto, cpu or cuda")
    parser.add_argument("--engine", metavar="E", help="who runs the clients (unalike list engines) [auto]")
    parser.add_argument("--precision", metavar="P", choices=PRECISIONS, help=f"of products: {', '.join(PRECISIONS)}")
    parser.add_argument(
        "--stacks",
        choices=STACKS,
        help="seeds of a method as one stack of clients: where it pays off [auto], or as said",
    )
    parser.add_argument("--folder", metavar="F", default="runs/reproduce", help="where runs go [runs/reproduce]")
    parser.add_argument("--results", metavar="F", default="experiments", help="where results go [experiments]")
    parser.add_argument("--data", metavar="SET=FOLDER", nargs="+", default=[], help="where a data set's files are")
    parser.add_argument("--pages", action="store_true", help="write the pages from the results, run nothing")
    parser.add_argument("--docs", metavar="F", default="docs/results", help="where pages go [docs/results]")


def main(args: argparse.Namespace) -> int:
    if args.resume:
        _again(args)
    if args.quick and args.full:
        raise UnalikeError("unalike reproduce: --quick and --full are two things: give one of them.")
    if args.pages:
        return _pages(args)
    if args.paper is None or args.list:
        return _list(args)
    paper = define.paper(args.paper)
    if args.quick and (args.table or args.rows):
        raise UnalikeError("unalike reproduce: --quick has a table of its own: leave TABLE and ROWS out.")
    wanted = (
        [(table, table.rows) for table in paper.quick] if args.quick else define.chosen(paper, args.table, args.rows)
    )
    if not args.quick and not args.full:
        return _show(args, paper, wanted)
    return _work(args, paper, wanted)


def _again(args: argparse.Namespace) -> None:
    """Fill in the arguments of the last command in the folder, where this one leaves them open."""
    file = Path(args.folder) / LAST
    if args.paper is None:
        try:
            last = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UnalikeError(f"There is nothing to go on with in {args.folder}: name a paper.") from None
        for name in KEPT:
            if not getattr(args, name) or name == "results":
                setattr(args, name, last.get(name))  # (a file of an older version has not all)
    elif not args.quick and not args.full:
        raise UnalikeError("unalike reproduce: --resume with a paper needs --quick or --full too, or no paper at all.")


def _results(args: argparse.Namespace, paper: str, quick: bool) -> Results:
    results = Results(Path(args.results) / paper / ("quick" if quick else "results"))
    for path in results.torn:
        print(f"{path}: the last line is torn (its process was killed), and is left out", file=sys.stderr)
    return results


def _seeds(args: argparse.Namespace, table: Table) -> list[int]:
    """Return the seeds that were asked for, for all methods; or the table's, of which some methods have fewer."""
    return parse_seeds(args.seeds, "unalike reproduce") if args.seeds else [*table.all_seeds]


def _found(
    args: argparse.Namespace,
    paper: Paper,
    table: Table,
    rows: list[Row],
    results: Results,
    timed: Results | None = None,
) -> pages.Found:
    return pages.Found(paper, table, rows, _seeds(args, table), results, timed, everywhere=bool(args.seeds))


# ---------------------------------------------------------------- running


def _work(args: argparse.Namespace, paper: Paper, wanted: list[tuple[Table, list[Row]]]) -> int:
    began = time.monotonic()
    clock = Clock(parse_budget(args.budget) if args.budget else None)
    machine = {k: v for k in ("device", "engine", "precision") if (v := getattr(args, k))}
    results = _results(args, paper.id, args.quick)
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    last = json.dumps({name: getattr(args, name) for name in KEPT})
    replace(folder / LAST, last.encode(), mark=str(os.getpid()))  # several processes may share a folder
    quiet = args.quiet or args.json
    watched = paper.local_models, paper.tree.get("centroids", False), measure.measured(paper)
    queue = Queue(
        folder / paper.id, results, clock, machine, _folders(args.data), quiet, *watched, stacks=args.stacks or "auto"
    )
    stopped, code = "", 0
    try:
        # What other processes are at work on is waited for when nothing else is left to do. What is timed comes in its
        # place if there are no others, and after them if there are.
        for timed, waits in ((None, False), (False, True), (True, True)):
            for table, rows in wanted:
                if table.timed == timed or (timed is None and not (table.timed and queue.beside_others)):
                    _table(args, paper, table, rows, queue, waits)
    except OutOfTime:
        stopped = f"The time is over ({args.budget}); nothing is lost. Go on with: unalike reproduce --resume"
    except KeyboardInterrupt:
        code = 130
        stopped = "Stopped; the round in progress is lost, nothing else. Go on with: unalike reproduce --resume"
    finally:
        queue.close()
    stopped += f" --folder {args.folder}" if stopped and args.folder != "runs/reproduce" else ""
    found = [_found(args, paper, table, rows, results) for table, rows in wanted]
    seconds = time.monotonic() - began
    if queue.without and not any(one.shown() for one in found):
        raise next(iter(queue.without.values()))
    for error in queue.without.values():
        print(f"left out: {error}", file=sys.stderr)
    if args.json:
        tables = [pages.summary(one) for one in found]
        print(json.dumps({"paper": paper.id, "seconds": seconds, "stopped": bool(stopped), "tables": tables}))
    else:
        _print(found)
        print(f"\n{queue.made} runs made in {span(seconds)}; results in {results.folder}")
        for page in filter(None, [_report(one, queue) for one in found]):
            print(f"curves: {page}")
    if stopped:
        print(stopped, file=sys.stderr)
    return code


def _table(args: argparse.Namespace, paper: Paper, table: Table, rows: list[Row], queue: Queue, waits: bool) -> None:
    """Run seed by seed within a row, so that all methods can soon be compared (a tiny model's seeds run as one
    stack)."""
    jobs: list[Job] = []
    queue.table = table.id
    for row in rows:
        try:
            if table.choose and choose.choose(paper, row, queue, waits) is None:
                continue  # other processes are choosing
        except NoData:
            continue
        found = _found(args, paper, table, [row], queue.results)
        jobs += [job for seed in found.seeds for m in table.methods if (job := found.job(row, m, seed))]
    queue.make([*{job.key: job for job in jobs}.values()], table.timed, waits)


def _folders(given: list[str]) -> dict[str, str]:
    out = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals:
            raise UnalikeError(f"unalike reproduce: --data wants SET=FOLDER, such as mnist=files/mnist; got {text!r}.")
        out[name] = folder
    return out


def _report(found: pages.Found, queue: Queue) -> Path | None:
    """Write a report of the table's runs in this folder, with the table on top, and return its path."""
    jobs = [job for row in found.rows for method in found.table.methods for job in found.jobs(row, method)]
    folders = {place: None for job in jobs if job and (place := queue.place(job)).is_dir()}
    if not folders:
        return None
    table = {"verdict": [*measure.in_words(found.claims), pages.lacking(found)], "table": pages.summary(found)["rows"]}
    return report.write([*folders], queue.folder / f"{found.table.id}.html", comparison=table)


# ---------------------------------------------------------------- showing


def _print(found: list[pages.Found]) -> None:
    for one in found:
        print(pages.text(one))
        print(*measure.in_words(one.claims), sep="\n", end="\n" if one.claims else "")
        print(pages.lacking(one))


def _show(args: argparse.Namespace, paper: Paper, wanted: list[tuple[Table, list[Row]]]) -> int:
    results = _results(args, paper.id, quick=False)
    timed = _results(args, paper.id, quick=True)
    found = [_found(args, paper, table, rows, results, timed) for table, rows in wanted]
    if args.json:
        print(json.dumps({"paper": paper.id, "tables": [pages.summary(one) for one in found]}))
    else:
        _print(found)
    return 0


def _list(args: argparse.Namespace) -> int:
    out: dict[str, Any] = {}
    for name in [args.paper] if args.paper else define.names():
        paper = define.paper(name)
        results = _results(args, paper.id, quick=False)
        out[name] = {"title": paper.title, "tables": {}}
        for table, rows in define.chosen(paper, args.table, ()):
            found = _found(args, paper, table, rows, results)
            runs = sum(len(found.wanted(row, method)) for row in rows for method in table.methods)
            facts = {"title": table.title, "methods": table.methods, "rows": [row.id for row in rows]}
            out[name]["tables"][table.id] = {**facts, "runs": runs, "done": runs - found.missing()[0]}
    if args.json:
        print(json.dumps(out))
        return 0
    for name, paper_ in out.items():
        print(f"{name}: {paper_['title']}")
        for id, table_ in paper_["tables"].items():
            print(f"  {id:<12}{table_['done']:>5} of {table_['runs']:>5} runs  {table_['title']}")
            if args.paper:
                print(*(f"      {row}" for row in table_["rows"]), sep="\n")
    return 0


def _pages(args: argparse.Namespace) -> int:
    docs = Path(args.docs)
    both = [(name, _results(args, name, quick=False), _results(args, name, quick=True)) for name in define.names()]
    papers = [(define.paper(name), results, quick) for name, results, quick in both]
    for paper in papers:
        pages.write(*paper, docs)
    page = overview.write(papers, docs)
    if not args.quiet:
        print(f"{len(papers)} papers in {docs}; begin with {page}")
    return 0
