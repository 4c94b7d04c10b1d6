"""Learn from parties that hold different columns of the same people.

  unalike vertical align   --table bank=bank.csv --table shop=shop.csv \\
                           --id customer --label bank:default
  unalike vertical run     ... --protection paillier --out runs/credit
  unalike vertical predict runs/credit --table bank=new.csv \\
                           --table shop=shop.csv --id customer
  unalike vertical compare ...            is the cooperation worth it?

between machines (certificates and keys as in a federation: unalike keys):

  unalike vertical serve --table bank=bank.csv --id customer \\
                         --label bank:default --keys keys/ --host shop \\
                         --out runs/credit
  unalike vertical join bank.example.org:8444 --table shop=shop.csv \\
                         --id customer --ca ca.crt --key shop --state state/
  unalike vertical predict runs/credit --table bank=new.csv --id customer \\
                         --keys keys/ --host shop
"""

from __future__ import annotations

import argparse
import dataclasses as dc
from pathlib import Path
from typing import Any

from unalike.cli import Parser, predict, show
from unalike.errors import UnalikeError, unknown
from unalike.settings.knobs import KNOB, Knob

PORT = 8444


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=Parser)
    for name, (function, words) in COMMANDS.items():
        sub = commands.add_parser(name, help=words, description=words)
        sub.set_defaults(vertical=function, parser=sub)
        for add in FLAGS[name]:
            add(sub)


def main(args: argparse.Namespace) -> int:
    return args.vertical(args)


# ---- flags


def _table_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--table", metavar="PARTY=FILE", action="append", required=True, help="a party's table; may be repeated")
    add("--id", metavar="COLUMN", required=True, help="the column that says whose row it is; or PARTY:COLUMN,…")
    add("--fold-case", action="store_true", help="ids that differ in capitals alone are the same")
    add("--duplicates", choices=("refuse", "drop"), default="refuse", help="ids that are twice in a table [refuse]")


def _matching_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--label", metavar="PARTY:COLUMN", required=True, help="the column to be learned, and who has it")
    add("--drop", metavar="PARTY:COLUMN", action="append", default=[], help="a column to leave out")
    unmatched = "rows that not all have: left out, missing cells, or zero with a flag [drop]"
    add("--unmatched", choices=("drop", "missing", "mask"), default="drop", help=unmatched)
    overlap = "columns that two parties have: refused, the guest's, the host's, both [refuse]"
    add("--overlap", choices=("refuse", "guest", "host", "both"), default="refuse", help=overlap)
    add("--test", metavar="X", type=float, default=0.2, help="share of the rows held out for testing [0.2]")


def _training_flags(parser: argparse.ArgumentParser) -> None:
    from unalike.vertical import METHODS, Settings

    add = parser.add_argument
    add("--method", metavar="NAME", default="logistic", help=f"one of {', '.join(METHODS)} [logistic]")
    protection = "none, paillier, ckks or coordinator [none]"
    add("--protection", metavar="NAME", default="none", help=protection)
    add(
        "--scale",
        choices=("standard", "none"),
        default="standard",
        help="how each party prepares its columns [standard]",
    )
    known = {f.name: f for kind in (Settings, *METHODS.values()) for f in dc.fields(kind)}  # type: ignore[arg-type]
    for name, field in known.items():
        if KNOB in field.metadata:
            _flag(parser, name, field)


def _flag(parser: argparse.ArgumentParser, name: str, field: dc.Field[Any]) -> None:
    knob: Knob = field.metadata[KNOB]
    flag, kind = f"--{name.replace('_', '-')}", str(field.type)
    words = f"{knob.text} [{field.default}]".replace("%", "%%")
    if kind == "bool":
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=words)
    else:
        read: Any = _widths if "tuple" in kind else float if "float" in kind else int if "int" in kind else str
        parser.add_argument(flag, metavar="X", type=read, default=None, help=words)


def _widths(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _folder_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FOLDER", help="where every party's part of the model is kept")
    parser.add_argument("--resume", action="store_true", help="continue the run in that folder")


def _door_flags(parser: argparse.ArgumentParser, required: bool = True) -> None:
    add = parser.add_argument
    add("--keys", metavar="FOLDER", required=required, help="the guest's keys, from `unalike keys server`")
    add("--host", metavar="PARTY", action="append", default=[], help="a host to wait for; may be repeated")
    add("--port", type=int, default=PORT, help=f"where hosts connect [{PORT}]")
    add("--bind", metavar="ADDRESS", default="0.0.0.0", help="the address to listen on [0.0.0.0]")
    add("--wait", metavar="SECONDS", type=float, default=600.0, help="for hosts, and for one that was lost [600]")


def _join_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("server", metavar="HOST:PORT", help="where the guest is")
    add("--table", metavar="PARTY=FILE", help="this party's table; a coordinator has none")
    add("--id", metavar="COLUMN", help="the column that says whose row it is")
    add("--drop", metavar="COLUMN", action="append", default=[], help="a column that stays out")
    add("--fold-case", action="store_true", help="ids that differ in capitals alone are the same")
    add("--duplicates", choices=("refuse", "drop"), default="refuse", help="ids that are twice in the table [refuse]")
    add("--ca", metavar="FILE", required=True, help="the guest's certificate, ca.crt")
    add("--key", metavar="FILE", required=True, help="this party's private key (unalike keys node)")
    add("--state", metavar="FOLDER", required=True, help="where this party's part of the model is kept")
    add("--least-bits", metavar="N", type=int, default=2048, help="of a Paillier key that this party takes [2048]")
    add("--methods", metavar="NAMES", help="methods to take part in, as sealed-logistic,hardy [all]")
    add("--wait", metavar="SECONDS", type=float, default=600.0, help="for a guest that is away [600]")


def _predict_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    _table_flags(parser)
    parser.add_argument("--out", metavar="FILE", help="a CSV file; default: standard output")
    _door_flags(parser, required=False)


# ---- commands


def align(args: argparse.Namespace) -> int:
    parties = _parties(args)
    report = parties.report
    return show.answer(args, dc.asdict(report), str(report))


def run(args: argparse.Namespace) -> int:
    from unalike import vertical

    method, settings = _method(args), _settings(args)
    parties = _parties(args)
    _say(args, str(parties.report))
    done = vertical.fit(method, parties, folder=args.out, resume=args.resume, **settings)
    last = done.history[-1]
    text = "\n".join(["who sees what", vertical.sight_text(done.sees), "", _line(last), *_kept(args)])
    return show.answer(args, {"history": done.history, "sees": [dc.asdict(s) for s in done.sees]}, text)


def compare(args: argparse.Namespace) -> int:
    from unalike.vertical.compare import compare as compared

    method, parties = _method(args), _parties(args)
    _say(args, str(parties.report))
    found = compared(method, parties, **_settings(args))
    names, rows = found.rows()
    models = {line.name: line.scores for line in found.lines}
    content = {"models": models, "gain": found.gain, "verdict": found.verdict}
    return show.answer(args, content, f"{show.table(names, rows)}\n\n{found.verdict}")


def serve(args: argparse.Namespace) -> int:
    from unalike import vertical
    from unalike.vertical.serve import Guest

    (name, table), owner, column = _one(args), *_label(args)
    if owner != name:
        raise UnalikeError(f"unalike vertical serve: the label is at {owner}, and the table is that of {name}.")
    read = _read(args, name, table, column)
    if args.out is None:
        raise UnalikeError("unalike vertical serve: give --out, the folder in which the run is kept.")
    method = _method(args)
    guest = Guest(
        read, _listener(args), args.host, Path(args.out), args.wait, args.unmatched, args.overlap, args.test,
        args.scale, lambda text: _say(args, text),
    )  # fmt: skip
    try:
        classes = None if read.label_names is None else len(read.label_names)
        session = guest.train(method, vertical.Settings(**_settings(args)), classes, args.resume)
    finally:
        guest.listener.done()
    text = "\n".join([str(guest.report), "", "who sees what", vertical.sight_text(session.sees), *_kept(args)])
    return show.answer(args, {"sees": [dc.asdict(s) for s in session.sees], "matched": guest.report.matched}, text)


def join(args: argparse.Namespace) -> int:
    from unalike.vertical.line import attend
    from unalike.vertical.node import Node

    host, _, port = args.server.rpartition(":")
    if not host or not port.isdecimal():
        raise UnalikeError(f"unalike vertical join: {args.server!r} must be HOST:PORT.")
    for file in (args.ca, args.key):
        if not Path(file).is_file():
            raise UnalikeError(f"unalike vertical join: there is no file {file}.")
    if args.table:
        name, table = _named(args.table)
        if not args.id:
            raise UnalikeError("unalike vertical join: give --id, the column that says whose row it is.")
        read = _read(args, name, table, None)
    else:
        name, read, table = "coordinator", None, ""
    methods = args.methods.split(",") if args.methods else None
    node = Node(
        read, name, Path(args.state), methods=methods, secret=True, least_bits=args.least_bits,
        tell=lambda text: _say(args, text),
        reader=lambda schema: _read(args, name, table, None, schema),
    )  # fmt: skip
    attend(node, (host, int(port)), Path(args.ca), Path(args.key), args.wait, lambda text: _say(args, text))
    return 0


def predicted(args: argparse.Namespace) -> int:
    folder = Path(args.run)
    if not (folder / "config.toml").is_file():
        raise UnalikeError(f"unalike vertical predict: {folder} holds no vertical run.")
    found = _between(args, folder) if args.keys else _here(args, folder)
    return predict.give(args, predict.columns(found))


def _here(args: argparse.Namespace, folder: Path) -> Any:
    from unalike.vertical.predict import predicted as by_shares

    names, fallback = _of_run(folder)
    tables = dict(map(_named, args.table))
    return by_shares(
        {name: _share(folder / name) for name in names}, tables, _ids(args, tables), fallback, _alone(folder)
    )


def _between(args: argparse.Namespace, folder: Path) -> Any:
    from unalike.data.schema import Schema
    from unalike.vertical.node import read_share
    from unalike.vertical.serve import Guest

    (name, table), (names, fallback) = _one(args), _of_run(folder)
    share = _share(folder / names[0])
    read = _read(args, name, table, None, Schema.from_plain(read_share(share)[0]["schema"]))
    unmatched = "drop" if fallback == "refuse" else "mask"
    guest = Guest(
        read,
        _listener(args),
        args.host,
        folder,
        args.wait,
        unmatched,
        overlap="both",
        say=lambda text: _say(args, text),
    )
    try:
        return guest.predict(share, fallback, _alone(folder))
    finally:
        guest.listener.done()


# ---- what is given


def _parties(args: argparse.Namespace) -> Any:
    from unalike.vertical import Parties

    tables = dict(map(_named, args.table))
    if len(tables) < 2:
        raise UnalikeError("unalike vertical: give --table PARTY=FILE for two parties or more.")
    drop: dict[str, list[str]] = {}
    for text in args.drop:
        party, column = _pair(text, ":", "--drop")
        drop.setdefault(party, []).append(column)
    return Parties.from_tables(
        tables, _ids(args, tables), _label(args), drop, args.fold_case, args.duplicates, unmatched=args.unmatched,
        overlap=args.overlap, test=args.test, seed=getattr(args, "seed", None) or 0,
        scale=getattr(args, "scale", "standard"),
    )  # fmt: skip


def _read(args: argparse.Namespace, name: str, table: str, column: str | None, schema: Any = None) -> Any:
    from unalike.vertical.tables import read_table

    drop = [text.rpartition(":")[2] for text in getattr(args, "drop", [])]
    id = _ids(args, {name: table})[name]
    return read_table(name, table, id, column, drop, args.fold_case, args.duplicates, schema)


def _method(args: argparse.Namespace) -> Any:
    """Return the method that the flags describe, under their protection."""
    from unalike.vertical import METHODS, Settings
    from unalike.vertical.method import settings_names

    if args.method not in METHODS:
        raise unknown("vertical method", args.method, METHODS)
    kind: Any = METHODS[args.method]
    every = {name for other in METHODS.values() for name in settings_names(other)} - {*settings_names(Settings)}
    given = {name: getattr(args, name) for name in sorted(every) if getattr(args, name) is not None}
    form = METHODS.get(kind.forms.get(args.protection, ""), kind)
    for name in given:
        if name not in settings_names(form):
            raise UnalikeError(f"unalike vertical: {form.name} has no setting --{name.replace('_', '-')}.")
    own = {name: value for name, value in given.items() if name in settings_names(kind)}
    return kind(**own).under(args.protection, **{name: v for name, v in given.items() if name not in own})


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    from unalike.vertical import Settings

    return {f.name: getattr(args, f.name) for f in dc.fields(Settings) if getattr(args, f.name) is not None}


def _listener(args: argparse.Namespace) -> Any:
    from unalike.vertical.line import Listener

    if not args.host:
        raise UnalikeError("unalike vertical: give --host, the name of a party to wait for.")
    if not (Path(args.keys) / "server.key").is_file():
        raise UnalikeError(f"unalike vertical: {args.keys} has no server.key: see `unalike keys server`.")
    return Listener(Path(args.keys), (args.bind, args.port), args.wait, lambda text: _say(args, text))


def _one(args: argparse.Namespace) -> tuple[str, str]:
    if len(args.table) != 1:
        raise UnalikeError("unalike vertical: between machines each party gives its own table only.")
    return _named(args.table[0])


def _named(text: str) -> tuple[str, str]:
    return _pair(text, "=", "--table")


def _pair(text: str, sign: str, flag: str) -> tuple[str, str]:
    first, found, second = text.partition(sign)
    if not first or not found or not second:
        raise UnalikeError(f"unalike vertical: {flag} {text!r} must be two names with {sign!r} between them.")
    return first, second


def _label(args: argparse.Namespace) -> tuple[str, str]:
    return _pair(args.label, ":", "--label")


def _ids(args: argparse.Namespace, tables: dict[str, str]) -> dict[str, str]:
    """Return the id column of every party: one for all, or bank:customer,shop:client."""
    if ":" not in args.id:
        return dict.fromkeys(tables, args.id)
    own = dict(_pair(part, ":", "--id") for part in args.id.split(","))
    lacking = [name for name in tables if name not in own]
    if lacking:
        raise UnalikeError(f"unalike vertical: --id {args.id} does not say which column it is at {lacking[0]}.")
    return own


def _of_run(folder: Path) -> tuple[list[str], str]:
    import tomllib

    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    try:
        return list(config["vertical"]["parties"]), str(config["run"]["fallback"])
    except KeyError:
        raise UnalikeError(f"{folder} holds no vertical run.") from None


def _share(folder: Path) -> bytes:
    from unalike.vertical.node import epoch_of

    files = [file for file in folder.glob("epoch-*.share") if epoch_of(file) is not None]
    if not files:
        raise UnalikeError(f"{folder} has no part of a model.")
    return max(files, key=lambda file: epoch_of(file) or 0).read_bytes()


def _alone(folder: Path) -> bytes | None:
    from unalike.vertical.run import ALONE

    return (folder / ALONE).read_bytes() if (folder / ALONE).exists() else None


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet and not args.json:
        print(text, flush=True)


def _line(line: dict[str, Any]) -> str:
    words = {name.replace("_", " "): f"{v:.4g}" if isinstance(v, float) else f"{v:,}" for name, v in line.items()}
    return ", ".join(f"{name} {value}" for name, value in words.items())


def _kept(args: argparse.Namespace) -> list[str]:
    return [f"kept in {show.near(args.out)}"] if args.out else []


COMMANDS = {
    "align": (align, "match the people of several tables, and say what each party learns by it"),
    "run": (run, "train a joint model, all parties on this machine"),
    "compare": (compare, "the joint model beside each party alone and the pooled table"),
    "serve": (serve, "be the guest, who has the labels, between machines"),
    "join": (join, "be a host, or the coordinator, between machines"),
    "predict": (predicted, "use a joint model, also with a party missing"),
}
FLAGS: dict[str, tuple[Any, ...]] = {
    "align": (_table_flags, _matching_flags),
    "run": (_table_flags, _matching_flags, _training_flags, _folder_flags),
    "compare": (_table_flags, _matching_flags, _training_flags),
    "serve": (_table_flags, _matching_flags, _training_flags, _folder_flags, _door_flags),
    "join": (_join_flags,),
    "predict": (_predict_flags,),
}
