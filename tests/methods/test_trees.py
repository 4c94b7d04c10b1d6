"""Trees as methods: clients' sums give the pooled table's trees, bit for bit, whatever the skew."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import unalike as ua
from unalike.data import Dataset
from unalike.data.tables import encoded, table_dataset
from unalike.trees.forest import PARTS, as_tensors, stacked

LOADERS = {"breast cancer": load_breast_cancer, "wine": load_wine, "diabetes": load_diabetes}
SMALL = ua.HistBoost(trees=2, depth=3, bins=16)
X = torch.zeros(3, 2)


def table(name):
    x, y = LOADERS[name](return_X_y=True)
    return Dataset(
        torch.tensor(x, dtype=torch.float32), torch.tensor(y.astype(np.float32) if name == "diabetes" else y)
    )


def forest_of(model):
    """A pooled model as a server has it."""
    return {
        n: torch.cat([stacked([as_tensors(t) for t in grown], rounds=True)[n] for grown in model.trees]) for n in PARTS
    }


def same(run, model):
    """Whether a run's trees and cuts are a pooled model's, bit for bit."""
    own = forest_of(model)
    return torch.equal(run.server.cuts, model.cuts) and all(torch.equal(run.server.values[n], own[n]) for n in PARTS)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("clients", [1, 5, 100])
def test_clients_sums_give_the_pooled_trees(name, clients):
    fed = table(name).split("iid", clients, seed=0)
    run = ua.simulate(None, fed, SMALL, rounds=2, engine="batched" if clients > 5 else "sequential")
    assert same(run, ua.trees.fit(SMALL, fed))


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_missing_values_go_where_they_go_in_the_pooled_trees(engine):
    data, method = table("breast cancer"), ua.HistBoost(trees=4, depth=3, bins=16)
    gone = torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0)) < 0.2 + 0.6 * (data.y == 0)[:, None]
    fed = Dataset(torch.where(gone, torch.nan, data.x), data.y).split("dirichlet:0.5", 5, seed=0)
    model = ua.trees.fit(method, fed)
    assert {bool(tree.missing_left[k]) for tree in model.all_trees for k in tree.splits} == {True, False}
    assert same(ua.simulate(None, fed, method, rounds=4, engine=engine), model)


@pytest.mark.parametrize("partition", ["dirichlet:0.1", "shards:2", "lognormal:1.0"])
def test_skew_changes_nothing(partition):
    """Labels, sizes and attributes may be divided as they like: the trees are those of equal clients."""
    data = table("breast cancer")
    order = torch.argsort(data.x[:, 0])  # by the value of a column: attribute skew of the strongest kind
    sorted_rows = Dataset(data.x[order], data.y[order])
    even = ua.trees.fit(SMALL, data.split("iid", 5, seed=0))
    by_value = sorted_rows.split("iid", 1, seed=0)
    assert even.same(ua.trees.fit(SMALL, by_value))
    fed = data.split(partition, 5, seed=1)
    assert same(ua.simulate(None, fed, SMALL, rounds=2, engine="sequential"), even)


def test_the_model_predicts_what_the_trees_do(tmp_path):
    fed = table("wine").split("iid", 3, seed=0)
    run, model = ua.simulate(None, fed, SMALL, rounds=2), ua.trees.fit(SMALL, fed)
    rows = fed.train.x
    wanted = model.probabilities(rows)
    for user in (run, ua.load_model(run.save(tmp_path / "trees.unalike"))):
        assert float((torch.as_tensor(user.predict(rows).probabilities).double() - wanted).abs().max()) < 1e-6
    holes = rows.clone()
    holes[::4] = torch.nan
    assert float((run.model(holes).detach().double() - model.margins(holes)).abs().max()) < 1e-6


def test_it_ends_on_validation_rows_of_all_clients():
    fed = table("breast cancer").split("iid", 4, seed=0, validation=0.3)
    method = ua.HistBoost(trees=40, depth=4, rate=0.9, patience=2)
    run = ua.simulate(None, fed, method, rounds=20, engine="sequential", evaluate_every=20)
    assert run.server.stopped and run.server.count < 18
    assert same(run, ua.trees.fit(method, fed))


def test_columns_are_drawn_as_in_the_pooled_run():
    fed = table("breast cancer").split("iid", 3, seed=0)
    method = ua.HistBoost(trees=2, depth=2, bins=8, columns=0.2)
    run = ua.simulate(None, fed, method, rounds=2, seed=7, engine="sequential")
    assert same(run, ua.trees.fit(method, fed, seed=7)) and not same(run, ua.trees.fit(method, fed, seed=8))


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_rows_are_drawn_by_each_client_and_at_once_as_by_messages(engine):
    fed = table("breast cancer").split("lognormal:1.0", 4, seed=0)
    method = ua.HistBoost(trees=2, depth=2, bins=8, rows=0.5)
    run, model = ua.simulate(None, fed, method, rounds=2, seed=7, engine=engine), ua.trees.fit(method, fed, seed=7)
    assert same(run, model) and not same(run, ua.trees.fit(method, fed, seed=8))
    assert abs(model.all_trees[0].weight[1] / (0.25 * len(fed.train.y)) - 0.5) < 0.1  # second derivatives of 1/4


def test_fit_through_a_channel():
    fed = table("breast cancer").split("dirichlet:0.3", 5, seed=0, test=0.2)
    model = ua.trees.fit(SMALL, fed, channel="secure-sum")
    assert model.same(ua.trees.fit(SMALL, fed)) and model.run.history[-1]["bytes_up"] > 0
    method, noise = ua.HistBoost(trees=1, depth=1, bins=4, whole=False), ua.channel.GaussianNoise(1.0)
    noisy = ua.trees.fit(method, fed, channel=[ua.channel.Clip(100.0), noise])
    assert noisy.run.history[-1]["epsilon"] > 0 and len(noisy.all_trees) == 1
    for given, words in (
        ((ua.trees.Boosting(trees=1), fed), "grown by a method"), ((SMALL, (X, X)), "must be a Federation"),
    ):  # fmt: skip
        with pytest.raises(ua.UnalikeError, match=words):
            ua.trees.fit(*given, channel="secure-sum")
    with pytest.raises(ua.UnalikeError, match="leave categories and validation out"):
        ua.trees.fit(SMALL, fed, categories=[1], channel="secure-sum")


def test_a_runs_forest_is_the_model_with_gains_and_weights():
    fed = table("wine").split("iid", 3, seed=0)
    assert ua.simulate(None, fed, SMALL, rounds=2, engine="sequential").forest.same(ua.trees.fit(SMALL, fed))
    shipped = ua.simulate(None, fed, ua.TreeBagging(trees=2, depth=2), rounds=1, engine="sequential").forest
    assert len(shipped.all_trees) == 6 and shipped.importance() == {}


def test_a_client_that_stayed_away_comes_back():
    """Margins are made from the forest in every round, so who takes part when changes whose rows count, and no more."""
    fed = table("breast cancer").split("iid", 2, seed=0)
    run = ua.simulate(None, fed, SMALL, rounds=2, clients_per_round=[[0], [1]], engine="sequential")
    first, second = (fed.only([k]) for k in (0, 1))
    cuts = ua.trees.fit(SMALL, fed).cuts
    from unalike.trees import exact
    from unalike.trees.fit import grow
    from unalike.trees.table import Rows

    plain, grown = torch.zeros(30, dtype=torch.bool), []
    model = ua.trees.Boosted(cuts, plain, 2)
    for own in (first, second):
        codes = model.codes(own.train.x)
        pair = exact.derivatives(model.margins_of(codes), own.train.y, 2)[:, 0]
        grown.append([grow(SMALL, Rows(codes, 16, plain), pair, ~plain, plain)])
        model.trees = [*grown]
    assert same(run, model)


def test_real_numbers_for_noise_are_nearly_the_same_trees():
    fed = table("breast cancer").split("iid", 3, seed=0, test=0.2)
    exact, real = (ua.HistBoost(trees=2, depth=2, bins=8, whole=whole) for whole in (True, False))
    runs = [ua.simulate(None, fed, m, rounds=2, engine="sequential", dtype="float64") for m in (exact, real)]
    assert float((runs[0].server.value - runs[1].server.value).abs().max()) < 1e-6


def test_secure_sums_change_no_bit():
    fed = table("breast cancer").split("dirichlet:0.3", 5, seed=0)
    run = ua.simulate(None, fed, SMALL, rounds=2, engine="sequential", channel=[ua.channel.SecureSum()])
    assert same(run, ua.trees.fit(SMALL, fed))


def test_noise_on_the_sums_has_its_epsilon():
    fed = table("breast cancer").split("iid", 20, seed=0, test=0.2)
    method = ua.HistBoost(trees=2, depth=2, bins=4, whole=False)
    channel = [ua.channel.Clip(100.0), ua.channel.GaussianNoise(0.5)]
    run = ua.simulate(None, fed, method, rounds=2, engine="sequential", channel=channel)
    assert run.history[-1]["epsilon"] > 0
    with pytest.raises(ua.UnalikeError, match="whole numbers, which noise does not cover"):
        ua.simulate(None, fed, SMALL, rounds=1, engine="sequential", channel=channel)


def test_shipped_trees_of_one_client_are_the_pooled_ones():
    fed = table("breast cancer").split("iid", 1, seed=0)
    pooled = ua.trees.fit(SMALL, fed)
    for kind in (ua.TreeBagging, ua.TreeCyclic):
        run = ua.simulate(None, fed, kind(trees=2, depth=3, bins=16), rounds=2, engine="sequential")
        assert all(torch.equal(run.server.values[n], forest_of(pooled)[n]) for n in ("column", "bin"))
        assert torch.equal(run.server.value.float(), forest_of(pooled)["value"].float())


def test_bagging_shrinks_by_the_number_of_trees_and_stops_when_the_forest_is_full():
    fed = table("breast cancer").split("iid", 3, seed=0)
    run = ua.simulate(None, fed, ua.TreeBagging(trees=4, depth=2, bins=8, rate=1.0), rounds=3, engine="sequential")
    assert run.server.value.shape[0] == 4
    alone = [ua.simulate(None, fed, ua.TreeBagging(trees=9, depth=2, bins=8, rate=1.0), rounds=1,
                         clients_per_round=[[k]], engine="sequential") for k in range(3)]  # fmt: skip
    for k in range(3):
        assert torch.allclose(run.server.value[k], alone[k].server.value[0] / 3, rtol=1e-6)


def test_clients_take_turns():
    fed = table("breast cancer").split("iid", 2, seed=0)
    method = ua.TreeCyclic(trees=3, depth=2, bins=8)
    run = ua.simulate(None, fed, method, rounds=2, engine="sequential")
    own = [ua.simulate(None, fed, method, rounds=1, clients_per_round=[[k]], engine="sequential") for k in (0, 1)]
    assert torch.equal(run.server.value[0], own[0].server.value[0])
    assert not torch.equal(run.server.column[1], own[0].server.column[0])
    second = ua.simulate(None, fed, method, rounds=2, clients_per_round=[[0], [1]], engine="sequential")
    assert torch.equal(run.server.value, second.server.value)


def test_a_client_with_other_columns_kinds_or_categories_is_refused_by_the_column(tmp_path):
    """Between machines clients agree on a schema; a table that does not fit it is refused before anything is sent."""
    rows = [f"{30 + k},{'red' if k % 2 else 'blue'},{'yes' if k % 3 else 'no'}" for k in range(12)]
    (tmp_path / "all.csv").write_text("\n".join(["age,colour,outcome", *rows]))
    schema = table_dataset(tmp_path / "all.csv", label="outcome").schema
    bad = {"age": "height,colour,outcome\n30,red,yes", "'age'": "age,colour,outcome\nold,red,yes"}
    bad["colour"] = "age,colour,outcome\n30,green,yes"
    for column, text in bad.items():
        (tmp_path / "own.csv").write_text(text)
        with pytest.raises(ua.UnalikeError, match=column):
            encoded(schema, tmp_path / "own.csv", unseen="refuse")
