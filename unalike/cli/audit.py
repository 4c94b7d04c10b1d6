"""Show what has left this machine: the audit log of a client, in plain words.

  unalike audit state/            totals by field and by round
  unalike audit state/ --run ID   of one run
  unalike audit state/ --lines    every field that left

The log is audit.jsonl in the folder that was given to `unalike join --state`, or
`unalike vertical join --state`. It is checked first: a line that was changed, or
is gone, ends in exit code 1.
"""

from __future__ import annotations

import argparse
import collections
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unalike.engines.preparing import RUN as PREPARING
from unalike.errors import UnalikeError
from unalike.network import audit
from unalike.text import printable, size

Line = dict[str, Any]
KINDS = {
    "hello": "told when greeted",
    "prepare": "sums for preparing features",
    "plan": "plans accepted",
    "request": "replies to exchanges",
    "evaluate": "scores on its own samples",
    "wrap": "keys of sealed rows",
    "end": "ends acknowledged",
    "notice": "notices acknowledged",
    "points": "masked ids of its own people, for matching",
    "mask": "the guest's masked ids, masked once more",
    "align": "how many people were matched",
    "setup": "told when a vertical run began",
    "call": "replies to a vertical run's batches",
    "adopt": "told when a vertical prediction began",
    "error": "refusals and errors, in words",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a client's state folder")
    parser.add_argument("--run", metavar="ID", help="of this run alone")
    parser.add_argument("--lines", action="store_true", help="print every field that left")


def main(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    if not (folder / audit.FILE).is_file():
        raise UnalikeError(
            f"{folder} has no {audit.FILE}: give the folder of `unalike join --state` (or vertical join)."
        )
    log = audit.read(folder)
    lines = [line for line in log.lines if args.run in (None, line["run"])]
    if args.json:
        print(json.dumps({"whole": not log.fault, "fault": log.fault, "fields": totals(lines), "lines": len(lines)}))
    else:
        print("\n".join(_listed(lines) if args.lines else summary(lines)))
        print(log.fault or f"The log is whole: {len(log.lines)} lines, each follows the one before.")
    return 1 if log.fault else 0


def totals(lines: Iterable[Line]) -> list[Line]:
    """Return the fields that left, by kind of answer: how often each left, and its bytes in all."""
    found: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    for line in lines:
        if line["field"] is not None:
            one = found[line["kind"], line["field"]]
            one[0] += 1
            one[1] += line["bytes"]
    return [{"kind": kind, "field": field, "times": n, "bytes": b} for (kind, field), (n, b) in found.items()]


def summary(lines: list[Line]) -> list[str]:
    """Return the log in plain words."""
    out = [f"{len({line['answer'] for line in lines})} answers left this machine."]
    by_kind: dict[str, list[Line]] = collections.defaultdict(list)
    for one in totals(lines):
        by_kind[one["kind"]].append(one)
    for kind, fields in by_kind.items():
        out.append(f"{KINDS.get(kind, printable(kind))}:")
        out += [f"  {printable(f['field']):24} {f['times']:6} times  {size(f['bytes'])}" for f in fields]
    return out + _by_round(lines)


def _by_round(lines: list[Line]) -> list[str]:
    bytes_of: dict[tuple[str, int], int] = collections.Counter()
    for line in lines:
        if type(line["round"]) is int and line["kind"] != "error":
            bytes_of[str(line["run"]), line["round"]] += line["bytes"]
    named = {run: [n for r, n in bytes_of if r == run] for run, _ in bytes_of}
    out = []
    for run, rounds in named.items():
        whole = sum(bytes_of[run, n] for n in rounds)
        if run == PREPARING:
            out.append(f"preparing features by hidden sums: {size(whole)}")
            continue
        out.append(f"run {printable(run)}: {len(rounds)} rounds, {size(whole)}, the last round {max(rounds) + 1}")
        out += [f"  round {n + 1}: {size(bytes_of[run, n])}" for n in sorted(rounds)[-20:]]
    return out


def _listed(lines: Iterable[Line]) -> list[str]:
    return [
        f"{line['time']}  {line['kind']}{' again' if line['again'] else ''}  round {_number(line['round'])}  "
        f"{printable(line['field'])}  {line.get('shape') or ''}  {size(line['bytes'])}  {line.get('sha256', '')[:16]}"
        for line in lines
    ]


def _number(round: Any) -> str:
    return str(round + 1) if type(round) is int else "-"
