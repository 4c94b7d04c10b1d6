import pytest
import torch

from unalike import UnalikeError
from unalike.trees.bins import FARTHEST, STEPS, Search, check_categories, codes, keys, numbers, pooled_cuts
from unalike.trees.stack import counted

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(200, 6, generator=DRAW)
X[:, 1] = torch.randint(0, 3, (200,), generator=DRAW).float()
X[:, 2] = 1e-38 * X[:, 2]
X[:, 3] = -0.0
X[::3, 4] = torch.nan
X[:, 5] = torch.nan


def searched(parts, bins):
    """The cuts from counts that clients sum."""
    present = sum((~torch.isnan(x)).sum(0) for x in parts)
    search = Search(present, bins)
    for _ in range(STEPS):
        step = torch.tensor(search.step)
        search.take(sum(counted(x, torch.tensor(len(x)), search.low, step) for x in parts))
    return search.cuts


def test_keys_are_in_the_order_of_numbers():
    x = torch.tensor([-3.0e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 2.0, 3.0e38, float("nan")])
    order = keys(x)
    assert (order[1:] >= order[:-1]).all() and order[3] == order[4] and order[-1] == 1 << 31
    assert torch.equal(numbers(order[:-1]), x[:-1])


@pytest.mark.parametrize("bins", [2, 7, 32])
def test_counting_finds_the_pooled_quantiles(bins):
    cuts = pooled_cuts(X, bins)
    for parts in ([X], [X[:1], X[1:50], X[50:]]):
        assert torch.equal(searched(parts, bins), cuts)


def test_cuts_are_quantiles():
    cuts = pooled_cuts(X, 4)
    column = X[:, 0].sort().values
    assert torch.equal(cuts[0], column[[49, 99, 149]])
    assert cuts[3].tolist() == [0.0, pytest.approx(FARTHEST), pytest.approx(FARTHEST)]
    sizes = codes(X, cuts, torch.zeros(6, dtype=torch.bool))[:, 0].long().bincount()
    assert sizes.tolist() == [50, 50, 50, 50]


def test_codes_of_missing_values_and_categories():
    flags = torch.tensor([False, True])
    x = torch.tensor([[0.5, 2.0], [torch.nan, torch.nan], [9.0, 0.0]])
    got = codes(x, torch.tensor([[0.5, 1.0, FARTHEST], [0.0, 0.0, 0.0]]), flags)
    assert got.tolist() == [[0, 2], [4, 4], [2, 0]]


def test_a_category_that_is_no_small_number_is_refused_by_name():
    for bad in (0.5, -1.0, 8.0):
        with pytest.raises(UnalikeError, match="Column 'colour' has categories"):
            check_categories(torch.tensor([[bad]]), torch.tensor([True]), 8, ["colour"])
