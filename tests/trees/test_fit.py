"""Pooled training: its limits, samples, missing values and categories, and its end on validation rows."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from unalike import UnalikeError
from unalike.trees import Boosted, Boosting, exact, fit
from unalike.trees.fit import grow
from unalike.trees.table import Rows, added_as_floats, added_as_whole, places

X, Y = load_breast_cancer(return_X_y=True)
DRAW = np.random.default_rng(0)
HOLES = np.where(DRAW.random(X.shape) < 0.1, np.nan, X)


def test_leaves_and_depth_are_limits():
    model = fit(Boosting(trees=2, depth=4, leaves=5), (X, Y))
    assert all(len(tree.leaves) == 5 for tree in model.all_trees)
    whole = fit(Boosting(trees=1, depth=4), (X, Y)).all_trees[0]
    limited = model.all_trees[0]
    assert len(whole.leaves) > 5 and set(limited.splits) < set(whole.splits)
    assert max(fit(Boosting(trees=1, depth=2), (X, Y)).all_trees[0].leaves) < 8


def test_where_leaves_are_few_the_best_split_of_a_level_is_kept_not_the_first():
    side, other = np.divmod(np.arange(40) % 4, 2)
    y = np.where(side == 0, 3.0 * other, 10 + 6.0 * other)  # below the right child there is more to gain
    tree = fit(Boosting(trees=1, depth=2, leaves=3, bins=4), (np.stack([side, other], 1), y)).all_trees[0]
    assert tree.splits.tolist() == [1, 3] and tree.column[[1, 3]].tolist() == [0, 1]
    both = fit(Boosting(trees=1, depth=2, bins=4), (np.stack([side, other], 1), y)).all_trees[0]
    assert both.splits.tolist() == [1, 2, 3] and both.gain[2] < both.gain[3]


def test_gamma_and_lambda_and_rate():
    assert len(fit(Boosting(trees=1, gamma=1e6), (X, Y)).all_trees[0].leaves) == 1
    one, half = (fit(Boosting(trees=1, rate=rate), (X, Y)).margins(X) for rate in (1.0, 0.5))
    assert torch.allclose(half, one / 2, rtol=1e-12)
    flat = fit(Boosting(trees=1, lam=1e6, least=0), (X, Y)).margins(X)
    assert float(flat.abs().max()) < 1e-3


def test_columns_are_drawn_by_tree_and_rows_too():
    few = fit(Boosting(trees=6, depth=2, columns=0.1), (X, Y), seed=1)
    used = [set(tree.column[tree.splits].tolist()) for tree in few.all_trees]
    assert all(len(columns) <= 3 for columns in used) and len(set.union(*used)) > 3
    assert not few.same(fit(Boosting(trees=6, depth=2, columns=0.1), (X, Y), seed=2))
    half = fit(Boosting(trees=2, depth=2, rows=0.5), (X, Y), seed=1)
    assert abs(half.all_trees[0].weight[1] / (0.25 * len(Y)) - 0.5) < 0.1
    assert not np.array_equal(half.all_trees[0].weight[1], half.all_trees[1].weight[1])


def test_missing_values_go_where_it_helps():
    x = np.array([[0.0], [1.0], [2.0], [np.nan], [np.nan], [np.nan]] * 4)
    y = np.array([0, 0, 1, 1, 1, 1] * 4)
    model = fit(Boosting(trees=1, depth=1, least=0.1), (x, y))
    assert not model.all_trees[0].missing_left[1]
    assert (model.predict(x).numpy() == y).all()
    turned = fit(Boosting(trees=1, depth=1, least=0.1), (x, 1 - y))
    assert not turned.all_trees[0].missing_left[1] and (turned.predict(x).numpy() == 1 - y).all()
    below = fit(Boosting(trees=1, depth=1, least=0.1), (-x, y))
    assert below.all_trees[0].missing_left[1]


@pytest.mark.parametrize("flags", [[False, False, False], [False, True, False], [True, True, True]])
def test_growing_rows_stand_at_the_leaf_to_which_the_tree_sends_them(flags):
    """Numbers, categories and missing values; the sums of every node are those of the rows that it gets."""
    codes = DRAW.integers(0, 9, (300, 3)).astype(np.uint8)  # 8: missing
    y = torch.from_numpy((codes[:, 0] % 3 == 1) ^ (codes[:, 1] % 2 == 0) ^ (DRAW.random(300) < 0.1))
    pair = exact.derivatives(torch.zeros(300, 1, dtype=torch.float64), y, 2)[:, 0]
    settings, categories = Boosting(depth=4, bins=8, least=0.5), torch.tensor(flags)
    rows = Rows(torch.from_numpy(codes), 8, categories)
    tree = grow(settings, rows, pair, torch.ones(3, dtype=torch.bool), categories)
    assert len(tree.leaves) > 8
    assert (rows.place == places(codes, tree, 8, np.array(flags))).all()
    for leaf in tree.leaves:
        assert tree.weight[leaf] == float(pair[rows.place == leaf, 1].sum()) / exact.SCALE


def test_a_category_against_the_others():
    x = np.array([[0], [1], [2], [3]] * 5, dtype=np.float32)
    y = (x[:, 0] == 1).astype(int)
    model = fit(Boosting(trees=1, depth=1, bins=4, least=0.1), (x, y), categories=[0], names=["colour"])
    assert int(model.all_trees[0].bin[1]) == 1 and (model.predict(x).numpy() == y).all()
    assert "colour is not 1?" in model.draw() and list(model.importance()) == ["colour"]


def test_a_tree_is_drawn_in_the_units_that_its_owner_knows():
    x = np.array([[0.0], [1.0], [2.0], [3.0]] * 5)
    model = fit(Boosting(trees=1, depth=1, least=0.1), (x, x[:, 0] > 1), names=["age"])
    assert model.draw().startswith("age <= 1? ")
    assert model.draw(unit=lambda column, value: 50 + 10 * value).startswith("age <= 60? ")


def test_it_ends_when_validation_rows_say_so():
    order = DRAW.permutation(len(Y))
    train, held = order[:400], order[400:]
    settings = Boosting(trees=60, depth=4, rate=0.5, patience=3)
    model = fit(settings, (X[train], Y[train]), validation=(X[held], Y[held]))
    losses = []
    for rounds in range(1, len(model.trees) + 1):
        p = 1 / (1 + np.exp(-model.margins(X[held], rounds)[:, 0].numpy()))
        losses.append(-np.log(np.where(Y[held] == 1, p, 1 - p)).mean())
    assert len(model.trees) < 57 and np.argmin(losses) == len(losses) - 1
    longer = fit(Boosting(trees=len(model.trees) + 3, depth=4, rate=0.5), (X[train], Y[train]))
    assert model.trees[-1][0].same(longer.trees[len(model.trees) - 1][0])
    with pytest.raises(UnalikeError, match="patience looks at validation rows"):
        fit(settings, (X, Y))


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_diabetes])
def test_as_good_as_xgboost_and_scikit_learn_with_their_own_bins(load):
    """Over five parts held out one after another, the mean score is within the spread of the differences."""
    import xgboost
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    x, y = load(return_X_y=True)
    number = y.dtype.kind == "f"
    folds = np.arange(len(y)) * 7919 % 5
    shape = {"max_depth": 3, "learning_rate": 0.3}
    theirs = [xgboost.XGBRegressor, HistGradientBoostingRegressor] if number else [
        xgboost.XGBClassifier, HistGradientBoostingClassifier]  # fmt: skip
    options = [{"n_estimators": 10, "n_jobs": 1}, {"max_iter": 10, "early_stopping": False}]
    scores = []
    for k in range(5):
        train, held = folds != k, folds == k
        mine = fit(Boosting(trees=10, depth=3), (x[train], y[train])).predict(x[held]).numpy()
        others = [
            t(**shape, **o).fit(x[train], y[train]).predict(x[held]) for t, o in zip(theirs, options, strict=True)
        ]
        scores.append(
            [-np.sqrt(np.mean((p - y[held]) ** 2)) if number else np.mean(p == y[held]) for p in [mine, *others]]
        )
    own, *rest = np.array(scores).T
    for other in rest:
        gap = own - other
        assert gap.mean() > -2 * gap.std(ddof=1) / np.sqrt(5) - (1.0 if number else 0.005)


def test_saved_and_read_again(tmp_path):
    model = fit(Boosting(trees=2, depth=3), (HOLES, Y), names=[f"c{k}" for k in range(30)])
    again = Boosted.load(model.save(tmp_path / "trees.json"))
    assert again.same(model) and again.names == model.names
    assert torch.equal(again.margins(HOLES), model.margins(HOLES))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UnalikeError, match="no file of trees"):
        Boosted.load(tmp_path / "bad.json")


def test_sums_as_floats_are_those_of_whole_numbers():
    where, values = DRAW.integers(0, 5, 100), DRAW.integers(-(2**40), 2**40, 100)
    exact = added_as_whole(where, values, 6)
    assert np.array_equal(added_as_floats(where, values.astype(float), 6).astype(np.int64), exact)
    large = fit(Boosting(trees=1, depth=2, base=0.0), (X, 3e4 * X[:, 0]))  # sums beyond 2^53
    assert len(large.all_trees[0].leaves) == 4


def test_mistakes_are_one_line():
    for data, words in (
        ((X, Y[:5]), "one label a row"),
        ((np.full((3, 2), np.inf), np.arange(3)), "infinite"),
        ((X, 1e12 * X[:, 0]), "too large for sums"),
    ):
        with pytest.raises(UnalikeError, match=words):
            fit(Boosting(trees=1), data)
    with pytest.raises(UnalikeError, match="must be"):
        fit(Boosting(trees=1), (X, Y)).margins(X[:, :5])
    with pytest.raises(UnalikeError, match="predict a number"):
        fit(Boosting(trees=1), (X, X[:, 0])).probabilities(X)
