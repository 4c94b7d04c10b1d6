"""Be the server of a real federation, and run a config on the clients that join.

  unalike keys server keys/ --host server.example.org
  (every client's .pub file goes to keys/clients/NAME.pub)
  unalike serve run.toml --keys keys/ --host 0.0.0.0 --port 8443

The clients are those whose keys are there, numbered in the order of their names.
The server waits until all have joined; with --least N it begins with N of them,
and takes in the others when they come. An exchange ends at its deadline; whoever
has not answered is left out of the round, and may come back. [data] is not
looked at: the clients' data are their own. The model's numbers of classes and
features are found from what they tell, or set under [model]. Features in units
of their own (raw tables) are prepared first with --prepare standard: the clients
send sums, and missing cells are filled. Tables of words need --schema FILE, here
and at every client. Methods that need a public set: --public FILE, here and at
every client, the same file. Where clients with different networks have samples of
different shapes, these flags are given for each: --public pictures=FILE.

Clients reach the outer port, over TLS and with their key, and nothing else of
Flower's SuperLink. Settings and --resume are those of `unalike run`.
"""

from __future__ import annotations

import argparse
import dataclasses as dc
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
from unalike.errors import UnalikeError, did_you_mean, unknown

DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1", "port": 8443, "deadline": 600.0, "wait": 3600.0, "test_set": None,
    "prepare": None, "schema": None, "public": None, "least": None, "enough": 1.0, "tries": 3, "max_samples": "1000x",
    "max_norm": "none", "profile": False,
}  # fmt: skip


BOUNDS = ("least", "enough", "tries", "max_samples", "max_norm", "profile")
# the server's own files and ways, for all clients or per network
OWN = ("test_set", "public", "prepare", "schema")


def arguments(parser: argparse.ArgumentParser) -> None:
    run.arguments(parser, flags.OWN_OF["serve"], without=("data", "--dry-run"))
    parser.usage = "unalike serve [FILE] --keys FOLDER [--host NAME] [--port N] [--SETTING VALUE ...] [--resume FOLDER]"
    parser.add_argument("--keys", metavar="FOLDER", required=True, help="certificates and clients' keys (unalike keys)")
    parser.add_argument("--host", help="the address to listen on; 0.0.0.0 is every one [127.0.0.1]")
    parser.add_argument("--port", type=int, help="the port to listen on [8443]")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="for an exchange [600]")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="until all have joined [3600]")
    bounds(parser)
    own = {
        "--test-set": ("FILE", "x and y of the server's own, to test the global model on"),
        "--prepare": (
            "{standard,client,none}",
            "features in comparable units, from sums over all clients [standard with --schema]",
        ),
        "--public": ("FILE", "x, and y or none, of a public set that every client has too"),
        "--schema": ("FILE", "what the columns of the clients' tables mean"),
    }
    for flag, (metavar, words) in own.items():
        parser.add_argument(flag, metavar=metavar, help=words, action="append")
    parser.set_defaults(**DEFAULTS)


def bounds(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the number of clients a server needs, and for the limits on what clients may send."""
    parser.add_argument("--least", type=int, metavar="N", help="clients needed to begin and to continue [all to begin]")
    parser.add_argument(
        "--enough", type=float, metavar="N", help="answers that close an exchange: 10, or 0.8 of all [1]"
    )
    parser.add_argument("--tries", type=int, metavar="N", help="failures in a row until a client is set aside [3]")
    parser.add_argument("--max-samples", metavar="N", help="that a client may claim: 5000, or 100x the median [1000x]")
    parser.add_argument("--max-norm", metavar="N", help="of a field of an update: 50, or 5x the median [none]")
    parser.add_argument("--profile", action="store_true", help="say at the end where the seconds of a round went")
    parser.set_defaults(**{name: DEFAULTS[name] for name in BOUNDS})


def limits(args: argparse.Namespace) -> Any:
    """Return the limits that these flags set."""
    from unalike.network.limits import Bound, Limits

    samples, norm = Bound.read(args.max_samples, "--max-samples"), Bound.read(args.max_norm, "--max-norm")
    return Limits(least=args.least, samples=samples, norm=norm, enough=args.enough, tries=args.tries)


def command(args: argparse.Namespace, words: list[Any], defaults: dict[str, Any]) -> str:
    """Return a command line of these words and of all flags that differ from their defaults."""
    for name, default in defaults.items():
        value = getattr(args, name)
        if value is True:
            words = [*words, f"--{name.replace('_', '-')}"]
            continue
        for one in [] if value == default else value if isinstance(value, list) else [value]:
            words = [*words, f"--{name.replace('_', '-')}", f"{one:.12g}" if isinstance(one, float) else one]
    return shlex.join(map(str, words))


def answer_signals() -> None:
    """Make SIGTERM stop the processes that were started, like Ctrl-C, and answer Ctrl-C at once, since stopping may
    take seconds."""

    def interrupt(*_: Any) -> None:
        # os.write: a Python stream may be in the middle of a write
        os.write(2, b"\nstopping ...\n")
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # unless the parent process ignores Ctrl-C
        signal.signal(signal.SIGINT, interrupt)


def main(args: argparse.Namespace) -> int:
    from unalike.network import keys, one_machine, server

    if args.dry_run:
        raise UnalikeError("unalike serve: --dry-run is for `unalike run` and `unalike local-federation`.")
    tables = run.tables_of(args)
    plain = [flag for flag in args.settings if not flags.is_of_networks(*flag)]
    if of_data := next((name for name, text in plain if flags.place(name, text, tables)[0] == "data"), None):
        own = f"--{of_data} is of [data], and the clients' data are their own: leave it out"
        raise UnalikeError(f"unalike serve: {own}.")
    tables["data"] = {}
    checked = config.absolute(config.check({**tables, "data": {"folder": "."}}))
    settings: dict[str, Any] = {**checked, "data": {"name": "federation"}}
    public = keys.roster(Path(args.keys))
    having = own_things(args, [*checked.get(config.MODELS_TABLE, {})]) | {"limits": limits(args)}
    answer_signals()

    def go(live: Any, resume: bool) -> Any:
        live.say(f"waiting for {len(public)} clients on {args.host}:{args.port}")
        door, own = one_machine.listen(args.host, args.port), Path(args.keys)
        with one_machine.scratch() as folder, one_machine.serving(folder, own, public, door) as (link, processes):
            return server.run(
                {**settings, "data": {}}, link, public, deadline=args.deadline, wait=args.wait, **having,
                profile=args.profile, callbacks=[live], resume=resume, say=live.say, check=processes.check,
            )  # fmt: skip

    return run.conduct(args, settings, go, command(args, ["serve", "--keys", args.keys], DEFAULTS))


def own_things(args: argparse.Namespace, networks: list[str]) -> dict[str, Any]:
    """Return the server's own test set, public set, schema and preparation of features, read from the flags, in the
    form that `server.run` takes: one for all clients, or one per network (--public pictures=FILE)."""
    given = {flag: _by_network(flag, getattr(args, flag) or [], networks) for flag in OWN}
    named = [flag for flag, values in given.items() if "" not in values and values]
    if not named:
        own = _own({flag: values.get("") for flag, values in given.items()})
        return {field.name: getattr(own, field.name) for field in dc.fields(own)}
    for flag in OWN:
        if "" in given[flag]:
            one = f"--{named[0].replace('_', '-')} is given by network"
            raise UnalikeError(f"unalike serve: {one}: give --{flag.replace('_', '-')} so too, as NAME=….")
    return {"parts": {name: _own({flag: given[flag].get(name) for flag in OWN}) for name in networks}}


def _by_network(flag: str, texts: list[str], networks: list[str]) -> dict[str, str]:
    """Return the values of a flag by network; a single value for all networks has the name ""."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        named = bool(equals) and len(networks) > 1 and (name in networks or name.isidentifier())
        if named and name not in networks:
            near = did_you_mean(name, networks)
            raise UnalikeError(f"unalike serve: --{flag.replace('_', '-')} {text}: there is no such network.{near}")
        if (name if named else "") in out or (out and ("" in out) == named):
            raise UnalikeError(
                f"unalike serve: --{flag.replace('_', '-')} {text}: give it once, or once for each of several networks "
                "(NAME=…)."
            )
        out[name if named else ""] = value if named else text
    return out


def _own(texts: dict[str, str | None]) -> Any:
    """Read the server's files for clients with one kind of samples."""
    from unalike.network import join, server

    file = {flag: Path(text) for flag, text in texts.items() if text}
    schema = join.read_schema(file["schema"]) if "schema" in file else None
    test = join.read_client(file["test_set"], schema=file.get("schema")).train if "test_set" in file else None
    scale = texts["prepare"] or ("standard" if schema else None)
    if scale is not None and scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    public = read_public(file["public"]) if "public" in file else None
    return server.Own(None if test is None else (test.x, test.y), public, recipe=scale, schema=schema)
