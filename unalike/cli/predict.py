"""Use a model that `run.save(...)` or `unalike export --deploy` wrote: a class,
or a number, for every row of a table.

unalike predict model.unalike rows.csv                       CSV on standard output
unalike predict model.unalike rows.csv --out predictions.csv
unalike predict mine.unalike x.npy --build net.py:Net        a model of your own

Rows are prepared as those were that the model learned from. Columns may be in
any order, and there may be more of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import shtab

from unalike.cli import show
from unalike.errors import UnalikeError, first_line
from unalike.files import complaining


def arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument("model", metavar="MODEL", help="the file of a model")
    rows = parser.add_argument("rows", metavar="ROWS", help="a table as the model learned from, or x as an .npy file")
    out = parser.add_argument("--out", metavar="FILE", help="a CSV file; default: standard output")
    parser.add_argument("--build", metavar="FILE.PY:NAME", help="what builds a model of your own")
    for action in (model, rows, out):
        action.complete = shtab.FILE  # type: ignore[attr-defined]


def main(args: argparse.Namespace) -> int:
    from unalike import config
    from unalike.run.deploy import load_model

    model = load_model(args.model, build=config.from_file(args.build) if args.build else None)
    return give(args, columns(model.predict(_rows(args.rows))))


def give(args: argparse.Namespace, table: dict[str, list[Any]]) -> int:
    """Write predictions to the file that --out names, or print them as JSON or CSV."""
    from unalike.report import export

    if args.out:
        with complaining(f"{args.out} cannot be written"):
            export.write_csv(table, Path(args.out))
        return show.written(args, "file", Path(args.out))
    if args.json:
        show.document(table)
    else:
        sys.stdout.write(export.csv_of(table))
    return 0


def columns(predicted: Any) -> dict[str, list[Any]]:
    """Return predictions as a table: the row's number from 1, the prediction, and the probability of each class."""
    if isinstance(predicted, np.ndarray):
        numbers = predicted.reshape(len(predicted), -1)
        names = ["prediction"] if numbers.shape[1] == 1 else [f"prediction {k}" for k in range(numbers.shape[1])]
        found = dict(zip(names, numbers.T.tolist(), strict=True))
    else:
        width = predicted.probabilities.shape[1]
        names = [*(predicted.names or ()), *range(len(predicted.names or ()), width)]
        shares = zip(names, predicted.probabilities.T.round(6).tolist(), strict=True)
        found = {"prediction": predicted.labels} | {f"probability of {name}": column for name, column in shares}
    return {"row": list(range(1, len(predicted) + 1)), **found}


def _rows(path: str) -> Any:
    """Return the input to predict from: the array of an .npy file, else the path of a table."""
    if not Path(path).is_file():
        raise UnalikeError(f"unalike predict: there is no file {path}.")
    if Path(path).suffix.lower() != ".npy":
        return path
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UnalikeError(f"{path} cannot be read as an array: {first_line(error)}.") from None
