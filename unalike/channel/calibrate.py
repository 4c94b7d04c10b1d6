"""Find the noise for a given ε, or the number of rounds: searches over the accountant's results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from unalike.channel.accountant import GRID, Accountant
from unalike.channel.events import Event
from unalike.errors import UnalikeError

# relative tolerance of a noise that is searched for
TOLERANCE = 1e-4
MOST_NOISE = 2.0**20
MOST_ROUNDS = 1 << 40


def noise_for(epsilon: float, delta: float, rounds: int, make: Callable[[float], Event], tight: bool = True) -> float:
    """Return the least noise with which `rounds` releases spend at most ε at δ.

    `make` returns the event for a noise: `lambda noise: SampledGaussian(0.01, noise)`. With `tight` (some seconds if
    clients are drawn) the ε is that of `Accountant.tight`; the RDP values in a run's lines are then larger than ε.
    """
    if not epsilon > 0 or not 0 < delta < 1 or rounds < 1:
        raise UnalikeError(
            f"Noise is found for ε above 0, δ in (0, 1) and at least one round; got {epsilon!r}, {delta!r}, {rounds!r}."
        )

    def spends(way: Callable[[Accountant], float], noise: float) -> float:
        return way(Accountant().after(make(noise), rounds))

    by_renyi, *tighter = (functools.partial(spends, way) for way in ways(delta, tight))
    enough = 1.0
    while by_renyi(enough) > epsilon:
        enough *= 2
        if enough > MOST_NOISE:
            raise UnalikeError(
                f"No noise up to {MOST_NOISE:g} clips keeps {rounds} rounds below ε = {epsilon:g} at δ = {delta:g}: "
                "allow a larger ε or δ, or fewer rounds."
            )
    enough = _least(by_renyi, epsilon, enough, step=0.5)
    for way, step in zip(tighter, (0.95, 1 / (1 + TOLERANCE)), strict=False):
        enough = _least(way, epsilon, enough, step)
    return enough


def rounds_left(account: Accountant, event: Event, most: float, delta: float, tight: bool = False) -> int:
    """Return how many more releases of this kind keep ε at or below `most`; `tight` takes some seconds."""

    def fits(way: Callable[[Accountant], float], count: int) -> bool:
        return way(account.after(event, count)) <= most

    count = 0
    for way in ways(delta, tight):
        count = _largest(functools.partial(fits, way), count)
    return count


def ways(delta: float, tight: bool) -> list[Callable[[Accountant], float]]:
    """Return ways to compute ε, each giving a smaller value more slowly than the one before, so that a search can begin
    with the quick ones."""

    def quick(account: Accountant) -> float:
        return account.spent(delta).epsilon

    def slow(account: Accountant, grid: float) -> float:
        return account.tight(delta, grid=grid).epsilon

    return [quick, *(functools.partial(slow, grid=grid) for grid in (10 * GRID, GRID) if tight)]


def _least(spends: Callable[[float], float], target: float, enough: float, step: float) -> float:
    """Return the least noise that spends at most the target, given one that does and the factor of a first step down
    from it."""
    at_enough = spends(enough)
    while (at_little := spends(little := enough * step)) <= target:
        enough, at_enough, step = little, at_little, step**2
        if little < 1 / MOST_NOISE:
            return enough
    turn = 0
    while enough > little * (1 + TOLERANCE):
        # every third guess is the middle: a line through the ends may keep approaching only one of them
        turn += 1
        middle = (
            math.sqrt(little * enough) if turn % 3 == 0 else _crossing(little, at_little, enough, at_enough, target)
        )
        if (at_middle := spends(middle)) <= target:
            enough, at_enough = middle, at_middle
        else:
            little, at_little = middle, at_middle
    return enough


def _crossing(little: float, at_little: float, enough: float, at_enough: float, target: float) -> float:
    """Return where the target is crossed if ε is a power of the noise in between, shifted to the safe side by half a
    tolerance, so that the next guess closes the gap from the other side."""
    if not 0 < at_enough < at_little < math.inf:
        return math.sqrt(little * enough)
    share = math.log(at_little / target) / math.log(at_little / at_enough)
    guess = little * (enough / little) ** share * (1 + TOLERANCE / 2)
    inside = 1 + 0.99 * TOLERANCE
    return max(min(guess, enough / inside), little * (1 + TOLERANCE / 100))


def _largest(fits: Callable[[int], bool], count: int) -> int:
    """Return the largest count for which `fits` holds, given one for which it does."""
    step = 1
    while fits(count + step):
        count, step = count + step, 2 * step
        if step > MOST_ROUNDS:
            raise UnalikeError("Any number of rounds fits: the noise, or the ε allowed, is too large to speak of.")
    while step > 1:
        step //= 2
        count += step if fits(count + step) else 0
    return count
