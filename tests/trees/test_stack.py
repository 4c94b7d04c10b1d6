"""A whole stack in one pass gives every client what it computes alone."""

import pytest
import torch
from torch.func import vmap

from unalike.trees import bins as cutting
from unalike.trees import stack
from unalike.trees.client import Forest

COUNTS, MOST, COLUMNS, BINS = torch.tensor([5.0, 40.0, 1.0, 17.0]), 40, 3, 8
DRAW = torch.Generator().manual_seed(1)
X = torch.randn(4, MOST, COLUMNS, generator=DRAW)
X[:, ::5, 1] = torch.nan
Y = torch.randint(0, 3, (4, MOST, 1), generator=DRAW).float()
REAL = torch.arange(MOST) < COUNTS[:, None]
CUTS = cutting.pooled_cuts(X.flatten(0, 1), BINS)
TREES = Forest(
    torch.randint(-1, COLUMNS, (2, 3, 8), generator=DRAW, dtype=torch.int32),
    torch.randint(0, BINS, (2, 3, 8), generator=DRAW, dtype=torch.int32),
    torch.rand(2, 3, 8, generator=DRAW) < 0.5,
    torch.randn(2, 3, 8, generator=DRAW, dtype=torch.float64),
)
LEVEL = Forest(*(part[0, :, 4:6] for part in TREES))  # splits of two parents, of each of three outputs
ASKED = torch.tensor([[0, 1], [1, -1], [0, 0]])


def whole_stack():
    """What the four functions give for the stack: (counts, codes and derivatives, roots' sums, places and sums)."""
    told = CUTS, torch.tensor(0.5), *TREES, 3
    codes, pair = vmap(lambda x, y, n, r: stack.derived(torch.cat([x, y], 1), n, r, *told))(X, Y, COUNTS, REAL)
    place = torch.where(REAL[..., None], torch.randint(1, 4, (4, MOST, 3), generator=DRAW), 0)
    roots = vmap(lambda c, p, n: stack.root_sums(c, p, n, BINS))(codes, pair, COUNTS)
    moved, sums = vmap(lambda *own: stack.next_level(*own, LEVEL, ASKED, BINS))(codes, pair, place, COUNTS)
    return codes, pair, place, roots, moved, sums


def test_each_client_gets_what_it_computes_alone_without_padding():
    codes, pair, place, roots, moved, sums = whole_stack()
    for k, n in enumerate(COUNTS.int().tolist()):
        own, count = torch.cat([X[k, :n], Y[k, :n]], 1), torch.tensor(n)
        alone = stack.derived(own, count, REAL[k, :n], CUTS, torch.tensor(0.5), *TREES, 3)
        assert torch.equal(codes[k, :n], alone[0]) and torch.equal(pair[k, :n], alone[1])
        assert torch.equal(roots[k], stack.root_sums(*alone, count, BINS))
        assert not moved[k, n:].any() and not pair[k, n:].any()
        places, own_sums = stack.next_level(*alone, place[k, :n], count, LEVEL, ASKED, BINS)
        assert torch.equal(moved[k, :n], places) and torch.equal(sums[k], own_sums)


def test_histograms_by_hand():
    codes, pair, _, roots, _, _ = whole_stack()
    k, n, output = 3, 17, 1
    for column in range(COLUMNS):
        for cell in range(BINS + 1):
            inside = codes[k, :n, column] == cell
            assert torch.equal(roots[k, output, 0, column, cell], pair[k, :n, output][inside].sum(0))


@pytest.mark.parametrize("apart", [False, True])
def test_counts_at_most_thresholds(apart):
    """The same for all clients, and (as where several runs share a stack) thresholds of each client's own."""
    low = torch.randint(-(1 << 31), 1 << 31, (4, COLUMNS, 5), generator=DRAW)
    low = low if apart else low[:1].expand(4, -1, -1)
    step = torch.tensor(1 << 24)
    found = vmap(lambda x, n, at: stack.counted(x, n, at if apart else low[0], step))(X, COUNTS, low)
    for k, n in enumerate(COUNTS.int().tolist()):
        keys, asked = cutting.keys(X[k, :n]), cutting.thresholds(low[k], step)
        assert torch.equal(found[k], (keys.T[:, None, None] <= asked[..., None]).sum(-1, dtype=torch.int32))
