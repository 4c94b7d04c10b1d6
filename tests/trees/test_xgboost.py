"""XGBoost as the second opinion: it predicts what our trees do, and grows the same trees from the same bins."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from unalike.trees import Boosting, fit, save_xgboost

xgboost = pytest.importorskip("xgboost")
LOADERS = {"two": load_breast_cancer, "several": load_wine, "number": load_diabetes}
OBJECTIVES = {"two": "binary:logistic", "several": "multi:softprob", "number": "reg:squarederror"}


def data(kind, holes=0.0):
    x, y = LOADERS[kind](return_X_y=True)
    x = x.astype(np.float32)
    x[np.random.default_rng(0).random(x.shape) < holes] = np.nan
    return x, y


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_it_predicts_what_our_trees_do(kind, holes, tmp_path):
    x, y = data(kind, holes)
    model = fit(Boosting(trees=20, depth=4), (x, y))
    booster = xgboost.Booster(model_file=str(save_xgboost(model, tmp_path / "trees.json")))
    mine = model.margins(x).numpy()
    theirs = booster.predict(xgboost.DMatrix(x), output_margin=True).reshape(mine.shape)
    assert np.abs(mine - theirs).max() < 1e-6 * max(1, np.abs(mine).max())
    if kind != "number":
        chance = booster.predict(xgboost.DMatrix(x)).reshape(mine.shape)
        assert np.abs(model.probabilities(x).numpy()[:, -mine.shape[1] :] - chance).max() < 1e-6


def test_categories_too(tmp_path):
    draw = np.random.default_rng(1)
    x = np.stack([draw.integers(0, 6, 300), draw.normal(size=300)], 1).astype(np.float32)
    y = ((x[:, 0] == 2) | (x[:, 1] > 1)).astype(int)
    model = fit(Boosting(trees=5, depth=3, bins=8), (x, y), categories=[0], names=["colour", "size"])
    assert "colour is not 2?" in model.draw()
    booster = xgboost.Booster(model_file=str(save_xgboost(model, tmp_path / "trees.json")))
    rows = xgboost.DMatrix(x, feature_types=["c", "float"], feature_names=["colour", "size"], enable_categorical=True)
    assert np.abs(booster.predict(rows, output_margin=True) - model.margins(x)[:, 0].numpy()).max() < 1e-6


@pytest.mark.parametrize("kind", LOADERS)
def test_twenty_trees_from_the_same_bins_are_the_same(kind):
    x, y = data(kind)
    model = fit(Boosting(trees=20, depth=4), (x, y))
    codes = model.codes(x).numpy().astype(np.float32)
    settings = {
        "objective": OBJECTIVES[kind], "max_depth": 4, "eta": 0.3, "tree_method": "hist", "nthread": 1,
        "base_score": 0.5 if kind == "two" else model.base, "num_class": 3 if kind == "several" else None,
    }  # fmt: skip
    given = {name: value for name, value in settings.items() if value is not None}
    booster = xgboost.train(given, xgboost.DMatrix(codes, label=y), 20)
    mine = model.margins(x).numpy()
    theirs = booster.predict(xgboost.DMatrix(codes), output_margin=True).reshape(mine.shape)
    assert np.abs(mine - theirs).max() < 1e-6 * max(1, np.abs(mine).max())
    assert torch.isfinite(model.margins(x)).all()
