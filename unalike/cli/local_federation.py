"""A real federation on this machine: Flower's SuperLink and a process for every
client, with certificates and keys made for the occasion. When it is over,
stopped or killed, none of the processes is left. The clients' keys and state
are kept in the run's folder, under federation/, for --resume.

  unalike local-federation 4 --data digits --partition dirichlet:0.3 \\
                             --method scaffold --rounds 5
  unalike local-federation 4 run.toml

The settings are those of `unalike run`, and so is the result: the weights are
those of a simulation with the same seed. Needs pip install 'unalike[flower]'.
"""

from __future__ import annotations

import argparse
from typing import Any

from unalike import config
from unalike.cli import run, serve
from unalike.config import flags
from unalike.errors import UnalikeError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int, metavar="N", help="how many clients")
    run.arguments(parser, flags.OWN_OF["local-federation"])
    parser.usage = "unalike local-federation N [FILE] [--SETTING VALUE ...] [--resume [FOLDER]] [--deadline SECONDS]"
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="for an exchange [600]")
    parser.set_defaults(deadline=serve.DEFAULTS["deadline"])
    serve.bounds(parser)


def main(args: argparse.Namespace) -> int:
    from unalike.network import one_machine

    tables = run.tables_of(args)
    _clients(tables, args.number)
    settings, notes, _ = run.with_defaults(args, config.absolute(config.check(tables)))
    data = config.make_data(settings["data"], raw=True)
    one_machine.check_data(data)
    if args.dry_run:
        return run.dry_run(settings, args, stand_in="loopback")  # loopback: the same messages without a network
    if len(data) != args.number:
        raise UnalikeError(f"unalike local-federation: the data are those of {len(data)} clients, not {args.number}.")
    serve.answer_signals()
    given = {name: serve.DEFAULTS[name] for name in ("deadline", *serve.BOUNDS)}
    command, limits = serve.command(args, ["local-federation", args.number], given), serve.limits(args)

    def go(live: Any, resume: bool) -> Any:
        for note in notes:
            live.say(f"note: {note}")
        return one_machine.run(
            settings, data, deadline=args.deadline, limits=limits, profile=args.profile, callbacks=[live],
            resume=resume, say=live.say,
        )  # fmt: skip

    return run.conduct(args, settings, go, command)


def _clients(tables: dict[str, dict[str, Any]], number: int) -> None:
    """Set the number of clients to N where the data are split into clients here."""
    if tables["run"].get("engine", "auto") not in ("auto", "flower"):
        raise UnalikeError("unalike local-federation: the engine is flower: leave engine out.")
    tables["run"]["engine"] = "flower"
    data = tables["data"]
    if config.data_parts(data):
        return  # each client's data are named by itself
    chosen = "name" in data and data["name"] in config.NAMES["data"]
    if chosen and "clients" in config.data_settings(data) and data.setdefault("clients", number) != number:
        raise UnalikeError(f"unalike local-federation: {number} clients, and [data] has clients = {data['clients']}.")
