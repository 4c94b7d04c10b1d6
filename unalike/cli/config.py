"""Check a config file without running it, or print the JSON Schema for editors.

  unalike config check run.toml
  unalike config schema > unalike.schema.json

Then the first line of run.toml tells an editor: #:schema ./unalike.schema.json
"""

from __future__ import annotations

import argparse
import json

from unalike import config
from unalike.cli import show


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|schema")
    check = actions.add_parser("check", help="check a file")
    check.add_argument("file", help="a TOML file; files of your own that it names are loaded")
    check.add_argument("--allow-code", action="store_true", help="load those that a run's config.toml names, too")
    actions.add_parser("schema", help="print the JSON Schema")


def main(args: argparse.Namespace) -> int:
    if args.action == "schema":
        print(json.dumps(config.schema(), indent=2))
        return 0
    tables = config.read(args.file, args.allow_code)
    return show.answer(args, {"ok": True, "config": tables}, "" if args.quiet else f"{args.file} is fine.")
