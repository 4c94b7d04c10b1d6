"""One page about a run, or several to compare: `write(folders)` makes report.html. `Record` gives it more to show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError
from unalike.files import complaining, replace
from unalike.report import page, read
from unalike.report.record import Record

COMPARISON = "comparison.json"


def write(
    folders: Iterable[str | Path] | str | Path, out: str | Path | None = None, comparison: dict[str, Any] | None = None
) -> Path:
    """Write the report of these run folders and return its path.

    folders: a run's folder, a folder of run folders, or several of either; a run in progress is shown up to its last
      round. Runs that differ in their seed alone are drawn as one line with a band.
    out: the file; default report.html in the one folder given, or in the current folder for several.
    comparison: {"verdict": lines, "table": rows, "command": text}, each optional; default the content of
      comparison.json in the one folder given, or in the folder that holds all runs.
    """
    given = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    if not given:
        raise UnalikeError("A report needs the folder of a run: give at least one.")
    target = Path(out) if out is not None else given[0] / "report.html" if len(given) == 1 else Path("report.html")
    text = html(given, comparison)
    with complaining(f"The report cannot be written to {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(target, text.encode())
    return target


def html(given: list[Path], comparison: dict[str, Any] | None = None, live: str | None = None) -> str:
    """Return the page of these folders as text; live: a version for `unalike watch`, whose page updates itself."""
    runs = read.find(given)
    if comparison is None:
        homes = {given[0]} if len(given) == 1 else {run.resolve().parent for run in runs}
        comparison = read.comparison(homes.pop() / COMPARISON) if len(homes) == 1 else None
    return page.html(read.read(runs), comparison or {}, live)


__all__ = ["Record", "html", "write"]
