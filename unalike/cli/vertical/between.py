"""Vertical learning between machines: serve, join, predict together."""

from __future__ import annotations

import argparse
import dataclasses as dc
from pathlib import Path
from typing import Any

from unalike.cli import show
from unalike.cli.vertical import given
from unalike.errors import UnalikeError, unknown
from unalike.files import hold_alone, release


def serve(args: argparse.Namespace) -> int:
    from unalike import vertical
    from unalike.vertical.serve import Guest

    (name, table), owner, column = given.one(args), *given.label(args)
    if owner != name:
        raise UnalikeError(f"unalike vertical serve: the label is at {owner}, and the table is that of {name}.")
    read = given.read(args, name, table, column)
    if args.out is None:
        raise UnalikeError("unalike vertical serve: give --out, the folder in which the run is kept.")
    method = given.method(args)
    guest = Guest(
        read, given.listener(args), args.host, Path(args.out), args.wait, args.unmatched, args.overlap, args.test,
        args.scale, lambda text: given.say(args, text),
    )  # fmt: skip
    with guest.listener:
        classes = None if read.label_names is None else len(read.label_names)
        session = guest.train(method, vertical.Settings(**given.settings(args)), classes, args.resume)
    text = "\n".join([str(guest.report), "", "who sees what", vertical.sight_text(session.sees), *given.kept(args)])
    return show.answer(args, {"sees": [dc.asdict(s) for s in session.sees], "matched": guest.report.matched}, text)


def join(args: argparse.Namespace) -> int:
    from unalike.network.audit import Audit
    from unalike.network.seal import Keyring
    from unalike.vertical.line import attend
    from unalike.vertical.node import Node

    host, _, port = args.server.rpartition(":")
    if not host or not port.isdecimal():
        raise UnalikeError(f"unalike vertical join: {args.server!r} must be HOST:PORT.")
    for file in (args.ca, args.key):
        if not Path(file).is_file():
            raise UnalikeError(f"unalike vertical join: there is no file {file}.")
    if args.table:
        name, table = given.named(args.table)
        if not args.id:
            raise UnalikeError("unalike vertical join: give --id, the column that says whose row it is.")
        read = given.read(args, name, table, None)
    else:
        name, read, table = "coordinator", None, ""
    node = Node(
        read, name, Path(args.state), methods=_methods(args), secret=True, least_bits=args.least_bits,
        tell=lambda text: given.say(args, text),
        reader=lambda schema: given.read(args, name, table, None, schema),
        sums_only=args.secure_sum, signer=Keyring(Path(args.key), args.peers and Path(args.peers)),
    )  # fmt: skip
    state = Path(args.state)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = hold_alone(state / "lock")
    try:
        place, say = (host, int(port)), lambda text: given.say(args, text)
        attend(node, place, Path(args.ca), Path(args.key), args.wait, say, Audit(state))
    finally:
        release(lock)
    return 0


def _methods(args: argparse.Namespace) -> list[str] | None:
    """Return the methods that a host takes part in; None: all."""
    from unalike.vertical import METHODS

    names = args.methods.split(",") if args.methods else None
    for name in names or ():
        if name not in METHODS:
            raise unknown("vertical method", name, METHODS)
    return names


def predicted(args: argparse.Namespace, folder: Path) -> Any:
    """Predict together with hosts that join."""
    from unalike.data.schema import Schema
    from unalike.vertical.node import read_share
    from unalike.vertical.serve import Guest

    (name, table), (names, fallback) = given.one(args), given.of_run(folder)
    strange = [host for host in args.host if host not in names[1:]]
    if strange:
        raise unknown("host of this run", strange[0], names[1:])
    share = given.share(folder / names[0])
    header = read_share(share)[0]
    args.fold_case = args.fold_case or header.get("fold_case") is True
    read = given.read(args, name, table, None, Schema.from_plain(header["schema"]))
    guest = Guest(
        read, given.listener(args), args.host, folder, args.wait, "mask", "both", say=lambda text: given.say(args, text)
    )
    with guest.listener:
        return guest.predict(share, fallback, given.alone(folder), names[1:])
