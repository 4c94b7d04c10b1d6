"""Which method suits which wish, in plain words: a pure function of the evidence.

The verdict is one table: what you care about, the method, how sure. A method is called surely better only if claims.py
says so, which corrects for everything that is tested. Everything else is named with the reason for doubt.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Sequence
from typing import Any

from unalike.comparison import notes
from unalike.comparison.claims import Claim, Claims, Measure, cost, level_of_headline, make, singly
from unalike.metrics.names import Number
from unalike.results import stats
from unalike.results.evidence import Evidence, figure, gap, known
from unalike.text import decimal, listed, size, span

NO_VERDICT = "In short: no verdict"  # first words of a comparison without a verdict
# first word of the third column if something is claimed
SURE = "sure"
MORE_SEEDS = "--budget adds seeds until it is decided"


@dc.dataclass(frozen=True)
class Answer:
    """A row of the verdict: what one may care about, the method, and how sure that is, in words."""

    wish: str
    method: str
    sure: str


@dc.dataclass
class Verdict:
    """The answer in short and notes ("Title: sentence"), the table, and the tests behind it; decided: more seeds would
    not change the answer."""

    lines: list[str]
    answers: list[Answer] = dc.field(default_factory=list)
    claims: Claims = dc.field(default_factory=dict)
    decided: bool = True

    def statistics(self) -> list[dict[str, Any]]:
        """Return the tests behind the verdict as rows of a table."""
        return [_statistics(claim) for claim in self.claims.values()]


def verdict(
    found: Sequence[Evidence],
    base: Evidence,
    score: Number,
    target: float | None,
    tried: Sequence[Evidence] = (),
    advice: str = "",
    looks: int = 1,
) -> Verdict:
    """Judge the methods against the baseline and the reference lines.

    tried: all settings that were run, if they are more than the judged ones; advice: what to try if no method has
    learned anything; looks: the number of scores by which that was asked.
    """
    methods = [e for e in found if not e.reference and e.complete]
    references = {e.method: e for e in found if e.reference}
    diverged = notes.diverged(tried or found)
    if not methods:
        return Verdict([f"{NO_VERDICT}; no method got through in every seed.", *diverged])
    guess = references.get("constant")
    able = methods if guess is None or not guess.complete else learned(methods, guess, score, looks)
    if not able:
        assert guess is not None
        return Verdict([f"{NO_VERDICT}; no method has learned anything here.",
                        *notes.nothing_learned(methods, guess, score, advice), *diverged])  # fmt: skip
    blind = base in methods and base not in able  # the baseline has learned nothing
    measures = _measures(methods, base, references, score, target)
    claims = make(measures)
    judge = _Judge(methods, base, score, claims, measures, blind)
    short = judge.short() if len(methods) > 1 else notes.only(methods[0], found, guess, score)
    lines = [short + _ahead(judge, references.get("local-only"), score)]
    lines += [*notes.identical(methods), *judge.how_sure(), *diverged]
    lines += notes.learned_nothing([m for m in methods if m not in able], guess, score)
    lines += judge.worse() + notes.equal_cost(methods, score) + notes.reads(methods)
    lines += notes.newcomers(methods, references.get("local-only"), score)
    lines += notes.gains(methods, score) + notes.missed_target(methods, score, target)
    answers = [answer for measure in measures if (answer := judge.answer(measure))]
    return Verdict(lines, [*answers, *judge.simplest()], claims, len(methods) == 1 or judge.decided())


def _measures(
    methods: Sequence[Evidence], base: Evidence, references: dict[str, Evidence], score: Number, target: float | None
) -> list[Measure]:
    """Return everything that is tested: first the score that methods are compared by, then all else that someone may
    care about."""
    larger, unit = score.larger, score.unit
    word = "highest" if larger else "lowest"
    show = lambda e: figure(unit, e.selected, False)  # noqa: E731
    out = []
    if len(methods) > 1:
        out += [Measure(f"the {word} {score.name}", _selected, larger, show, methods, base, unit)]
        if all(len(m.worst) == len(m.seeds) for m in methods):
            wish = f"the worst-served clients ({'lowest' if larger else 'highest'} 20 %)"
            out += [
                Measure(wish, lambda e: e.worst, larger, lambda e: figure(unit, e.worst, False), methods, base, unit)
            ]
        out += _of_newcomers(methods, base, score) + _of_target(methods, base, score, target)
    return out + _of_references(methods, references, score)


def _of_newcomers(methods: Sequence[Evidence], base: Evidence, score: Number) -> list[Measure]:
    """Return the measure for clients that took no part in training, if they were evaluated; a method may have no model
    for them."""
    rated = [m for m in methods if len(m.new) == len(m.seeds)]
    other = base if base in rated and len(rated) > 1 else None
    show = lambda e: figure(score.unit, e.new, False)  # noqa: E731
    wish = "clients that come later"
    return [Measure(wish, lambda e: e.new, score.larger, show, rated, other, score.unit)] if rated else []


def _of_target(methods: Sequence[Evidence], base: Evidence, score: Number, target: float | None) -> list[Measure]:
    """Return the measures of fewest rounds, fewest bytes and least virtual time to the target; a method that missed it
    in some seed cannot win."""
    reached = [m for m in methods if m.reached == len(m.seeds)]
    if target is None or not reached:
        return []
    other = base if base in reached and len(reached) > 1 else None
    to = f"to {score.name} {figure(score.unit, [target])}"

    def rounds(e: Evidence) -> list[float]:
        return [float(v) for v in known(e.rounds_to)]

    def sent(e: Evidence) -> list[float]:
        return [float(v) for v in known(e.bytes_to)]

    return [
        Measure(f"fewest rounds {to}", rounds, False, lambda e: decimal(stats.mean(rounds(e))), reached, other),
        Measure(f"fewest bytes {to}", sent, False, lambda e: size(stats.mean(sent(e))), reached, other, "bytes"),
        *_of_time(reached, base, to),
    ]


def _of_time(reached: Sequence[Evidence], base: Evidence, to: str) -> list[Measure]:
    """Least virtual time to the target, of runs with a clock."""
    timed = [m for m in reached if known(m.time_to)]
    other = base if base in timed and len(timed) > 1 else None
    time = lambda e: [float(v) for v in known(e.time_to)]  # noqa: E731
    show = lambda e: span(stats.mean(time(e)))  # noqa: E731
    return [Measure(f"least virtual time {to}", time, False, show, timed, other, "seconds")] if timed else []


def _selected(e: Evidence) -> list[float]:
    return e.selected


POOLED, ALONE = "all data in one place", "federating at all"


def _of_references(methods: Sequence[Evidence], references: dict[str, Evidence], score: Number) -> list[Measure]:
    """Return the measures of where methods stand between no cooperation and all data in one place."""
    out, unit = [], score.unit
    pooled, alone = references.get("centralized"), references.get("local-only")
    if pooled is not None and pooled.complete:
        show = lambda e: figure(unit, e.selected, False)  # noqa: E731
        out += [Measure(POOLED, _selected, score.larger, show, methods, pooled, unit)]
    known_own = alone is not None and not alone.diverged and len(alone.own) == len(methods[0].seeds)
    if known_own and all(len(m.own) == len(m.seeds) for m in methods):
        out += [
            Measure(ALONE, lambda e: e.own, score.larger, lambda e: figure(unit, e.own, False), methods, alone, unit)
        ]
    return out


@dc.dataclass
class _Judge:
    """The methods, their tests, and the words for both; blind: the baseline is not shown to have learned."""

    methods: Sequence[Evidence]
    base: Evidence
    score: Number
    claims: Claims
    measures: Sequence[Measure]
    blind: bool

    @property
    def headline(self) -> Measure:
        return self.measures[0]

    @property
    def seeds(self) -> int:
        return len(self.base.seeds)

    @property
    def least(self) -> int:
        """Return the fewest seeds after which a method can be surely better."""
        return stats.least_seeds(level_of_headline(self.claims, self.headline.wish))

    def claim(self, measure: Measure, method: Evidence) -> Claim | None:
        return self.claims.get((measure.wish, method.label))

    def better(self, measure: Measure) -> list[Evidence]:
        """Return the methods that are surely better than the one they are tested against."""
        return [m for m in measure.methods if (c := self.claim(measure, m)) and c.sure and c.better]

    # ---- the table

    def answer(self, measure: Measure) -> Answer | None:
        if measure.wish in (POOLED, ALONE):
            return self._reference(measure)
        better, other = self.better(measure), measure.other
        best = measure.best()
        chosen = measure.best(better) if better else best
        if other is None or chosen is other or best.twin == other.label:
            shown = other if other is not None else best
            return Answer(measure.wish, f"{shown.label}, {measure.show(shown)}", self._unbeaten(measure))
        words = f"{chosen.label}, {measure.show(chosen)} ({other.label} {measure.show(other)})"
        sure = self._how(measure, chosen)
        if better and chosen is not best:
            sure += f"; {best.label} has {measure.show(best)}, not surely better than {other.label}"
        return Answer(measure.wish, words, sure + self._level(measure, chosen, better))

    def _unbeaten(self, measure: Measure) -> str:
        if measure.other is None:
            lacking = self.base not in measure.methods
            return f"not tested: {self.base.label} has none in some seed" if lacking else "the only one that has it"
        found = [self.claim(measure, m) for m in measure.methods if m is not measure.other and not m.twin]
        if found and all(c is not None and c.sure and not c.better for c in found):
            return f"{SURE}: every other method is worse"
        return "no other is ahead"

    def _how(self, measure: Measure, method: Evidence) -> str:
        """Return in words how sure it is that this method is better than the one it is tested against."""
        claim = self.claim(measure, method)
        assert claim is not None and measure.other is not None
        if self.seeds == 1:
            return "cannot be told from one seed"
        ahead = f"ahead in {claim.ahead} of {self.seeds} seeds"
        if claim.sure and claim.better:
            return f"{SURE}: {ahead}"
        if measure.always_ahead(method, measure.other):
            return f"not decided: ahead in all {self.seeds} seeds; {self.luck(measure)}"
        return f"cannot be told: {ahead}"

    def luck(self, measure: Measure) -> str:
        others = len([m for m in measure.methods if m is not measure.other and not m.twin])
        chance = stats.luck(others, self.seeds)
        return f"luck alone does that in {_percent(chance)} of comparisons"

    def _level(self, measure: Measure, chosen: Evidence, better: Sequence[Evidence]) -> str:
        """Name other methods that are surely better too and not shown to be worse than the chosen one."""
        level = [m.label for m in better if m is not chosen and not _behind(measure, m, chosen)]
        return f"; {listed(level)} may be as good" if level else ""

    def _reference(self, measure: Measure) -> Answer:
        """Return the answer for the best method against training alone, or against all data in one place."""
        other = measure.other
        assert other is not None
        better = self.better(measure)
        best = measure.best(better) if better else measure.best()
        claim = self.claim(measure, best)
        assert claim is not None
        all_worse = all(c.sure and not c.better for m in measure.methods if (c := self.claim(measure, m)))
        numbers = f"{best.label} {measure.show(best)}, {other.label} {measure.show(other)}"
        if all_worse:
            sure = f"{SURE}: {other.label} is ahead of every method"
        elif claim.better:
            sure = self._how(measure, best)
        elif self.seeds == 1:
            sure = "cannot be told from one seed"
        else:
            sure = f"not decided: {other.label} is ahead in {self.seeds - claim.ahead} of {self.seeds} seeds"
        if measure.wish == POOLED:
            return Answer("all data in one place instead", numbers, sure)
        worth = "no" if all_worse else "yes" if claim.sure and claim.better else "not shown"
        return Answer("is it worth federating (own data)", f"{worth}: {numbers}", sure)

    def simplest(self) -> list[Answer]:
        """Return the baseline unless some method is surely better; then the simplest that keeps up with the best."""
        if len(self.methods) < 2 or (self.blind and self.clear() is None):
            return []
        clear = self.clear()
        if clear is None:
            return [Answer("the simplest that is not worse", self.base.label, "nothing is surely better than it")]
        best, simplest = clear
        why = [] if simplest.traits.state else ["keeps nothing on clients"]
        why += [] if singly(simplest) else ["reads sums only"]
        near = [] if simplest is best else [f"not shown to be worse than {best.label}"]
        words = "; ".join([*near, *([f"it {listed(why)}"] if why else [])])
        return [Answer("the simplest that is not worse", simplest.label, words or "the best by itself")]

    def clear(self) -> tuple[Evidence, Evidence] | None:
        """Return, among methods surely better than the baseline, the best one and the simplest that keeps up with
        it."""
        better = self.better(self.headline)
        if not better:
            return None
        best = self.headline.best(better)
        keep_up = [m for m in better if m is best or not _behind(self.headline, m, best)]
        return best, min(keep_up, key=cost)

    # ---- sentences

    def leader(self) -> Evidence | None:
        """Return the best of the methods that are ahead of the baseline in every seed."""
        ahead = [m for m in self.methods if m is not self.base and self.headline.always_ahead(m, self.base)]
        return self.headline.best(ahead) if ahead else None

    def decided(self) -> bool:
        """Return whether the method with the best mean is surely better than the baseline, or the baseline is the best
        and every other surely worse."""
        best = self.headline.best()
        if best is self.base or best.twin == self.base.label:
            rest = [self.claim(self.headline, m) for m in self.methods if m is not self.base and not m.twin]
            return all(claim is not None and claim.sure for claim in rest)
        named = next((m for m in self.methods if m.label == best.twin), best)
        return named in self.better(self.headline)

    def short(self) -> str:
        """Return the answer in one or two sentences."""
        clear, first, base = self.clear(), self.leader(), self.base
        lead = "" if first is None else self._gap(first)
        if self.seeds == 1:
            ahead = f"{first.label} is {lead} ahead of {base.label}" if first else f"no method is ahead of {base.label}"
            return f"In short: one seed decides nothing; in it {ahead}."
        if clear is not None:
            best, simplest = clear
            claim = self.claim(self.headline, simplest)
            assert claim is not None
            ahead = f"by {self._gap(simplest)}, ahead in {claim.ahead} of {self.seeds} seeds"
            also = f" {best.label} has the best {self.score.name}, not surely better than {simplest.label}'s."
            return f"In short: {simplest.label}, surely better than {base.label}: {ahead}." + also * (
                best is not simplest
            )
        if first is not None:
            luck = self.luck(self.headline)
            ahead = f"{first.label} is ahead of {base.label} by {lead} in all of them, but {luck}"
            return f"In short: not decided after {self.seeds} seeds. {ahead}; {MORE_SEEDS}."
        if self.blind:
            why = f"{base.label} is not shown to have learned, nor any other to be better"
            return f"In short: not decided after {self.seeds} seeds: {why}; {MORE_SEEDS}."
        if self.seeds < self.least:
            few = f"{self.seeds} seeds are too few to show that another is better"
            return f"In short: {base.label} for now; {few}; {MORE_SEEDS}."
        return f"In short: {base.label}; no other is shown to be better here."

    def _gap(self, method: Evidence) -> str:
        difference = stats.mean(method.selected) - stats.mean(self.base.selected)
        return gap(self.score.unit, difference, self.base.selected)

    def how_sure(self) -> list[str]:
        if not self.claims:
            return []
        if self.seeds == 1:
            return ["How sure: one seed was run, so no difference here can be told from chance."]
        least = self.least
        test = "all that is called sure holds together with a chance of 95 %, at whichever seed one stops"
        few = f"; {self.seeds} seeds are too few to be sure of anything, {least} are the least"
        return [f"How sure: {test}{few if self.seeds < least else ''}."]

    def worse(self) -> list[str]:
        """Return sentences on the methods that are surely worse than the baseline."""
        if len(self.methods) < 2:
            return []
        found = [c for m in self.methods if (c := self.claim(self.headline, m)) and c.sure and not c.better]
        parts = [f"{c.method} (behind in {self.seeds - c.ahead} of {self.seeds} seeds)" for c in found]
        return [f"Surely worse than {self.base.label}: {listed(parts)}."] if parts else []


def _behind(measure: Measure, method: Evidence, best: Evidence) -> bool:
    """Return whether a method is shown to be behind another; it is not printed as a claim, so it is not corrected."""
    test = stats.sequential(measure.values(method), measure.values(best))
    return test.p <= stats.ALPHA and (test.difference < 0) == measure.larger


def _ahead(judge: _Judge, alone: Evidence | None, score: Number) -> str:
    """Return a warning if training alone serves clients better than the method named in the answer. Only if personal
    models are compared, which are meant for clients' own data."""
    clear = judge.clear() if len(judge.methods) > 1 else None
    named = clear[1] if clear else judge.base
    rated = alone is not None and len(alone.own) == len(named.own) == len(named.seeds)
    if alone is None or not rated or not any(m.traits.personal for m in judge.methods):
        return ""
    if (stats.mean(alone.own) > stats.mean(named.own)) != score.larger or alone.own == named.own:
        return ""
    means = f"{figure(score.unit, alone.own, False)} against {figure(score.unit, named.own, False)} on average"
    return f" But on clients' own data training alone has more than {named.label} ({means})."


def learned(methods: Sequence[Evidence], guess: Evidence, score: Number, looks: int = 1) -> list[Evidence]:
    """Return the methods that are shown to be better than a constant guess, each by a one-sided test; for a further
    look, after others in vain, corrected for all methods and looks. One or two seeds cannot show it: then a method need
    only be better in each."""
    tests = len(methods) * looks if looks > 1 else 1

    def beats(method: Evidence) -> bool:
        test = stats.paired(method.selected, guess.selected)
        if test is None or test.df < 2 or math.isinf(test.t):
            pairs = zip(method.selected, guess.selected, strict=True)
            return all(a != b and (a > b) == score.larger for a, b in pairs)
        return (test.difference > 0) == score.larger and test.p / 2 * tests < stats.ALPHA

    return [method for method in methods if beats(method)]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1g} %"


def _statistics(claim: Claim) -> dict[str, Any]:
    t = claim.test
    return {
        "what": claim.wish,
        "method": claim.method,
        "against": claim.other,
        "difference": t.difference,
        "standard_error": t.error,
        "ahead": claim.ahead,
        "seeds": t.seeds,
        "p": t.p,
        "p_corrected": claim.corrected,
        "sure": claim.sure,
        "unit": claim.unit,
    }
