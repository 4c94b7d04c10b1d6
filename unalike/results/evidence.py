"""From the rounds of some runs to what can be said of a method: a pure function of what the run folders hold."""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from unalike.contract import Method
from unalike.results import stats

REFERENCES = ("centralized", "local-only")
TARGET_SHARE = 0.95  # of the baseline's score, where no target is given


@dc.dataclass(frozen=True)
class Score:
    """The number that methods are compared by: `key` of a round's line, and what it is in words."""

    key: str
    words: str
    larger: bool = True

    @property
    def name(self) -> str:
        return "accuracy" if self.larger else "loss"

    @property
    def validation(self) -> str:
        return f"validation_{self.name}"

    def places(self, values: Sequence[float]) -> int:
        """Decimals to show of such values: three of an accuracy; of a loss, whose size may be any, what three or four
        digits of the mean need."""
        size = abs(stats.mean(values)) if values else 0.0
        if self.larger or not size:
            return 3
        return max(0, (3 if size >= 1 else 2) - math.floor(math.log10(size)))


SCORES = (
    Score("test_accuracy", "accuracy of the global model on the test set"),
    Score("clients_accuracy_mean", "accuracy on clients' own test samples, every client counted once"),
    Score("test_loss", "loss of the global model on the test set", larger=False),
    Score("clients_loss", "loss on clients' own test samples, every client counted once", larger=False),
)


@dc.dataclass(frozen=True)
class Outcome:
    """One run: its seed, its lines, and the round in which it diverged, if it did."""

    seed: int
    lines: list[dict[str, Any]]
    diverged: int | None = None


@dc.dataclass(frozen=True)
class Traits:
    """What a method asks for, from its declarations: fields read client by client, fields that other clients see too,
    and what clients keep from round to round."""

    each: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    state: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """For a table."""
        parts = ["sums"]
        parts += [f"each client's {', '.join(self.each)}"] if self.each else []
        parts += [f"{', '.join(self.peers)}, shown to all"] if self.peers else []
        return "; ".join(parts)


def traits(method: Method) -> Traits:
    sends = method.sends.items()
    each, peers = (tuple(n for n, f in sends if f.read == how) for how in ("each", "peers"))
    return Traits(each, peers, tuple(n for n, f in method.keeps.items() if f.life == "run"))


@dc.dataclass
class Evidence:
    """What the runs of one method say: a list has one entry a seed, in the order of the seeds."""

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
    rounds_to: list[int | None] = dc.field(default_factory=list)
    bytes_to: list[int | None] = dc.field(default_factory=list)
    bytes: list[int] = dc.field(default_factory=list)
    seconds: list[float] = dc.field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether it got through in every seed, with the score that is compared."""
        return not self.diverged and len(self.selected) == len(self.seeds)

    @property
    def reached(self) -> int:
        """In how many seeds it reached the target."""
        return sum(value is not None for value in self.rounds_to)


def score_of(outcomes: Sequence[Outcome]) -> Score | None:
    """The first of the scores that all of these have in their last evaluated round; those that diverged do not
    count."""
    ends = [last(outcome.lines) for outcome in outcomes if outcome.diverged is None]
    lines = [line for line in ends if line is not None]
    return next((s for s in SCORES if lines and all(_number(line.get(s.key)) for line in lines)), None)


def gather(
    label: str, method: str, outcomes: Sequence[Outcome], score: Score, kind: Traits, reference: bool = False
) -> Evidence:
    """All but what depends on the target."""
    out = Evidence(label, method, [o.seed for o in outcomes], reference, kind)
    for outcome in outcomes:
        out.bytes.append(sum(map(traffic, outcome.lines)))
        out.seconds.append(sum(line.get("seconds") or 0.0 for line in outcome.lines))
        end = last(outcome.lines)
        bad = end is not None and not _number(end.get("train_loss", 0.0) or 0.0)
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
            (out.own, line, f"clients_{'accuracy_mean' if score.larger else 'loss'}"),
            (out.worst, line, "clients_accuracy_worst20"),
            (out.variance, line, "clients_accuracy_variance_pp2"),
        ):
            if _number(found.get(key)):
                values.append(found[key])
        out.selected_round.append(line["round"])
    return out


def choose(lines: Sequence[dict[str, Any]], score: Score) -> dict[str, Any] | None:
    """The round that validation data choose; None without such data. Never by test data. Few validation samples leave
    many rounds with the same accuracy: of these the one with the least validation loss, then the last, since the first
    would be the least trained."""
    sign = 1 if score.larger else -1

    def rank(line: dict[str, Any]) -> tuple[float, float, int]:
        loss = line.get("validation_loss")
        return sign * line[score.validation], -loss if _number(loss) else -math.inf, line["round"]

    return max((line for line in lines if _number(line.get(score.validation))), key=rank, default=None)


def target_of(base: Evidence, score: Score) -> float | None:
    """95 % of the baseline's mean accuracy, to three decimals, or its loss over 95 %, to three digits."""
    if not base.selected:
        return None
    value = stats.mean(base.selected)
    return round(value * TARGET_SHARE, 3) if score.larger else float(f"{value / TARGET_SHARE:.3g}")


def aim(evidence: Evidence, outcomes: Sequence[Outcome], score: Score, target: float | None) -> None:
    """The first round that reaches the target, and the bytes until then; None in a seed that never does."""
    for outcome in outcomes:
        sent, found = 0, None
        for line in outcome.lines:
            sent += traffic(line)
            value: Any = line.get(score.key)
            if target is not None and _number(value) and (value >= target if score.larger else value <= target):
                found = line["round"]
                break
        evidence.rounds_to.append(found)
        evidence.bytes_to.append(sent if found is not None else None)


def traffic(line: dict[str, Any]) -> int:
    """All bytes of a round, both ways, and those before round 1."""
    return sum(int(line.get(f"{when}bytes_{way}") or 0) for when in ("", "setup_") for way in ("down", "up"))


def last(lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The last round that was evaluated."""
    return next((line for line in reversed(lines) if any(_number(line.get(s.key)) for s in SCORES)), None)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
