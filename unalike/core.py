"""Run a config file with nothing but torch, numpy and safetensors installed: `python -m unalike.core run.toml
[--resume]`.
Likewise `python -m unalike.core reproduce ...` is `unalike reproduce` without the command line's packages.
"""

from __future__ import annotations

import argparse
import json
import sys

from unalike import config
from unalike.errors import complain
from unalike.run.callbacks import Progress


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["reproduce"]:
        return _reproduce(given[1:])
    parser = argparse.ArgumentParser(prog="python -m unalike.core", description="Run a federated learning config.")
    parser.add_argument("config", help="a TOML file with [data], [model], [method], [local] and [run]")
    parser.add_argument("--resume", action="store_true", help="continue the run in its folder")
    parser.add_argument("--allow-code", action="store_true", help="run Python files that a run's config.toml names")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    parser.add_argument("--quiet", "-q", action="store_true", help="print the result only")
    parser.add_argument("--debug", action="store_true", help="show a traceback for errors")
    args = parser.parse_args(arguments)
    tables = {}
    try:
        tables = config.read(args.config, args.allow_code)
        run = config.run(tables, callbacks=[] if args.quiet or args.json else [Progress()], resume=args.resume)
    except (Exception, KeyboardInterrupt) as error:
        if args.debug:
            raise
        again = f"; continue with: python -m unalike.core {args.config} --resume" * ("folder" in tables.get("run", {}))
        return complain(error, again)
    summary = run.summary()
    if args.json:
        print(json.dumps({"folder": str(run.folder.path) if run.folder else None, **summary}))
        return 0
    for name, value in (summary["final"] or {}).items():
        if isinstance(value, float):
            print(f"{name:<32}{value:.4f}")
    return 0


def _reproduce(given: list[str]) -> int:
    from unalike.reproduce import command

    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m unalike.core reproduce", description=command.__doc__, formatter_class=layout
    )
    command.arguments(parser)
    for flag in ("--json", "--quiet", "--debug"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args(given)
    try:
        return command.main(args)
    except (Exception, KeyboardInterrupt) as error:
        if args.debug:
            raise
        return complain(error)


if __name__ == "__main__":
    raise SystemExit(main())
