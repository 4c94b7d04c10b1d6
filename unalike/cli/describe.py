"""`unalike data describe`: show the clients of a data set, and the columns of a user's table, before anything is
run."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import shtab

from unalike import config
from unalike.cli import show
from unalike.config import flags
from unalike.data import Federation
from unalike.data.remarks import each
from unalike.data.skew.drawing import picture as svg_of
from unalike.data.skew.measure import MEANINGS, measure
from unalike.data.tables import remarks
from unalike.errors import UnalikeError
from unalike.files import complaining, replace
from unalike.text import number

# share of a client's samples: none, up to 1/4, 1/2, 3/4, more
SHADES = " ░▒▓█"
# most clients in the picture, and in a table
SHOWN = 20
WAYS = ("name", "table", "folder")  # the three ways to say which data


class Names(list[str]):
    """The data sets' names; `in` also accepts the name of a config file, so that argparse does."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).endswith(".toml")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "unalike data describe [NAME] [--SETTING VALUE ...] [--schema|--picture F]"
    names = Names(config.NAMES["data"])
    parser.add_argument("name", nargs="?", metavar="NAME", help="a data set, or a config with [data]", choices=names)
    schema = parser.add_argument("--schema", metavar="FILE", help="write what a table's columns are, as JSON")
    schema.complete = shtab.FILE  # type: ignore[attr-defined]
    drawn = parser.add_argument("--picture", metavar="FILE", help="draw the clients, as an SVG")
    drawn.complete = shtab.FILE  # type: ignore[attr-defined]
    group = parser.add_argument_group("[data], as in `unalike run`; a named set's own settings too")
    known = {"folder": config.data_settings({"folder": ""})["folder"], **config.data_settings({"table": ""})}
    for name, setting in known.items():  # for help and completion: `flags.split` takes them out before argparse
        flag = group.add_argument(f"--{name.replace('_', '-')}", metavar="X", help=setting.knob.text, dest=name)
        if name in ("folder", "table"):
            flag.complete = shtab.DIRECTORY if name == "folder" else shtab.FILE  # type: ignore[attr-defined]


def main(args: argparse.Namespace) -> int:
    data = _settings(args)
    parts = config.data_parts(data)
    if args.picture and Path(args.picture).suffix != ".svg":
        raise UnalikeError(f"unalike data describe: --picture {args.picture} must be a file that ends in .svg.")
    if not parts:
        content, text = _described(args, data)
        return show.answer(args, content, text)
    if args.schema:
        raise UnalikeError("unalike data describe: --schema is of one table; these data have several parts.")
    if args.picture:
        _draw(config.make_data(data), data, Path(args.picture))
        args.picture = None
    found = {name: _described(args, part, f"{name}: ") for name, part in parts.items()}
    texts = "\n\n\n".join(text for _, text in found.values())
    return show.answer(args, {"parts": {name: content for name, (content, _) in found.items()}}, texts)


def _described(args: argparse.Namespace, data: dict[str, Any], whose: str = "") -> tuple[dict[str, Any], str]:
    """Return a description of some data, and the same as text."""
    if "table" in data and not {"client", "clients", "partition"} & data.keys():
        # without clients in the data or the flags, all rows belong to one
        data = {**data, "clients": 1}
    stored, changes = config.as_stored(data)
    fed = config.make_data(stored, raw=True)
    # no preparation: stored values are changed directly
    if changes and fed.recipe is None:
        fed, changes = config.make_data(data), ""
    trained = config.make_data(data) if changes else fed
    title = data["name"] if "name" in data else Path(data.get("table") or data["folder"]).name
    content, parts = _clients(trained, data), []
    if not args.json:
        parts.append(show.table([], [[k, v] for k, v in _words(content, fed).items()], f"{whose}{title}"))
    if fed.schema is not None:
        content["features"] = [_feature(fed, k) for k in range(len(fed.schema.columns))]
        parts.append(_feature_table(content["features"]))
        content["missing by client"] = _missing(fed)
        parts.append(_missing_table(content["missing by client"]))
    if fed.classes is not None:
        content["label counts"] = trained.label_counts().tolist()
        parts.append(picture(trained, trained.label_counts(), show.width()))
    elif fed.train.y.dim() == 1:
        content["target"] = _target(fed)
        parts.append(_target_table(fed, content["target"]))
    unlike = _unlike(trained, data)
    content |= unlike
    parts.append(_unlike_text(unlike, "" if trained.drift is None else f" in round {trained.drift.rounds}"))
    if "name" not in data:
        content["remarks"] = remarks(fed)
        if changes:
            content["remarks"].append(f"{changes} changes prepared features: columns are shown as they are stored.")
        parts += ["\n".join(show.prose(f"note: {line}") for line in content["remarks"])]
    if args.schema:
        _write_schema(fed, Path(args.schema))
    if args.picture:
        _draw(trained, data, Path(args.picture))
    return {"name": title, **content}, "\n\n".join(filter(None, parts))


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the [data] settings in the flags; here every setting is one of the data."""
    given = [(_of_data(name), text) for name, text in args.settings]
    if args.name is not None and args.name.endswith(".toml"):
        if given:
            raise UnalikeError("unalike data describe: a config file says all settings: leave the others out.")
        return config.read(args.name)["data"]
    named = {} if args.name is None else {"name": args.name}
    try:
        data = flags.collect(given, {"data": named})["data"] | named
    except UnalikeError as error:
        raise UnalikeError(re.sub("^unalike run:", "unalike data describe:", str(error))) from error
    if not any(way in data for way in WAYS):
        raise UnalikeError("unalike data describe: give the NAME of a data set, --table FILE or --folder F.")
    return config.check({"data": data, "run": {"rounds": 0}})["data"]


def _of_data(name: str) -> str:
    if "." in name:
        return name
    table, setting = flags.SHORT.get(name, ("", name))
    return f"data.{setting if table == 'data' else name}"


def _write_schema(fed: Federation, path: Path) -> None:
    if fed.schema is None:
        raise UnalikeError("unalike data describe: --schema is for a table of columns; these data have none.")
    with complaining(f"{path} cannot be written"):
        replace(path, (json.dumps(fed.schema.plain(), indent=2, ensure_ascii=False) + "\n").encode())


def _draw(fed: Federation, data: dict[str, Any], path: Path) -> None:
    with complaining(f"{path} cannot be written"):
        replace(path, svg_of(_as_trained(fed, data), seed=data.get("seed", 0)).encode())


# ---------------------------------------------------------------- clients


def _clients(fed: Federation, data: dict[str, Any]) -> dict[str, Any]:
    """Return the number of clients and their sizes."""
    sizes = fed.sizes
    facts: dict[str, Any] = {
        "clients": len(fed),
        "samples": int(sizes.sum()),
        "test samples": 0 if fed.global_test is None else len(fed.global_test[0]),
        "a sample": f"{str(fed.train.x.dtype).removeprefix('torch.')} {list(fed.train.x.shape[1:])}",
        "classes": fed.classes,
        "samples per client": {"least": int(sizes.min()), "median": float(np.median(sizes)), "most": int(sizes.max())},
    }
    if fed.public is not None:
        facts["public samples"] = len(fed.public[0])
        facts["public labels"] = "none" if fed.public[1] is None else "yes"
    facts |= {f"{name} samples": len(columns.y) for name, columns in fed.further.items()}
    if fed.classes is not None:
        facts["classes per client"] = float((fed.label_counts() > 0).sum(1).mean())
    if "name" not in data and fed.label_names is not None:
        facts["label names"] = fed.label_names
    return facts


def _words(facts: dict[str, Any], fed: Federation) -> dict[str, str]:
    """Return the facts of `_clients` in words."""
    forms = {int: "{:,}", float: "{:.1f}"}
    words = {k: forms.get(type(v), "{}").format(v) for k, v in facts.items() if k != "label names"}
    each = facts["samples per client"]
    words["samples per client"] = f"{each['least']:,} to {each['most']:,}, median {each['median']:,.0f}"
    if fed.classes is None:
        words["classes"] = "none: a number to predict"
    elif "label names" in facts:
        words["classes"] += f": {', '.join(facts['label names'])}"
    return words


def picture(fed: Federation, counts: np.ndarray, width: int) -> str:
    """Return a picture with one row per client and one column per class; the shade is the class's share of the client's
    samples."""
    rows = np.linspace(0, len(fed) - 1, min(len(fed), SHOWN)).astype(int)  # evenly spread over all clients
    names = [_name(fed, k) for k in rows]
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


def _name(fed: Federation, k: int) -> str:
    return str(k) if fed.names is None else fed.names[k][:16]


def _target(fed: Federation) -> list[dict[str, Any]]:
    """Return the smallest, mean and largest target of each client (regression)."""
    parts = [fed.train.of(k)[1].double().numpy() for k in range(len(fed))]
    spread = [(float(y.min()), float(y.mean()), float(y.max())) if len(y) else (np.nan,) * 3 for y in parts]
    return [dict(zip(("least", "mean", "most"), numbers, strict=True)) for numbers in spread]


def _target_table(fed: Federation, target: list[dict[str, Any]]) -> str:
    rows = np.linspace(0, len(fed) - 1, min(len(fed), SHOWN)).astype(int)
    cells = [[_name(fed, k), f"{fed.sizes[k]:,}", *(number(v, 4) for v in target[k].values())] for k in rows]
    return show.table(["client", "samples", "least", "mean", "most"], cells, "the number to predict, by client")


# ---------------------------------------------------------------- skew


def _unlike(fed: Federation, data: dict[str, Any]) -> dict[str, Any]:
    """Return how unlike the clients are, and which changes a made-to-order skew applied to each."""
    found: dict[str, Any] = {}
    if len(fed) > 1:
        try:
            found["unlike"] = measure(_as_trained(fed, data), data.get("seed", 0))
        # some cells cannot be measured; the rest is described all the same
        except UnalikeError as error:
            found["unlike"], found["not measured"] = {}, str(error)
    if fed.planted:
        found["planted"] = {name: values.tolist() for name, values in fed.planted.items()}
    return found


def _as_trained(fed: Federation, data: dict[str, Any]) -> Federation:
    """Return the federation with its table's features prepared as the model would see them."""
    return fed if fed.recipe is None else config.make_data(data)


def _unlike_text(found: dict[str, Any], when: str) -> str:
    shown = {name: value for name, value in found.get("unlike", {}).items() if name != "drift" or value}
    rows = [[name.replace("_", " "), _three(value), MEANINGS[name]] for name, value in shown.items()]
    lines = [show.table([], rows, f"how unlike the clients are{when}: 0, no more than by chance")] if rows else []
    lines += [show.prose(f"How unlike clients are: {found['not measured']}")] if "not measured" in found else []
    lines += [show.prose(f"planted by {name}: {_groups(values)}") for name, values in found.get("planted", {}).items()]
    return "\n".join(lines)


def _three(value: float) -> str:
    return f"{value:.3f}".replace("-0.000", "0.000")


def _groups(values: list[int] | list[float]) -> str:
    """Return the groups, or levels, of a change in words: '4 groups of 5, 5, 5 and 5 clients'."""
    if any(isinstance(value, float) for value in values):
        return f"a level for each client, from {min(values):.3g} to {max(values):.3g}"
    sizes = np.bincount(np.asarray(values, np.int64))
    if len(sizes) == 1:
        return f"1 group of {sizes[0]} clients"
    few = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
    return f"{len(sizes)} groups of {few if len(sizes) <= SHOWN else f'{sizes.min()} to {sizes.max()}'} clients"


# ---------------------------------------------------------------- columns


def _feature(fed: Federation, k: int) -> dict[str, Any]:
    """Return the description of one column of the table: its kind, its range and the number of missing cells; for
    categories, the count of each."""
    assert fed.schema is not None
    column, places = fed.schema.columns[k], np.flatnonzero(np.array(fed.schema.sources) == k)
    x = fed.train.x[:, places].double().numpy()
    filled = x[~np.isnan(x[:, 0])]
    out: dict[str, Any] = {"name": column.name, "kind": column.kind, "missing": len(x) - len(filled)}
    if column.kind == "category":
        return out | {"categories": dict(zip(column.values, filled.sum(0).astype(int).tolist(), strict=True))}
    if not len(filled):
        return out
    numbers = {"least": float(filled.min()), "mean": float(filled.mean()), "most": float(filled.max())}
    return out | {key: _date(value) if column.kind == "date" else value for key, value in numbers.items()}


def _date(days: float) -> str:
    return (dt.date(1970, 1, 1) + dt.timedelta(days=int(np.floor(days)))).isoformat()


def _feature_table(features: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        return number(value, 4) if isinstance(value, float) else str(value)

    rows = []
    for found in features:
        counts = sorted(found.get("categories", {}).items(), key=lambda item: -item[1])
        words = ", ".join(f"{name} {count:,}" for name, count in counts[:SHOWN]) + (" …" if len(counts) > SHOWN else "")
        spread = [cell(found.get(key, "")) for key in ("least", "mean", "most")]
        rows.append([found["name"][:24], found["kind"], f"{found['missing']:,}", *spread, words])
    return show.table(["column", "kind", "missing", "least", "mean", "most", "categories"], rows)


def _missing(fed: Federation) -> dict[str, dict[str, int]]:
    """Return the number of missing cells by client and column, for clients that have any."""
    assert fed.schema is not None
    _, first = np.unique(fed.schema.sources, return_index=True)
    counts = np.zeros((len(fed), len(first)), np.int64)
    np.add.at(counts, fed.train.owners(), np.isnan(fed.train.x.numpy()[:, first]))
    columns = [column.name for column in fed.schema.columns]
    return {
        str(k) if fed.names is None else fed.names[k]: {c: int(n) for c, n in zip(columns, counts[k], strict=True) if n}
        for k in np.flatnonzero(counts.any(1))
    }


def _missing_table(missing: dict[str, dict[str, int]]) -> str:
    if not missing:
        return ""
    most = sorted(missing.items(), key=lambda item: -sum(item[1].values()))
    rows = [[name[:16], f"{sum(counts.values()):,}", each(counts)] for name, counts in most[:SHOWN]]
    return show.table(["client", "missing", "in which columns"], rows)
