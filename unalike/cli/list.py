"""What there is: `unalike list`, `unalike list methods`, `unalike list method scaffold`.

For a method: its hyper-parameters, what it reads of the clients, what the server sees, and the bytes a client sends and
receives a round (measured on a small run, in vectors of the model's size).
"""

from __future__ import annotations

import argparse
import inspect
import json
import typing
from typing import Any

from unalike import config, typed
from unalike.cli.run import print_table
from unalike.data.partition import PARTITIONS
from unalike.engines import ENGINES
from unalike.errors import unknown
from unalike.methods import METHODS

KINDS: dict[str, dict[str, Any]] = {
    "methods": METHODS,
    "data": config.NAMES["data"],
    "models": config.MODELS,
    "partitions": PARTITIONS,
    "engines": ENGINES,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help=", ".join(KINDS))
    parser.add_argument("name", nargs="?", help="one of them, in detail")


def main(args: argparse.Namespace) -> int:
    kinds = KINDS
    if args.kind is not None:
        kind = next((k for k in KINDS if args.kind in (k, k.removesuffix("s"))), None)
        if kind is None:
            raise unknown("kind", args.kind, KINDS)
        kinds = {kind: KINDS[kind]}
        if args.name is not None:
            if args.name not in KINDS[kind]:
                raise unknown(kind.removesuffix("s"), args.name, KINDS[kind])
            return _detail(kind, args.name, args.json)
    if args.json:
        print(json.dumps({kind: {n: summary(thing) for n, thing in names.items()} for kind, names in kinds.items()}))
        return 0
    for kind, names in kinds.items():
        print_table(kind, ["", ""], [[n, summary(thing)] for n, thing in names.items()])
    return 0


def summary(thing: Any) -> str:
    """The first line of a thing's documentation: of its file for a method, which carries the paper."""
    text = inspect.getdoc(inspect.getmodule(thing)) if thing in METHODS.values() or thing in ENGINES.values() else None
    return (text or inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _detail(kind: str, name: str, as_json: bool) -> int:
    thing = KINDS[kind][name]
    settings = {
        n: {"kind": typed.words(h), "default": None if d is inspect.Parameter.empty else _plain(d)}
        for n, (h, d) in typed.hints(thing).items()
    } if kind != "engines" else {}  # fmt: skip
    facts: dict[str, Any] = method_facts(name) if kind == "methods" else {}
    if as_json:
        print(json.dumps({"name": name, "summary": summary(thing), "settings": settings, **facts}))
        return 0
    text = inspect.getdoc(inspect.getmodule(thing)) if kind in ("methods", "engines") else inspect.getdoc(thing)
    print(text, end="\n\n")
    if settings:
        rows = [[n, str(s["kind"]), "" if s["default"] is None else str(s["default"])] for n, s in settings.items()]
        print_table("settings", ["name", "kind", "default"], rows)
    if facts:
        print()
        print_table("exchange", ["", ""], [[k, str(v)] for k, v in facts.items()])
    return 0


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | tuple | None.__class__) else str(value)


def method_facts(name: str) -> dict[str, Any]:
    """What a method reads, what the server sees, and its bytes, counted in one round of a small run."""
    from unalike import testing

    method = METHODS[name]()
    fields = method.up
    read = {how: [n for n, f in fields.items() if f.read == how] for how in typing.get_args(_READS)}
    words = {"sum": "only sums of", "each": "of every client its", "peers": "of every client, shown to others, its"}
    reads = "; ".join(f"{words[how]} {', '.join(names)}" for how, names in read.items() if names)
    run = testing.run(method, "mlp", rounds=1, engine="sequential")
    line, vector = run.history[0], 4 * run._model.layout.size
    exchanges = run.exchanges
    return {
        "reads": reads,
        "the server sees": "every message (no secure aggregation in this deployment)",
        "clients keep": ", ".join(method.state) or "nothing",
        "server keeps for each client": ", ".join(method.tables) or "nothing",
        "exchanges a round": exchanges,
        "down, up (vectors of the model)": f"{line['bytes_down'] / line['clients'] / vector:.2f}, "
        f"{line['bytes_up'] / line['clients'] / vector:.2f}",
    }


_READS = typing.Literal["sum", "each", "peers"]
