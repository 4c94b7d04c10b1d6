"""Features in comparable units, from sums over clients: what comes out, and that it does not depend on who adds."""

import json

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.data.columns import Columns
from unalike.data.preparation import Preparation, Recipe, first_sums, prepare, second_sums, totals
from unalike.data.schema import Column, Schema

SIZES = (9, 1, 30, 4)


def clients(gaps=0.2, seed=0):
    """Three features in very unlike units, some cells missing, and a number to predict."""
    rng = np.random.default_rng(seed)
    out = []
    for k, n in enumerate(SIZES):
        x = rng.normal(size=(n, 3)) * [1e-3, 40, 2] + [0.1 * k, 1.7e9, -5]
        x[rng.random(x.shape) < gaps] = np.nan
        out.append((x, rng.normal(size=n) * 50 + 150))
    return out


def pooled(parts):
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def test_features_have_the_mean_and_deviation_of_all_clients_rows():
    parts = clients()
    fed = ua.Federation.from_arrays(parts).prepared()
    x, y = pooled(parts)
    want = (x - np.nanmean(x, 0)) / np.nanstd(x, 0)
    missing = np.isnan(x)
    got = fed.train.x.numpy()
    assert fed.train.x.dtype == torch.float32 and got.shape == (len(x), 6)
    np.testing.assert_allclose(got[:, :3], np.where(missing, 0, want), rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(got[:, 3:], missing)
    np.testing.assert_allclose(fed.train.y, (y - y.mean()) / y.std(), rtol=1e-6, atol=1e-6)
    assert np.ravel(fed.preparation.target) == pytest.approx([y.mean(), y.std()]) and fed.recipe is None


def test_only_training_rows_count_and_all_rows_are_prepared():
    parts = clients()
    x, y = pooled(clients(seed=1))
    raw = ua.Federation.from_arrays(parts, test=(x, y), client_tests=[(a[:1] + 100, b[:1]) for a, b in parts])
    fed = raw.prepared()
    assert fed.preparation == raw.replace(test=None, global_test=None).prepared().preparation
    for part, before in ((fed.test.x, raw.test.x), (fed.global_test[0], raw.global_test[0])):
        assert torch.equal(part, fed.preparation.apply(before))
    assert torch.equal(fed.global_test[1], fed.preparation.apply_target(raw.global_test[1]))
    assert fed.prepared() is fed
    with pytest.raises(ua.UnalikeError, match="prepared already"):
        fed.prepared("client")


def test_a_feature_that_is_the_same_everywhere_becomes_zero():
    x = np.full((20, 2), 0.1)
    x[:, 1] = 1e12
    fed = ua.Federation.from_arrays([(x[:7], np.arange(7) % 2), (x[7:], np.arange(13) % 2)]).prepared()
    assert not fed.train.x.any() and fed.preparation.scale == (1.0, 1.0)


def test_a_small_spread_far_from_zero_is_kept():
    x = 1.7e9 + np.arange(12.0)[:, None]
    fed = ua.Federation.from_arrays([(x[:5], np.arange(5) % 2), (x[5:], np.arange(7) % 2)]).prepared()
    np.testing.assert_allclose(fed.train.x[:, 0], (np.arange(12) - 5.5) / np.arange(12).std(), rtol=1e-6)


def test_each_client_by_its_own_numbers():
    parts = clients(gaps=0)
    fed = ua.Federation.from_arrays(parts, test=parts[0]).prepared("client")
    for k, (x, _) in enumerate(parts):
        spread = np.where(len(x) > 1, x.std(0), 1)
        np.testing.assert_allclose(fed.train.of(k)[0], (x - x.mean(0)) / spread, rtol=2e-5, atol=2e-5)
    assert torch.equal(
        fed.global_test[0], fed.preparation.apply(torch.tensor(parts[0][0]))
    )  # nobody's: by all clients'
    assert fed.preparation.own


def test_a_clients_test_rows_are_prepared_by_its_training_rows():
    train, far = np.arange(12.0).reshape(6, 2), np.full((1, 2), 999.0)
    raw = ua.Federation.from_arrays([(train, np.arange(6) % 2)] * 2, client_tests=[(far, [0]), (train[:2] + 2, [0, 1])])
    test = raw.prepared("client").test.x.numpy()
    np.testing.assert_array_equal(test[0], [5.0, 5.0])
    np.testing.assert_allclose(test[1:], (train[:2] + 2 - train.mean(0)) / train.std(0), rtol=1e-6)


def test_rows_that_were_prepared_are_not_split_afterwards():
    fed = ua.Federation.from_arrays(clients())
    with pytest.raises(ua.UnalikeError, match="split first"):
        fed.prepared().split_clients(test=0.2)
    assert len(fed.split_clients(test=0.2).prepared().test.y)


def test_what_is_no_number_is_named_before_it_spoils_a_column():
    parts = clients()
    parts[2][0][3, 1] = np.inf
    with pytest.raises(ua.UnalikeError, match="client 2, sample 3"):
        ua.Federation.from_arrays(parts).prepared()


def test_an_empty_split_of_numbers_to_predict():
    parts = clients()
    fed = ua.Federation.from_arrays(parts, client_tests=[None] * len(parts)).prepared()
    assert fed.test.y.shape == (0,) and fed.test.x.shape == (0, 6)


def test_no_scale_fills_gaps_by_means_and_leaves_the_rest():
    parts = clients()
    fed = ua.Federation.from_arrays(parts).prepared("none")
    x, y = pooled(parts)
    want = np.where(np.isnan(x), np.nanmean(x, 0), x).astype(np.float32)
    np.testing.assert_array_equal(fed.train.x[:, :3], want)
    np.testing.assert_array_equal(fed.train.y, y)
    assert fed.preparation.target is None


def test_raw_features_stay_as_they_are_gaps_and_targets_too():
    x, y = np.array([[1e4, np.nan], [3e4, 2.0], [9e9, 4.0]]), np.array([1.5, 2.5, 1e6])
    fed = ua.Federation.from_arrays([(x[:2], y[:2]), (x[2:], y[2:])]).prepared("raw")
    np.testing.assert_array_equal(fed.train.x, x.astype(np.float32))
    assert fed.train.y.tolist() == y.astype(np.float32).tolist() and fed.preparation.width == 2
    again = Preparation.from_plain(json.loads(json.dumps(fed.preparation.plain())))
    assert again == fed.preparation and again.raw(0, 1e-9) == 1e-9
    with pytest.raises(ua.UnalikeError, match="has a value that is NaN"):
        ua.simulate(torch.nn.Linear(2, 1), fed, ua.FedAvg(), rounds=1)


def test_what_is_far_from_the_mean_counts_as_five_deviations():
    x = np.concatenate([np.linspace(-1, 1, 99), [1e6]])[:, None]
    fed = ua.Federation.from_arrays([(x[:50], np.arange(50) % 2), (x[50:], np.arange(50) % 2)])
    assert fed.prepared().train.x.max() == 5.0 and fed.prepared("none").train.x.max() == 1e6
    assert fed.prepared("client").train.x.max() == 5.0


def test_categories_are_centred_and_share_one_indicator():
    schema = Schema((Column("age"), Column("sex", "category", ("f", "m")), Column("ill", "flag")), "y", ("no", "yes"))
    x = np.array([[30, 1, 0, 1], [50, np.nan, np.nan, 0], [np.nan, 1, 0, 1], [40, 0, 1, 1]])
    train = Columns(x, np.array([0, 1, 0, 1]), [0, 2, 4])
    fed = ua.Federation(train, schema=schema).prepared()
    a = 10 / np.sqrt(200 / 3)
    f, m, ill = 2 / 3, 1 / 3, 3 / 4  # their means; a 0/1 feature is divided by a fair coin's deviation
    want = [
        [-a, 2 - 2 * f, -2 * m, 2 - 2 * ill, 0, 0],
        [a, 0, 0, -2 * ill, 0, 1],
        [0, 2 - 2 * f, -2 * m, 2 - 2 * ill, 1, 0],
        [0, -2 * f, 2 - 2 * m, 2 - 2 * ill, 0, 0],
    ]
    np.testing.assert_allclose(fed.train.x, want, rtol=1e-6, atol=1e-7)
    assert fed.preparation.features == ["age", "sex=f", "sex=m", "ill", "age missing", "sex missing"]


def test_a_prepared_value_is_told_in_its_own_unit_without_the_noise_of_float32():
    found = Preparation((52.959, 0.3308, 0.0, 3.2e-9), (21.07721, 0.5, 1.0, 1e-9), (0.0,) * 4, (True,) * 4)
    raw = torch.tensor([[50.0, 0.0, 1e-12, 4.125e-9], [33.5, 1.0, 1e12, -2e-9]], dtype=torch.float64)
    for row, own in zip(found.apply(raw).tolist(), raw.tolist(), strict=True):
        told = [found.raw(feature, value) for feature, value in enumerate(row)]
        assert told[:2] == own[:2] and told[2] == row[2]  # nothing was done to the third
        assert told[3] == pytest.approx(own[3], abs=1e-15) and "-0" not in map("{:g}".format, told)


def test_a_client_alone_has_the_sums_that_it_has_among_others():
    fed = ua.Federation.from_arrays(clients())
    recipe = Recipe.of(None, 3, target=True)
    center, y_center = torch.tensor([0.1, 1.7e9, -5.0], dtype=torch.float64), torch.tensor([150.0], dtype=torch.float64)
    together = first_sums(fed.train, recipe) | second_sums(fed.train, center, y_center)
    for k in range(len(fed)):
        x, y = fed.train.of(k)
        alone = Columns(x.clone(), y.clone(), [0, len(y)])
        mine = first_sums(alone, recipe) | second_sums(alone, center, y_center)
        assert {n: v[0].tolist() for n, v in mine.items()} == {n: v[k].tolist() for n, v in together.items()}


def test_totals_do_not_depend_on_the_order():
    rows = torch.tensor(np.random.default_rng(0).normal(size=(50, 4)) * [1e-8, 1, 1e8, 1e16])
    assert torch.equal(totals(rows), totals(rows.flip(0)))
    assert torch.equal(totals(torch.tensor([[1e16], [1.0], [-1e16]], dtype=torch.float64)), torch.ones(1).double())
    assert totals(torch.tensor([[1, 2], [3, 4]])).tolist() == [4, 6]


def test_a_preparation_survives_json_to_the_last_bit():
    found = ua.Federation.from_arrays(clients()).prepared().preparation
    assert Preparation.from_plain(json.loads(json.dumps(found.plain()))) == found
    recipe = Recipe.of(None, 3, "client", target=True)
    assert Recipe.from_plain(json.loads(json.dumps(recipe.plain()))) == recipe


@pytest.mark.parametrize(
    "change",
    [{"scale": [0.0, 1, 1]}, {"center": [1.0]}, {"indicators": [3]}, {"fill": [float("nan"), 0, 0]}, {"names": ["a"]},
     {"limit": -1.0}, {"indicators": [0, 0]}, {"scale": [-1.0, 1, 1]}, {"target": [[1.0], [0.0]]}, {"target": [[1.0]]},
     {"center": "abc"}, {"more": 1}, {"limit": "x"}],
)  # fmt: skip
def test_what_is_no_preparation_is_refused(change):
    plain = ua.Federation.from_arrays(clients()).prepared().preparation.plain()
    with pytest.raises(ua.UnalikeError, match="no preparation"):
        Preparation.from_plain({**plain, **change})


def test_what_cannot_be_prepared():
    with pytest.raises(ua.UnalikeError, match="one row of floats"):
        ua.Federation.from_arrays([(np.ones((3, 2, 2)), [0, 1, 0])]).prepared()
    with pytest.raises(ua.UnalikeError, match="'standard', 'client', 'none' or 'raw'"):
        ua.Federation.from_arrays([(np.ones((3, 2)), [0, 1, 0])]).prepared("minmax")
    found = prepare(Columns(np.ones((3, 2)), np.arange(3), [0, 3]), Recipe.of(None, 2))
    with pytest.raises(ua.UnalikeError, match=r"must be \[n, 2\]"):
        found.apply(torch.ones(3, 4))


def test_a_mapped_federation_keeps_its_preparation(tmp_path):
    fed = ua.Federation.from_arrays(clients()).prepared()
    assert fed.mapped(tmp_path / "m").preparation == fed.preparation


def test_a_folder_of_files_with_gaps(tmp_path):
    for k, (x, y) in enumerate(clients()):
        np.savez(tmp_path / f"{k}.npz", x=x, y=y)
    with pytest.raises(ua.UnalikeError, match="set `scale`"):
        ua.Federation.from_folder(tmp_path)
    fed = ua.Federation.from_folder(tmp_path, scale="standard")
    assert fed.preparation == ua.Federation.from_arrays(clients()).prepared().preparation
    fed.check()
