"""What vertical methods learn: the same as centralised training, and as without protection."""

import numpy as np
import pytest
import torch
from vertical_cases import cancer, cancer_parties, session_of, thetas

from unalike import vertical as v
from unalike.errors import Diverged, UnalikeError


def joined(parties):
    return torch.cat([node.me.x for node in (parties.guest, *parties.hosts)], 1)


def centralised(x, y, batches, lr, l2):
    """Plain gradient descent on the joined columns, by autograd."""
    theta, b = torch.zeros(x.shape[1], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for rows in batches:
        theta.requires_grad_(), b.requires_grad_()
        z = x[rows] @ theta + b
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y[rows].double()) + l2 / 2 * theta.square().sum()
        slopes = torch.autograd.grad(loss, [theta, b])
        theta, b = ((p - lr * s).detach() for p, s in zip((theta, b), slopes, strict=True))
    return theta, b


def test_any_split_of_columns_is_centralised_descent():
    for parts in ({"a": 10, "b": 20}, {"a": 5, "b": 5, "c": 20}):
        parties = cancer_parties(parts)
        run = v.fit(v.LogisticRegression(lr=0.3, l2=0.01), parties, epochs=3, batch_size=64, seed=1)
        batches = [rows for number in (1, 2, 3) for rows in run.session.batches(number)]
        theta, b = centralised(joined(parties), parties.guest.me.y, batches, 0.3, 0.01)
        assert float((torch.cat(thetas(parties)) - theta).abs().max()) < 1e-12
        assert abs(float(parties.guest.me.b - b)) < 1e-12


def test_logistic_regression_reaches_the_optimum_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    parties = v.split(cancer(), {"clinic": 10, "lab": 20})
    v.fit(v.LogisticRegression(lr=2.0, l2=0.05), parties, epochs=600)
    x, y = joined(parties).numpy(), parties.guest.me.y.numpy()
    best = LogisticRegression(C=1 / (0.05 * len(y)), tol=1e-10, max_iter=1000).fit(x, y)
    assert np.abs(torch.cat(thetas(parties)).numpy() - best.coef_[0]).max() < 1e-4


def test_several_classes_and_numbers():
    from sklearn.datasets import load_diabetes, load_wine

    wine = v.split(load_wine(return_X_y=True), {"a": 6, "b": 7}, test=0.25)
    run = v.fit(v.LogisticRegression(lr=0.5), wine, epochs=60, batch_size=32)
    assert run.history[-1]["test_accuracy"] > 0.95
    x, y = load_diabetes(return_X_y=True)
    sick = v.split((x, y), {"a": 5, "b": 5}, test=0.2)
    run = v.fit(v.LinearRegression(lr=0.1), sick, epochs=80)
    target = sick.guest.table.y[sick.guest.positions][sick.test]
    assert run.history[-1]["test_rmse"] < 0.8 * float(target.std())


@pytest.mark.parametrize("task", ["binary", "classes", "number"])
def test_under_paillier_the_same_is_learned(task):
    from sklearn.datasets import load_diabetes, load_wine

    data = {"binary": cancer(80), "classes": load_wine(return_X_y=True), "number": load_diabetes(return_X_y=True)}[task]
    x, y = (np.asarray(part)[:: 2 if task == "classes" else 1][:80] for part in data)
    plain = v.LinearRegression(lr=0.2) if task == "number" else v.LogisticRegression(lr=0.2)
    sealed = v.SealedLinear(lr=0.2, bits=512) if task == "number" else v.SealedLogistic(lr=0.2, bits=512)
    ends = []
    for method in (plain, sealed):
        parties = v.split((x, y), {"a": 3, "b": 2})
        v.fit(method, parties, epochs=2, batch_size=40)
        ends.append(torch.cat([node.me.theta.flatten() for node in (parties.guest, *parties.hosts)]))
    assert 0 < float((ends[0] - ends[1]).abs().max()) < 1e-6


def test_under_ckks_nearly_the_same_is_learned():
    pytest.importorskip("tenseal")
    ends = []
    for protection in ("none", "ckks"):
        parties = v.split(cancer(64), {"a": 3, "b": 2})
        v.fit(v.LogisticRegression(lr=0.2), parties, protection, epochs=1, batch_size=32)
        ends.append(torch.cat(thetas(parties)))
    assert 0 < float((ends[0] - ends[1]).abs().max()) < 1e-3


def test_the_taylor_model_with_an_intercept_is_near_the_logistic_one():
    parties = v.split(cancer(150), {"a": 4, "b": 3}, test=0.3)
    run = v.fit(v.HardyLogistic(lr=0.5, bits=512), parties, epochs=6)
    assert run.history[-1]["test_auc"] > 0.95 and "train_loss" not in run.history[-1]
    assert float(parties.guest.me.theta[-1]) != 0


def test_digits_in_halves_by_a_split_network():
    from sklearn.datasets import load_digits

    data = load_digits()
    parties = v.split((data.images[:600] / 16, data.target[:600]), {"left": "left", "right": "right"}, test=0.25)
    joint = v.fit(v.SplitNN(lr=0.5, cut=(16,), top=32), parties, epochs=12, batch_size=32)
    alone = v.fit(v.SplitNN(lr=0.5, cut=(16,), top=32), parties, epochs=12, batch_size=32, fallback="alone").alone
    z = alone.method.scores(alone.me, alone.hosts, alone.test)
    accuracy = float((z.argmax(1) == alone.me.y[alone.test]).double().mean())
    assert joint.history[-1]["test_accuracy"] > max(0.85, accuracy)


def test_more_steps_per_exchange_save_exchanges():
    ends = {}
    for steps in (1, 5):
        parties = cancer_parties()
        run = v.fit(v.SplitNN(lr=0.1, steps=steps), parties, epochs=2, batch_size=64)
        ends[steps] = run.history[-1]["train_loss"]
        assert run.history[-1]["exchanges"] == 2 * len(run.session.batches(1))
    assert ends[5] < ends[1]


@pytest.mark.parametrize("engine", ["direct", "loopback"])
def test_resumed_equals_uninterrupted(tmp_path, engine):
    options = {"batch_size": 100, "seed": 4, "engine": engine, "noise": 0.1, "clip": 1.0}
    whole = cancer_parties()
    v.fit(v.LogisticRegression(lr=0.3), whole, epochs=4, **options)
    part = cancer_parties()
    v.fit(v.LogisticRegression(lr=0.3), part, epochs=2, folder=tmp_path / "run", **options)
    with pytest.raises(UnalikeError, match="already holds this run"):
        v.fit(v.LogisticRegression(lr=0.3), cancer_parties(), epochs=4, folder=tmp_path / "run", **options)
    again = cancer_parties()
    run = v.fit(v.LogisticRegression(lr=0.3), again, epochs=4, folder=tmp_path / "run", resume=True, **options)
    assert len(run.history) == 4 and torch.equal(torch.cat(thetas(again)), torch.cat(thetas(whole)))
    with pytest.raises(UnalikeError, match="holds another run"):
        v.fit(v.LogisticRegression(lr=0.4), again, epochs=4, folder=tmp_path / "run", resume=True, **options)


def test_bytes_and_exchanges_are_counted():
    parties = v.split(cancer(100), {"a": 10, "b": 20})
    line = v.fit(v.LogisticRegression(), parties, epochs=1, batch_size=50).history[0]
    assert line["bytes_up"] == 100 * 8 and line["bytes_down"] == 100 * (8 + 8 + 8) and line["exchanges"] == 4


def test_noise_has_an_epsilon_and_costs_what_it_says():
    parties = cancer_parties()
    run = v.fit(v.LogisticRegression(lr=0.3), parties, epochs=3, batch_size=100, noise=2.0, clip=1.0)
    from scipy.stats import norm

    epsilons = [line["epsilon"] for line in run.history]
    assert epsilons[0] < epsilons[1] < epsilons[2]
    mu, e = 2 / 2.0 * np.sqrt(3), epsilons[2]  # three Gaussian releases, each moved by two clips
    delta = norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert "noise 2 × 1" in v.sight_text(run.sees)
    with pytest.raises(UnalikeError, match="both `noise` and `clip`"):
        v.fit(v.LogisticRegression(), parties, noise=1.0)


def test_noise_is_on_what_crosses_and_numbers_are_clipped():
    from unalike.draws import KeyedDraws
    from unalike.vertical.noise import Noise

    draws = KeyedDraws(torch.tensor(7), torch.float64)
    value = torch.full((20000, 2), 30.0, dtype=torch.float64)
    found = Noise(0.5, 3.0).over({"z": value}, v.LogisticRegression(), draws)["z"]
    assert abs(float(found.std(0)[0]) - 1.5) < 0.03 and abs(float(found[:, 0].mean()) - 3 / 2**0.5) < 0.05
    small = torch.full((20000, 1), 0.5, dtype=torch.float64)
    assert abs(float(Noise(0.5, 3.0).over({"d": small}, v.LogisticRegression(), draws)["d"].mean()) - 0.5) < 0.05


def test_what_diverges_or_does_not_fit_is_one_line():
    with pytest.raises(Diverged, match="smaller lr"), np.errstate(all="ignore"):
        v.fit(v.LinearRegression(lr=1e200), v.split((cancer(60)[0], np.arange(60.0)), {"a": 3, "b": 3}), epochs=9)
    with pytest.raises(UnalikeError, match="does not predict one of two classes"):
        v.fit(v.LinearRegression(), v.split(cancer(60), {"a": 3, "b": 3}))
    with pytest.raises(UnalikeError, match="lr must be a number above 0"):
        v.LogisticRegression(lr=-1)
    with pytest.raises(UnalikeError, match="has protection 'none'; got"):
        v.fit(v.FedBCD(), v.split(cancer(60), {"a": 3, "b": 3}), "paillier")
    with pytest.raises(UnalikeError, match="no width for party 2"):
        session_of(v.split(cancer(60), {"a": 3, "b": 3, "c": 3}), v.SplitNN(cut=(2, 3)))
