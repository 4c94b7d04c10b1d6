"""From the rounds of some runs to the evidence about a method: a pure function of the run folders' content."""

from __future__ import annotations

import dataclasses as dc
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from unalike.contract import Method, privacy
from unalike.metrics import names
from unalike.metrics.lines import Line, choose, is_finite, traffic
from unalike.metrics.names import Number
from unalike.results import stats

REFERENCES = ("centralized", "local-only")  # methods that are reference lines
# one answer for all samples, which is not a method
CONSTANT = "constant"
# share of the baseline's score, if no target is given
TARGET_SHARE = 0.95
SCORES = tuple(names.scores())
EPSILON = ("epsilon_pld", "epsilon", "sample_epsilon")  # the tightest first
COSTS = ("seconds", "bytes", "setup_bytes", "virtual_seconds")  # prefixes of numbers that are not about the model
T = TypeVar("T")


def places(unit: str, values: Sequence[float]) -> int:
    """Return the number of decimals to show: 3 for a share; for other numbers, enough for 3 or 4 digits of the mean."""
    size = abs(stats.mean(values)) if values else 0.0
    if unit == "percent" or not size:
        return 3
    return max(0, (3 if size >= 1 else 2) - math.floor(math.log10(size)))


def figure(unit: str, values: Sequence[float], spread: bool = True, digits: int | None = None) -> str:
    """Return the mean of values as text, with the standard deviation if there are several: "83.8 % ± 1.2", "0.0123 ±
    0.0004". digits: decimals, by default as many as the values deserve."""
    scale = 100 if unit == "percent" else 1
    digits = digits or (1 if unit == "percent" else places(unit, values))
    deviation = stats.deviation(values) if spread else None
    sign = " %" if unit == "percent" else ""
    end = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * stats.mean(values):.{digits}f}{sign}{end}"


def gap(unit: str, difference: float, like: Sequence[float]) -> str:
    """Return the size of a difference between such values as text: "1.2 points" for shares, "0.0123"."""
    if unit == "percent":
        return f"{100 * abs(difference):.1f} points"
    return f"{abs(difference):.{places(unit, like)}f}"


def known(values: Sequence[T | None]) -> list[T]:
    """Return the values without the None among them."""
    return [value for value in values if value is not None]


@dc.dataclass(frozen=True)
class Outcome:
    """One run: its seed, its lines, the round in which it diverged, if it did, and whether higher is better by
    metric."""

    seed: int
    lines: list[Line]
    diverged: int | None = None
    metrics: dict[str, bool] = dc.field(default_factory=dict)


@dc.dataclass(frozen=True)
class Traits:
    """What a method requires, from its declarations: fields read client by client, fields that other clients see too,
    and state that clients keep from round to round."""

    each: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    sums: bool = True
    public: bool = False  # it learns from a public set
    personal: bool = False  # clients have their own models
    leaves: str = ""  # what leaves a client and who can read it, in words

    @property
    def words(self) -> str:
        """Return the requirements in words, for a table."""
        parts = ["sums"] if self.sums else []
        parts += [f"each client's {', '.join(self.each)}"] if self.each else []
        parts += [f"{', '.join(self.peers)}, shown to all"] if self.peers else []
        parts += [f"not {', '.join(self.sealed)}, sealed from client to client"] if self.sealed else []
        return "; ".join(parts)


def traits(method: Method) -> Traits:
    sends = method.sends.items()
    each, peers, sealed = (tuple(n for n, f in sends if f.read == how) for how in ("each", "peers", "sealed"))
    state = tuple(n for n, f in method.keeps.items() if f.life == "run")
    sums = len(sealed) < len(sends) or not sends
    return Traits(each, peers, state, sealed, sums, public=method.needs_public, leaves=privacy(method))


@dc.dataclass
class Evidence:
    """What the runs of one method show: each list has one entry per seed, in the order of the seeds."""

    label: str
    method: str
    seeds: list[int]
    reference: bool = False
    traits: Traits = dc.field(default_factory=Traits)
    diverged: dict[int, int] = dc.field(default_factory=dict)  # seed -> round
    final: list[float] = dc.field(default_factory=list)
    selected: list[float] = dc.field(default_factory=list)
    selected_round: list[int] = dc.field(default_factory=list)
    validation: list[float] = dc.field(default_factory=list)
    own: list[float] = dc.field(default_factory=list)
    worst: list[float] = dc.field(default_factory=list)
    variance: list[float] = dc.field(default_factory=list)
    test: list[float] = dc.field(default_factory=list)  # score of the global model on the test set, if there is one
    new: list[float] = dc.field(default_factory=list)  # scores of newcomers, after training on their own data
    new_start: list[float] = dc.field(default_factory=list)  # the same before training
    # shares of clients served better, and worse, than by FedAvg's model, and than by training alone; None: not
    # known
    gain_fedavg: list[float | None] = dc.field(default_factory=list)
    lose_fedavg: list[float | None] = dc.field(default_factory=list)
    gain_alone: list[float | None] = dc.field(default_factory=list)
    lose_alone: list[float | None] = dc.field(default_factory=list)
    # an earlier method whose runs have the same numbers in every round
    twin: str = ""
    epsilon: list[float] = dc.field(default_factory=list)  # ε spent by the end, if a channel gives a guarantee
    # score on own data, by network if they differ
    networks: dict[str, list[float | None]] = dc.field(default_factory=dict)
    # scores within the bytes, and the mini-batches, of the cheapest method; None: not even one round fits
    equal_bytes: list[float | None] = dc.field(default_factory=list)
    equal_steps: list[float | None] = dc.field(default_factory=list)
    rounds_to: list[int | None] = dc.field(default_factory=list)
    bytes_to: list[int | None] = dc.field(default_factory=list)
    time_to: list[float | None] = dc.field(default_factory=list)  # virtual seconds, of runs with a clock
    bytes: list[int] = dc.field(default_factory=list)
    seconds: list[float] = dc.field(default_factory=list)
    others: dict[str, list[float]] = dc.field(default_factory=dict)  # further metrics, by name

    @property
    def complete(self) -> bool:
        """Return whether it finished in every seed, with the score that is compared."""
        return not self.diverged and len(self.selected) == len(self.seeds)

    @property
    def reached(self) -> int:
        """Return in how many seeds it reached the target."""
        return sum(value is not None for value in self.rounds_to)


def scores_of(outcomes: Sequence[Outcome], by: str = "") -> list[Number]:
    """Return the scores that all of these have in their last evaluated round, the preferred one first (by: see
    `names.scores`); diverged runs do not count."""
    ends = [last(outcome.lines) for outcome in outcomes if outcome.diverged is None]
    lines = [line for line in ends if line is not None]
    known = names.numbers({name: higher for o in outcomes for name, higher in o.metrics.items()})
    return [s for s in names.scores(known, by) if lines and all(is_finite(line.get(s.key)) for line in lines)]


def score_of(outcomes: Sequence[Outcome]) -> Number | None:
    """Return the score that these are compared by."""
    return next(iter(scores_of(outcomes)), None)


def others_of(outcomes: Sequence[Outcome], score: Number, by: str = "") -> list[Number]:
    """Return the further metrics of these, one number each, without the loss."""
    rest = {s.metric: s for s in reversed(scores_of(outcomes, by)) if s.metric not in (score.metric, "loss")}
    return [*reversed(rest.values())]


def gather(
    label: str,
    method: str,
    outcomes: Sequence[Outcome],
    score: Number,
    kind: Traits,
    reference: bool = False,
    others: Sequence[Number] = (),
) -> Evidence:
    """Return the evidence of one method, except what depends on the target."""
    out = Evidence(label, method, [o.seed for o in outcomes], reference, kind)
    for outcome in outcomes:
        out.epsilon += [outcome.lines[-1][key] for key in EPSILON if outcome.lines and key in outcome.lines[-1]][:1]
        out.bytes.append(sum(map(traffic, outcome.lines)))
        out.seconds.append(sum(line.get("seconds") or 0.0 for line in outcome.lines))
        end = last(outcome.lines)
        bad = end is not None and not is_finite(end.get("train_loss", 0.0) or 0.0)
        if outcome.diverged is not None or end is None or bad:
            out.diverged[outcome.seed] = outcome.diverged or (end or {"round": 1})["round"]
            continue
        chosen = choose(outcome.lines, score)
        line = chosen or end
        if chosen:
            out.validation.append(chosen[score.validation])
        for values, found, key in (
            (out.final, end, score.key),
            (out.selected, line, score.key),
            (out.own, line, "clients_loss" if score.metric == "loss" else f"clients_{score.metric}_mean"),
            (out.worst, line, f"clients_{score.metric}_worst20"),
            (out.variance, line, f"clients_{score.metric}_variance_pp2" if score.unit == "percent" else ""),
            (out.test, line, f"test_{score.metric}"),
            (out.new, line, "new_loss" if score.metric == "loss" else f"new_{score.metric}_mean"),
            (out.new_start, line, f"new_{score.metric}_start"),
            *((out.others.setdefault(number.name, []), line, number.key) for number in others),
        ):
            if is_finite(found.get(key)):
                values.append(found[key])
        out.selected_round.append(line["round"])
    return out


def target_of(base: Evidence, score: Number) -> float | None:
    """Return the default target: 95 % of the baseline's mean accuracy, to three decimals, or its loss divided by 0.95,
    to three digits; likewise for other metrics, reversed for values below 0."""
    if not base.selected:
        return None
    value = stats.mean(base.selected)
    target = value * TARGET_SHARE if (value >= 0) == score.larger else value / TARGET_SHARE
    return round(target, 3) if score.unit == "percent" else float(f"{target:.3g}")


def aim(evidence: Evidence, outcomes: Sequence[Outcome], score: Number, target: float | None) -> None:
    """Set, for each seed, the first round that reaches the target and the bytes and virtual seconds until then; None if
    no round does."""
    for outcome in outcomes:
        sent, found, time = 0, None, None
        for line in outcome.lines:
            sent += traffic(line)
            value: Any = line.get(score.key)
            if target is not None and is_finite(value) and (value >= target if score.larger else value <= target):
                found, time = line["round"], line.get("virtual_seconds")
                break
        evidence.rounds_to.append(found)
        evidence.bytes_to.append(sent if found is not None else None)
        evidence.time_to.append(time)


def find_twins(found: Sequence[Evidence], made: Mapping[str, Sequence[Outcome]]) -> None:
    """Mark every method whose runs have exactly the numbers of an earlier method, in every round of every seed."""

    def numbers(label: str) -> list[list[Line]]:
        return [[_without_costs(line) for line in outcome.lines] for outcome in made[label]]

    whole = [e for e in found if e.complete and not e.reference]
    all_numbers = {e.label: numbers(e.label) for e in whole}
    for k, e in enumerate(whole):
        same = (other.label for other in whole[:k] if all_numbers[other.label] == all_numbers[e.label])
        e.twin = next(same, "")


def _without_costs(line: Line) -> Line:
    return {key: value for key, value in line.items() if not key.startswith(COSTS)}


def equalize(found: Sequence[Evidence], made: Mapping[str, Sequence[Outcome]], score: Number) -> None:
    """Give the methods their scores at equal bytes and at equal mini-batches: in each seed within the least amount that
    one of them needs for all its rounds, in the round that validation data choose, or the last evaluated one. A method
    that sends, or counts, nothing gets no such score, and does not limit the others."""
    methods = [e for e in found if not e.reference and e.complete]
    for amount, name in ((traffic, "equal_bytes"), (_batches, "equal_steps")):
        spent = {e.label: [sum(map(amount, outcome.lines)) for outcome in made[e.label]] for e in methods}
        spent = {label: of_seeds for label, of_seeds in spent.items() if all(of_seeds)}
        if len(spent) < 2:  # nothing to compare
            continue
        least = [min(of_seed) for of_seed in zip(*spent.values(), strict=True)]
        for e in (e for e in methods if e.label in spent):
            scores = [_within(o.lines, amount, most, score) for o, most in zip(made[e.label], least, strict=True)]
            setattr(e, name, scores)


def _batches(line: Line) -> int:
    return int(line.get("batches") or 0)


def _within(lines: Sequence[Line], amount: Callable[[Line], int], most: int, score: Number) -> float | None:
    """Return the score within the rounds that need at most `most`, chosen as in `gather`."""
    spent = itertools.accumulate(map(amount, lines))
    kept = [line for line, total in zip(lines, spent, strict=True) if total <= most]
    line = choose(kept, score) or last(kept) or {}
    value = line.get(score.key)
    return value if is_finite(value) else None


def last(lines: Sequence[Line]) -> Line | None:
    """Return the last round that was evaluated."""
    return next((line for line in reversed(lines) if any(is_finite(line.get(s.key)) for s in SCORES)), None)
