"""Mean, spread and the paired t-test, in plain Python: a comparison needs no SciPy."""

from __future__ import annotations

import dataclasses as dc
import math
import statistics
from collections.abc import Sequence

ALPHA = 0.05  # below it a difference is called clear


@dc.dataclass(frozen=True)
class Paired:
    """What a paired t-test found: the mean difference, t, the degrees of freedom and the two-sided p. Where the
    difference is the same in every seed, t is infinite and p is the sign test's."""

    difference: float
    t: float
    df: int
    p: float


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample (n - 1); None of a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def paired(a: Sequence[float], b: Sequence[float]) -> Paired | None:
    """Student's paired t-test of a against b; None with fewer than two pairs, of which nothing can be said.

    The same difference in every seed is how small test sets look (one sample more, three times), and no certainty:
    there the sign test takes its place, p = 2 / 2^n."""
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
    """P(|T| > |t|) of Student's t with a whole number of degrees of freedom, as a finite sum (Abramowitz & Stegun,
    26.7.3 and 26.7.4)."""
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


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction (1979): each p as it stands when all of these comparisons were looked at."""
    order = sorted(range(len(ps)), key=lambda k: ps[k])
    out, largest = [0.0] * len(ps), 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[k]))
        out[k] = largest
    return out
