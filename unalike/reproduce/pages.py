"""Results as a terminal table, CSV, Markdown and curves; made from results alone, so that pages can be rewritten
without the runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unalike.files import complaining, replace
from unalike.reproduce import choose, measure, pictures
from unalike.reproduce.define import Job, Paper, Row, Table
from unalike.reproduce.measure import Cell, Claim
from unalike.reproduce.numbers import NOTHING, Printed, number
from unalike.reproduce.results import BINS, Result, Results
from unalike.results import stats
from unalike.text import csv_text, span


class Found:
    """A table with the results that exist for it."""

    def __init__(
        self,
        paper: Paper,
        table: Table,
        rows: Sequence[Row],
        seeds: Sequence[int],
        results: Results,
        timed: Results | None = None,
        everywhere: bool = False,
    ):
        self.timed = [*results.found.values(), *(timed.found.values() if timed else ())]
        self.paper, self.table, self.rows, self.seeds, self.results = paper, table, [*rows], [*seeds], results
        self.everywhere = everywhere or not table.further  # all methods have all seeds
        self.cells = measure.cells(paper, table, rows, seeds, results, self.job)

    def job(self, row: Row, method: str, seed: int) -> Job | None:
        """Return the job of a run; None as long as its settings have not been chosen, and if the method does not use
        this seed."""
        if not self.table.choose:
            return self.paper.job(row, method, seed)
        choice = choose.known(self.paper, row, self.results)
        if choice is None or seed not in self.wanted(row, method):
            return None
        return self.paper.job(row, method, seed, choose.settings(self.paper, row, method, choice))

    def wanted(self, row: Row, method: str) -> list[int]:
        """Return the seeds that a method is run with: all, or without the additional ones, which are for the methods
        best by validation and for the method that all are compared with."""
        if self.everywhere:
            return self.seeds
        choice = choose.known(self.paper, row, self.results)
        tried = [m for m in choose.ranking(choice) if m in self.table.methods] if choice else []
        further = method in (*tried[: self.table.best], self.table.against)
        return [seed for seed in self.seeds if further or seed < self.table.seeds]

    def jobs(self, row: Row, method: str) -> list[Job | None]:
        """Return the runs of all seeds."""
        return [self.job(row, method, seed) for seed in self.seeds]

    @property
    def claims(self) -> list[Claim]:
        return measure.claims(self.table, self.cells)

    def shown(self) -> list[Cell]:
        """Return the cells of rows in which anything was run."""
        there = {cell.row.id for cell in self.cells if cell.done}
        return [cell for cell in self.cells if cell.row.id in there]

    def missing(self) -> tuple[int, dict[str, tuple[int, float]]]:
        """Return the number of missing runs; and by device, how many of them resemble measured runs, and their
        estimated seconds."""
        count: int = 0
        times: dict[str, tuple[int, float]] = {}
        for _, _, lacking, one in self.lacking_runs():
            count += lacking
            if one:
                runs, seconds = times.get(one[1], (0, 0.0))
                times[one[1]] = runs + lacking, seconds + lacking * one[0]
        return count, times

    def lacking_runs(self) -> Iterator[tuple[Row, str, int, tuple[float, str] | None]]:
        """Yield every row and method with missing runs, their number, and the seconds and device of one run."""
        for row, method in itertools.product(self.rows, self.table.methods):
            lacking = len(self.wanted(row, method)) - len(self.results_of(row, method))
            if lacking:
                one = measure.estimate(self.paper.like(row, method), self.timed)
                yield row, method, lacking, one and (one[0] * self.paper.larger(row, method), one[1])

    def results_of(self, row: Row, method: str) -> list[Result]:
        jobs = self.jobs(row, method)
        return [result for job in jobs if job and (result := self.results.of(job, self.table.timed))]


# ---------------------------------------------------------------- words


def printed(cell: Cell) -> str:
    """Return the paper's number as it prints it."""
    if cell.paper is None:
        return NOTHING
    text = ("> " if cell.paper.more_than else "") + number(cell.paper.value, cell.measure.unit)
    return text + (f" ± {number(cell.paper.spread, cell.measure.unit)}" if cell.paper.spread is not None else "")


def ours(cell: Cell) -> str:
    lacks = "not reached" if cell.measure.how in measure.TO_TARGET else NOTHING
    if not cell.values:
        rounds = ", ".join(map(str, cell.diverged))
        return (f"diverged (round {rounds})" if rounds else lacks) if cell.done else NOTHING
    text = number(cell.mean, cell.measure.unit)
    if cell.deviation is not None:
        text += f" ± {number(cell.deviation, cell.measure.unit, like=cell.mean)}"
    lacks = "none" if lacks == NOTHING else lacks
    return text + (f" ({lacks} in {len(cell.missed)} of {cell.done} seeds)" if cell.missed else "")


def lacking(found: Found) -> str:
    """Return what is missing, and the time it would take, as text."""
    count, times = found.missing()
    if not count:
        return "Nothing is missing."
    parts = [f"about {span(seconds)} for {runs} of them on {device}" for device, (runs, seconds) in times.items()]
    unknown = count - sum(runs for runs, _ in times.values())
    parts += [f"{unknown} are like nothing that was measured" if unknown else ""]
    return f"Missing: {count} runs ({'; '.join(filter(None, parts))})."


def columns(found: Found) -> list[str]:
    if found.table.wide:
        tested = [f"gain over {found.paper.methods[found.table.against]['label']}", "p"] if found.table.against else []
        words = [measure.measure(text).words.removesuffix(", last round") for text in found.table.measures]
        return ["row", "method", *words, *tested, "seeds"]
    several = ["measure"] if len(found.table.measures) > 1 else []
    tested = ["p"] if found.table.against else []
    return ["row", "method", *several, "paper", "ours", "difference", "verdict", *tested, "seeds"]


def lines(found: Found) -> list[list[str]]:
    """Return the table's cells, as text."""
    if found.table.wide:
        return _wide(found)
    out = []
    for cell in found.shown():
        unit = cell.measure.unit
        several = [cell.measure.words] if len(found.table.measures) > 1 else []
        row = [cell.row.label, found.paper.methods[cell.method]["label"], *several]
        row += [printed(cell), ours(cell), number(cell.difference, unit, sign=True), cell.verdict]
        out.append([*row, *([_test(found, cell)] if found.table.against else []), str(cell.done)])
    return out


def _wide(found: Found) -> list[list[str]]:
    """Return one line per method, with one column per measure; if there is a method to compare with, also the gain over
    it by the first measure, and p after Holm's correction for the row's methods."""
    out = []
    for row, of_row in itertools.groupby(found.shown(), lambda cell: cell.row):
        cells = [*of_row]
        gains = _gains(found, row, cells) if found.table.against else {}
        for method, of_method in itertools.groupby(cells, lambda cell: cell.method):
            own = [*of_method]
            line = [row.label, found.paper.methods[method]["label"], *map(ours, own)]
            if found.table.against:
                gain = gains.get(method)
                line.append(number(gain.points, own[0].measure.unit, sign=True) if gain else NOTHING)
                line.append(f"{gain.p:.3f}" if gain and gain.p is not None else NOTHING)
            out.append([*line, str(own[0].done)])
    return out


def _gains(found: Found, row: Row, cells: Sequence[Cell]) -> dict[str, measure.Gain]:
    """Return the gains over the method to compare with, for methods with the same network."""
    base = found.table.against
    assert base is not None
    tables = {method: found.paper.settings(row, method) for method in found.table.methods}
    network = {method: (own["model"], own.get("models")) for method, own in tables.items()}
    alike = [cell for cell in cells if network[cell.method] == network[base]]
    return measure.gains(alike, row.id, measure.measure(found.table.measures[0]), base)


def _test(found: Found, cell: Cell) -> str:
    """Return the paired test against the paper's method, over the seeds that both have."""
    place = (cell.row.id, found.table.against, cell.measure)
    other = next(c for c in found.cells if (c.row.id, c.method, c.measure) == place)
    both = sorted(cell.values.keys() & other.values.keys())
    test = stats.paired([cell.values[s] for s in both], [other.values[s] for s in both])
    return NOTHING if cell.method == other.method or test is None else f"{test.p:.3f}"


def text(found: Found) -> str:
    """Return the table as text for a terminal."""
    rows = [columns(found), *lines(found)]
    head = f"{found.paper.name}, {found.table.id}: {found.table.title}"
    if len(rows) == 1:
        return f"{head}\nnothing of it has been run yet."
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join([head, *("  ".join(c.ljust(w) for c, w in zip(row, wide, strict=True)).rstrip() for row in rows)])


# ---------------------------------------------------------------- files


def write(paper: Paper, results: Results, quick: Results, docs: Path) -> Path:
    """Write the paper's page, its CSV and its curves; return the page's path."""
    sections = [_head(paper)]
    if came_out := part(results.folder.parent / "notes.md", "What came out"):
        sections += ["## What came out", came_out]
    rows = [["table", "row", "method", "measure"]]
    rows[0] += ["paper", "paper's spread", "ours", "deviation", "difference", "verdict", "seeds"]
    for table in paper.tables.values():
        found = Found(paper, table, table.rows, table.all_seeds, results, quick)
        sections.append(_section(found, docs))
        rows += [_csv(found, cell) for cell in found.shown()]
    checks = [Found(paper, table, table.rows, table.all_seeds, quick) for table in paper.quick]
    sections += [_section(check, docs) for check in checks if check.shown()]
    page = docs / f"{paper.id}.md"
    save(page, "\n\n".join(sections) + "\n")
    save(docs / f"{paper.id}.csv", csv_text(rows))
    return page


def _head(paper: Paper) -> str:
    return f"""# {paper.name}

{paper.cite}

Made by `unalike reproduce --pages` from the results in `experiments/`; do not edit. Ours is the mean ±
the standard deviation over seeds. What the verdicts mean: [Do the papers hold?](index.md).
What was read how, and why: [notes](../../experiments/{paper.id}/notes.md)."""


def part(notes: Path, title: str) -> str:
    """Return the part of a file of notes under a title, as written by a person who looked at the numbers."""
    text = notes.read_text(encoding="utf-8") if notes.is_file() else ""
    _, _, after = text.partition(f"\n## {title}\n")
    return after.partition("\n## ")[0].strip()


def _section(found: Found, docs: Path) -> str:
    table = found.table
    parts = [f"## {table.id}: {table.title}", table.notes]
    parts.append("Measured: " + "; ".join(measure.measure(m).words for m in table.measures) + ".")
    if rows := lines(found):
        parts.append(markdown([columns(found), *rows]))
    parts += [f"- {claim.words}" for claim in found.claims if claim.seeds]
    shown = [*{cell.row.id: cell.row for cell in found.shown()}.values()]
    for name, some in pictures.groups(table, shown).items():
        if table.against_second:
            image = pictures.against(found, some)
        else:
            image = pictures.across(found, some) if table.across else pictures.curves(found, some[0])
        if image:
            file = f"{found.paper.id}-{table.id}-{name}.svg"
            save(docs / "images" / file, image)
            parts.append(f"![{some[0].label}](images/{file})")
        parts += [_clients(found, row) for row in some]
    parts.append(lacking(found))
    return "\n\n".join(part for part in parts if part)


def markdown(rows: list[list[str]]) -> str:
    """Return a Markdown table; the first row has the titles."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def _clients(found: Found, row: Row) -> str:
    """Return the distribution of accuracies over clients, for the first seed."""
    if not any("clients_" in text for text in found.table.measures):
        return ""
    out = []
    for method in found.table.methods:
        results = found.results_of(row, method)
        if results and results[0].get("clients"):
            counts = results[0]["clients"]
            bars = "".join("▁▂▃▄▅▆▇█"[min(7, 8 * n // (max(counts) + 1))] if n else " " for n in counts)
            out.append(f"{found.paper.methods[method]['label']:<24}|{bars}|")
    title = f"Clients by accuracy, 0 to 100 % in {BINS} steps ({row.label}, seed {found.seeds[0]}):"
    return "\n".join([title, "", "```", *out, "```"]) if out else ""


def _csv(found: Found, cell: Cell) -> list[str]:
    values = [cell.mean, cell.deviation, cell.difference]
    plain = [f"{value:.6g}" if value is not None else "" for value in values]
    plain = [*_printed_csv(cell.paper), *plain]
    name = f"{cell.measure.how} {cell.measure.key}".strip()
    return [found.table.id, cell.row.id, cell.method, name, *plain, cell.verdict, str(cell.done)]


def _printed_csv(one: Printed | None) -> list[str]:
    """Return the printed number and its ± for a CSV; "> 600" becomes >600."""
    if one is None:
        return ["", ""]
    return [f"{'>' if one.more_than else ''}{one.value:.6g}", "" if one.spread is None else f"{one.spread:.6g}"]


def save(path: Path, content: str) -> None:
    with complaining(f"Cannot write to {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, content.encode())


def summary(found: Found) -> dict[str, Any]:
    """Return the table as data for --json."""
    return {
        "table": found.table.id,
        "rows": [dict(zip(columns(found), line, strict=True)) for line in lines(found)],
        "claims": [{"text": c.text, "margins": c.finite, "holds": c.holds} for c in found.claims],
        "missing": found.missing()[0],
    }
