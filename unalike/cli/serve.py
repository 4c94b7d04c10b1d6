"""Be the server of a real federation, and run a config on the clients that join.

  unalike keys server keys/ --host server.example.org
  (every client's .pub file goes to keys/clients/NAME.pub)
  unalike serve run.toml --keys keys/ --host 0.0.0.0 --port 8443

The clients are those whose keys are there, numbered in the order of their names.
The server waits until all have joined. An exchange ends at its deadline; whoever
has not answered is left out of the round, and may come back. [data] is not
looked at: the clients' data are their own. The model's numbers of classes and
features are found from what they tell, or set under [model]. Features in units
of their own (raw tables) are prepared first with --prepare standard: the clients
send sums, and missing cells are filled. Tables of words need --schema FILE, here
and at every client. Methods that need a public set: --public FILE, here and at
every client, the same file.

Clients reach the outer port, over TLS and with their key, and nothing else of
Flower's SuperLink. Settings and --resume are those of `unalike run`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from unalike import config
from unalike.cli import run
from unalike.config import flags
from unalike.data.extras import read_public
from unalike.data.preparation import SCALES
from unalike.errors import UnalikeError

DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1", "port": 8443, "deadline": 600.0, "wait": 3600.0, "test_set": None,
    "prepare": None, "schema": None, "public": None,
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    run.arguments(parser, flags.OWN_OF["serve"])
    parser.usage = "unalike serve [FILE] --keys FOLDER [--host NAME] [--port N] [--SETTING VALUE ...] [--resume FOLDER]"
    parser.add_argument("--keys", metavar="FOLDER", required=True, help="certificates and clients' keys (unalike keys)")
    parser.add_argument("--host", help="the address to listen on; 0.0.0.0 is every one [127.0.0.1]")
    parser.add_argument("--port", type=int, help="the port to listen on [8443]")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="for an exchange [600]")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="until all have joined [3600]")
    parser.add_argument("--test-set", metavar="FILE", help="x and y of the server's own, to test the global model on")
    parser.add_argument(
        "--prepare",
        choices=SCALES,
        help="features in comparable units, from sums over all clients [standard with --schema]",
    )
    parser.add_argument("--public", metavar="FILE", help="x, and y or none, of a public set that every client has too")
    parser.add_argument("--schema", metavar="FILE", help="what the columns of the clients' tables mean")
    parser.set_defaults(**DEFAULTS)


def command(args: argparse.Namespace, words: list[Any], defaults: dict[str, Any]) -> str:
    """A command with these words and the flags that were given another value than the default."""
    for name, default in defaults.items():
        value = getattr(args, name)
        if value != default:
            words = [*words, f"--{name.replace('_', '-')}", f"{value:.12g}" if isinstance(value, float) else value]
    return shlex.join(map(str, words))


def answer_signals() -> None:
    """SIGTERM too stops what was started, and Ctrl-C is answered at once: the stopping may take seconds."""

    def interrupt(*_: Any) -> None:
        os.write(2, b"\nstopping ...\n")  # a stream may be in the middle of a write
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored by whoever started us
        signal.signal(signal.SIGINT, interrupt)


def main(args: argparse.Namespace) -> int:
    from unalike.network import join, keys, one_machine, server

    if args.dry_run:
        raise UnalikeError("unalike serve: --dry-run is for `unalike run` and `unalike local-federation`.")
    tables = run.tables_of(args)
    tables["data"] = {}
    checked = config.absolute(config.check({**tables, "data": {"folder": "."}}))
    settings: dict[str, Any] = {**checked, "data": {"name": "federation"}}
    public = keys.roster(Path(args.keys))
    schema = join.read_schema(Path(args.schema)) if args.schema else None
    test = (
        join.read_client(Path(args.test_set), schema=args.schema and Path(args.schema)).train if args.test_set else None
    )
    shared = read_public(Path(args.public)) if args.public else None
    scale = args.prepare or ("standard" if schema else None)
    answer_signals()

    def go(live: Any, resume: bool) -> Any:
        live.say(f"waiting for {len(public)} clients on {args.host}:{args.port}")
        door, own = one_machine.listen(args.host, args.port), Path(args.keys)
        with one_machine.scratch() as folder, one_machine.serving(folder, own, public, door) as (link, processes):
            return server.run(
                {**settings, "data": {}}, link, public, deadline=args.deadline, wait=args.wait,
                test=None if test is None else (test.x, test.y), schema=schema, public=shared,
                recipe=scale, callbacks=[live], resume=resume, say=live.say,
                check=processes.check,
            )  # fmt: skip

    return run.conduct(args, settings, go, command(args, ["serve", "--keys", args.keys], DEFAULTS))
