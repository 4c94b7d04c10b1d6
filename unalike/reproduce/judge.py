"""The verdict on a cell: the paper's number against ours. RULES explain on the pages what is computed here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unalike.reproduce.measure import Cell

REPRODUCES, CLOSE, WITHIN, DIFFERS = "reproduces", "close", "within the spread", "differs"
CONTRADICTS, SHORT, NOT_RUN, NO_ROW = "the paper contradicts itself", "too short to say", "not run", "no row here"
NO_NUMBER, FIGURE = "no number printed", "figure without number"
ORDER = (REPRODUCES, CLOSE, WITHIN, DIFFERS, CONTRADICTS, SHORT, NOT_RUN, NO_ROW)

# How near is near, for each unit: (reproduces, close); a share where it says so. Accuracies are in points.
NEAR = {
    "%": (0.5, 2.0),
    "pp²": (0.10, 0.30),
    "rounds": (0.10, 0.30),
    "bytes": (0.0, 0.01),
    "MB": (0.0, 0.01),
    "kB": (0.0, 0.01),
    "s": (0.10, 0.30),
}
ENOUGH = 3  # seeds whose deviation counts

RULES = """\
- **reproduces**: our mean is within 0.5 points of the printed accuracy (rounds, variances and seconds: within 10 %;
  bytes: equal), or within the ± that the paper prints.
- **close**: within 2 points (30 %; bytes 1 %).
- **within the spread**: further apart, but within two standard deviations (ours over three seeds or more, and the
  paper's ±, taken together), so that the difference may be chance. It is no confirmation: where seeds lie ten points
  apart, so may this.
- **differs**: none of these; or our runs diverged.
- **the paper contradicts itself**: another place of the paper says otherwise about this cell, so that there is
  nothing to reproduce; or it does not say what it measures (the distance of FedAvgR's Figure 2). Where it only gives
  a second number (a speedup that means 86 rounds beside a printed 87), the nearer one counts.
- Rounds to a target: "> 600" reproduces where ours is not there either after 600 rounds or more, or gets there later.
  Where most of our seeds never reach the target, the cell differs if they ran at least 1.3 times the printed rounds,
  and is **too short to say** if not.
- **figure without number**: the paper draws it and prints no number. **no number printed**: the paper does not have
  this method, row or measure.
- **no row here**: the paper's data or setting cannot be had, or are not defined here.
- Of several readings of a row (what the paper leaves open) the one that is nearest to its numbers counts, for all of
  these; all are on the paper's page."""


def verdict(cell: Cell) -> str:
    if not cell.done:
        return NOT_RUN
    if cell.paper is None:
        return FIGURE if cell.figure else NO_NUMBER
    if cell.paper.doubt:
        return CONTRADICTS
    if cell.measure.unit == "rounds":
        return _rounds(cell)
    return DIFFERS if cell.mean is None else _near(cell, cell.mean)


def _near(cell: Cell, ours: float) -> str:
    """Judge by distance; `ours` is the mean over seeds."""
    assert cell.paper is not None
    one, two = NEAR.get(cell.measure.unit, (0.05, 0.2))
    scale = 1.0 if cell.measure.unit == "%" else max(abs(cell.paper.value), 1e-12)
    values = [cell.paper.value] if cell.paper.other is None else [cell.paper.value, cell.paper.other]
    apart, printed = min(abs(ours - value) for value in values), cell.paper.spread or 0.0
    # tolerance, so that 0.5 points count as 0.5 points despite rounding
    apart -= 1e-9 * max(1.0, abs(ours))
    if apart <= max(one * scale, printed):
        return REPRODUCES
    if apart <= two * scale:
        return CLOSE
    # of two seeds the deviation says little
    ours_vary = cell.deviation if len(cell.values) >= ENOUGH else None
    both = math.hypot(ours_vary or 0.0, printed)
    return WITHIN if apart <= 2 * both else DIFFERS


def _rounds(cell: Cell) -> str:
    """Judge the rounds to a target, which our runs or the paper's may never have reached."""
    assert cell.paper is not None
    ours = cell.mean if len(cell.values) > len(cell.missed) else None
    if ours is not None:
        late = cell.paper.more_than and ours > cell.paper.value
        return REPRODUCES if late else _near(cell, ours)
    if cell.diverged:
        return DIFFERS
    if cell.paper.more_than:
        return REPRODUCES if cell.rounds >= cell.paper.value else SHORT
    return DIFFERS if cell.rounds >= (1 + NEAR["rounds"][1]) * cell.paper.value else SHORT
