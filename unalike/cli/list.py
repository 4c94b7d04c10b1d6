"""What there is.

  unalike list                    everything, a line each
  unalike list methods            what leaves a client, and who reads it
  unalike list method scaffold    one of them, in detail

For a method: its hyper-parameters, what leaves a client and who reads it, what
the server sees, and what a client sends and receives in a round (measured).
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import numpy as np

from unalike import config
from unalike.channel import STAGES, who_sees
from unalike.cli import show
from unalike.contract import Method, privacy
from unalike.data.partition import PARTITIONS
from unalike.data.skew import CHANGES
from unalike.engines import ENGINES
from unalike.errors import unknown
from unalike.methods import METHODS
from unalike.run.callbacks import Callback
from unalike.run.run import Run
from unalike.settings import typed
from unalike.training import LocalTraining

KINDS: dict[str, dict[str, Any]] = {
    "methods": METHODS,
    "data": config.NAMES["data"],
    "models": config.NAMES["model"],
    "partitions": PARTITIONS,
    "changes": CHANGES,
    "stages": STAGES,
    "engines": ENGINES,
}
# kinds that are listed with another one, because they stand in the same text after a |
FOLLOWED_BY = {"partitions": ("changes",)}
NOTE = (
    "down, up: vectors of the model's size that a client receives and sends in a round. "
    "What the server reads is what the method needs; it sees every message: this deployment has no secure aggregation. "
    "What clients seal for each other it cannot open."
)
STAGES_NOTE = (
    "--channel clip:1.0,topk:0.01 sends replies through these stages, in this order. Settings are given in their order "
    "or by name (clip:norm=1.0); clip:1.0@delta acts on the field delta alone. In a file each stage is a [[channel]] "
    "table. Compression hides nothing that can be relied on: only noise with a stated epsilon is a guarantee "
    "(docs/channels.md)."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help=", ".join(KINDS))
    parser.add_argument("name", nargs="?", help="one of them, in detail")


def main(args: argparse.Namespace) -> int:
    kinds = KINDS
    if args.kind is not None:
        kind = next((k for k in KINDS if args.kind in (k, k.removesuffix("s"))), None)
        if kind is None and args.name is None:  # `unalike list scaffold`
            kind, args.name = next((k for k, names in KINDS.items() if args.kind in names), None), args.kind
        if kind is None:
            raise unknown("kind", args.kind, [*KINDS, *(n for names in KINDS.values() for n in names)])
        if args.name is not None:
            if args.name not in KINDS[kind]:
                raise unknown(kind.removesuffix("s"), args.name, KINDS[kind])
            return _detail(kind, args.name, args.json)
        kinds = {k: KINDS[k] for k in (kind, *FOLLOWED_BY.get(kind, ()))}
    texts = {kind: {n: summary(thing) for n, thing in names.items()} for kind, names in kinds.items()}
    if args.json:
        show.document(texts)
        return 0
    print("\n\n".join(show.table([], _lines(names), kind) for kind, names in texts.items()))
    if list(kinds) == ["methods"]:
        columns = ["method", "down", "up", "leaves the client"]
        facts = {name: method_facts(name) for name in METHODS}
        rows = [[n, f["down"], f["up"], f["leaves the client"]] for n, f in facts.items()]
        print("\n" + show.table(columns, rows) + "\n\n" + show.prose(NOTE))
    if list(kinds) == ["stages"]:
        rows = [[stage_usage(name), stage_settings(name)] for name in STAGES]
        print("\n" + show.table(["as written", "its settings"], rows) + "\n\n" + show.prose(STAGES_NOTE))
    return 0


def stage_usage(name: str) -> str:
    """Return how a stage is written in a channel, with the names of its settings."""
    return ":".join([name, *(field.name for field in STAGES[name].arguments())])


def stage_settings(name: str) -> str:
    """Return a stage's settings and their defaults in one line."""
    empty = inspect.Parameter.empty
    known = {n: s for n, s in config.stage_settings(STAGES[name]).items() if n != "fields"}
    said = (
        f"{n}: {s.knob.text}{'' if s.default in (empty, None) else f' [{str(s.default).lower()}]'}"
        for n, s in known.items()
    )
    return "; ".join(said) or "none"


def _lines(texts: dict[str, str]) -> list[list[str]]:
    """Return rows of a name and its text; methods that share a file get the text once."""
    first = {text: name for name, text in reversed(texts.items())}
    return [[name, text if first[text] == name else f"see {first[text]}"] for name, text in texts.items()]


def summary(thing: Any) -> str:
    """Return the first sentences of an object's documentation; for a method those of its file, which cites the
    paper."""
    return _text(thing).split("\n\n")[0].replace("\n", " ")


def _text(thing: Any) -> str:
    of_file = thing in METHODS.values() or thing in ENGINES.values()
    return inspect.getdoc(inspect.getmodule(thing) if of_file else thing) or ""


def _detail(kind: str, name: str, as_json: bool) -> int:
    thing = KINDS[kind][name]
    hints = {} if kind == "engines" else config.data_settings({"name": name}) if kind == "data" else typed.hints(thing)
    if kind == "stages":
        hints = config.stage_settings(thing)
    settings: dict[str, dict[str, Any]] = {
        n: {
            "kind": typed.words(s.hint),
            "default": s.default if show.writable(s.default) else None,
            "words": s.knob.text,
        }
        for n, s in hints.items()
        if n != "name"
    }
    facts: dict[str, str] = method_facts(name) if kind == "methods" else {}
    seen = who_sees(METHODS[name]()) if kind == "methods" else []
    if as_json:
        more = {"who_sees": show.sights(seen)} if seen else {}
        show.document({"name": name, "summary": summary(thing), "settings": settings, **facts, **more})
        return 0
    own = inspect.getdoc(thing) or ""
    # skip the docstring that dataclasses generate
    knobs = [own] if kind == "methods" and not own.startswith(f"{thing.__name__}(") else []
    print(show.prose("\n\n".join([_text(thing), *knobs])))
    if settings:
        texts = {n: ": ".join(filter(None, [s["kind"], s["words"]])) for n, s in settings.items()}
        rows = [[n, "" if s["default"] is None else str(s["default"]), texts[n]] for n, s in settings.items()]
        print("\n" + show.table(["setting", "default", "what it is"], rows))
    if facts:
        ways = [k for k in ("down", "up", "between clients") if k in facts]
        each = {k: f"{facts[k]} vector{'s' * (facts[k] != '1')} of the model's size" for k in ways}
        words = facts | {k: f"{text}, 4 bytes per parameter each" for k, text in each.items()}
        print("\n" + show.table([], [[k, str(v)] for k, v in words.items()], "in a round"))
    if seen:
        print("\n" + show.sight_table(seen))
    return 0


def method_facts(name: str) -> dict[str, str]:
    """Return what a method reads, what the server sees, and its traffic, measured in the first rounds of a small
    run."""
    from unalike import testing

    few = {"buffer": 6} if hasattr(METHODS[name], "buffer") else {}  # of the few clients of this run
    method = METHODS[name](**few)
    words = {"sum": "sums of", "each": "every client's", "peers": "every client's, shown to others,"}
    read = {how: [n for n, f in method.sends.items() if f.read == how] for how in words}
    sealed = [n for n, f in method.sends.items() if f.read == "sealed"]
    seen = f"every message but {', '.join(sealed)}" if sealed else "every message"
    count = _Exchanges()
    short = {"local": _OneStep(steps=1, batch_size=5, lr=0.05), "evaluate_clients": "none", "evaluate_every": 2}
    run = testing.run(method, "mlp", rounds=2, engine="sequential", callbacks=[count], **short)
    first, later = run.history
    more = {way: _vectors(run, later, way) for way in ("down", "up") if _each(later, way) > _each(first, way)}
    return {
        **_needs(method),
        "leaves the client": privacy(method),
        "reads": "; ".join(f"{words[how]} {', '.join(names)}" for how, names in read.items() if names),
        "the server sees": f"{seen}: this deployment has no secure aggregation",
        "down": _vectors(run, first, "down"),
        "up": _vectors(run, first, "up"),
        **({"between clients": _vectors(run, first, "peer")} if "bytes_peer" in first else {}),
        **({"from round 2": ", ".join(f"{size} {way}" for way, size in more.items())} if more else {}),
        "exchanges": str(count.first),
        **({"further networks": ", ".join(run.task.nets)} if run.task.nets else {}),
        "clients keep": ", ".join(method.keeps) or "nothing",
        "server keeps of each": ", ".join(method.tables) or "nothing",
    }


def _needs(method: Method) -> dict[str, str]:
    """Return what a run of the method must provide or allow."""
    needs = ["a public set ([data] public)"] if method.needs_public else []
    needs += [f"--allow-samples: clients send {method.ships}"] if method.ships else []
    needs += ["one network for all clients"] if method.one_network else []
    return {"needs": "; ".join(needs)} if needs else {}


class _OneStep(LocalTraining):
    """Local training cut to one step, whatever the method asks for: the messages have the same size."""

    def counts(self, ids: np.ndarray, sizes: np.ndarray, round: int) -> np.ndarray:
        return np.ones(len(ids), dtype=np.int64)


class _Exchanges(Callback):
    """Count the exchanges of the first round, and cut the server's own training to one step too."""

    first = 0

    def on_start(self, run: Run) -> None:
        run.server_work.local = _OneStep()

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        self.first = self.first or run.exchanges


def _each(line: dict[str, Any], way: str) -> float:
    """Return the bytes per participant in a round, `way` "up", "down" or "peer"."""
    return line[f"bytes_{way}"] / line["clients"]


def _vectors(run: Run, line: dict[str, Any], way: str) -> str:
    """Return those bytes in units of the model's size; a further network among them is named separately."""
    numbers, model = _each(line, way) / 4, run.task.layout.size
    named = [name for name, net in run.task.nets.items() if numbers > model + net.size]
    numbers -= sum(run.task.nets[name].size for name in named)
    return " + ".join([f"{numbers / model:.3g}", *named])
