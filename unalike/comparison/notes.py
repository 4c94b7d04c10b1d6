"""Sentences beside the verdict's table: which runs diverged, what was not learned, what methods require, who gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unalike.comparison.claims import cost, singly
from unalike.metrics.names import Number
from unalike.results import stats
from unalike.results.evidence import Evidence, figure, known
from unalike.text import listed, plural


def diverged(found: Sequence[Evidence]) -> list[str]:
    bad = [e for e in found if e.diverged]
    parts = [f"{e.label} in {len(e.diverged)} of {len(e.seeds)} seeds (round {min(e.diverged.values())})" for e in bad]
    return [f"Diverged: {listed(parts)}; not judged. A smaller --lr may help, or --clip-norm 10."] if parts else []


def identical(methods: Sequence[Evidence]) -> list[str]:
    """Name the methods whose runs have exactly another method's numbers."""
    twins = [m for m in methods if m.twin]
    parts = [f"{m.label} and {m.twin} have the same numbers in every round of every seed" for m in twins]
    return [f"Identical: {listed(parts)}; with these settings they are one method."] if parts else []


# ---------------------------------------------------------------- has anything been learned


def nothing_learned(methods: Sequence[Evidence], guess: Evidence, score: Number, advice: str) -> list[str]:
    best = _best(methods, lambda e: e.selected, score.larger)
    return [
        f"What is wrong: the best {score.name} of a method is {figure(score.unit, best.selected)} ({best.label}); the "
        f"same answer for every sample has {figure(score.unit, guess.selected)}. Which method is better cannot be seen "
        "in models that have not learned.",
        f"What to try: {advice or '--tune 8, which looks for a learning rate; more --rounds'}.",
    ]


def learned_nothing(methods: Sequence[Evidence], guess: Evidence | None, score: Number) -> list[str]:
    if not methods or guess is None:
        return []
    have = listed([f"{m.label} ({figure(score.unit, m.selected)})" for m in methods])
    return [f"Learned nothing: {have}; the same answer for every sample has {figure(score.unit, guess.selected)}."]


def only(method: Evidence, found: Sequence[Evidence], guess: Evidence | None, score: Number) -> str:
    """Return the answer in short if only one method is left to judge."""
    what = f"its {score.name} is {figure(score.unit, method.selected)}"
    if guess is not None and guess.complete:
        what += f", that of the same answer for every sample {figure(score.unit, guess.selected)}"
    through = any(e.diverged and not e.reference for e in found)
    why = "is the only method that got through" if through else "is the only method"
    return f"In short: {method.label} {why}; {what}."


# ---------------------------------------------------------------- cost


def missed_target(methods: Sequence[Evidence], score: Number, target: float | None) -> list[str]:
    """Name the methods that did not reach the target in every seed; they cannot be the fastest."""
    if target is None or len(methods) < 2:
        return []
    missed = [f"{m.label} in {m.reached} of {len(m.seeds)} seeds" for m in methods if m.reached < len(m.seeds)]
    where = f"{score.name} {figure(score.unit, [target])}"
    return [f"Not always reached: {where} by {listed(missed)}."] if missed else []


def equal_cost(methods: Sequence[Evidence], score: Number) -> list[str]:
    """Say which method has the best mean if none may spend more than the cheapest one, if that is another than after
    all rounds. This is a description, not a test."""
    kinds: list[tuple[str, Callable[[Evidence], Sequence[float | None]]]] = [
        ("bytes", lambda e: e.equal_bytes),
        ("local steps", lambda e: e.equal_steps),
    ]
    return [line for kind, values in kinds if (line := _equal(kind, methods, values, score))]


def _equal(
    kind: str, methods: Sequence[Evidence], values: Callable[[Evidence], Sequence[float | None]], score: Number
) -> str:
    within = lambda e: known(values(e))  # noqa: E731
    rated = [m for m in methods if len(within(m)) == len(m.seeds)]
    if len(rated) < 2:
        return ""
    best, now = _best(methods, lambda e: e.selected, score.larger), _best(rated, within, score.larger)
    title = f"At equal {kind} (the least that one of the methods needs)"
    if best not in rated:
        return (
            f"{title}: {now.label}, {figure(score.unit, within(now))}; {best.label} has not finished a round by then."
        )
    if now is best or stats.mean(within(now)) == stats.mean(within(best)):
        return ""
    seeds = zip(within(now), within(best), strict=True)
    ahead = sum((a > b) == score.larger and a != b for a, b in seeds)
    both = f"{figure(score.unit, within(now))} against {figure(score.unit, within(best))}"
    return (
        f"{title}: on average {now.label} has more, {both} of {best.label}, which has the best mean after all rounds "
        f"(ahead in {ahead} of {len(now.seeds)} seeds, not tested)."
    )


# ---------------------------------------------------------------- requirements, and who gains


def reads(methods: Sequence[Evidence]) -> list[str]:
    """Say which methods cannot run with secure aggregation, need a public set, or keep state on clients."""
    each = [f"{m.label} ({listed([*m.traits.each, *m.traits.peers])})" for m in methods if singly(m)]
    nothing = [m.label for m in methods if not singly(m) and not m.traits.sums]
    public = [m.label for m in methods if m.traits.public]
    state = [m.label for m in methods if m.traits.state]
    parts = []
    if each:
        words = "values of each client, and cannot run unchanged behind secure aggregation"
        parts.append(f"{listed(each)} {plural('reads', each)} {words}")
    if nothing:
        parts.append(f"of {listed(nothing)} the server reads nothing")
    if public:
        more = "" if len(public) == len(methods) else ", which the others have no use for"
        parts.append(f"{listed(public)} {plural('learns', public)} from a public set{more}")
    if state:
        parts.append(f"{listed(state)} {plural('keeps', state)} state on clients, stale for those that come rarely")
    return [f"What they ask for: {'; '.join(parts)}."] if parts and len(methods) > 1 else []


def newcomers(methods: Sequence[Evidence], alone: Evidence | None, score: Number) -> list[str]:
    """Say which methods have no model for clients that come later, and what training alone gives these."""
    judged = [m for m in methods if len(m.new) == len(m.seeds)]
    if not judged:
        return []
    rest = [m.label for m in methods if m not in judged]
    parts = [f"{listed(rest)} {plural('has', rest)} no model for them"] if rest else []
    if alone is not None and len(alone.new) == len(alone.seeds):
        parts += [f"the same training from the untrained model gives them {figure(score.unit, alone.new, False)}"]
    return [f"Clients that come later: they train on their own data first; {'; '.join(parts)}."] if parts else []


def gains(methods: Sequence[Evidence], score: Number) -> list[str]:
    """Say how many clients the best method on clients' own data serves better than FedAvg's model, and than training
    alone; and with which method most clients gain, if it is another."""
    rated = [m for m in methods if len(m.own) == len(m.seeds)]
    if not any(m.traits.personal for m in rated):
        return []
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
    why = ", the best on clients' own data on average," if len(rated) > 1 else ""
    return [f"Who gains: with {best.label}{why} {'; '.join(parts)}.{more}"] if parts else []


def _best(methods: Sequence[Evidence], values: Callable[[Evidence], Sequence[float]], larger: bool) -> Evidence:
    sign = 1 if larger else -1
    return max(methods, key=lambda m: (sign * stats.mean(values(m)), *(-c for c in cost(m))))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
