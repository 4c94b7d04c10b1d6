"""Which method for which wish, in plain words: a pure function of the evidence.

A method is called better only where the paired test against the baseline says so after Holm's correction for all
methods that were tried; what the plain test alone says is called weak; the rest is within noise, and said to be.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Callable, Sequence

from unalike.metrics.names import Number
from unalike.results import stats
from unalike.results.evidence import Evidence, known, places
from unalike.text import decimal, listed, number, plural, size

LITTLE = 0.01  # of accuracy; of other numbers, this share of them
NO_VERDICT = "In short: no verdict"  # how a comparison begins that ends without one
FEW = 5  # seeds below which a paired test sees large differences only

Values = Callable[[Evidence], Sequence[float]]


@dc.dataclass(frozen=True)
class Against:
    """A method against the baseline on one measure: the test, p after Holm's correction, and what it comes to."""

    test: stats.Paired | None
    corrected: float | None
    word: str  # better, weakly better, within noise, weakly worse, worse, untested


def against(methods: Sequence[Evidence], base: Evidence, values: Values, larger: bool = True) -> dict[str, Against]:
    """Every method but the baseline, by label; `values` has one number a seed."""
    others = [m for m in methods if m is not base]
    tests = [stats.paired(values(m), values(base)) for m in others]
    known = [t for t in tests if t is not None]
    corrected = iter(stats.holm([t.p for t in known]))
    out = {}
    for method, test in zip(others, tests, strict=True):
        p = None if test is None else next(corrected)
        out[method.label] = Against(test, p, _word(test, p, larger))
    return out


def _word(test: stats.Paired | None, corrected: float | None, larger: bool) -> str:
    if test is None or corrected is None:
        return "untested"
    if test.p >= stats.ALPHA:
        return "within noise"
    direction = "better" if (test.difference > 0) == larger else "worse"
    # two seeds show nothing; nor is the same difference in every seed more than a hint
    sure = corrected < stats.ALPHA and test.df > 1 and math.isfinite(test.t)
    return direction if sure else f"weakly {direction}"


def verdict(
    found: Sequence[Evidence],
    base: Evidence,
    score: Number,
    target: float | None,
    tried: Sequence[Evidence] = (),
    advice: str = "",
    looks: int = 1,
) -> list[str]:
    """The sentences, one a wish; each begins with what is wished for and a colon. The first is the answer in short.
    `tried`: settings that were run, where they are more than those that are judged; `advice`: what to try where no
    method has learned anything; `looks`: by how many scores that was asked."""
    methods = [e for e in found if not e.reference and e.complete]
    references = {e.method: e for e in found if e.reference}
    diverged = _diverged(tried or found)
    if not methods:
        return [f"{NO_VERDICT}; no method got through in every seed.", *diverged]
    guess = references.get("constant")
    able = methods if guess is None or not guess.complete else learned(methods, guess, score, looks)
    if not able:
        assert guess is not None
        return [*_nothing(methods, guess, score, advice), *diverged]
    blind = base in methods and base not in able  # a baseline that has learned nothing
    lines = [_short(methods, base, score, blind) if len(methods) > 1 else _only(methods[0], found, guess, score)]
    lines[0] += _ahead(methods, base, references.get("local-only"), score)
    lines.append(_sure(len(base.seeds)))
    lines += diverged
    if guess is not None:
        lines += _learned_nothing([m for m in methods if m not in able], guess, score)
    if len(methods) > 1:
        lines.append(_accuracy(methods, base, score))
        lines.append(_worst(methods, base, score))
        lines.append(_newcomers(methods, base, references.get("local-only"), score))
        lines += _target(methods, base, score, target)
        lines.append(_equal("bytes", methods, lambda e: e.equal_bytes, score))
        lines.append(_equal("local steps", methods, lambda e: e.equal_steps, score))
        lines.append("" if blind and _clear(methods, base, score) is None else _simplest(methods, base, score))
        lines.append(_worse(methods, base, score))
        lines.append(_reads(methods))
    lines.append(_leaves(methods))
    lines += _worth(methods, references, score)
    lines.append(_gains(methods, score))
    return [line for line in lines if line]


def _sure(seeds: int) -> str:
    if seeds == 1:
        return "How sure: one seed was run, so no difference here can be told from chance; --seeds 5 can."
    if seeds < FEW:
        return (
            f"How sure: {seeds} seeds are few, and the paired test (df {seeds - 1}) finds large differences only; "
            f"what is within noise may differ in truth. --seeds {2 * FEW} tells more."
        )
    return f"How sure: paired t-tests over {seeds} seeds (df {seeds - 1}), corrected for all methods tried."


def _diverged(found: Sequence[Evidence]) -> list[str]:
    bad = [e for e in found if e.diverged]
    parts = [f"{e.label} in {len(e.diverged)} of {len(e.seeds)} seeds (round {min(e.diverged.values())})" for e in bad]
    return [f"Diverged: {listed(parts)}; not judged. A smaller --lr may help, or --clip-norm 10."] if parts else []


# ---------------------------------------------------------------- has anything been learned


def learned(methods: Sequence[Evidence], guess: Evidence, score: Number, looks: int = 1) -> list[Evidence]:
    """Return the methods that are shown to be better than a constant guess, each in a one-sided test; where it is a
    further look, after others in vain, corrected for all methods and looks. One or two seeds cannot show it: there a
    method need only be better in each."""
    tests = len(methods) * looks if looks > 1 else 1

    def beats(method: Evidence) -> bool:
        test = stats.paired(method.selected, guess.selected)
        if test is None or test.df < 2 or math.isinf(test.t):
            return _always(method, guess, lambda e: e.selected, score.larger)
        return (test.difference > 0) == score.larger and test.p / 2 * tests < stats.ALPHA

    return [method for method in methods if beats(method)]


def _nothing(methods: Sequence[Evidence], guess: Evidence, score: Number, advice: str) -> list[str]:
    best = _best(methods, lambda e: e.selected, score.larger)
    digits = places(score.unit, guess.selected)
    return [
        f"{NO_VERDICT}; no method has learned anything here.",
        f"What is wrong: the best {score.name} of a method is {spread(best.selected, digits)} ({best.label}); the "
        f"same answer for every sample has {spread(guess.selected, digits)}. Which method is better cannot be seen in "
        "models that have not learned.",
        f"What to try: {advice or '--tune 8, which looks for a learning rate; more --rounds'}.",
    ]


def _learned_nothing(methods: Sequence[Evidence], guess: Evidence, score: Number) -> list[str]:
    if not methods:
        return []
    digits, labels = places(score.unit, guess.selected), [m.label for m in methods]
    have = listed([spread(m.selected, digits) for m in methods])
    return [
        f"Learned nothing: {listed(labels)} ({have}); the same answer for every sample has "
        f"{spread(guess.selected, digits)}."
    ]


def _only(method: Evidence, found: Sequence[Evidence], guess: Evidence | None, score: Number) -> str:
    """The answer in short where one method is left to speak of."""
    digits = places(score.unit, method.selected)
    what = f"its {score.name} is {spread(method.selected, digits)}"
    if guess is not None and guess.complete:
        what += f", that of the same answer for every sample {spread(guess.selected, digits)}"
    why = (
        "is the only method that got through"
        if any(e.diverged and not e.reference for e in found)
        else "is the only method"
    )
    return f"In short: {method.label} {why}; {what}."


# ---------------------------------------------------------------- the wishes


def _best(methods: Sequence[Evidence], values: Values, larger: bool = True) -> Evidence:
    """The best mean; of equals the simplest."""
    sign = 1 if larger else -1
    return max(methods, key=lambda m: (sign * stats.mean(values(m)), *(-c for c in cost(m))))


def _wish(
    methods: Sequence[Evidence], base: Evidence, values: Values, show: Callable[[Evidence], str], larger: bool = True
) -> str:
    """The best of the methods, against the baseline, and who cannot be told from it."""
    best = _best(methods, values, larger)
    if best is base:
        return f"{base.label}, {show(base)}; no other is ahead." + _near(methods, best, values, larger, skip=())
    test = against(methods, base, values, larger)[best.label]
    both = f"{best.label} has {show(best)}, {base.label} {show(base)}"
    if test.word == "untested":
        return f"{both} (one seed: untested)."
    scores, numbers = f"{show(best)} against {base.label}'s {show(base)}", _numbers(test)
    if test.word != "within noise":
        text = f"{best.label}, {'weakly: ' if test.word.startswith('weakly') else ''}{scores} ({numbers})."
    elif _always(best, base, values, larger):
        text = f"{best.label} leads in every seed, {scores}, but {len(base.seeds)} seeds do not show it ({numbers})."
    else:
        text = f"no clear winner; {both}, within noise ({numbers})."
    return text + _near(methods, best, values, larger, skip=(base,))


def _always(method: Evidence, other: Evidence, values: Values, larger: bool) -> bool:
    """Whether it is ahead in every seed."""
    return all(a != b and (a > b) == larger for a, b in zip(values(method), values(other), strict=True))


def _numbers(found: Against) -> str:
    assert found.test is not None and found.corrected is not None
    if math.isinf(found.test.t):
        t = f"the same difference in every seed, sign test {p_is(found.test.p)}"
    else:
        t = f"t({found.test.df}) = {number(found.test.t, 3)}, {p_is(found.test.p)}"
    changed = p_word(found.corrected) != p_word(found.test.p)
    return t + (f", corrected {p_word(found.corrected)}" if changed else "")


def p_is(p: float) -> str:
    """p = 0.02, or p < 0.001."""
    return f"p = {p_word(p)}".replace("= <", "< ")


def p_word(p: float) -> str:
    """For a table."""
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _near(methods: Sequence[Evidence], best: Evidence, values: Values, larger: bool, skip: Sequence[Evidence]) -> str:
    """' X and Y are within noise of it.' Not said of one that is behind in every seed."""
    rest = [m for m in methods if m is not best and m not in skip and not _always(best, m, values, larger)]
    near = [m.label for m in rest if not _clearly_worse(m, best, values, larger)]
    if not near or len(best.seeds) < 2:
        return ""
    return f" {listed(near)} {plural('is', near)} within noise of {best.label}."


def _clearly_worse(method: Evidence, best: Evidence, values: Values, larger: bool = True) -> bool:
    test = stats.paired(values(method), values(best))
    return test is not None and test.p < stats.ALPHA and (test.difference < 0) == larger


def _accuracy(methods: Sequence[Evidence], base: Evidence, score: Number) -> str:
    digits = places(score.unit, base.selected)
    wish = _wish(methods, base, lambda e: e.selected, lambda e: spread(e.selected, digits), score.larger)
    return f"{'Highest' if score.larger else 'Lowest'} {score.name}: {wish}"


def _worst(methods: Sequence[Evidence], base: Evidence, score: Number) -> str:
    if not all(len(m.worst) == len(m.seeds) for m in methods):
        return ""
    digits = places(score.unit, base.worst)
    text = _wish(methods, base, lambda e: e.worst, lambda e: spread(e.worst, digits), score.larger)
    title = f"Best for the worst clients (mean of the {'lowest' if score.larger else 'highest'} 20 %): {text}"
    if not all(len(m.variance) == len(m.seeds) for m in methods):
        return title
    even = _best(methods, lambda e: e.variance, larger=False)
    if even is base or not _always(even, base, lambda e: e.variance, larger=False):
        return title
    values = f"variance over clients {stats.mean(even.variance):.0f} pp², {base.label} {stats.mean(base.variance):.0f}"
    return f"{title} Most even: {even.label} ({values})."


def _newcomers(methods: Sequence[Evidence], base: Evidence, alone: Evidence | None, score: Number) -> str:
    """The best for clients that took no part in training, where they were judged; a method may have no model for
    them."""
    judged = [m for m in methods if len(m.new) == len(m.seeds)]
    if not judged:
        return ""
    digits = places(score.unit, judged[0].new)
    if base in judged and len(judged) > 1:
        text = _wish(judged, base, lambda e: e.new, lambda e: spread(e.new, digits), score.larger)
    else:
        best = _best(judged, lambda e: e.new, score.larger)
        text = f"{best.label}, {spread(best.new, digits)}."
    rest = [m.label for m in methods if m not in judged]
    text += f" {listed(rest)} {plural('has', rest)} no model for them." if rest else ""
    if alone is not None and len(alone.new) == len(alone.seeds):
        text += f" The same training from the untrained model gives them {spread(alone.new, digits)}."
    return f"Best for clients that come later (after training on their own data): {text}"


def _equal(
    cost: str, methods: Sequence[Evidence], values: Callable[[Evidence], Sequence[float | None]], score: Number
) -> str:
    """Who is best where no method may spend more than the most frugal one, if that is another than after all rounds."""
    within: Values = lambda e: known(values(e))  # noqa: E731
    rated = [m for m in methods if len(within(m)) == len(m.seeds)]
    if len(rated) < 2:
        return ""
    best, now = _best(methods, lambda e: e.selected, score.larger), _best(rated, within, score.larger)
    title, digits = f"At equal {cost} (the least that one of the methods needs)", places(score.unit, best.selected)
    if best not in rated:
        return f"{title}: {now.label}, {spread(within(now), digits)}; {best.label} has not finished a round by then."
    if now is best or stats.mean(within(now)) == stats.mean(within(best)):
        return ""
    test = stats.paired(within(now), within(best))
    doubt = "one seed: untested" if test is None else p_is(test.p)
    doubt = f"within noise, {doubt}" if test is not None and test.p >= stats.ALPHA else doubt
    return (
        f"{title}: {now.label} is ahead, {spread(within(now), digits)} against {spread(within(best), digits)} of "
        f"{best.label}, which is best after all rounds ({doubt})."
    )


def _target(methods: Sequence[Evidence], base: Evidence, score: Number, target: float | None) -> list[str]:
    """Fewest rounds and fewest bytes to the target; a method that missed it in some seed cannot win."""
    if target is None:
        return []
    reached = [m for m in methods if m.reached == len(m.seeds)]
    missed = [f"{m.label} in {m.reached} of {len(m.seeds)} seeds" for m in methods if m not in reached]
    rest = f" Reached by {listed(missed)} only: no mean for {plural('it', missed)}." if missed else ""
    where = f"{score.name} {target:g}"
    if not reached:
        return [f"Fewest rounds and bytes to {where}: no method reaches it in every seed.{rest}"]

    def rounds(e: Evidence) -> list[float]:
        return [float(v) for v in e.rounds_to if v is not None]

    def sent(e: Evidence) -> list[float]:
        return [float(v) for v in e.bytes_to if v is not None]

    lines = []
    for title, values, show in (
        ("rounds", rounds, lambda e: decimal(stats.mean(rounds(e)))),
        ("bytes", sent, lambda e: size(stats.mean(sent(e)))),
    ):
        if base in reached and len(reached) > 1:
            text = _wish(reached, base, values, show, larger=False)
        else:
            best = _best(reached, values, larger=False)
            end = "." if best is base else f"; {base.label} does not always reach it."
            text = f"{best.label}, {show(best)}{end}"
        lines.append(f"Fewest {title} to {where}: {text}")
    lines[0] += rest
    return lines


def cost(method: Evidence) -> tuple[float, ...]:
    """How much a method asks for, the simple ones first: reads clients one by one, keeps state with them, bytes."""
    keeps, other = bool(method.traits.state), method.method != "fedavg"
    return (float(_singly(method)), float(keeps), float(sum(method.bytes)), float(other))


def _clear(methods: Sequence[Evidence], base: Evidence, score: Number) -> tuple[Evidence, Evidence] | None:
    """Of the methods that are clearly better than the baseline the best, and the simplest that keeps up with it."""
    tests = against(methods, base, lambda e: e.selected, score.larger)
    better = [m for m in methods if m is not base and tests[m.label].word == "better"]
    if not better:
        return None
    best = _best(better, lambda e: e.selected, score.larger)
    keep_up = [m for m in better if m is best or not _clearly_worse(m, best, lambda e: e.selected, score.larger)]
    return best, min(keep_up, key=cost)


def _leading(methods: Sequence[Evidence], base: Evidence, score: Number) -> list[Evidence]:
    """Those that are ahead of the baseline in every seed."""
    return [m for m in methods if m is not base and _always(m, base, lambda e: e.selected, score.larger)]


def _short(methods: Sequence[Evidence], base: Evidence, score: Number, blind: bool = False) -> str:
    """The answer; `blind`: the baseline is not shown to have learned anything, and is no advice."""
    lead = _leading(methods, base, score)
    first = _best(lead or methods, lambda e: e.selected, score.larger)
    digits = places(score.unit, base.selected)
    gap = f"{abs(stats.mean(first.selected) - stats.mean(base.selected)):.{digits}f}"
    if len(base.seeds) == 1:
        ahead = f"{first.label} is {gap} ahead of {base.label}" if lead else f"no method is ahead of {base.label}"
        return f"In short: one seed decides nothing; in it {ahead}."
    clear = _clear(methods, base, score)
    if clear is None:
        if blind:
            leads = f", though {first.label} leads it by {gap} in every seed" if lead else ""
            why = f"{base.label} is not shown to have learned, nor any other to be better{leads}"
            return f"In short: undecided until there are more seeds; {why}."
        if not lead:
            return f"In short: {base.label}; no other is shown to be better here."
        if _named(methods, base, score) is first:
            return f"In short: {first.label}, weakly: it leads {base.label} by {gap} in every seed; more seeds decide."
        return f"In short: {base.label}, until more seeds decide; {first.label} leads it by {gap}, in every seed."
    best, simplest = clear
    gain = abs(stats.mean(simplest.selected) - stats.mean(base.selected))
    short = f"In short: {simplest.label}, clearly better than {base.label} by {gain:.{digits}f}."
    also = f" {best.label} has the best {score.name}, not clearly better than {simplest.label}'s."
    return short if best is simplest else short + also


def _named(methods: Sequence[Evidence], base: Evidence, score: Number) -> Evidence:
    """The method that the answer in short names: the simplest that keeps up with the best of those that are clearly
    better, else one that is ahead in every seed and weakly better, else the baseline."""
    clear = _clear(methods, base, score) if base in methods else None
    if clear is not None:
        return clear[1]
    lead = _leading(methods, base, score)
    if not lead:
        return base
    first = _best(lead, lambda e: e.selected, score.larger)
    weakly = against(methods, base, lambda e: e.selected, score.larger)[first.label].word == "weakly better"
    return first if weakly else base


def _ahead(methods: Sequence[Evidence], base: Evidence, alone: Evidence | None, score: Number) -> str:
    """A warning behind the answer in short: training alone serves clients better than the method that it names. Only
    where personal models are compared, which are for clients' own data."""
    named = _named(methods, base, score)
    rated = alone is not None and len(alone.own) == len(named.own) == len(named.seeds)
    if alone is None or not rated or not any(m.traits.personal for m in methods):
        return ""
    if (stats.mean(alone.own) > stats.mean(named.own)) != score.larger or alone.own == named.own:
        return ""
    test = stats.paired(alone.own, named.own)
    doubt = "" if test is None or test.p < stats.ALPHA else ", within noise"
    digits = places(score.unit, alone.own)
    means = f"{stats.mean(alone.own):.{digits}f} against {stats.mean(named.own):.{digits}f}{doubt}"
    return f" But on clients' own data training alone is ahead of {named.label} ({means})."


def _simplest(methods: Sequence[Evidence], base: Evidence, score: Number) -> str:
    """Occam: the baseline unless something is clearly better; then the simplest that keeps up with the best."""
    title = "Simplest that is not worse: "
    if len(base.seeds) == 1:
        return f"{title}one seed cannot say; {base.label} until more do."
    clear = _clear(methods, base, score)
    if clear is None:
        lead = [m.label for m in _leading(methods, base, score)]
        more = f" {listed(lead)} {plural('is', lead)} ahead in every seed: more seeds could show it." if lead else ""
        return f"{title}{base.label}; nothing is clearly better than it with this evidence.{more}"
    best, simplest = clear
    why = [] if simplest.traits.state else ["keeps nothing on clients"]
    why += [] if _singly(simplest) else ["reads sums only"]
    near = ""
    if simplest is not best:
        test = stats.paired(simplest.selected, best.selected)
        near = f", not clearly worse than {best.label}" + (f" ({p_is(test.p)})" if test else "")
    return f"{title}{simplest.label}{near}" + (f"; it {listed(why)}." if why else ".")


def _worse(methods: Sequence[Evidence], base: Evidence, score: Number) -> str:
    tests = against(methods, base, lambda e: e.selected, score.larger)
    worse = [f"{label} ({_numbers(t)})" for label, t in tests.items() if t.word == "worse"]
    weakly = [f"{label} ({_numbers(t)})" for label, t in tests.items() if t.word == "weakly worse"]
    parts = [listed(worse)] if worse else []
    parts += [f"weakly, {listed(weakly)}"] if weakly else []
    return f"Worse than {base.label}: {'; '.join(parts)}." if parts else ""


def _reads(methods: Sequence[Evidence]) -> str:
    each = [f"{m.label} ({listed([*m.traits.each, *m.traits.peers])})" for m in methods if _singly(m)]
    sums = [m.label for m in methods if not _singly(m) and m.traits.sums]
    nothing = [m.label for m in methods if not _singly(m) and not m.traits.sums]
    public = [m.label for m in methods if m.traits.public]
    state = [m.label for m in methods if m.traits.state]
    parts = []
    if each:
        words = "values of each client, and cannot run unchanged behind secure aggregation"
        parts.append(f"{listed(each)} {plural('reads', each)} {words}")
    if sums:
        parts.append(f"{listed(sums)} {plural('reads', sums)} sums only")
    if nothing:
        parts.append(f"of {listed(nothing)} the server reads nothing")
    if public:
        more = "" if len(public) == len(methods) else ", which the others have no use for"
        parts.append(f"{listed(public)} {plural('learns', public)} from a public set{more}")
    if state:
        parts.append(f"{listed(state)} {plural('keeps', state)} state on clients, stale for those that come rarely")
    return f"What they ask for: {'; '.join(parts)}."


def _leaves(methods: Sequence[Evidence]) -> str:
    """Return what leaves a client and who can read it, methods of which the same is said together."""
    found: dict[str, list[str]] = {}
    for method in methods:
        if method.traits.leaves:
            found.setdefault(method.traits.leaves, []).append(method.label)
    parts = [f"{listed(labels)}: {what}" for what, labels in found.items()]
    return f"Leaves the client: {'. '.join(parts)}." if parts else ""


def _singly(method: Evidence) -> bool:
    return bool(method.traits.each or method.traits.peers)


# ---------------------------------------------------------------- is it worth it


def _worth(methods: Sequence[Evidence], references: dict[str, Evidence], score: Number) -> list[str]:
    """Where all methods stand between no cooperation and all data in one place. The best of them is picked on the same
    test data, so that its p is corrected for all of them."""
    lines = []
    pooled, alone = references.get("centralized"), references.get("local-only")
    if pooled is not None and pooled.complete:
        lines.append(_pooled(methods, pooled, score))
    known = [*methods] if alone is None else [*methods, alone]
    if alone is not None and not alone.diverged and all(len(m.own) == len(methods[0].seeds) for m in known):
        lines.append(_alone(methods, alone, score))
    return lines


def _pooled(methods: Sequence[Evidence], pooled: Evidence, score: Number) -> str:
    best = _best(methods, lambda e: e.selected, score.larger)
    word = against(methods, pooled, lambda e: e.selected, score.larger)[best.label].word
    gap = stats.mean(pooled.selected) - stats.mean(best.selected)
    first, second = (pooled, best) if (gap > 0) == score.larger else (best, pooled)
    digits = places(score.unit, pooled.selected)
    relation = f"{abs(gap):.{digits}f} {'below' if gap > 0 else 'above'}{_doubt(word, first, second, score)}"
    little = " All data in one place would gain little." if _little(methods, best, pooled, score) else ""
    return (
        f"Against all data in one place: {pooled.label} has {spread(pooled.selected, digits)}, the best method "
        f"({best.label}) is {relation}.{little}"
    )


def _doubt(word: str, first: Evidence, second: Evidence, score: Number) -> str:
    """What to add to a difference that is not clear."""
    if word.startswith("weakly"):
        return ", weakly shown"
    if word != "within noise":
        return ""
    always = _always(first, second, lambda e: e.selected, score.larger)
    return " in every seed, yet not shown" if always else ", within noise"


def _little(methods: Sequence[Evidence], best: Evidence, pooled: Evidence, score: Number) -> bool:
    """Whether the test shows that all data in one place gain less than LITTLE, and the last round does not contradict:
    a difference that is merely not shown may be large."""
    much = LITTLE if score.unit == "percent" else LITTLE * abs(stats.mean(pooled.selected))
    less = much if score.larger else -much
    reduced = dc.replace(pooled, selected=[v - less for v in pooled.selected])
    shown = against(methods, reduced, lambda e: e.selected, score.larger)[best.label].word == "better"
    last = stats.mean(pooled.final) - less - stats.mean(best.final)
    return shown and (last < 0) == score.larger


def _alone(methods: Sequence[Evidence], alone: Evidence, score: Number) -> str:
    best = _best(methods, lambda e: e.own, score.larger)
    found = against(methods, alone, lambda e: e.own, score.larger)[best.label]
    digits, setting = places(score.unit, alone.own), f" ({alone.label})"
    own = (
        f"on clients' own test data {best.label} has {spread(best.own, digits)} and training alone{setting} "
        f"{spread(alone.own, digits)}"
    )
    if found.word == "untested":
        return f"Is federating worth it: {own} (one seed: untested)."
    weakly = ", weakly shown" if found.word.startswith("weakly") else ""
    numbers = _numbers(found)
    if found.word == "within noise":
        return f"Is federating worth it: not shown; {own}, within noise ({numbers})."
    if found.word.endswith("better"):
        return f"Is federating worth it: yes{weakly}; {own} ({numbers})."
    only = "" if best.traits.personal else " A global model serves clients, and samples, of other kinds too."
    return (
        f"Is federating worth it: not for clients that only meet data like their own{weakly}; {own} ({numbers}).{only}"
    )


def _gains(methods: Sequence[Evidence], score: Number) -> str:
    """How many clients the best method on clients' own data serves better than FedAvg's model, and than training alone;
    and with which method most clients gain, if that is another."""
    rated = [m for m in methods if len(m.own) == len(m.seeds)]
    if not any(m.traits.personal for m in rated):
        return ""
    best = _best(rated, lambda e: e.own, score.larger)
    parts, more = [], ""
    for how, shares, lost in (
        ("with fedavg's model", lambda e: known(e.gain_fedavg), best.lose_fedavg),
        ("by training alone", lambda e: known(e.gain_alone), best.lose_alone),
    ):
        counted: dict[str, float] = {m.label: stats.mean(shares(m)) for m in rated if shares(m)}
        if best.label not in counted:
            continue
        shown = _percent(counted[best.label]), _percent(stats.mean(known(lost)))
        parts.append(f"{shown[0]} of the clients do better and {shown[1]} worse than {how}")
        most = max(counted, key=lambda label: counted[label])
        if counted[most] > counted[best.label]:
            more += f" With {most} {_percent(counted[most])} do better than {how}."
    why = ", the best on clients' own data," if len(rated) > 1 else ""
    return f"Who gains: with {best.label}{why} {'; '.join(parts)}.{more}" if parts else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def spread(values: Sequence[float], places: int = 3) -> str:
    """0.838 ± 0.012; of a single value without the ±."""
    deviation = stats.deviation(values)
    return f"{stats.mean(values):.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")
