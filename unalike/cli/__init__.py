"""The command `unalike`. Mistakes end in one line and exit code 2; a traceback only with --debug."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import NoReturn

from unalike.errors import UnalikeError, did_you_mean

COMMANDS = {
    "run": "run a method on a federation, from flags or a TOML file",
    "demo": "compare FedAvg, FedProx and SCAFFOLD on skewed digits, in under a minute",
    "list": "what there is: methods, data, models, partitions, engines",
    "new": "start a method of your own: a file that already passes the contract tests",
    "config": "check a config file, or print the JSON Schema for editors",
    "doctor": "versions, devices, threads, compiler, and a short speed probe",
    "completion": "print the completion script for a shell",
}


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one line with 'did you mean'."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and "choose from" in message:
            given = message.split("invalid choice: ")[1].split("'")[1]
            options = [a for action in self._actions for a in (action.choices or ())]
            message = f"there is no {given!r}.{did_you_mean(given, map(str, options))}"
        raise UnalikeError(f"{self.prog}: {message}")


def parser() -> Parser:
    """The parser of all commands; each command's module adds its own arguments."""
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    common.add_argument("--quiet", "-q", action="store_true", help="print results only")
    common.add_argument("--debug", action="store_true", help="show a traceback for every error")
    top = Parser(prog="unalike", description="Federated learning for clients whose data are not alike.")
    top.add_argument("--version", action="store_true", help="print the version")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, text in COMMANDS.items():
        module = importlib.import_module(f"unalike.cli.{name}")
        sub = commands.add_parser(
            name, help=text, description=module.__doc__, parents=[common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        module.arguments(sub)
        sub.set_defaults(main=module.main, parser=sub)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command and give back its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    try:
        top = parser()
        args, rest = top.parse_known_args(given)
        if args.version:
            import unalike

            print(f"unalike {unalike.__version__}")
            return 0
        if args.command is None:
            top.print_help()
            return 0
        if rest and args.command != "run":
            flags = [f for action in args.parser._actions for f in action.option_strings]
            raise UnalikeError(f"unalike {args.command} has no argument {rest[0]!r}.{did_you_mean(rest[0], flags)}")
        args.rest = rest
        return int(args.main(args) or 0)
    except UnalikeError as error:
        if debug:
            raise
        print(f"unalike: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if debug or str(error.name).startswith("unalike"):
            raise
        print(f"unalike: {error.name} is missing; install it with: pip install 'unalike[app]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nunalike: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
