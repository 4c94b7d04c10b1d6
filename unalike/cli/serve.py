"""Be the server of a real federation, and run a config on the clients that join.

  unalike keys server keys/ --host server.example.org
  (every client's .pub file goes to keys/clients/NAME.pub)
  unalike serve run.toml --keys keys/ --host 0.0.0.0 --port 8443

The clients are those whose keys are there, numbered in the order of their names.
The server waits until all have joined. An exchange ends at its deadline; whoever
has not answered is left out of the round, and may come back. [data] is not
looked at: the clients' data are their own. The model's numbers of classes and
features are found from what they tell, or set under [model].

Clients reach the outer port, over TLS and with their key, and nothing else of
Flower's SuperLink. Settings and --resume are those of `unalike run`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from unalike import config
from unalike.cli import run
from unalike.errors import UnalikeError


def arguments(parser: argparse.ArgumentParser) -> None:
    run.arguments(parser)
    parser.usage = "unalike serve [FILE] --keys FOLDER [--host NAME] [--port N] [--SETTING VALUE ...] [--resume FOLDER]"
    parser.add_argument("--keys", metavar="FOLDER", required=True, help="certificates and clients' keys (unalike keys)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0 is every one [127.0.0.1]"
    )
    parser.add_argument("--port", type=int, default=8443, help="the port to listen on [8443]")
    parser.add_argument("--deadline", type=float, default=600.0, metavar="SECONDS", help="for an exchange [600]")
    parser.add_argument("--wait", type=float, default=3600.0, metavar="SECONDS", help="until all have joined [3600]")
    parser.add_argument("--test-set", metavar="FILE", help="x and y of the server's own, to test the global model on")


def main(args: argparse.Namespace) -> int:
    from unalike.network import join, keys, local, server

    if args.dry_run:
        raise UnalikeError("unalike serve: --dry-run is for `unalike run` and `unalike local-federation`.")
    tables = run._tables(args)
    tables["data"] = {}
    checked = config.absolute(config.check({**tables, "data": {"folder": "."}}))
    settings: dict[str, Any] = {**checked, "data": {"name": "federation"}}
    public = keys.roster(Path(args.keys))
    test = join.read_client(Path(args.test_set)).train if args.test_set else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def go(live: Any, resume: bool) -> Any:
        live.say(f"waiting for {len(public)} clients on {args.host}:{args.port}")
        with (
            local.scratch() as folder,
            local.serving(folder, Path(args.keys), public, local.listen(args.host, args.port)) as (link, processes),
        ):
            return server.run(
                {**settings, "data": {}},
                link,
                public,
                deadline=args.deadline,
                wait=args.wait,
                test=None if test is None else (test.x, test.y),
                callbacks=[live],
                resume=resume,
                say=live.say,
                check=processes.check,
            )

    return run.conduct(args, settings, go, f"serve --keys {args.keys}")
