"""From results to statements: numbers as the papers define them, differences, verdicts, claims."""

from __future__ import annotations

import dataclasses as dc
import fnmatch
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from unalike import config
from unalike.metrics.names import of
from unalike.reproduce import judge
from unalike.reproduce.define import Paper, Row, Table
from unalike.reproduce.numbers import TIME, Printed, number
from unalike.reproduce.results import Result, Results
from unalike.results import stats
from unalike.results.evidence import REFERENCES
from unalike.run.sampling import sampling

Value = Callable[[Result, str, float | None], float | None]  # of a result, a key and the target


@dc.dataclass(frozen=True)
class Measure:
    """A measure of a table, written as "best test_accuracy": how, and of which number."""

    how: str
    key: str

    @property
    def unit(self) -> str:
        number = of(self.key)
        return HOW[self.how][1] or {"percent": "%", "pp²": "pp²", "count": number.words}.get(number.unit, "")

    @property
    def words(self) -> str:
        return HOW[self.how][0].format(of(self.key).words)

    def of(self, result: Result, target: float | None) -> float | None:
        """Return the number; None if the run has none (it diverged, or never reached the target)."""
        if result.get("diverged"):
            return None
        value = HOW[self.how][2](result, self.key, target)
        return value * 100 if value is not None and self.unit == "%" else value


def _first(result: Result, key: str, target: float | None) -> float | None:
    reached = (round for round, value in result["records"].get(key, ()) if target is not None and value >= target)
    return next(reached, None)


def _time(result: Result, key: str, target: float | None) -> float | None:
    """Virtual seconds until the target, of a run with a clock."""
    return dict(result.get("virtual", ())).get(_first(result, key, target))


def _at(result: Result, key: str, target: float | None) -> float | None:
    """Return the value in a round: "at 30 test_accuracy"; round 0 is the start."""
    round, _, name = key.partition(" ")
    curve = result["curve"]
    numbers = dict(zip(curve["round"], curve.get(name, ()), strict=False))
    return result.get("start", {}).get(name) if round == "0" else numbers.get(int(round))


def _best(result: Result, key: str, target: float | None) -> float | None:
    return result["records"][key][-1][1] if result["records"].get(key) else None


def _traffic(result: Result, key: str, target: float | None) -> float | None:
    """Return the bytes in all; None for a reference line, which sends nothing in reality."""
    return None if result["settings"]["method"].get("name") in REFERENCES else result["bytes"] / 1e6


def _sent(result: Result, key: str, target: float | None) -> float | None:
    """Return the bytes per round; the mean if cohorts vary."""
    return result["up"] / max(1, result["participants"]) / 1e3


def _beyond(way: str) -> Value:
    return lambda r, key, target: r[way] / max(1, r["participants"]) - 4 * r["parameters"]


# name: words, unit ("" for the number's own), function
HOW: dict[str, tuple[str, str, Value]] = {
    "final": ("{}, last round", "", lambda r, key, target: r["final"].get(key)),
    "best": ("{}, best round on the test set (as the paper does)", "", _best),
    "last5": ("{}, mean of the last 5 rounds", "", lambda r, key, target: r["last5"].get(key, [None])[0]),
    "last10": ("{}, mean of the last 10 rounds", "", lambda r, key, target: r["last10"].get(key, [None])[0]),
    "at": ("round {}", "", _at),
    "rounds-to": ("rounds until the target", "rounds", _first),
    "time-to": ("virtual seconds until the target", TIME, _time),
    "seconds": ("seconds a round (median)", "s", lambda r, key, target: r["seconds_median"]),
    "traffic": ("megabytes of all rounds, both ways", "MB", _traffic),
    "sent": ("kilobytes that a client sends a round", "kB", _sent),
    "delta-down": ("bytes a client receives beyond the model", "bytes", _beyond("down")),
    "delta-up": ("bytes a client sends beyond the model", "bytes", _beyond("up")),
}

TO_TARGET = ("rounds-to", "time-to")


def measure(text: str) -> Measure:
    how, _, key = text.partition(" ")
    return Measure(how, key)


def measured(paper: Paper) -> set[str]:
    """Return the numbers that a paper's tables are about, or the one that is drawn if they are about none."""
    tables = (*paper.tables.values(), *paper.quick)
    keys = {measure(text).key.rpartition(" ")[2] for table in tables for text in table.measures}
    return (keys | {"test_accuracy"}) - {""}


@dc.dataclass(frozen=True)
class Cell:
    """A method in a row: the paper's number and ours, one value per seed."""

    row: Row
    method: str
    measure: Measure
    paper: Printed | None
    values: dict[int, float]
    # seeds of runs without a number: diverged, or short of the target
    missed: list[int]
    done: int
    diverged: tuple[int, ...] = ()  # the rounds in which diverged runs did so
    rounds: int = 0  # of the shortest of our runs
    figure: bool = False  # the paper draws it and prints no number

    @property
    def mean(self) -> float | None:
        return stats.mean([*self.values.values()]) if self.values else None

    @property
    def deviation(self) -> float | None:
        return stats.deviation([*self.values.values()])

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper.value

    @property
    def verdict(self) -> str:
        return judge.verdict(self)


def cells(
    paper: Paper, table: Table, rows: Sequence[Row], seeds: Sequence[int], results: Results, finder: Any
) -> list[Cell]:
    """Return the cells of every row, method and measure; finder(row, method, seed) returns the job, or None if it is
    not known yet."""
    out = []
    for row in rows:
        for method in table.methods:
            jobs = {seed: finder(row, method, seed) for seed in seeds}
            found = {s: result for s, job in jobs.items() if job and (result := results.of(job, table.timed))}
            rounds = min((result.get("rounds", 0) for result in found.values()), default=0)
            diverged = tuple(result["diverged"] for result in found.values() if result.get("diverged"))
            for k, text in enumerate(table.measures):
                one = measure(text)
                targets = _targets(row, one.key, found, finder, results)
                numbers = {seed: one.of(result, targets[seed]) for seed, result in found.items()}
                values = {seed: value for seed, value in numbers.items() if value is not None}
                missed = [seed for seed, value in numbers.items() if value is None]
                facts = values, missed, len(found), diverged, rounds, table.figure
                out.append(Cell(row, method, one, row.paper(method, k), *facts))
    return out


def _targets(row: Row, key: str, seeds: Iterable[int], finder: Any, results: Results) -> dict[int, float | None]:
    """Return the row's target in each seed: a number, or a method's value in its last round."""
    if not isinstance(row.target, str):
        return {seed: row.target for seed in seeds}
    jobs = {seed: finder(row, row.target, seed) for seed in seeds}
    found = {seed: results.of(job) if job else None for seed, job in jobs.items()}
    return {
        s: result["final"].get(key) if result and not result.get("diverged") else None for s, result in found.items()
    }


# ---------------------------------------------------------------- claims


@dc.dataclass(frozen=True)
class Claim:
    """A claim of a paper, and in how many seeds it held."""

    text: str
    margins: dict[int, float]
    held: int
    unit: str = "%"
    # one of many claims of its kind, one per row
    row: bool = False
    # the methods that represented several, one per seed
    names: str = ""
    # in how many seeds it must hold; None: in all
    needed: int | None = None
    # seeds without a number, in which it does not hold
    missed: int = 0

    @property
    def holds(self) -> bool:
        return bool(self.margins) and self.held >= (self.needed or self.seeds)

    @property
    def finite(self) -> dict[int, float]:
        """Return the margins of seeds in which both have a number."""
        return {seed: margin for seed, margin in self.margins.items() if margin < math.inf}

    @property
    def seeds(self) -> int:
        return len(self.margins) + self.missed

    @property
    def words(self) -> str:
        if not self.seeds:
            return f"not decided: {self.text} (no seed has both numbers)"
        word = "holds" if self.holds else "does not hold" if not self.held else "is not clear"
        margins = ", ".join(self._margin(margin) for margin in self.finite.values())
        unit = "points" if self.unit == "%" else self.unit
        names = f": {self.names}" if self.names else ""
        numbers = f"; {margins} {unit}{names}" if margins else ""
        return f"{word}: {self.text} ({self.held} of {self.seeds} seeds{numbers})"

    def _margin(self, margin: float) -> str:
        return number(margin, TIME, sign=True) if self.unit == TIME else f"{margin:+.2f}"


def claims(table: Table, found: Sequence[Cell]) -> list[Claim]:
    """Return the table's claims, each about its first row, or about each of `rows`, which are patterns:

    {higher, lower, by}            a method is ahead of another by more than so many points in every seed; a pair
                                   ["a", "b"] in the place of a method is by how much a is ahead of b. Of what is
                                   counted until a target, one that never reaches it has the higher number
    {best, chosen_by, lower, by}   so is, of several methods, the one that another measure chooses in that seed
    {none, lower, by}              none of several methods is ahead of another by more than so many points
    {near, within}                 two methods are no further apart
    {of, least, seeds}             a method's number is at least this (`most`: at most) in so many of the table's seeds
                                   (of more, in as large a share), or in all; it is not in one that gave no number
    """
    out = []
    for claim in table.claims:
        patterns = claim.get("rows")
        rows = [row for row in table.rows if any(fnmatch.fnmatch(row.id, p) for p in patterns or ())]
        out += [_claim(claim, table, row, found) for row in rows or table.rows[:1]]
    return out


def _claim(claim: dict[str, Any], table: Table, row: Row, found: Sequence[Cell]) -> Claim:
    cells = [cell for cell in found if cell.row.id == row.id]
    one = measure(claim.get("measure", table.measures[0]))
    if "of" in claim:
        own = [cell for cell in cells if cell.measure == one and cell.method == claim["of"]]
        return _bounded(claim, table, row, own, one.unit)
    first, second = claim["near"] if "near" in claim else (claim.get("higher"), claim["lower"])
    values = _values(cells, one)
    base, ahead = _numbers(values, second), _numbers(values, first)
    leaders = _leaders(claim, cells, one) if first is None else {}
    ahead |= {seed: values[method][seed] for seed, method in leaders.items() if seed in values.get(method, {})}
    slower, never = _unreached(cells, one, claim.get("higher"), second)
    ahead |= dict.fromkeys(slower & base.keys(), math.inf)
    margins = {seed: ahead[seed] - base[seed] for seed in sorted(ahead.keys() & base.keys())}
    limit = claim["within"] if "near" in claim else claim.get("by", 0.0)
    if "near" in claim or "none" in claim:
        held = sum((abs(m) if "near" in claim else m) <= limit for m in margins.values())
    else:
        held = sum(m > limit for m in margins.values())
    text = f"{row.label}: {claim['text']}" if claim.get("rows") else claim["text"]
    names = ", ".join(leaders[seed] for seed in margins) if first is None else ""
    return Claim(text, margins, held, one.unit, bool(claim.get("rows")), names, missed=len(never))


def _unreached(cells: Sequence[Cell], one: Measure, higher: Any, lower: Any) -> tuple[set[int], set[int]]:
    """Return, of a number that is counted up to a target, the seeds in which `higher` never reaches it, and those in
    which `lower`, said to be sooner, does not."""
    of = {cell.method: cell for cell in cells if cell.measure == one}
    if one.how not in TO_TARGET or not all(isinstance(who, str) and who in of for who in (higher, lower)):
        return set(), set()
    return {*of[higher].missed}, {*of[lower].missed} & {*of[higher].values, *of[higher].missed}


def _bounded(claim: dict[str, Any], table: Table, row: Row, own: Sequence[Cell], unit: str) -> Claim:
    """Return a claim about the size of a method's number."""
    sign, bound = (1, claim["least"]) if "least" in claim else (-1, claim["most"])
    known = sorted((seed, value) for cell in own for seed, value in cell.values.items())
    margins = {seed: sign * (value - bound) + 0.0 for seed, value in known}  # + 0.0 turns -0 into 0
    missed = sum(len(cell.missed) for cell in own)
    text = f"{row.label}: {claim['text']}" if claim.get("rows") else claim["text"]
    held = sum(margin >= 0 for margin in margins.values())
    needed, run = claim.get("seeds"), len(margins) + missed
    if needed is not None and run > table.seeds:
        needed = math.ceil(needed * run / table.seeds)
    return Claim(text, margins, held, unit, bool(claim.get("rows")), needed=needed, missed=missed)


def _values(cells: Sequence[Cell], one: Measure) -> dict[str, dict[int, float]]:
    return {cell.method: cell.values for cell in cells if cell.measure == one}


def _numbers(values: dict[str, dict[int, float]], who: str | list[str] | None) -> dict[int, float]:
    """Return a method's numbers by seed; for a pair, how far the first is ahead of the second."""
    if not isinstance(who, list):
        return dict(values.get(who or "", {}))
    first, second = (values.get(method, {}) for method in who)
    return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}


def _leaders(claim: dict[str, Any], cells: Sequence[Cell], one: Measure) -> dict[int, str]:
    """Return which of the claim's methods represents all of them, by seed: for `none` the most accurate one; for `best`
    the first by `chosen_by`, so that the compared numbers themselves choose nothing. Seeds in which one of them has not
    run yet are left out; one that diverged is not chosen."""
    methods = claim.get("best") or claim["none"]
    judge = measure(claim["chosen_by"]) if "best" in claim else one
    of = {cell.method: cell for cell in cells if cell.measure == judge}
    if not all(method in of for method in methods):
        return {}
    seeds = set.intersection(*({*of[m].values, *of[m].missed} for m in methods))
    scores = {seed: {m: of[m].values[seed] for m in methods if seed in of[m].values} for seed in seeds}
    return {seed: max(known, key=lambda m: known[m]) for seed, known in scores.items() if known}


@dc.dataclass(frozen=True)
class Gain:
    """A method's mean gain over another, and p of the paired test over seeds after Holm's correction for all methods of
    the row; None with fewer than two seeds."""

    points: float
    p: float | None


def gains(found: Sequence[Cell], row: str, one: Measure, over: str) -> dict[str, Gain]:
    """Return the gains of a row's methods over one of them."""
    values = _values([cell for cell in found if cell.row.id == row], one)
    base, pairs = values.get(over, {}), {}
    for method, own in values.items():
        both = sorted(own.keys() & base.keys())
        if method != over and both:
            pairs[method] = [own[s] for s in both], [base[s] for s in both]
    tests = {method: test for method, pair in pairs.items() if (test := stats.paired(*pair))}
    corrected = dict(zip(tests, stats.holm([test.p for test in tests.values()]), strict=True))
    return {m: Gain(stats.mean(own) - stats.mean(other), corrected.get(m)) for m, (own, other) in pairs.items()}


def in_words(found: Sequence[Claim]) -> list[str]:
    """Return one line per claim; claims of rows that have not run yet are only counted."""
    shown = [claim for claim in found if claim.seeds or not claim.row]
    left = len(found) - len(shown)
    rest = f"Not decided yet: {left} claim{'s' if left > 1 else ''} about rows that lack a number."
    return [*(f"Claim {claim.words}" for claim in shown), *([rest] if left else [])]


# ---------------------------------------------------------------- time


def rate(result: Result) -> float:
    """Return the seconds of a round in which all clients take part, including evaluation: the median, since the first
    rounds of a short run mostly compile. Of a GPU that other queues used meanwhile, the run's share."""
    spent = result["seconds_median"] + result["seconds_evaluation"] / max(1, result["rounds"])
    sharing = 1 + (result.get("beside") or 0) if "CPU" not in result["device"] else 1
    return spent / sharing * result["population"] / max(1, result["participants"])


def estimate(tables: dict[str, Any], done: Iterable[Result]) -> tuple[float, str] | None:
    """Return the seconds that a run may take and the device for which this holds: from runs with the same data set,
    model and epochs, if possible also the same share of clients and the same method; scaled by rounds and by that
    share, however many clients have the data. Of several devices the fastest; None if nothing like it was run. Runs
    that had the device to themselves are preferred."""
    usable = [result for result in done if "device" in result]  # neither a choice nor a diverged run
    share = tables["run"].get("clients_per_round", 1.0)

    def alike(result: Result, names: Sequence[str], shared: bool) -> bool:
        there = result["settings"]
        same = all(there.get(t, {}).get("name") == tables[t].get("name") for t in names)
        same = same and (not shared or there["run"].get("clients_per_round", 1.0) == share)
        return same and there.get("local", {}).get("epochs") == tables["local"].get("epochs")

    for shared, names in itertools.product((True, False), (("data", "model", "method"), ("data", "model"))):
        rates: dict[str, list[float]] = {}
        like = [result for result in usable if alike(result, names, shared)]
        for result in [r for r in like if not r.get("beside")] or like:
            rates.setdefault(result["device"], []).append(rate(result))
        if rates:
            best, device = min((stats.mean(values), device) for device, values in rates.items())
            clients = config.population(tables["data"]) or like[0]["population"]
            cohort = sampling(config.make_sampling(share)).size(clients)
            return best * cohort / clients * tables["run"]["rounds"], device
    return None
