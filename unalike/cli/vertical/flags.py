"""Flags of `unalike vertical`, in the groups in which its commands take them; settings describe themselves."""

from __future__ import annotations

import argparse
import dataclasses as dc
from typing import Any

from unalike.settings.knobs import KNOB, Knob

PORT = 8444


def table(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--table", metavar="PARTY=FILE", action="append", required=True, help="a party's table; may be repeated")
    add("--id", metavar="COLUMN", required=True, help="the column that says whose row it is; or PARTY:COLUMN,…")
    add("--fold-case", action="store_true", help="ids that differ in capitals alone are the same")
    add("--duplicates", choices=("refuse", "drop"), default="refuse", help="ids that are twice in a table [refuse]")


def matching(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--label", metavar="PARTY:COLUMN", required=True, help="the column to be learned, and who has it")
    add("--drop", metavar="PARTY:COLUMN", action="append", default=[], help="a column to leave out")
    unmatched = "rows that not all have: left out, missing cells, or zero with a flag [drop]"
    add("--unmatched", choices=("drop", "missing", "mask"), default="drop", help=unmatched)
    overlap = "columns that two parties have: refused, the guest's, the host's, both [refuse]"
    add("--overlap", choices=("refuse", "guest", "host", "both"), default="refuse", help=overlap)
    add("--test", metavar="X", type=float, default=0.2, help="share of the rows held out for testing [0.2]")


def training(parser: argparse.ArgumentParser) -> None:
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


def folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FOLDER", help="where every party's part of the model is kept")
    parser.add_argument("--resume", action="store_true", help="continue the run in that folder")


def door(parser: argparse.ArgumentParser, required: bool = True) -> None:
    add = parser.add_argument
    add("--keys", metavar="FOLDER", required=required, help="the guest's keys, from `unalike keys server`")
    add("--host", metavar="PARTY", action="append", default=[], help="a host to wait for; may be repeated")
    add("--port", type=int, default=PORT, help=f"where hosts connect [{PORT}]")
    add("--bind", metavar="ADDRESS", default="0.0.0.0", help="the address to listen on [0.0.0.0]")
    add("--wait", metavar="SECONDS", type=float, default=600.0, help="for hosts, and for one that was lost [600]")


def join(parser: argparse.ArgumentParser) -> None:
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
    add("--secure-sum", action="store_true", help="take part only where the guest reads sums over hosts alone")
    add("--peers", metavar="FOLDER", help="the other hosts' .pub files: in secure sums, no other keys are taken")
    add("--wait", metavar="SECONDS", type=float, default=600.0, help="for a guest that is away [600]")


def predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    table(parser)
    parser.add_argument("--out", metavar="FILE", help="a CSV file; default: standard output")
    door(parser, required=False)
