"""Mean, spread, the paired t-test, and a sequential test that stays valid when looked at after every seed, in plain
Python."""

from __future__ import annotations

import dataclasses as dc
import math
import statistics
from collections.abc import Sequence
from fractions import Fraction

ALPHA = 0.05  # below it a difference is called sure
# how steeply a bet grows with the size of a difference: the share of the stake on each steepness
BOLDNESS = {0.7: 0.6, 4.0: 0.4}


@dc.dataclass(frozen=True)
class Paired:
    """The result of a paired t-test: the mean difference, t, the degrees of freedom and the two-sided p. If the
    difference is the same in every seed, t is infinite and p is the sign test's."""

    difference: float
    t: float
    df: int
    p: float


@dc.dataclass(frozen=True)
class Sequential:
    """The result of a sequential test: the mean difference, its standard error (None for one seed), in how many seeds
    the first is ahead and behind, and p, which keeps its level however often one looks."""

    difference: float
    error: float | None
    ahead: int
    behind: int
    seeds: int
    p: float


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample (n - 1); None for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def paired(a: Sequence[float], b: Sequence[float]) -> Paired | None:
    """Return Student's paired t-test of a against b; None with fewer than two pairs.

    The same difference in every seed is typical of small test sets (one more sample, three times), not a certainty:
    then the sign test takes its place, p = 2 / 2^n.
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2:
        return None
    difference, df = mean(differences), len(differences) - 1
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if error <= 1e-12 * max(abs(difference), 1e-300):  # the same difference in every seed
        if difference == 0:
            return Paired(0.0, 0.0, df, 1.0)
        return Paired(difference, math.copysign(math.inf, difference), df, 2.0**-df)
    t = difference / error
    return Paired(difference, t, df, two_sided(t, df))


def two_sided(t: float, df: int) -> float:
    """Return P(|T| > |t|) for Student's t with an integer number of degrees of freedom, as a finite sum (Abramowitz &
    Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(abs(t), math.sqrt(df)) if math.isfinite(t) else math.pi / 2
    sine, cosine = math.sin(angle), math.cos(angle)
    if df == 1:
        return 1 - 2 * angle / math.pi
    odd = df % 2
    term = total = cosine if odd else 1.0
    for k in range(2 if odd else 1, df - 1, 2):
        term *= k / (k + 1) * cosine**2
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - inside))


def holm(ps: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """Return p values after Holm's correction (1979) for all these comparisons; a comparison with twice the weight gets
    twice the share of the level."""
    weights = [1.0] * len(ps) if weights is None else weights
    order = sorted(range(len(ps)), key=lambda k: ps[k] / weights[k])
    out, largest, left = [0.0] * len(ps), 0.0, sum(weights)
    for k in order:
        largest = max(largest, min(1.0, left / weights[k] * ps[k]))
        out[k] = largest
        left -= weights[k]
    return out


# ---------------------------------------------------------------- a test that may be looked at after every seed


def sequential(a: Sequence[float], b: Sequence[float]) -> Sequential:
    """Test whether a and b are of equal methods, by betting on who is ahead; seeds in the order in which they were run.

    If the methods are equal, each difference is as likely to have the other sign, whatever its size: a bet on its sign
    is fair, and the money of one who bets seed after seed exceeds 20 times the stake with a chance of 1 in 20 at most,
    at whichever seed one stops (Ville's inequality). So p is one over the most money so far. Of the stake, half is bet
    on either side, and on each side as `BOLDNESS` says; a difference that is large among those so far gets a larger
    bet. Nothing is assumed of the noise but that it treats equal methods alike."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    money = {(side, bold): share / 2 for side in (1, -1) for bold, share in BOLDNESS.items()}
    squares, most = 0.0, 1.0
    for seen, difference in enumerate(differences, 1):
        squares += difference**2
        if squares:
            size = difference / math.sqrt(squares / seen)
            money = {(side, bold): now * (1 + math.tanh(side * bold * size)) for (side, bold), now in money.items()}
        most = max(most, sum(money.values()))
    spread = deviation(differences)
    error = None if spread is None else spread / math.sqrt(len(differences))
    ahead, behind = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Sequential(mean(differences), error, ahead, behind, len(differences), 1 / most)


def least_seeds(level: float) -> int:
    """Return the smallest number of seeds after which `sequential` can reach a p of this level."""
    seeds = 1
    while sequential([1.0] * seeds, [0.0] * seeds).p > level:
        seeds += 1
    return seeds


def luck(others: int, seeds: int) -> float:
    """Return the chance that one of `others` methods is ahead of another method in every seed if all are equal: 1 -
    E[(1 - U_1 ... U_n)^m] of uniform U, by the binomial theorem."""
    terms = (Fraction((-1) ** (k + 1) * math.comb(others, k), (k + 1) ** seeds) for k in range(1, others + 1))
    return float(sum(terms))
