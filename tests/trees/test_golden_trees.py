"""Golden trees: one table, rows divided among clients, and the root's sums, all in whole numbers."""

import numpy as np
import torch
from goldens import golden

from unalike.trees import Boosted, Boosting, exact
from unalike.trees.client import Forest as Splits
from unalike.trees.fit import boost
from unalike.trees.forest import instruction
from unalike.trees.grow import Growth
from unalike.trees.stack import next_level, root_sums

FILE = golden("trees_histogram")
CODES, Y = torch.tensor(FILE["codes"], dtype=torch.uint8), torch.tensor(FILE["y"]).long()
SETTINGS = Boosting(trees=3, depth=3, bins=8, rate=0.3)
PLAIN = torch.zeros(10, dtype=torch.bool)


def blank():
    return Boosted(torch.zeros(10, 7), PLAIN, 2)


def check(tree, plain, rate=0.3):
    """The same splits, gains to 1e-12, and leaves, which the file has before they are shrunk."""
    if "leaf" in plain:
        assert abs(tree["leaf"] - rate * plain["leaf"]) < 1e-12
        return
    assert (tree["feature"], tree["bin"]) == (plain["feature"], plain["bin"])
    assert abs(tree["gain"] - plain["gain"]) < 1e-12 * plain["gain"]
    for side in ("left", "right"):
        check(tree[side], plain[side])


def test_pooled():
    model = boost(SETTINGS, blank(), CODES, Y)
    for grown, plain in zip(model.trees, FILE["trees"], strict=True):
        check(grown[0].plain(), plain)
    assert np.abs(model.margins_of(CODES)[:, 0].numpy() - np.array(FILE["margins"])).max() < 1e-12


def test_the_roots_sums():
    pair = exact.derivatives(torch.zeros(150, 1, dtype=torch.float64), Y, 2)
    sums = root_sums(CODES, pair, torch.tensor(150), 8)[0, 0, :, :8]
    wanted = [[[int(v) for v in cell] for cell in column] for column in FILE["root_histogram_integers"]]
    assert sums.tolist() == wanted


def test_horizontal():
    """Each client sums its own rows; the trees are those of the pooled table, bit for bit."""
    party = torch.tensor(FILE["horizontal_party_of_row"])
    own = [CODES[party == k] for k in range(3)]
    labels, margins = [Y[party == k] for k in range(3)], [torch.zeros((party == k).sum(), 1).double() for k in range(3)]
    pooled = boost(SETTINGS, blank(), CODES, Y)
    for number in range(3):
        pairs = [exact.derivatives(m, y, 2) for m, y in zip(margins, labels, strict=True)]
        places = [torch.ones(len(codes), 1, dtype=torch.int64) for codes in own]
        growth = Growth(SETTINGS, ~PLAIN, PLAIN)
        sizes = [torch.tensor(len(codes)) for codes in own]
        growth.take(sum(root_sums(c, p, n, 8)[0] for c, p, n in zip(own, pairs, sizes, strict=True)))
        for level in range(2):
            told = {name: value[None] for name, value in instruction(growth, level).items()}
            splits = told["column"], told["bin"], told["missing_left"], told["column"]
            clients = zip(own, pairs, places, sizes, strict=True)
            answers = [next_level(*mine, Splits(*splits), told["asked"], 8) for mine in clients]
            places = [place for place, _ in answers]
            sums = sum(part for _, part in answers)[0]
            growth.take(sums[torch.from_numpy(growth.asked // 2 - (1 << level))])
        assert growth.tree.same(pooled.trees[number][0])
        margins = [m + pooled_values(c, pooled, number) for m, c in zip(margins, own, strict=True)]


def pooled_values(codes, model, number):
    one = Boosted(model.cuts, model.categories, 2, 0.0, [model.trees[number]])
    return one.margins_of(codes.to(torch.uint8))
