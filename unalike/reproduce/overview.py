"""docs/results/index.md: do the papers hold? First for a reader with five minutes, then table by table."""

from __future__ import annotations

import dataclasses as dc
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from unalike.reproduce import judge, pages, pictures, tally
from unalike.reproduce.define import Paper
from unalike.reproduce.numbers import NOTHING
from unalike.reproduce.pages import Found
from unalike.reproduce.results import Results
from unalike.reproduce.tally import Judged
from unalike.text import listed, span

# one column of the first table per verdict
WORDS = {
    judge.REPRODUCES: "reproduce",
    judge.CLOSE: "close",
    judge.WITHIN: "within the spread",
    judge.DIFFERS: "differ",
    judge.CONTRADICTS: "the paper contradicts itself",
    judge.SHORT: "too short to say",
    judge.NOT_RUN: "not run",
    judge.NO_ROW: "no row here",
}
DECIDED = (judge.REPRODUCES, judge.CLOSE, judge.WITHIN, judge.DIFFERS)


class Entry:
    """A paper with its tables and every number that it prints."""

    def __init__(self, paper: Paper, results: Results, quick: Results):
        self.paper, self.home = paper, results.folder.parent
        tables = paper.tables.values()
        self.found = [Found(paper, table, table.rows, table.all_seeds, results, quick) for table in tables]
        self.judged: list[Judged] = tally.tally(paper, [(f.table.id, cell) for f in self.found for cell in f.cells])

    def note(self, title: str) -> str:
        return pages.part(self.home / "notes.md", title)


def write(papers: Sequence[tuple[Paper, Results, Results]], docs: Path) -> Path:
    """Write the page and the papers' pictures."""
    entries = [Entry(*paper) for paper in papers]
    printed = [entry for entry in entries if entry.judged]
    notes = entries[0].home.parent / "notes.md" if entries else Path()
    body = [
        "# Do the papers hold?",
        "Made by `unalike reproduce --pages` from `experiments/`; do not edit.",
        *([_shares(printed), *(_answer(entry) for entry in printed)] if printed else []),
        _titled("## Three things to know", pages.part(notes, "Three things to know")),
        *_pictures(printed, docs),
        _titled("## What the verdicts mean", judge.RULES),
        *_searched(printed),
        *_differing(printed),
        *_waiting(printed),
        *_surveys(entry for entry in entries if not entry.judged),
        "## Table by table",
        *_by_table(entries),
    ]
    pages.save(docs / "index.md", "\n\n".join(filter(None, body)) + "\n")
    return docs / "index.md"


def _titled(title: str, text: str) -> str:
    return f"{title}\n\n{text}" if text else ""


def _shares(entries: Sequence[Entry]) -> str:
    """Return what comes first: how many of all printed numbers reproduce, in a sentence and by paper; and how many of
    those of the papers' own methods."""
    rows = [
        ["paper", "printed", "reproduce, of those that can be judged", "the same, of its own methods", *WORDS.values()]
    ]
    for entry in entries:
        counts = tally.counts(entry.judged)
        own = tally.counts(one for one in entry.judged if one.printed.method in entry.paper.own)
        name = f"[{entry.paper.name}]({entry.paper.id}.md)"
        rows.append([name, str(len(entry.judged)), _share(counts), _share(own), *(str(counts[w]) for w in WORDS)])
    every = [one for entry in entries for one in entry.judged]
    counts = tally.counts(every)
    verbs = ("reproduce", "are close", "are further apart but within the spread of our seeds", "differ")
    numbers = ", ".join(f"{counts[word]} {verb}" for word, verb in zip(DECIDED, verbs, strict=True))
    papers = f"The {len(entries)} papers print" if len(entries) > 1 else "The paper prints"
    numbers_of = [entry.paper.numbers for entry in entries]
    others = sum((one.left_out() for one in numbers_of), Counter[str]())
    others["that a second table repeats"] = sum(len(one.counted()) for one in numbers_of) - len(every)
    left = listed([f"{many} {what}" for what, many in others.items() if many])
    text = f"{papers} {sum(len(one.all) for one in numbers_of)} numbers. {len(every)} of them are results"
    text += f" ({left} are left out), and " if left else ", and "
    text += f"{sum(counts[word] for word in DECIDED)} can be judged: {numbers}."
    doubtful, short, not_run, no_row = (counts[word] for word in WORDS if word not in DECIDED)
    rest = f"Of the others {not_run} were not run and {no_row} have no row here, {short} were run for too few rounds "
    rest += f"to say, and in {doubtful} the paper contradicts itself or does not say what it measures."
    meaning = "*Its own methods* are those that the paper proposes; the others are its baselines."
    return f"{text} {rest}\n\n{pages.markdown(rows)}\n\n{meaning}"


def _share(counts: Counter[str]) -> str:
    """Return the share that reproduces, of the numbers that can be judged."""
    judged = sum(counts[word] for word in DECIDED)
    return f"**{100 * counts[judge.REPRODUCES] / judged:.0f} %** of {judged}" if judged else NOTHING


def _answer(entry: Entry) -> str:
    """Return the verdict on a paper, written by a person who looked at its numbers."""
    text = entry.note("Verdict")
    return f"**{entry.paper.name}.** {text}" if text else ""


def _pictures(entries: Sequence[Entry], docs: Path) -> list[str]:
    """Write one picture per paper, printed numbers against ours; return the lines that show them."""
    out = []
    for entry in entries:
        if image := pictures.diagonal(entry.paper, entry.judged):
            file = f"images/{entry.paper.id}-printed.svg"
            pages.save(docs / file, image)
            out.append(f"![{entry.paper.name}: printed numbers and ours]({file})")
    head = "Every printed number that was run here, against ours: on the diagonal they are equal."
    return ["## Printed against ours", head, *out] if out else []


def _differing(entries: Sequence[Entry]) -> list[str]:
    """List where a paper's own method differs, with the reason as far as it is known."""
    out = []
    for entry in entries:
        own = [one for one in entry.judged if one.verdict == judge.DIFFERS and one.printed.method in entry.paper.own]
        if own:
            cells = [one.cell for one in own if one.cell]
            lines = [f"- {one.row.label}, {entry.paper.methods[one.method]['label']}, {one.measure.words}: printed "
                     f"{pages.printed(one)}, ours {pages.ours(one)}" for one in cells]  # fmt: skip
            # a number that two tables print stands here once
            out.append("\n".join([f"{entry.paper.name}:", "", *dict.fromkeys(lines)]))
            out.append(entry.note("Why it differs"))
    return ["## Where a paper's own method differs", *out] if out else []


def _searched(entries: Sequence[Entry]) -> list[str]:
    """Show by paper the settings that it leaves out: what it gives, what was tried, what was found."""
    out = [f"**{entry.paper.name}.**\n\n{text}" for entry in entries if (text := entry.note("Settings left out"))]
    head = (
        "Rates, step sizes and rounds are searched for by the baselines' printed numbers. Tables that look at the "
        "paper's own method are tests of a reason, and set nothing. Where a paper leaves two readings open, the one "
        "that is nearer to a row's numbers counts. The papers' tables keep the settings that were declared first; what "
        "was found has tables of its own (`search`, `found`)."
    )
    return ["## Settings that the papers leave out", head, *out] if out else []


def _waiting(entries: Sequence[Entry]) -> list[str]:
    """List what was not run, with its estimated time, as far as similar runs were measured, and why."""
    rows = [["paper", "data", "no number yet", "runs", "would take", "fewer seeds than declared", "runs", "would take",
             "why"]]  # fmt: skip
    for entry in entries:
        for label, (nothing, fewer, why) in _missing(entry).items():
            rows.append([entry.paper.name, label, *nothing.words, *fewer.words, why])
    head = (
        "Printed numbers of which runs are missing, by data set: those without any run, and those with fewer seeds "
        "than their table declares. Times are rounds (medians, so without compiling) of runs like them, scaled by "
        "rounds and by the share of clients that take part; of a GPU that several runs shared, their share."
    )
    more = [*map(_too_short, entries), _undefined(entries)]
    return ["## What was not run", head, pages.markdown(rows), *more] if rows[1:] else []


def _too_short(entry: Entry) -> str:
    """Say what longer runs the numbers need that were run for too few rounds."""
    short = {tally.place(one.printed) for one in entry.judged if one.verdict == judge.SHORT}
    if not short:
        return ""
    wanted, places = Lacking(), set[tuple[str, ...]]()
    for found in entry.found:
        if not entry.paper.numbers.source(found.table.id):
            continue
        waiting = {(c.row.id, c.method): tally.place(c.paper) for c in found.cells if c.paper and not c.done}
        for row, method, runs, one in found.lacking_runs():
            if (place := waiting.get((row.id, method))) in short:
                places.add(place)
                wanted.add(1, runs, one)
    longer = f"for {len(places)} of them longer runs are defined ({wanted.words[2]})"
    return f"{entry.paper.name}: {len(short)} numbers had too few rounds to say; {longer}."


def _surveys(entries: Iterable[Entry]) -> list[str]:
    """List the pages of which no paper prints the numbers."""
    lines = [f"- [{entry.paper.name}]({entry.paper.id}.md): {entry.paper.title}" for entry in entries]
    return ["## Surveys: methods side by side, of which no paper has the table", "\n".join(lines)] if lines else []


def _undefined(entries: Sequence[Entry]) -> str:
    """List the printed numbers that no row of ours stands for, and why."""
    out = []
    for entry in entries:
        places = Counter(f"{o.printed.table} {o.printed.row}" for o in entry.judged if o.verdict == judge.NO_ROW)
        for place, numbers in places.items():
            why = entry.paper.tree.get("lacking", {}).get(place.split()[1].partition("/")[0], "")
            out.append(f"- {entry.paper.name}, {place}: {numbers}{f' ({why})' if why else ''}")
    return "\n".join(["No row here stands for these printed numbers:", "", *out]) if out else ""


@dc.dataclass
class Lacking:
    """Printed numbers that lack runs, the runs, and their seconds by device as far as they can be estimated."""

    numbers: int = 0
    runs: int = 0
    seconds: dict[str, float] = dc.field(default_factory=dict)
    unknown: int = 0

    def add(self, numbers: int, runs: int, one: tuple[float, str] | None) -> None:
        self.numbers += numbers
        self.runs += runs
        if one:
            self.seconds[one[1]] = self.seconds.get(one[1], 0.0) + runs * one[0]
        else:
            self.unknown += runs

    @property
    def words(self) -> list[str]:
        times = [f"{span(seconds)} on {device}" for device, seconds in self.seconds.items()]
        times += [f"{self.unknown} like nothing measured" if self.unknown else ""]
        counts = [str(self.numbers), str(self.runs)] if self.runs else [NOTHING] * 2
        return [*counts, "; ".join(filter(None, times)) or NOTHING]


def _missing(entry: Entry) -> dict[str, tuple[Lacking, Lacking, str]]:
    """Return, by the first part of a row: what has no run at all, what has fewer than declared, and why. A run that
    several tables need counts once, and of several readings of a number one run is enough."""
    nothing, some = _places(entry, judge.NOT_RUN), _places(entry)
    out: dict[str, tuple[Lacking, Lacking, str]] = {}
    seen: set[str] = set()
    for found in entry.found:
        if not entry.paper.numbers.source(found.table.id):
            continue
        for row, method, runs, one in found.lacking_runs():
            place = f"{row.id} {method}"
            if place in seen or place not in some:
                continue
            seen.add(place)
            name = str(entry.paper.settings(row, method)["data"].get("name"))
            why = entry.paper.tree.get("lacking", {}).get(name, "time")
            first, further, _ = out.setdefault(str(row.parts[0]["label"]), (Lacking(), Lacking(), why))
            (first if place in nothing else further).add(some[place], runs, one)
    return out


def _places(entry: Entry, verdict: str = "") -> Counter[str]:
    """Count the printed numbers by the row and method of ours that each stands at."""
    cells = [one.cell for one in entry.judged if one.cell and verdict in ("", one.verdict)]
    return Counter(f"{cell.row.id} {cell.method}" for cell in cells)


def _by_table(entries: Sequence[Entry]) -> list[str]:
    """Return one line per table, and the tables of which nothing was run."""
    verdicts = (*DECIDED, judge.CONTRADICTS, judge.SHORT)
    rows = [["paper", "table", "what", "cells run", *(WORDS[word] for word in verdicts), "nothing printed"]]
    waiting = []
    for entry in entries:
        for found in entry.found:
            words = Counter(cell.verdict for cell in found.shown() if cell.done)
            if not words:
                waiting.append(f"{entry.paper.name} {found.table.id}")
                continue
            nothing = words[judge.NO_NUMBER] + words[judge.FIGURE]
            counts = [sum(words.values()), *(words[word] for word in verdicts), nothing]
            rows.append(
                [entry.paper.name, f"[{found.table.id}]({entry.paper.id}.md)", found.table.title, *map(str, counts)]
            )
    head = "Here every reading of a row counts, at the top one; and so does every table that shows a number."
    return [head, pages.markdown(rows) if rows[1:] else "", f"Not run yet: {', '.join(waiting)}." if waiting else ""]
