"""What a page shows of trees: the words of splits, the values of leaves, and shares by column."""

import json

import numpy as np
import pytest

from unalike.trees import Boosting, fit
from unalike.trees.picture import MOST_NAMES, MOST_TREES, shared, splits, view

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(300, 3)).astype(np.float32)
Y = ((X[:, 2] > 0.5) ^ (X[:, 0] > 0)).astype(int)
MODEL = fit(Boosting(trees=5, depth=3, bins=8), (X, Y), names=["age", "height", "<b>weight</b>"])


def test_the_first_trees_node_by_node():
    found = view(MODEL)
    assert found["trees"] == 5 and len(found["drawn"]) == MOST_TREES
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    tree, picture = MODEL.all_trees[1], found["drawn"][1]
    assert picture["title"] == "Tree 2"
    nodes = {place: rest for place, *rest in picture["nodes"]}
    assert sorted(nodes) == sorted([*tree.splits.tolist(), *tree.leaves.tolist()])
    for place in tree.splits.tolist():
        words, gain, above = nodes[place]
        cut = float(MODEL.cut(int(tree.column[place]), int(tree.bin[place])))
        assert words == f"{MODEL.names[tree.column[place]]} ≤ {cut:.4g}"
        assert gain == pytest.approx(tree.gain[place], rel=1e-3) and above == bool(tree.missing_left[place])
    for place in tree.leaves.tolist():
        assert nodes[place] == [pytest.approx(tree.value[place], rel=1e-3)]


def test_shares_are_those_of_all_gain_largest_first():
    (shares,) = view(MODEL)["shares"]
    assert shares["of"] == "share of all gain"
    assert [name for name, _ in shares["rows"]] == list(MODEL.importance())
    assert dict(map(tuple, shares["rows"])) == pytest.approx(MODEL.importance(), abs=1e-5)
    many = shared("x", {f"c{k}": 1 / 30 for k in range(30)})["rows"]
    assert len(many) == MOST_NAMES + 1 and many[-1] == ["10 more", pytest.approx(1 / 3, abs=1e-4)]


def test_without_gains_splits_are_counted():
    counts = splits(MODEL)
    columns = np.concatenate([tree.column[tree.splits] for tree in MODEL.all_trees])
    assert counts["age"] == pytest.approx((columns == 0).mean()) and sum(counts.values()) == pytest.approx(1)
    for tree in (model := fit(Boosting(trees=1, depth=2, bins=8), (X, Y))).all_trees:
        tree.gain[:] = 0.0  # as a server has trees that clients grew
    assert view(model)["shares"][0]["of"] == "share of all splits" and view(model)["drawn"][0]["nodes"][0][2] is None


def test_units_classes_and_categories_have_their_words():
    assert view(MODEL, lambda column, value: 1000 + column)["drawn"][0]["nodes"][0][1].endswith(("≤ 1000", "≤ 1002"))
    three = fit(
        Boosting(trees=1, depth=1, bins=8, least=0.1), (np.arange(9)[:, None] % 3, np.arange(9) % 3), categories=[0]
    )
    pictures = view(three)["drawn"]
    assert [p["title"] for p in pictures] == ["Tree 1, class 0", "Tree 1, class 1", "Tree 1, class 2"]
    assert pictures[1]["nodes"][0][1] == "column 0 is not 1"
