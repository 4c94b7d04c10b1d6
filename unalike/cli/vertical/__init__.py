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
from typing import Any

from unalike.cli import Parser
from unalike.cli.vertical import between, flags, here

COMMANDS = {
    "align": (here.align, "match the people of several tables, and say what each party learns by it"),
    "run": (here.run, "train a joint model, all parties on this machine"),
    "compare": (here.compare, "the joint model beside each party alone and the pooled table"),
    "serve": (between.serve, "be the guest, who has the labels, between machines"),
    "join": (between.join, "be a host, or the coordinator, between machines"),
    "predict": (here.predicted, "use a joint model, also with a party missing"),
}
FLAGS: dict[str, tuple[Any, ...]] = {
    "align": (flags.table, flags.matching),
    "run": (flags.table, flags.matching, flags.training, flags.folder),
    "compare": (flags.table, flags.matching, flags.training),
    "serve": (flags.table, flags.matching, flags.training, flags.folder, flags.door),
    "join": (flags.join,),
    "predict": (flags.predict,),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=Parser)
    for name, (function, words) in COMMANDS.items():
        sub = commands.add_parser(name, help=words, description=words)
        sub.set_defaults(vertical=function, parser=sub)
        for add in FLAGS[name]:
            add(sub)


def main(args: argparse.Namespace) -> int:
    return args.vertical(args)
