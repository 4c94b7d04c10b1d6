"""Attack a noised run with a canary, and bound from below how much privacy it really spends.

A canary client always sends the longest update that the clip allows, along a direction u; the attacker sees what the
server releases and computes one number, ⟨release, u⟩. The run is repeated with the canary and without it. From how well
a threshold tells the two apart follows a lower bound of ε: above the stated ε, the accounting or the noise is wrong.

Gaussian noise has a Gaussian trade-off: at a rate f of false positives no test finds more than Φ(Φ⁻¹(f) + μ) of the
canaries. So μ ≥ Φ⁻¹(true positives) − Φ⁻¹(false positives), and ε follows from μ, exactly, at any δ. Both rates are
taken at the unfavourable ends of Clopper-Pearson intervals that hold together with the confidence asked for.

A bound is only valid at a threshold that was not chosen on the repeats that it is computed from; the best of all
thresholds exceeded the truth in 7 of 100 audits where 5 are allowed. So either the threshold is fixed beforehand (half
of what the canary adds: it stays the best one if the noise is wrong), or the first half of the repeats chooses it and
the second half gives the bound. Fixed is stronger: of runs with half their noise and a stated μ of 0.5, 500 repeats
find all against 76 of 100.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from unalike.channel.accountant import epsilon_of_mu
from unalike.channel.events import dp_accounting
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class Audit:
    """The result of an attack: with the given confidence, the release spends at least this much."""

    epsilon: float
    mu: float
    threshold: float
    # lower bound of the share of canaries that were found
    true_positives: float
    # upper bound of the share of runs without a canary that were taken for runs with one
    false_positives: float


def audit(
    present: Sequence[float] | np.ndarray,
    absent: Sequence[float] | np.ndarray,
    delta: float,
    threshold: float | None = None,
    confidence: float = 0.95,
) -> Audit:
    """Return the lower bound of ε from the statistic's values with the canary and without it.

    Without a threshold the first half of the repeats, in the order given, chooses it.
    """
    present, absent = np.asarray(present, dtype=np.float64), np.asarray(absent, dtype=np.float64)
    least = 1 if threshold is not None else 2
    if min(len(present), len(absent)) < least or not 0 < confidence < 1 or not 0 < delta < 1:
        raise UnalikeError(
            f"An audit needs at least {least} repeats with the canary and without, and δ and confidence in (0, 1); "
            f"got {len(present)}, {len(absent)}, {delta!r} and {confidence!r}."
        )
    if threshold is None:
        a, b = len(present) // 2, len(absent) // 2
        threshold = _best_threshold(present[:a], absent[:b], confidence)
        present, absent = present[a:], absent[b:]
    mu, found, mistaken = (float(x[0]) for x in _bounds(present, absent, np.array([threshold]), confidence))
    return Audit(epsilon_of_mu(mu, delta), mu, float(threshold), found, mistaken)


def clopper_pearson(hits: np.ndarray, tries: int, miss: float) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper bounds of a probability, each of which fails with a chance of at most `miss`."""
    # it brings scipy, and gives a clear error if both are missing
    dp_accounting()
    from scipy.special import betaincinv

    hits = np.asarray(hits, dtype=np.float64)
    below = np.where(hits > 0, betaincinv(np.maximum(hits, 1), tries - hits + 1, miss), 0.0)
    above = np.where(hits < tries, betaincinv(hits + 1, np.maximum(tries - hits, 1), 1 - miss), 1.0)
    return below, above


def _bounds(
    present: np.ndarray, absent: np.ndarray, thresholds: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return at each threshold the lower bound of μ, that of the true positives, and the upper bound of the false
    positives."""
    miss = (1 - confidence) / 2  # two bounds, each of which may fail
    found = clopper_pearson((present[:, None] > thresholds).sum(0), len(present), miss)[0]
    mistaken = clopper_pearson((absent[:, None] > thresholds).sum(0), len(absent), miss)[1]
    inverse = np.vectorize(NormalDist().inv_cdf, otypes=[float])
    useful = (found > 0) & (mistaken < 1) & (found > mistaken)
    mu = np.zeros(len(thresholds))
    mu[useful] = inverse(found[useful]) - inverse(mistaken[useful])
    return mu, found, mistaken


def _best_threshold(present: np.ndarray, absent: np.ndarray, confidence: float) -> float:
    """Return the value among the repeats that gives the largest bound; of several equally good ones, the middle one."""
    values = np.unique(np.concatenate([present, absent]))
    mu = _bounds(present, absent, values, confidence)[0]
    best = np.flatnonzero(mu == mu.max())
    return float(values[best[len(best) // 2]])
