"""The best split, beside one found by trying every division of rows by hand."""

import numpy as np
import torch

from unalike.trees.client import histograms
from unalike.trees.splits import best_splits, gains, goes_left

BINS, LAM, LEAST = 4, 0.5, 0.7


def random_rows(seed, rows=40, columns=3):
    draw = np.random.default_rng(seed)
    codes = torch.from_numpy(draw.integers(0, BINS + 1, (rows, columns)))
    pair = torch.from_numpy(draw.integers(-(2**28), 2**28, (rows, 2)))
    return codes, torch.stack([pair[:, 0], pair[:, 1].abs()], 1)


def by_hand(codes, pair, categories):
    """The largest gain of all divisions, and its column, bin and way: the first where there are several."""
    g, h = (pair.double() / 2**30).T
    score = lambda rows: float(g[rows].sum() ** 2 / (h[rows].sum() + LAM))  # noqa: E731
    best = (-np.inf,)
    for column in range(codes.shape[1]):
        for bin in range(BINS):
            for way in (0, 1):
                own = codes[:, column]
                left = (own != bin) if categories[column] else (own <= bin)
                left = torch.where(own == BINS, torch.tensor(bool(way)), left)
                if min(float(h[left].sum()), float(h[~left].sum())) < LEAST:
                    continue
                gain = score(left) + score(~left) - score(left | ~left)
                if gain > best[0] + 1e-12:
                    best = gain, column, bin, way, left
    return best


def test_every_division_is_tried():
    categories = torch.tensor([False, True, False])
    for seed in range(12):
        codes, pair = random_rows(seed)
        gain, column, bin, way, left = by_hand(codes, pair, categories)
        here = histograms(codes, pair, torch.zeros(40, dtype=torch.int64), 1, BINS)
        found = best_splits(here, torch.ones(3, dtype=torch.bool), categories, LAM, LEAST)
        assert abs(float(found.gain) - gain) < 1e-9
        assert (int(found.column), int(found.bin), int(found.missing_left)) == (column, bin, way)
        assert found.left[0].tolist() == pair[left].sum(0).tolist()
        own = codes[:, column]
        moved = goes_left(own, found.bin, found.missing_left, categories[column], BINS)
        assert torch.equal(moved, left)


def test_columns_that_are_not_drawn_are_not_split_by():
    codes, pair = random_rows(3)
    here = histograms(codes, pair, torch.zeros(40, dtype=torch.int64), 1, BINS)
    for column in range(3):
        allowed = torch.arange(3) == column
        assert int(best_splits(here, allowed, torch.zeros(3, dtype=torch.bool), LAM, LEAST).column) == column


def test_where_nothing_is_missing_it_would_go_to_the_heavier_child():
    pair = torch.tensor([[-(2**30), 2**30]] * 3 + [[2**30, 2**30]] * 5)
    one, plain = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
    for codes, heavier_left in ((torch.arange(8) >= 3, False), (torch.arange(8) < 3, True)):
        here = histograms(codes.long()[:, None], pair, torch.zeros(8, dtype=torch.int64), 1, BINS)
        assert bool(best_splits(here, one, plain, 1.0, 1.0).missing_left) is heavier_left


def test_a_child_must_be_heavy_enough():
    total = torch.tensor([0, 4 * 2**30])
    lefts = torch.tensor([[2**30, 2**30 - 1], [2**30, 2**30], [2**30, 3 * 2**30], [2**30, 3 * 2**30 + 1]])
    assert torch.isfinite(gains(lefts, total, 1.0, 1.0)).tolist() == [False, True, True, False]


def test_histograms_leave_out_rows_that_are_not_asked_for():
    codes, pair = random_rows(5)
    slot = torch.arange(40) % 3 - 1
    both = histograms(codes, pair, slot, 2, BINS)
    for k in (0, 1):
        alone = histograms(
            codes[slot == k], pair[slot == k], torch.zeros((slot == k).sum(), dtype=torch.int64), 1, BINS
        )
        assert torch.equal(both[k], alone[0])
