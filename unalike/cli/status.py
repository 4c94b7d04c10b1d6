"""Show where a run stands: at the server, or at a client.

  unalike status runs/fedavg-1     of a run's folder: rounds, clients, losses
  unalike status state/            of a client's folder: policy, runs, what left

It only reads files, and may be used while the server or the client runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError
from unalike.network import audit
from unalike.network.runs import FILE as RUNS
from unalike.text import printable, size, span

STATUS, ROUNDS, POLICY = "status.json", "rounds.jsonl", "policy.toml"
LARGEST = 64 << 20  # largest file that is read, in bytes
NUMBERS = ("train_loss", "clients_loss", "test_loss", "test_accuracy")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a run's folder, or a client's state folder")


def main(args: argparse.Namespace) -> int:
    found = look(Path(args.folder))
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(WORDS[found["of"]](found)))
    return 0


def look(folder: Path) -> dict[str, Any]:
    """Return the status of a folder: of a client, of a server, or of a run without a status file."""
    if (folder / audit.FILE).is_file() or (folder / RUNS).is_file():
        return {"of": "client", **_client(folder)}
    if (folder / STATUS).is_file():
        return {"of": "server", **_table(folder / STATUS)}
    if (folder / ROUNDS).is_file():
        return {"of": "run", "lines": _lines(folder / ROUNDS)}
    raise UnalikeError(f"{folder} is neither the folder of a run nor that of a client (`unalike join --state`).")


def _client(folder: Path) -> dict[str, Any]:
    log, runs = audit.read(folder), _table(folder / RUNS) if (folder / RUNS).is_file() else {}
    policy = (folder / POLICY).read_text(encoding="utf-8") if (folder / POLICY).is_file() else ""
    rounds = [line for line in log.lines if type(line["round"]) is int and line["kind"] == "request"]
    left = {run: 0 for run in runs.get("runs", [])}
    for line in log.lines:
        if line["run"] in left:
            left[line["run"]] += line["bytes"]
    return {
        "policy": policy,
        "runs": runs.get("runs", []),
        "runs_in_all": runs.get("total", 0),
        "last_round": rounds[-1]["round"] + 1 if rounds else None,
        "last_time": log.lines[-1]["time"] if log.lines else None,
        "refused": sum(line["kind"] == "error" for line in log.lines),
        "bytes": sum(line["bytes"] for line in log.lines),
        "bytes_of_runs": left,
        "fault": log.fault,
    }


def _text(file: Path) -> str:
    with open(file, encoding="utf-8", errors="replace") as stream:
        return stream.read(LARGEST)


def _table(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(file))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnalikeError(f"{file} cannot be read: it is no table of JSON.")
    return found


def _lines(file: Path) -> list[dict[str, Any]]:
    out = []
    for text in _text(file).splitlines():
        try:
            out.append(json.loads(text))
        except ValueError:
            break  # this line is still being written
    return [line for line in out if isinstance(line, dict)]


# ---------------------------------------------------------------- in words


def _client_words(found: dict[str, Any]) -> list[str]:
    policy = ", ".join(
        line for line in printable(found["policy"].strip().replace("\n", "; "), 2000).split("; ") if line
    )
    out = [f"policy: {policy or 'as by default'}"]
    out.append(f"runs: {found['runs_in_all']}, of which {len(found['runs'])} are kept")
    for run in found["runs"]:
        now = ", the present one" if run == found["runs"][-1] else ""
        out.append(f"  {printable(run, 40)}: {size(found['bytes_of_runs'][run])} left{now}")
    if found["last_round"] is not None:
        out.append(f"last round: {found['last_round']}, at {found['last_time']}")
    out.append(f"left in all: {size(found['bytes'])}; {found['refused']} requests refused or failed")
    return [*out, *filter(None, [found["fault"]])]


def _server_words(found: dict[str, Any]) -> list[str]:
    get = lambda name: printable(found.get(name), 60)  # noqa: E731
    state = "done" if found.get("done") else "at work"
    since = span(max(0.0, time.time() - found["time"])) if isinstance(found.get("time"), float) else "?"
    out = [f"{get('method')}, run {get('run')}: round {get('round')} of {get('rounds')}, {state}; written {since} ago"]
    losses = found.get("losses")
    out += _round_words(losses if isinstance(losses, list) else [])
    people = found.get("clients")
    for one in people if isinstance(people, list) else []:
        if isinstance(one, dict):
            say = lambda name, one=one: printable(one.get(name), 200)  # noqa: E731
            reason = f" ({say('reason')})" if one.get("reason") else ""
            out.append(
                f"  {say('name'):20} {say('state'):10} {say('samples')} samples, last round {say('last_round')}, lost "
                f"{say('lost')}{reason}"
            )
    return out


def _run_words(found: dict[str, Any]) -> list[str]:
    return [f"{len(found['lines'])} rounds are done", *_round_words(found["lines"][-10:])]


def _round_words(lines: Iterable[Any]) -> list[str]:
    return [
        f"  round {printable(line.get('round'), 20)}: "
        + ", ".join(f"{name} {printable(line[name], 20)}" for name in (*NUMBERS, "lost") if line.get(name) is not None)
        for line in lines
        if isinstance(line, dict)
    ]


WORDS = {"client": _client_words, "server": _server_words, "run": _run_words}
