"""Look at runs while they go on: the report in the browser, which follows them.

  unalike watch runs/scaffold-digits-1       one run
  unalike watch runs/compare-digits-1a2b3c   all runs in a folder

It serves the page on 127.0.0.1, to this machine alone, until Ctrl-C. It reads
the folders' files and runs nothing that is in them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from unalike.cli import show
from unalike.errors import UnalikeError


def arguments(parser: argparse.ArgumentParser) -> None:
    folders = parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a run's folder, or one that holds runs")
    folders.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: any that is free")
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def main(args: argparse.Namespace) -> int:
    from unalike.report import watch

    if not 0 <= args.port <= 65535:
        raise UnalikeError(f"unalike watch: --port must be in [0, 65535]; got {args.port}.")
    missing = [folder for folder in args.folders if not Path(folder).is_dir()]
    if missing:
        raise UnalikeError(f"unalike watch: there is no folder {missing[0]}.")
    with watch.server([Path(folder) for folder in args.folders], args.port) as server:
        address = f"http://{watch.ADDRESS}:{server.server_port}/"
        show.answer(args, {"address": address}, f"{address} follows the runs; Ctrl-C ends it.")
        if args.open:
            import webbrowser

            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
