"""Read the flags of `unalike vertical`: tables, parties, a method, its settings, the folder of a run."""

from __future__ import annotations

import argparse
import dataclasses as dc
from pathlib import Path
from typing import Any

from unalike.cli import show
from unalike.errors import UnalikeError, unknown


def parties(args: argparse.Namespace) -> Any:
    """Return the parties of all tables, aligned."""
    from unalike.vertical import Parties

    tables = tables_of(args)
    if len(tables) < 2:
        raise UnalikeError("unalike vertical: give --table PARTY=FILE for two parties or more.")
    drop: dict[str, list[str]] = {}
    for text in args.drop:
        party, column = _pair(text, ":", "--drop")
        drop.setdefault(party, []).append(column)
    return Parties.from_tables(
        tables, ids(args, tables), label(args), drop, args.fold_case, args.duplicates, unmatched=args.unmatched,
        overlap=args.overlap, test=args.test, seed=getattr(args, "seed", None) or 0,
        scale=getattr(args, "scale", "standard"),
    )  # fmt: skip


def tables_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the tables of `--table PARTY=FILE`, each party's own."""
    pairs = list(map(named, args.table))
    for k, (name, _) in enumerate(pairs):
        if name in dict(pairs[:k]):
            raise UnalikeError(f"unalike vertical: --table {name}=… is given twice: each party has one table.")
    return dict(pairs)


def read(args: argparse.Namespace, name: str, table: str, column: str | None, schema: Any = None) -> Any:
    """Read one party's table; column: the label's; schema: of the table from which a model learned."""
    from unalike.vertical.tables import read_table

    drop = [text.rpartition(":")[2] for text in getattr(args, "drop", [])]
    id = ids(args, {name: table})[name]
    return read_table(name, table, id, column, drop, args.fold_case, args.duplicates, schema)


def method(args: argparse.Namespace) -> Any:
    """Return the method that the flags describe, with their protection."""
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


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a run from the flags."""
    from unalike.vertical import Settings

    return {f.name: getattr(args, f.name) for f in dc.fields(Settings) if getattr(args, f.name) is not None}


def listener(args: argparse.Namespace) -> Any:
    """Open the guest's port for the other parties."""
    from unalike.vertical.line import Listener

    if not args.host:
        raise UnalikeError("unalike vertical: give --host, the name of a party to wait for.")
    if not (Path(args.keys) / "server.key").is_file():
        raise UnalikeError(f"unalike vertical: {args.keys} has no server.key: see `unalike keys server`.")
    return Listener(Path(args.keys), (args.bind, args.port), args.wait, lambda text: say(args, text))


def one(args: argparse.Namespace) -> tuple[str, str]:
    """Return the one party, between machines, whose table is given, and the table."""
    if len(args.table) != 1:
        raise UnalikeError("unalike vertical: between machines each party gives its own table only.")
    return named(args.table[0])


def named(text: str) -> tuple[str, str]:
    """Return the party and the file of `--table PARTY=FILE`."""
    return _pair(text, "=", "--table")


def _pair(text: str, sign: str, flag: str) -> tuple[str, str]:
    first, found, second = text.partition(sign)
    if not first or not found or not second:
        raise UnalikeError(f"unalike vertical: {flag} {text!r} must be two names with {sign!r} between them.")
    return first, second


def label(args: argparse.Namespace) -> tuple[str, str]:
    """Return the party and the column of --label."""
    return _pair(args.label, ":", "--label")


def ids(args: argparse.Namespace, tables: dict[str, str]) -> dict[str, str]:
    """Return the id column of every party: one for all, or bank:customer,shop:client."""
    if ":" not in args.id:
        return dict.fromkeys(tables, args.id)
    own = dict(_pair(part, ":", "--id") for part in args.id.split(","))
    lacking = [name for name in tables if name not in own]
    if lacking:
        raise UnalikeError(f"unalike vertical: --id {args.id} does not say which column it is at {lacking[0]}.")
    return own


def of_run(folder: Path) -> tuple[list[str], str]:
    """Return the parties of a run, and how it treats rows that a host does not have."""
    import tomllib

    try:
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        return list(config["vertical"]["parties"]), str(config["run"]["fallback"])
    except (KeyError, TypeError, ValueError):
        raise UnalikeError(f"{folder} holds no vertical run.") from None


def share(folder: Path) -> bytes:
    """Return a party's latest part of a model."""
    from unalike.vertical.node import epoch_of, read_share

    files = [file for file in folder.glob("epoch-*.share") if epoch_of(file) is not None]
    if not files:
        raise UnalikeError(f"{folder} has no part of a model.")
    latest = max(files, key=lambda file: epoch_of(file) or 0)
    try:
        read_share(latest.read_bytes())
    except UnalikeError as error:
        raise UnalikeError(f"{latest} cannot be used: {error}") from None
    return latest.read_bytes()


def alone(folder: Path) -> bytes | None:
    """Return the guest's own model, if it trained one."""
    from unalike.vertical.run import ALONE

    return (folder / ALONE).read_bytes() if (folder / ALONE).exists() else None


def say(args: argparse.Namespace, text: str) -> None:
    """Print a line, unless only results are wanted."""
    if not args.quiet and not args.json:
        print(text, flush=True)


def kept(args: argparse.Namespace) -> list[str]:
    """Return a line that says where a run is kept."""
    place = show.near(args.out) if args.out else ""
    return [f"kept in {place}; `unalike report {place}` shows it"] if args.out else []
