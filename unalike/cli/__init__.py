"""The command `unalike`. Mistakes end in one line and exit code 2; a traceback only with --debug."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import NoReturn

from unalike.errors import UnalikeError, complain, did_you_mean

COMMANDS = {
    "run": "run a method on a federation, from flags or a TOML file",
    "compare": "compare methods on your data, and say which one for which wish",
    "reproduce": "run the papers' tables again, beside the papers' own numbers",
    "demo": "compare three methods on skewed digits, in under a minute",
    "report": "one page that shows a run, or compares several",
    "watch": "the same page in the browser, following runs that go on",
    "export": "rounds as CSV or parquet, the model as one file, safetensors or ONNX",
    "predict": "use a model on the rows of a table",
    "list": "what there is: methods, data, models, partitions, changes, stages, engines",
    "data": "data sets: what there is, fetch them, look at their clients",
    "new": "start a method of your own, with the tests it must pass",
    "config": "check a config file, or print the JSON Schema for editors",
    "doctor": "versions, devices, threads, compiler, a short speed probe",
    "local-federation": "a real federation on this machine, a process for every client",
    "vertical": "learn from parties that hold different columns of the same people",
    "serve": "be the server of a real federation",
    "join": "join a real federation with data of your own",
    "keys": "certificates for a server, keys for clients",
    "status": "where a run stands, at the server or at a client",
    "audit": "what has left a client's machine, in plain words",
    "completion": "print the completion script for a shell",
}
EVERYWHERE = {
    ("--json",): "print one JSON document and nothing else",
    ("--quiet", "-q"): "print results only",
    ("--debug",): "show a traceback for every error",
}


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations. A mistake gives one line with 'did you mean'; the flags that all commands share
    are declared here."""

    def __init__(self, **options: object):
        layout = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26)  # noqa: E731
        super().__init__(allow_abbrev=False, formatter_class=layout, **options)  # type: ignore[arg-type]
        # suppressed: a subcommand's default would overwrite a flag given before the command
        for names, text in EVERYWHERE.items():
            self.add_argument(*names, action="store_true", default=argparse.SUPPRESS, help=text)

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and "choose from" in message:
            given = message.split("invalid choice: ")[1].split("'")[1]
            options = [a for action in self._actions for a in (action.choices or ())]
            message = f"there is no {given!r}.{did_you_mean(given, map(str, options))}"
        raise UnalikeError(f"{self.prog}: {message}")


def parser(only: str | None = None) -> Parser:
    """Return the parser with the arguments of all commands, or only those of the command `only`."""
    top = Parser(prog="unalike", description="Federated learning for clients whose data are not alike.")
    top.add_argument("--version", "-V", action="store_true", help="print the version")
    top.set_defaults(json=False, quiet=False, debug=False)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    for name, text in COMMANDS.items():
        if only in COMMANDS and name != only:
            commands.add_parser(name, help=text)
            continue
        module = importlib.import_module(f"unalike.cli.{name.replace('-', '_')}")
        sub = commands.add_parser(name, help=text, description=module.__doc__)
        module.arguments(sub)
        sub.set_defaults(main=module.main, parser=sub)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A console that cannot show θ must not stop the command. Line buffering keeps both streams in order in one
            # log.
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        return _command(given)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in given:
            raise
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("unalike"):
            error = UnalikeError(
                f"{error.name} is missing: pip install 'unalike[app]', or `python -m unalike.core run.toml` without it."
            )
        if "--json" in given:
            print(json.dumps({"error": str(error) or type(error).__name__}))
        return complain(error)


def _command(given: list[str]) -> int:
    from unalike.config import flags
    from unalike.data import fetch

    command = next((word for word in given if not word.startswith("-")), None)
    top = parser(command)
    words, settings = flags.split(given) if flags.taken(given) else (given, [])
    args, rest = top.parse_known_args(words)
    args.settings = settings
    fetch.quiet = args.quiet or args.json
    if args.version:
        import unalike

        print(json.dumps({"unalike": unalike.__version__}) if args.json else f"unalike {unalike.__version__}")
        return 0
    if rest:
        known = [f for action in (args.parser if args.command else top)._actions for f in action.option_strings]
        prog = args.parser.prog if args.command else "unalike"
        near = did_you_mean(rest[0], known) if rest[0].startswith("--") else ""
        near = near if near.startswith(" Did") else f" `{prog} --help` shows what there is."
        raise UnalikeError(f"{prog}: {rest[0]!r} is one too many.{near}")
    if args.command is None:
        top.print_help()
        return 0
    return int(args.main(args) or 0)
