"""What to run: a paper's TOML file as tables, rows and jobs.

    [base]                     settings of every run: tables as in a config file
    [method.feddc]             a method of the paper: label, and tables that it brings along
    [part.mnist]               a piece of a row: label, target, tables; `only.feddc` are tables for that method alone
    [[table]]                  id, title, methods, measures, rows, seeds; wide: a column a measure; best, further: so
                               many methods, the best by validation, have so many seeds more
    [numbers.table3."a-b"]     what the paper prints in row a-b: a value a measure for each method, and their origin
    [like]                     data sets of which nothing was run: the one whose times count for it, a sample each
    [lacking]                  why a data set, or a row of the paper, was not run, if not for time
    [printed]                  the same from the paper's own file of numbers (unalike/reproduce/numbers.py)
    [quick]                    a table of minutes, with claims that can fail; several as [[quick]], each with an id

A table's rows are grids: lists of axes, an axis a list of parts or {set = "method.lam", values = [...]}. Every
combination is a row, called by its parts. Later settings win: base, parts, method, what parts say for the method alone.
`models` are the networks of a row whose clients have different ones. A target may be the name of a method: its last
number in the same seed.
"""

from __future__ import annotations

import dataclasses as dc
import fnmatch
import functools
import hashlib
import itertools
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from unalike import config
from unalike.data.sources import FACTS
from unalike.errors import UnalikeError, line_of, unknown
from unalike.reproduce.numbers import Numbers, Printed, parse
from unalike.run.settings import RunSettings
from unalike.settings.knobs import knobs

Tables = dict[str, dict[str, Any]]

# Settings that change how a run is computed but not its result: kept with the result. Folders: where runs and data lie.
HOW = {name for name, knob in knobs(RunSettings).items() if knob.how}


@dc.dataclass(frozen=True)
class Row:
    """One line of a table: the settings of its parts, and the paper's numbers."""

    id: str
    label: str
    parts: tuple[dict[str, Any], ...]
    target: float | str | None  # or the method whose last number it is
    numbers: dict[str, list[Printed | None]]  # by method, one for each measure
    begins: str = ""  # the id of its first part

    @property
    def ends(self) -> str:
        """Return the label of its last part, which distinguishes rows with the same beginning."""
        return str(self.parts[-1]["label"])

    def paper(self, method: str, measure: int) -> Printed | None:
        """Return the printed number; None if there is none."""
        values = self.numbers.get(method, [])
        return values[measure] if measure < len(values) else None


@dc.dataclass(frozen=True)
class Table:
    """A table, figure or study of a paper, or its quick check."""

    id: str
    title: str
    methods: list[str]
    measures: list[str]
    rows: list[Row]
    seeds: int
    notes: str = ""
    claims: tuple[dict[str, Any], ...] = ()
    choose: bool = False
    # this many methods, the best by validation when settings were chosen, ...
    best: int = 0
    # ... get this many more seeds, and so does `against`
    further: int = 0
    # the method that the others are tested against, over the seeds
    against: str | None = None
    # one line per method and one column per measure, if a paper prints nothing to compare with
    wide: bool = False
    figure: bool = False  # the paper draws it and prints no numbers
    # "virtual time": the axis that curves are drawn over, in place of rounds
    over: str = ""
    # what differs between rows with the same beginning, if a picture spans them
    across: str = ""
    against_second: bool = False  # the picture shows the first number against the second, not across rows

    @property
    def all_seeds(self) -> range:
        """Return the seeds of every method, and the additional ones of some."""
        return range(self.seeds + self.further)

    @property
    def timed(self) -> bool:
        """Return whether the table is about time: then its runs must have had their device to themselves."""
        return any(measure.split()[0] == "seconds" for measure in self.measures)


@dc.dataclass(frozen=True)
class Job:
    """One run."""

    paper: str
    row: str
    method: str
    seed: int
    tables: Tables
    fold: int | None = None

    @functools.cached_property
    def key(self) -> str:
        """Return twelve digits that identify everything that decides the numbers."""
        tables = plain(self.tables)
        return hashlib.sha256(json.dumps([tables, self.fold], sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        fold = "" if self.fold is None else f"-fold{self.fold}"
        return f"{self.row}-{self.method}-seed{self.seed}{fold}-{self.key}"

    @property
    def rounds(self) -> int:
        return int(self.tables["run"]["rounds"])


def plain(tables: Tables) -> Tables:
    """Return the settings that decide the result of a run."""
    out = {name: dict(table) for name, table in tables.items() if table}
    if "name" in out["data"]:  # a named set is the same wherever it lies
        out["data"].pop("folder", None)
    out["run"] = {k: v for k, v in out["run"].items() if k not in HOW and k not in config.ENGINE}
    return out


class Paper:
    """A paper's file, read."""

    def __init__(self, id: str, tree: dict[str, Any]):
        self.id, self.tree = id, tree
        self.name, self.title, self.cite = tree["name"], tree["title"], tree["cite"]
        self.methods: dict[str, dict[str, Any]] = tree["method"]
        self.own: list[str] = tree.get("own", [])  # the paper's own methods, not its baselines
        self.local_models: bool = tree.get("local_models", False)
        self.choices: dict[str, Any] = tree.get("choose", {})
        self.numbers = Numbers(id, tree.get("printed", {}))
        self.tables = {table["id"]: self._table(table) for table in tree["table"]}
        quick = tree["quick"] if isinstance(tree["quick"], list) else [tree["quick"]]
        self.quick = [self._table({"id": "quick", **table}) for table in quick]

    def _table(self, table: dict[str, Any]) -> Table:
        for method in table["methods"]:
            if method not in self.methods:
                raise unknown(f"method of {self.id}", method, self.methods)
        if table.get("further") and not table.get("choose"):
            raise UnalikeError(
                f"{self.id} {table['id']} has further seeds for the best by validation: it needs choose = true."
            )
        numbers = self._numbers(table["id"], table["measures"])
        rows = [row for grid in table["rows"] for row in self._rows(numbers, grid)]
        twice = [name for name, many in Counter(row.id for row in rows).items() if many > 1]
        if twice:
            raise UnalikeError(f"{self.id} {table['id']} has two rows that are called {twice[0]}: give another label.")
        for row in rows:
            if isinstance(row.target, str) and row.target not in table["methods"]:
                raise unknown(
                    f"method of {self.id} {table['id']}, the target of {row.id},", row.target, table["methods"]
                )
        known = {f.name for f in dc.fields(Table)}
        more = {k: v for k, v in table.items() if k in known and k != "rows"}
        return Table(**{"seeds": 1, **more, "rows": rows, "claims": tuple(table.get("claims", ()))})

    def _numbers(self, table: str, measures: Sequence[str]) -> dict[str, dict[str, list[Printed | None]]]:
        """Return the printed numbers of a table by row and method, from the paper's own file and from its TOML file."""
        out = self.numbers.of(table, measures)
        for row, own in self.tree.get("numbers", {}).get(table, {}).items():
            values = {method: given for method, given in own.items() if method != "origin"}
            lists = {method: given if isinstance(given, list) else [given] for method, given in values.items()}
            out[row] = {**out.get(row, {}), **{method: [*map(parse, given)] for method, given in lists.items()}}
        return out

    def _rows(self, numbers: dict[str, dict[str, list[Printed | None]]], grid: Sequence[Any]) -> Iterator[Row]:
        for combination in itertools.product(*map(self._axis, grid)):
            ids, parts = zip(*combination, strict=True)
            labels = [part["label"] for part in parts if part["label"]]
            targets = [part["target"] for part in parts if "target" in part]
            id = "-".join(ids)
            plain_id = "-".join(name for name, part in combination if "sweep" not in part)  # a study of a printed row
            own = numbers.get(id) or numbers.get(plain_id, {})
            yield Row(id, ", ".join(labels), parts, targets[-1] if targets else None, own, ids[0])

    def _axis(self, axis: Any) -> list[tuple[str, dict[str, Any]]]:
        if isinstance(axis, list):
            for name in axis:
                if name not in self.tree["part"]:
                    raise unknown(f"part of {self.id}", name, self.tree["part"])
            return [(name, {"label": name, **self.tree["part"][name]}) for name in axis]
        places = axis["set"] if isinstance(axis["set"], list) else [axis["set"]]
        out = []
        for given in axis["values"]:
            values = given if isinstance(axis["set"], list) else [given]
            word = axis.get("label", places[0].rpartition(".")[2])
            sweep = [[*place.split("."), value] for place, value in zip(places, values, strict=True)]
            out.append((f"{word}={values[0]}", {"label": f"{word} = {values[0]}", "sweep": sweep}))
        return out

    def settings(self, row: Row, method: str) -> Tables:
        """Return the config of this row with this method, without a seed."""
        only = [part.get("only", {}).get(method, {}) for part in row.parts]
        tables: Tables = {name: {} for name in config.TABLES}
        for layer in (self.tree.get("base", {}), *row.parts, self.methods[method], *only):
            if layer.get("model", {}).get("name", tables["model"].get("name")) != tables["model"].get("name"):
                # another model: the old one's settings do not apply
                tables["model"] = {}
            for name in config.TABLES:
                tables[name] |= layer.get(name, {})
            if config.MODELS_TABLE in layer:
                tables[config.MODELS_TABLE] = dict(layer[config.MODELS_TABLE])
        for table, setting, value in (change for part in row.parts for change in part.get("sweep", ())):
            if setting in config.SETTINGS[table](tables[table]):  # FedAvg has no λ: its run is the same in every row
                tables[table][setting] = value
        if "steps" in tables["local"]:
            tables["local"].pop("epochs", None)
        return tables

    def like(self, row: Row, method: str) -> Tables:
        """Return the settings by which to estimate times: a data set on which nothing was run counts as another of its
        size."""
        tables = self.settings(row, method)
        name = tables["data"].get("name")
        return {**tables, "data": {**tables["data"], "name": self.tree.get("like", {}).get(name, name)}}

    def larger(self, row: Row, method: str) -> float:
        """Return how many times as many samples the row's data set has as the one by which its time is estimated."""
        both = self.settings(row, method), self.like(row, method)
        own, other = (FACTS.get(str(tables["data"].get("name"))) for tables in both)
        return own.train / other.train if own and other else 1.0

    def job(self, row: Row, method: str, seed: int, tables: Tables | None = None, fold: int | None = None) -> Job:
        """Return the job with a seed: the run's is the seed itself, the data's counts from the paper's own."""
        tables = tables or self.settings(row, method)
        data = dict(tables["data"])
        if "seed" in config.data_settings(data):
            data["seed"] = data.get("seed", 0) + seed
        tables = {**tables, "data": data, "run": {**tables["run"], "seed": seed}}
        return Job(self.id, row.id, method, seed, tables, fold)


def names() -> list[str]:
    return sorted(file.name.removesuffix(".toml") for file in files("unalike.reproduce").joinpath("papers").iterdir())


@functools.cache
def paper(name: str) -> Paper:
    """Return one of our papers by name, or a user's own: path/to/paper.toml."""
    if name.endswith(".toml"):
        return _own(Path(name))
    if name not in names():
        raise unknown("paper", name, names())
    text = files("unalike.reproduce").joinpath("papers", f"{name}.toml").read_text(encoding="utf-8")
    return Paper(name, tomllib.loads(text))


def _own(file: Path) -> Paper:
    tree = config.load_toml(file)
    try:
        return Paper(file.stem, tree)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnalikeError(f"{file} is no paper: {line_of(error)}. docs/reproduce.md has the form.") from error


def chosen(paper: Paper, table: str | None, rows: Iterable[str]) -> list[tuple[Table, list[Row]]]:
    """Return the tables and rows that were asked for; a row may be a pattern such as cifar10-*."""
    if table is not None and table not in paper.tables:
        raise unknown(f"table of {paper.id}", table, paper.tables)
    patterns, out = [*rows], []
    for one in [paper.tables[table]] if table else paper.tables.values():
        for pattern in patterns:
            if not fnmatch.filter([row.id for row in one.rows], pattern):
                raise unknown(f"row of {paper.id} {one.id}", pattern, [row.id for row in one.rows])
        found = [row for pattern in patterns or ["*"] for row in one.rows if fnmatch.fnmatch(row.id, pattern)]
        out.append((one, [*{row.id: row for row in found}.values()]))
    return out
