"""A table of patients from five hospitals, in its own units, with words and empty cells: which method to trust?

    python examples/hospitals.py

The same as one command, once the table is written:

    unalike compare fedavg scaffold --table patients.csv --client hospital --label outcome --categorical smokes \\
                    --budget 2m
"""

from __future__ import annotations

import csv
import random
import sys
import tempfile
from pathlib import Path

import unalike as ua
from unalike.cli import main
from unalike.data.tables import from_table


def write_patients(file: Path, rows: int = 120) -> None:
    """Write a table: age in years, pressure in mmHg, marker in ng/l, smoking as a word; hospitals differ in all."""
    draw = random.Random(1)
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["hospital", "age", "pressure", "marker", "smokes", "outcome"])
        for k, hospital in enumerate(("north", "south", "east", "west", "centre")):
            for _ in range(rows):
                age, pressure, marker = draw.gauss(50 + 6 * k, 9), draw.gauss(130, 15), draw.lognormvariate(6, 0.5)
                risk = (age - 60) / 9 + (pressure - 130) / 30 + (marker - 450) / 300 + draw.gauss(0, 0.5)
                shown = "" if draw.random() < 0.05 else f"{marker:.1f}"  # not measured
                smokes = draw.choice(["never", "once", "daily"])
                table.writerow(
                    [hospital, f"{age:.0f}", f"{pressure:.0f}", shown, smokes, "ill" if risk > 0 else "well"]
                )


def from_python(file: Path) -> None:
    """One run in Python: features are prepared by sums over clients, and the model remembers how."""
    fed = from_table(file, client="hospital", label="outcome", categorical=["smokes"], test=0.2)
    run = ua.simulate(ua.models.linear(fed.train.x.shape[1], 2), fed, ua.FedAvg(), rounds=20)
    print(run)
    patient = {"age": 71, "pressure": 155, "marker": None, "smokes": "daily"}
    print("a patient of 71:", run.predict([patient]).labels)


def as_a_command(file: Path, folder: Path, *more: str) -> int:
    words = [
        "compare",
        "fedavg",
        "scaffold",
        "--table",
        str(file),
        "--client",
        "hospital",
        "--label",
        "outcome",
        "--categorical",
        "smokes",
    ]
    return main([*words, "--folder", str(folder), *more])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        patients = Path(home) / "patients.csv"
        write_patients(patients)
        from_python(patients)
        sys.exit(as_a_command(patients, Path(home) / "out", *sys.argv[1:]))
