"""A tree with splits at several parties, as the guest grows it: from its own histograms, and hosts' sums of
candidates."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unalike.trees.grow import Growth
from unalike.trees.settings import Boosting
from unalike.trees.splits import SMALLEST, Best, gains
from unalike.trees.table import Rows
from unalike.trees.tree import LEAF
from unalike.vertical.pairs import Width

GUEST = 0


class JointTree(Growth):
    """One tree being grown. `take` returns what hosts must be asked; `divided_by` takes their answers; `close` ends a
    level. forest: for each place the party, its column or record, the bin, and whether missing values go left."""

    width: Width
    candidates: list[int]

    def __init__(self, settings: Boosting, rows: Rows, pair: Tensor, allowed: Tensor):
        super().__init__(settings, allowed, torch.zeros(len(allowed), dtype=torch.bool))
        self.rows, self.pair = rows, pair
        self.forest = torch.full((4, 2 << settings.depth), LEAF)
        # for each host, its number of records so far
        self.counts: dict[int, int] = {}
        self._theirs: list[dict[int, Tensor]] = []

    def records(self, which: int, guest: object) -> int:
        """Return how many records of a host the guest knows."""
        forest = getattr(guest, "forest")  # noqa: B009
        self.counts[which] = int((forest[0] == which).sum())
        return self.counts[which]

    def members(self, places: np.ndarray) -> bytes:
        """Return for each row the index of its place among these, -1 if it is in none."""
        number = np.full(len(self.tree.column), -1, np.int16)
        number[places] = np.arange(len(places))
        return number[self.rows.place].tobytes()

    def take(self, sums: list[Tensor]) -> dict[int, dict[int, Tensor]]:  # type: ignore[override]
        """Take the hosts' sums of the places asked for, and make the guest's own splits; return for each host, by
        place, the candidates that are best there."""
        own = self.rows.sums(self.asked)
        if self.level == 0:
            self._leaves(np.array([1]), self.pair.sum(0)[None])
        places, here = self._histograms(own)
        theirs = [self._completed(k, part) for k, part in enumerate(sums)]
        total = self._sums[places]
        found = self._best(here)
        gain, winner, rated = found.gain.clone(), np.zeros(len(places), np.int64), {}
        for which, part in enumerate(theirs, 1):
            side = torch.stack([part[place] for place in places.tolist()])
            rate = gains(side, total[:, None], self.settings.lam, self.settings.least)
            top = rate.max(1).values if side.shape[1] else torch.full_like(gain, -torch.inf)
            better = top > gain  # with equal gains the first party wins
            winner[better.numpy()], gain = which, torch.where(better, top, gain)
            rated[which] = side, rate
        return self._decide(places, found, gain, winner, rated, total, here, theirs)

    def _decide(
        self, places: np.ndarray, found: Best, gain: Tensor, winner: np.ndarray, rated: dict, total: Tensor,
        here: Tensor, theirs: list[dict[int, Tensor]],
    ) -> dict[int, dict[int, Tensor]]:  # fmt: skip
        good = self._affordable(np.flatnonzero(gain.numpy() > max(self.settings.gamma, SMALLEST)), gain.numpy())
        self.divided, self._parents = places[good], here[good]
        self._theirs = [{place: part[place] for place in self.divided.tolist()} for part in theirs]
        out: dict[int, dict[int, Tensor]] = {}
        for k in good.tolist():
            place, which = int(places[k]), int(winner[k])
            self.tree.gain[place] = float(gain[k])
            if which == GUEST:
                self._own_split(place, found, k)
            else:
                side, rate = rated[which]
                number = len(out.setdefault(which, {}))
                out[which][place] = tied(number, side[k], rate[k], total[k])
        return out

    def _own_split(self, place: int, found: Best, k: int) -> None:
        column, bin, missing_left = int(found.column[k]), int(found.bin[k]), bool(found.missing_left[k])
        self.forest[:, place] = torch.tensor([GUEST, column, bin, missing_left])
        code = self.rows.codes[column]
        left = np.where(code == self.rows.bins, missing_left, code <= bin)
        self._move(place, left)

    def divided_by(self, which: int, places: np.ndarray, answer: np.ndarray) -> None:
        """Take which rows go left at a host's splits, and where missing values go."""
        left, lacking = answer[: len(self.rows.place)], answer[len(self.rows.place) :]
        before = self.rows.place.copy()
        for place, missing_left in zip(places.tolist(), lacking.tolist(), strict=True):
            self.forest[:, place] = torch.tensor([which, self.counts[which], 0, missing_left])
            self.counts[which] += 1
            self._move(place, left == 1, before)

    def _move(self, place: int, left: np.ndarray, before: np.ndarray | None = None) -> None:
        """Move the rows of a place to its children, which become leaves."""
        inside = (self.rows.place if before is None else before) == place
        self.tree.column[place], self.tree.value[place] = GUEST, 0.0
        sums = self.pair[torch.from_numpy(inside & left)].sum(0)
        self._leaves(np.array([2 * place, 2 * place + 1]), torch.stack([sums, self._sums[place] - sums]))
        self.rows.place[inside] = np.where(left[inside], 2 * place, 2 * place + 1)

    def close(self) -> None:
        """End a level: find the children whose sums are asked for next."""
        self.level += 1
        self.asked = self._lighter(self.divided if self.level < self.settings.depth else self.divided[:0])

    def _completed(self, k: int, sums: Tensor) -> dict[int, Tensor]:
        """Return a host's sums of every place of this level: those that came, and for the others their parent's minus
        their sibling's."""
        here = dict(zip(self.asked.tolist(), sums, strict=True))
        if self.level:
            here |= {place ^ 1: self._theirs[k][place // 2] - own for place, own in [*here.items()]}
        return here


def tied(number: int, side: Tensor, rate: Tensor, total: Tensor) -> Tensor:
    """Return the candidates with the largest gain in the form in which a host is told them: [n, 5], see
    `secure_boost.first_of`."""
    best = torch.nonzero(rate == rate.max()).flatten()
    groups: dict[tuple[int, ...], int] = {}
    rows = []
    for candidate in best.tolist():
        both = tuple(side[candidate].tolist()), tuple((total - side[candidate]).tolist())
        same = [groups.setdefault(sums, len(groups)) for sums in both]
        heavy = sum(bit for sums, bit in zip(both, (1, 2), strict=True) if 2 * sums[1] >= int(total[1]))
        rows.append([number, candidate, *same, heavy])
    return torch.tensor(rows)
