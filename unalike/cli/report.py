"""Write report.html: one file that shows a run, or compares several, offline.

  unalike report runs/scaffold-digits-1          one run, as far as it is
  unalike report runs/demo                       all runs in a folder, compared
  unalike report runs/a runs/b --out ab.html     some runs, compared

Runs that differ in their seed alone are drawn as one line with a band.
"""

from __future__ import annotations

import argparse

import shtab

from unalike.cli import show


def arguments(parser: argparse.ArgumentParser) -> None:
    folders = parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a run's folder, or one that holds runs")
    out = parser.add_argument("--out", metavar="FILE", help="default: report.html in the folder, or here for several")
    folders.complete, out.complete = shtab.DIRECTORY, shtab.FILE  # type: ignore[attr-defined]
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def main(args: argparse.Namespace) -> int:
    from unalike import report

    file = report.write(args.folders, args.out)
    if args.open:
        import webbrowser

        webbrowser.open(file.resolve().as_uri())
    return show.written(args, "report", file)
