"""The results of a comparison: tables, the verdict, and the files comparison.json, .csv and .md."""

from __future__ import annotations

import dataclasses as dc
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unalike import config
from unalike.comparison import gains
from unalike.comparison.claims import Claim
from unalike.comparison.jobs import Arm, Job, Tuned, guess_of
from unalike.comparison.verdict import NO_VERDICT, Answer, Verdict, learned, verdict
from unalike.files import complaining, replace
from unalike.metrics.lines import FEW_SAMPLES
from unalike.metrics.names import NUMBERS, SHARES, Number, spoken
from unalike.results import evidence, stats
from unalike.results.evidence import CONSTANT, SCORES, Evidence, Outcome, Traits, figure, gap, known
from unalike.text import csv_text, decimal, listed, size, span

NOTHING = "–"
# titles of columns: results for clients, and scores at equal cost
OF_CLIENTS = GAIN_FEDAVG, GAIN_ALONE, NEW, START = "gain over fedavg", "gain over alone", "new clients", "as they come"
EQUAL = EQUAL_BYTES, EQUAL_STEPS = "at equal bytes", "at equal steps"
LEAVES, EPSILON = "leaves the client", "ε"
ANSWER_TITLES = "what you care about", "method", "how sure"
TEST_TITLES = "what", "method", "against", "difference", "standard error", "ahead", "p", "corrected"
# scores for which a constant guess has the lowest value, however common a class is
TELLING = ("auc", "balanced_accuracy")


@dc.dataclass
class Case:
    """One data setting: everything found on it. `judged` are the labels that the verdict is about: for each method the
    setting that validation data prefer. `by`: what methods are compared by: "clients", "test", or "" for whichever
    exists."""

    name: str
    found: list[Evidence]
    base: Evidence
    score: Number
    target: float | None
    judged: list[str]
    verdict: Verdict
    by: str = ""

    @property
    def lines(self) -> list[str]:
        """Return the answer in short, and notes."""
        return self.verdict.lines

    @property
    def answers(self) -> list[Answer]:
        return self.verdict.answers

    def claim(self, e: Evidence) -> Claim | None:
        """Return the test of a method against the baseline on the headline."""
        tests = self.verdict.claims.values()
        return next((c for c in tests if (c.method, c.other) == (e.label, self.base.label)), None)

    @property
    def personal(self) -> bool:
        """Return whether clients' own data are looked at: some method gives clients their own models, or the user asked
        for it."""
        return self.by == "clients" or any(e.traits.personal and not e.reference for e in self.found)

    @property
    def sound(self) -> bool:
        """Return whether every run finished and there is a verdict."""
        return not any(e.diverged for e in self.found) and not self.lines[0].startswith(NO_VERDICT)


def _basis(found: Sequence[Evidence], base: Evidence, score: Number) -> str:
    """Return what the numbers are and, if some clients have their own models, of which model."""
    chosen = any(e.validation for e in found)
    when = "in the round that validation data choose" if chosen else "after the last round (no validation data)"
    seeds = len(base.seeds)
    mean = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    whose, other = _whose(found, score)
    return f"Measured: {score.score}{whose}, {when}; {mean}.{other}"


def _whose(found: Sequence[Evidence], score: Number) -> tuple[str, str]:
    """Say which model is measured for which method, if that differs; and what the column of the other measure shows."""
    if not any(e.traits.personal and not e.reference for e in found):
        return "", ""
    own = [e.label for e in found if e.traits.personal]
    common = [e.label for e in found if not e.traits.personal and e.method != CONSTANT]
    if score.key.startswith("test_"):
        chosen = "; the round is chosen by them" if any(e.validation for e in found) else ""
        return "", f" Clients' own models ({listed(own)}) are in the column own data{chosen}."
    models = [f"each client's own model with {listed(own)}"]
    models += [f"the global model with {listed(common)}"] if common else []
    tested = any(e.test for e in found)
    return f" ({'; '.join(models)})", " Test set: the global model there, of methods that have one." if tested else ""


def _few(found: Sequence[Evidence], arm: Arm) -> list[str]:
    """Return a warning if scores come from few samples, or if the round was chosen on few."""
    samples, out = arm.validation, []
    if arm.tested is not None and arm.tested < FEW_SAMPLES:
        out.append(f"Few samples: scores are of {arm.tested} test samples in each seed.")
    if samples is None or samples >= FEW_SAMPLES or not any(e.validation for e in found):
        return out
    return [
        *out,
        f"Few samples: rounds were chosen by the loss on {samples} validation samples, partly by chance; see the last "
        "round too (comparison.md).",
    ]


def conclude(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    outcomes: dict[tuple[str, int], Outcome],
    target: float | None = None,
    tuned: bool = False,
    by: str = "",
    clients: Callable[[str, int, int, str], gains.ClientValues] = lambda *_: {},
) -> list[Case]:
    """Return every case's evidence and verdict. The outcomes include those of the constant guess, by case (`guess_of`).
    tuned: settings were already searched; by: what methods are compared by ("clients", "test", or "" for whichever
    exists); clients: returns the values of single clients, for an arm's name, a seed, a round and a metric.

    Methods are compared by the headline. If no method beats the constant guess by it, they may still have learned to
    tell classes apart, for example if one class is far more common than the others: then they are compared by the first
    of `TELLING` by which one does, at a level corrected for the number of looks.
    """
    out = []
    for name in dict.fromkeys(arm.case for arm in arms):
        mine = [arm for arm in arms if arm.case == name]
        made = {arm.label: [outcomes[arm.name, seed] for seed in seeds] for arm in mine}
        guesses = [outcomes[key] for seed in seeds if (key := (guess_of(name), seed)) in outcomes]
        if len(guesses) == len(seeds):
            made[CONSTANT] = guesses
        plain = [arm for arm in mine if not arm.reference] or mine
        shown = [o for arm in plain for o in made[arm.label]]
        measured = evidence.scores_of(shown, by) or evidence.scores_of(shown)
        scores = _telling(measured, len(seeds)) or [evidence.score_of(guesses) or SCORES[0]]
        every = [(score, _found(mine, made, score, evidence.others_of(shown, score, by))) for score in scores]
        looks, score, found = _looked(every)
        names = {arm.label: arm.name for arm in mine}
        values = functools.partial(_values, clients, names, score.metric)
        gains.by_network(found, values, mine[0].networks)
        case = _case(name, found, made, score, target, _advice(mine[0], tuned), looks, values, by)
        if measured:
            instead = f"no method has a better {scores[0].name} than the same answer for every sample."
            why = [f"Compared by {score.name}: {instead}"] if score is not scores[0] else []
            case.lines[1:1] = [_basis(found, case.base, score), *why, *_few(found, mine[0])]
        out.append(case)
    return out


def _found(
    arms: Sequence[Arm], made: dict[str, list[Outcome]], score: Number, others: Sequence[Number]
) -> list[Evidence]:
    """Return the evidence of every arm by this score, and of the constant guess."""
    out = []
    for arm in arms:
        kind = dc.replace(evidence.traits(config.make_method(arm.tables["method"])), personal=arm.personal)
        out.append(evidence.gather(arm.label, arm.method, made[arm.label], score, kind, arm.reference, others))
    if CONSTANT in made:
        out.append(evidence.gather(CONSTANT, CONSTANT, made[CONSTANT], score, Traits(), True, others))
    return out


def _values(
    clients: Callable[[str, int, int, str], gains.ClientValues],
    names: Mapping[str, str],
    metric: str,
    label: str,
    seed: int,
    round: int,
) -> gains.ClientValues:
    """Return the values of single clients for the arm with this label; empty for the constant guess."""
    return clients(names[label], seed, round, metric) if label in names else {}


def _telling(measured: Sequence[Number], seeds: int) -> list[Number]:
    """Return the headline, and other scores that may show that something was learned: one per metric in `TELLING`. With
    one or two seeds only the headline, since they show too little for a second look."""
    if seeds < 3:
        return [*measured[:1]]
    first = {score.metric: score for score in reversed(measured)}
    others = [first[name] for name in TELLING if name in first and name != measured[0].metric] if measured else []
    return [*measured[:1], *others]


def _looked(every: Sequence[tuple[Number, list[Evidence]]]) -> tuple[int, Number, list[Evidence]]:
    """Return how many scores were looked at, and the first by which some method beats the constant guess, with its
    evidence; the headline if none does."""
    for looks, (score, found) in enumerate(every, 1):
        guess = next((e for e in found if e.method == CONSTANT), None)
        methods = [e for e in found if e.complete and not e.reference]
        if guess is None or not guess.complete or learned(methods, guess, score, looks):
            return looks, score, found
    return len(every), *every[0]


def _advice(arm: Arm, tuned: bool) -> str:
    """Return what to try if no method has learned anything, the likeliest cause first."""
    data, rounds = arm.tables["data"], arm.tables["run"].get("rounds", 0)
    parts = ["--scale standard, which puts features into comparable units"] if arm.unscaled else []
    parts += [] if tuned else ["--tune 8, which looks for a learning rate"]
    parts += [
        f"--rounds {2 * rounds}",
        "--model mlp" if arm.tables["model"].get("name") == "linear" else "--model linear",
    ]
    look = "look at the columns with `unalike data describe`: perhaps none of them tells the label"
    return "; ".join([*parts, look] if "table" in data else parts)


def _case(
    name: str,
    found: list[Evidence],
    made: dict[str, list[Outcome]],
    score: Number,
    target: float | None,
    advice: str,
    looks: int,
    values: gains.Values,
    by: str,
) -> Case:
    judged, note = _judged(found, score)
    first = [e for e in judged if not e.reference] or judged
    ranked = [e for e in first if e.complete] or first  # a method that diverged is no baseline
    base = next((e for e in ranked if e.method == "fedavg"), ranked[0])
    target = target if target is not None else evidence.target_of(base, score)
    for each in found:
        evidence.aim(each, made[each.label], score, target)
    evidence.equalize(found, made, score)
    evidence.find_twins(judged, made)
    gains.count(found, judged, values, score.larger)
    said = verdict(judged, base, score, target, found, advice, looks)
    said.lines[1:1] = note
    return Case(name, found, base, score, target, [e.label for e in judged], said, by)


def _judged(found: Sequence[Evidence], score: Number) -> tuple[list[Evidence], list[str]]:
    """Return for each method, and each channel, the setting with the best validation score (without validation data,
    the best score), and notes. Channels are compared, not chosen: one that trades accuracy for bytes would never be."""
    out, blind = [], False
    for kind in dict.fromkeys(map(_kind, found)):
        mine = [e for e in found if _kind(e) == kind]
        rated = [e for e in mine if e.complete or (e.reference and not e.diverged)] or mine[:1]
        by_validation = all(len(e.validation) == len(e.seeds) for e in rated)
        blind = blind or (len(mine) > 1 and not by_validation)
        sign = 1 if score.larger else -1
        value: Callable[[Evidence], list[float]] = lambda e, v=by_validation: e.validation if v else e.selected or e.own  # type: ignore  # noqa: E731
        out.append(max(rated, key=lambda e: sign * stats.mean(value(e) or [0.0])))
    if len(out) == len(found):
        return out, []
    labels = listed([e.label for e in out if not e.reference])
    how = "the test score, there being no validation data: read its numbers as too good" if blind else "validation data"
    return out, [f"Settings: of each method the one is judged that does best on {how}: {labels}."]


def _kind(evidence: Evidence) -> tuple[str, str]:
    """Return the method, and the channel if there are several."""
    return evidence.method, next((word for word in evidence.label.split() if word.startswith("channel=")), "")


# ---------------------------------------------------------------- tables


Column = Callable[[Evidence], str]


def columns(case: Case) -> dict[str, Column]:
    """Return every column of the table, by its title."""
    return {"method": lambda e: e.label, **_scores(case), **_clients(case), **_costs(case)}


def _scores(case: Case) -> dict[str, Column]:
    """Return the columns of scores: the one that methods are compared by, and the other of the two measures, the mean
    over clients' own data and the global model on the test set."""
    base, score = case.base, case.score
    own, test_set = (NUMBERS[key].short for key in ("clients_accuracy_mean", "test_accuracy"))
    by_clients = case.personal and not score.key.startswith("test_")
    title = own if by_clients else score.name
    out: dict[str, Column] = {"model": _model} if case.personal else {}
    out[title] = lambda e: _diverged(e) or _figure(e.selected, score.unit)
    if any(e.validation for e in case.found):
        out["last round"] = lambda e: _figure(e.final, score.unit)
    if any(case.claim(e) for e in case.found):
        out[f"to {base.label}"] = functools.partial(_difference, case=case)
        out["ahead in"] = functools.partial(_ahead_in, case=case)
        out["sure"] = functools.partial(_sure, case=case)
    for name in base.others:
        out[name] = functools.partial(_other, name=name)
    if not by_clients and not score.key.startswith("clients_"):
        out[own] = lambda e: _figure(e.own, score.unit, False)
    elif any(e.test for e in case.found):
        out[test_set] = lambda e: _figure(e.test, score.unit, False)
    return out


def _model(e: Evidence) -> str:
    """Return which model is measured."""
    return NOTHING if e.method == CONSTANT else "own" if e.traits.personal else "shared"


def _difference(e: Evidence, case: Case) -> str:
    claim = case.claim(e)
    if claim is None:
        return "identical" if e.twin == case.base.label else ""
    sign = "+" if claim.test.difference >= 0 else "-"
    return sign + gap(case.score.unit, claim.test.difference, case.base.selected).removesuffix(" points")


def _ahead_in(e: Evidence, case: Case) -> str:
    claim = case.claim(e)
    return "" if claim is None else f"{claim.ahead}/{claim.test.seeds}"


def _sure(e: Evidence, case: Case) -> str:
    claim = case.claim(e)
    return "" if claim is None else ("better" if claim.better else "worse") if claim.sure else "no"


def _clients(case: Case) -> dict[str, Column]:
    """Return the columns about clients: their spread, how many gain, and how later clients fare."""
    unit = case.score.unit
    worst, variance = (NUMBERS[f"clients_accuracy_{name}"].short for name in ("worst20", "variance_pp2"))
    out: dict[str, Column] = {worst: lambda e: _figure(e.worst, unit, False)}
    if any(e.variance for e in case.found):
        out[variance] = lambda e: f"{stats.mean(e.variance):.0f}" if e.variance else NOTHING
    for title, name in network_titles(case).items():
        out[title] = functools.partial(_of_network, name=name, unit=unit)
    if case.personal and any(known(e.gain_fedavg) for e in case.found):
        out[GAIN_FEDAVG] = lambda e: _percent(e.gain_fedavg)
    if case.personal and any(known(e.gain_alone) for e in case.found):
        out[GAIN_ALONE] = lambda e: _percent(e.gain_alone)
    if any(e.new for e in case.found):
        out[NEW] = lambda e: _figure(e.new, unit, False)
        out[START] = lambda e: _figure(e.new_start, unit, False)
    return out


def network_titles(case: Case) -> dict[str, str]:
    """Return the columns of clients' own data by network, if clients have different ones: title -> network."""
    return {f"own data, {name}": name for name, values in case.base.networks.items() if known(values)}


def _of_network(e: Evidence, name: str, unit: str) -> str:
    return _figure(known(e.networks.get(name, [])), unit)


def _costs(case: Case) -> dict[str, Column]:
    """Return the columns about costs: rounds, bytes and time, scores at equal cost, and what a method requires."""
    unit = case.score.unit
    to = "no target" if case.target is None else figure(unit, [case.target])

    def reach(e: Evidence, values: Sequence[float | None], show: Callable[[float], str]) -> str:
        there = known(values)
        if e.reference or not there:
            return NOTHING
        return show(stats.mean(there)) + (f" ({len(there)}/{len(values)})" if len(there) < len(values) else "")

    out: dict[str, Column] = {
        f"rounds to {to}": lambda e: reach(e, e.rounds_to, decimal),
        "and bytes": lambda e: reach(e, e.bytes_to, size),
        "all bytes": lambda e: NOTHING if e.reference else size(stats.mean(e.bytes)),
    }
    if any(known(e.time_to) for e in case.found):
        out["and virtual time"] = lambda e: reach(e, e.time_to, span)
    if any(e.equal_bytes for e in case.found):
        out[EQUAL_BYTES] = lambda e: _figure(known(e.equal_bytes), unit)
    if any(e.equal_steps for e in case.found):
        out[EQUAL_STEPS] = lambda e: _figure(known(e.equal_steps), unit)
    out["time"] = lambda e: span(stats.mean(e.seconds))
    if any(e.epsilon for e in case.found):
        out[EPSILON] = lambda e: NOTHING if e.reference else f"{max(e.epsilon):.3g}" if e.epsilon else "none"
    return out | {
        "clients keep": lambda e: NOTHING if e.reference else ", ".join(e.traits.state) or "nothing",
        LEAVES: lambda e: NOTHING if e.reference else e.traits.leaves or e.traits.words,
    }


def _percent(shares: Sequence[float | None]) -> str:
    there = known(shares)
    return f"{100 * stats.mean(there):.0f} %" if there else NOTHING


def _figure(values: Sequence[float], unit: str, spread: bool = True) -> str:
    """Return mean and spread for a table: 83.8 % ±1.2."""
    return figure(unit, values, spread).replace(" ± ", " ±") if values else NOTHING


def _other(e: Evidence, name: str) -> str:
    return _figure(e.others.get(name, []), "percent" if name in map(spoken, SHARES) else "plain")


def _diverged(e: Evidence) -> str:
    if not e.diverged:
        return ""
    return "diverged" if len(e.diverged) == len(e.seeds) else f"diverged {len(e.diverged)}/{len(e.seeds)}"


def rows(case: Case, titles: Sequence[str] | None = None) -> list[dict[str, str]]:
    """Return the table's rows: methods first, then the reference lines."""
    chosen = {title: show for title, show in columns(case).items() if titles is None or title in titles}
    ordered = sorted(case.found, key=lambda e: e.reference)
    return [{title: show(e) for title, show in chosen.items()} for e in ordered]


# ---------------------------------------------------------------- files


def write(folder: Path, cases: Sequence[Case], jobs: Sequence[Job], facts: dict[str, Any]) -> dict[str, Any]:
    """Write comparison.json, .csv and .md; return the content of the first."""
    lines = [line for case in cases for line in ([f"{case.name}:"] if case.name else []) + case.lines]
    lines += facts.get("notes", [])
    table = [({"data": case.name} if case.name else {}) | row for case in cases for row in rows(case)]
    content = {
        "verdict": lines,
        "answers": [{"data": case.name} | dc.asdict(answer) for case in cases for answer in case.answers],
        "statistics": [{"data": case.name} | row for case in cases for row in case.verdict.statistics()],
        "statistics_method": METHOD_OF_TESTS,
        "table": table,
        **facts,
        "cases": [_plain(case) for case in cases],
        "runs": [job.folder.name for job in jobs],
    }
    with complaining(f"The comparison cannot be written to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / "comparison.json", (json.dumps(content, indent=1) + "\n").encode())
        replace(folder / "comparison.csv", _csv(cases, jobs).encode())
        replace(folder / "comparison.md", _markdown(cases, facts).encode())
    return content


def _plain(case: Case) -> dict[str, Any]:
    return {
        "case": case.name,
        "score": {"key": case.score.key, "words": case.score.score, "larger": case.score.larger},
        "baseline": case.base.label,
        "target": case.target,
        "judged": case.judged,
        "decided": case.verdict.decided,
        "methods": [dc.asdict(e) for e in case.found],
    }


def _csv(cases: Sequence[Case], jobs: Sequence[Job]) -> str:
    """Return a CSV with one row per run, for other programs."""
    numbers = (
        "final",
        "selected",
        "selected_round",
        "validation",
        "own",
        "worst",
        "variance",
        "test",
        "new",
        "new_start",
    )
    each = ("gain_fedavg", "lose_fedavg", "gain_alone", "lose_alone", "equal_bytes", "equal_steps")
    timed = ["time_to"] if any(known(e.time_to) for case in cases for e in case.found) else []
    whole = ("rounds_to", "bytes_to", *timed, "bytes", "seconds")
    others = [*dict.fromkeys(name for case in cases for e in case.found for name in e.others)]
    networks = [*dict.fromkeys(name for case in cases for e in case.found for name in e.networks)]
    own = [f"own_{name}" for name in networks]
    titles = ["data", "method", "label", "seed", "diverged_in_round", *numbers, *others, *own, *each, *whole, "folder"]
    out: list[list[Any]] = [titles]
    found = {(case.name, e.label): e for case in cases for e in case.found}
    for job in jobs:
        e = found[job.arm.case, job.arm.label]
        k = e.seeds.index(job.seed)
        through = [seed for seed in e.seeds if seed not in e.diverged]  # the seeds behind `numbers`
        values: list[Any] = []
        for got in (*(getattr(e, name) for name in numbers), *(e.others.get(name, []) for name in others)):
            there = job.seed in through and len(got) == len(through)
            values.append(got[through.index(job.seed)] if there else "")
        for got in (*(e.networks.get(name) for name in networks), *(getattr(e, name) for name in each)):
            values.append("" if not got or got[k] is None else got[k])
        # a reference line sends nothing in reality
        none = ("rounds_to", "bytes_to", "bytes") if e.reference else ()
        values += ["" if name in none or (v := getattr(e, name)[k]) is None else v for name in whole]
        head = [job.arm.case, e.method, e.label, job.seed, e.diverged.get(job.seed, "")]
        out.append([*head, *values, job.folder.name])
    return csv_text(out)


def _markdown(cases: Sequence[Case], facts: dict[str, Any]) -> str:
    out = [f"# {facts['title']}", "", f"    {facts['command']}", "", f"{facts['settings']}", ""]
    out += [f"- {note}" for note in facts.get("notes", [])]
    for case in cases:
        out += ["", f"## {case.name}"] if case.name else []
        short, *rest = case.lines
        out += ["", f"**{short}**", "", *_grid(ANSWER_TITLES, [dc.astuple(answer) for answer in case.answers])]
        table = rows(case)
        out += ["", *_grid(list(table[0]), [[*row.values()] for row in table]), ""]
        out += [f"- **{wish}**:{rest}" for wish, _, rest in (line.partition(":") for line in rest)]
        out += _folded(case)
    return "\n".join(out) + "\n"


def _grid(titles: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown; empty if it has no rows."""
    if not table:
        return []
    body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
    return [f"| {' | '.join(titles)} |", f"|{'|'.join('---' for _ in titles)}|", *body]


def _folded(case: Case) -> list[str]:
    """Return the tests behind the verdict, in a fold."""
    if not case.verdict.claims:
        return []
    head = ["", "<details><summary>The statistics behind it</summary>", "", METHOD_OF_TESTS, ""]
    return [*head, *_grid(TEST_TITLES, statistics_rows(case)), "", "</details>"]


METHOD_OF_TESTS = (
    "Every method is tested against the baseline, and against training alone and all data in one place: a sequential "
    "test on paired differences of seeds, by bets on their signs (docs/compare.md). p keeps its level at whichever "
    "seed one stops, and is corrected for all rows together (Holm; the first measure has 0.7 of the level). Sure is "
    "what has a corrected p of at most 0.05."
)


def statistics_rows(case: Case) -> list[list[str]]:
    """Return the tests as a table for people."""
    out = []
    for claim in case.verdict.claims.values():
        t = claim.test
        scale = 100 if claim.unit == "percent" else 1
        error = NOTHING if t.error is None else f"{scale * t.error:.3g}"
        ahead = f"{claim.ahead}/{t.seeds}"
        shown = [f"{scale * t.difference:+.3g}", error, ahead, p_word(t.p), p_word(claim.corrected)]
        out.append([claim.wish, claim.method, claim.other, *shown])
    return out


def p_word(p: float) -> str:
    """Return p for a table."""
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def tuning_notes(arms: Sequence[Arm], found: dict[str, Tuned], rounds: int, seed: int) -> list[str]:
    """Return one line about what tuning chose."""
    if not found:
        return []
    parts = []
    for arm in arms:
        mine = found[arm.name]
        change = mine.trials[mine.chosen]
        words = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for t in change.values() for k, v in t.items()]
        parts.append(f"{arm.label} {', '.join(words) or 'as it was'}")
    count = max(len(t.trials) for t in found.values())
    return [f"Tuned on validation data, {count} trials each of {rounds} rounds, seed {seed}: {'; '.join(parts)}."]


__all__ = ["Case", "conclude", "rows", "tuning_notes", "write"]
