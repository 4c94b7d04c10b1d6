"""Built-in metrics against scikit-learn, and what a metric of one's own may be."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from small import federation, refused, run
from torch.func import vmap

import unalike as ua
from unalike.nn import metrics
from unalike.nn.metrics import BUILT_IN

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch):
    """Every test has the same data, whichever tests ran before it."""
    monkeypatch.setitem(globals(), "rng", np.random.default_rng(0))


def of(name, output, y, sizes=None):
    """The metric of a set: by its rows, its means, or all outputs."""
    metric = BUILT_IN[name]
    if metric.rows is not None:
        return float(metric.rows(output, y).double().mean())
    if metric.grouped is not None:
        return metric.grouped(output, y, np.array([len(y)] if sizes is None else sizes))[0]
    return float(metric.value(metric.statistic.means(output, y)))


def classes(count, n=60, ties=False, of=None):
    """Logits, probabilities and labels."""
    z = rng.normal(size=(n, count))
    z = z.round() if ties else z
    y = rng.integers(0, of or count, n)
    z[np.arange(n), y] += 0.7
    output = torch.tensor(z)
    return output, torch.softmax(output, 1).numpy(), torch.tensor(y)


CASES = {"two": (2, {}), "ties": (2, {"ties": True}), "four": (4, {}), "ties of four": (4, {"ties": True})}


@pytest.mark.parametrize("case", CASES)
def test_metrics_of_classes_are_those_of_scikit_learn(case):
    count, more = CASES[case]
    output, p, y = classes(count, **more)
    label, guess = y.numpy(), output.argmax(1).numpy()
    binary = count == 2
    exact = sk.roc_auc_score(label, p[:, 1] if binary else p, multi_class="ovr", average="macro")
    assert of("auc", output, y) == pytest.approx(exact, abs=1e-12)
    assert of("f1", output, y) == pytest.approx(sk.f1_score(label, guess, average="binary" if binary else "macro"))
    assert of("balanced_accuracy", output, y) == pytest.approx(sk.balanced_accuracy_score(label, guess))
    assert of("accuracy", output, y) == pytest.approx(sk.accuracy_score(label, guess))
    assert of("log_loss", output, y) == pytest.approx(sk.log_loss(label, p))
    one_hot = np.eye(count)[label]
    brier = sk.brier_score_loss(label, p[:, 1]) if binary else ((p - one_hot) ** 2).sum(1).mean()
    assert of("brier", output, y) == pytest.approx(brier)


def test_classes_that_are_absent_do_not_count():
    """Five outputs, labels of three classes; class 3 is predicted and never a label, class 4 neither."""
    output, p, y = classes(5, of=3)
    output[:, 4] = -99.0
    label, guess = y.numpy(), output.argmax(1).numpy()
    assert 3 in guess and 4 not in guess
    assert of("f1", output, y) == pytest.approx(sk.f1_score(label, guess, average="macro"))
    recalls = sk.recall_score(label, guess, labels=[0, 1, 2], average="macro")
    assert of("balanced_accuracy", output, y) == pytest.approx(recalls)
    p = torch.softmax(output, 1).numpy()
    each = [sk.roc_auc_score(label == c, p[:, c]) for c in range(3)]
    assert of("auc", output, y) == pytest.approx(np.mean(each), abs=1e-12)


def test_a_single_output_is_the_logit_of_class_1():
    output, _, y = classes(2)
    single = (output[:, 1] - output[:, 0])[:, None]
    for name in ("accuracy", "auc", "f1", "balanced_accuracy", "log_loss", "brier", "calibration_error"):
        assert of(name, single, y) == pytest.approx(of(name, output, y)) == pytest.approx(of(name, single[:, 0], y))


def test_calibration_error_by_hand():
    """Three samples sure to 0.9 of which two are right, one sure to 0.6 and wrong: (3 |0.9 - 2/3| + |0.6 - 0|) / 4."""
    p = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.9, 0.1], [0.6, 0.4]], dtype=torch.float64)
    expected = (3 * abs(0.9 - 2 / 3) + 0.6) / 4
    assert of("calibration_error", p.log(), torch.tensor([1, 0, 1, 1])) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 3)])
def test_metrics_of_numbers_are_those_of_scikit_learn(shape):
    y = torch.tensor(rng.normal(size=shape) + 1000)  # far from 0: nothing may cancel
    output = y + torch.tensor(rng.normal(size=shape)) / 2
    pair = y.numpy(), output.numpy()
    given = output.reshape(50, -1)
    assert of("rmse", given, y) == pytest.approx(sk.root_mean_squared_error(*pair))
    assert of("mae", given, y) == pytest.approx(sk.mean_absolute_error(*pair))
    assert of("r2", given, y) == pytest.approx(sk.r2_score(*pair), abs=1e-9)


def test_what_is_not_defined():
    one, y = torch.tensor([[0.2, 0.1], [0.3, 0.9]]), torch.tensor([1, 1])
    assert np.isnan(of("auc", one, y))
    assert np.isnan(of("f1", torch.tensor([[1.0, 0.0]]), torch.tensor([0])))  # no label and no guess of class 1
    assert np.isnan(of("r2", torch.tensor([1.0]), torch.tensor([2.0])))
    assert np.isnan(of("r2", torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.1, 0.1, 0.1])))  # they do not vary
    assert np.isnan(of("auc", torch.tensor([[0.0, float("nan")], [1.0, 0.0]]), torch.tensor([0, 1])))


def test_auc_of_groups_is_that_of_each_alone():
    output, _, y = classes(3, n=90, ties=True)
    sizes = np.array([40, 1, 29, 20])
    found = metrics.auc_grouped(output, y, sizes)
    alone = [of("auc", o, t) for o, t in zip(output.split(sizes.tolist()), y.split(sizes.tolist()), strict=True)]
    np.testing.assert_allclose(found, alone, atol=1e-12)
    assert np.isnan(found[1])


@pytest.mark.parametrize(("spread", "centre"), [(0.1, -3), (0.3, 0), (1, -3), (1, 0), (3, 0)])
@pytest.mark.parametrize("count", [2, 3])
def test_auc_from_bins_is_near_the_exact_one(spread, centre, count):
    output, _, y = classes(count, n=3000)
    output = output * spread
    output[:, 1] += centre
    means = metrics.auc_bins(output, y)
    assert len(means) == (1 if count == 2 else 3) * 2 * metrics.AUC_BINS
    assert float(metrics.auc_of(means)) == pytest.approx(of("auc", output, y), abs=1e-3)


@pytest.mark.parametrize("count", [2, 3])
def test_means_of_parts_are_the_means_of_all(count):
    """What lets a server find the numbers of all samples from sums."""
    output, _, y = classes(count)
    for name in ("f1", "balanced_accuracy", "calibration_error", "auc"):
        statistic = BUILT_IN[name].statistic
        parts = (20 * statistic.means(output[:20], y[:20]) + 40 * statistic.means(output[20:], y[20:])) / 60
        torch.testing.assert_close(parts, statistic.means(output, y))
        assert statistic.holds(parts) and not statistic.holds(-parts if name != "calibration_error" else 9 * parts)


def test_values_can_be_stacked():
    output, _, y = classes(3)
    for name in ("f1", "balanced_accuracy", "calibration_error"):
        means = BUILT_IN[name].statistic.means(output, y)
        both = vmap(BUILT_IN[name].value)(torch.stack([means, means]))
        assert both[1] == BUILT_IN[name].value(means)


# ---------------------------------------------------------------- metrics of one's own


def gini(outputs, y):
    assert outputs.device.type == "cpu" and outputs.shape == (len(y), 3)
    return 2 * float((outputs.argmax(1) == y).double().mean()) - 1


def first_logit(outputs, y):
    return outputs[:, 0]


@pytest.mark.parametrize("engine", ["sequential", "batched", "loopback"])
@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_a_metric_of_ones_own_that_gives_one_number(engine, method):
    data = federation(validation=True)
    done = run(ua.METHODS[method](), data=data, engine=engine, metrics=[gini, first_logit, "accuracy"])
    line, values = done.history[-1], done.client_values
    np.testing.assert_allclose(values["gini"], 2 * values["accuracy"] - 1, atol=1e-6)
    assert line["clients_gini_mean"] == pytest.approx(2 * line["clients_accuracy_mean"] - 1)
    assert line["validation_gini"] == pytest.approx(2 * line["validation_accuracy"] - 1)
    assert "pooled_gini" not in line and "pooled_first_logit" in line  # it has no sums
    if method == "fedavg":
        assert line["test_gini"] == pytest.approx(2 * line["test_accuracy"] - 1)


def test_a_metric_that_says_that_it_is_of_a_whole_set():
    def choosy(outputs, y):
        if len(y) < 4:
            raise ValueError("too few")
        return 0.5

    with refused(
        r"The metric 'choosy' does not accept outputs \[2, 3\].*: too few \(One of a whole set says so: metric"
    ):
        run(metrics=[choosy])
    choosy.whole = True
    with refused(r"The metric 'choosy' failed on 3 samples: too few. It must give one number, float\('nan'\) where"):
        run(metrics=[choosy])
    assert run(metrics=[choosy], evaluate_clients="none").history[-1]["test_choosy"] == 0.5


def test_a_metric_may_be_undefined_for_some_clients():
    def rare(outputs, y):
        return float("nan") if len(y) < 6 else len(y)

    line = run(metrics={"rare": rare}).history[-1]  # clients have 3, 4, ..., 8 test samples
    assert (line["clients_rare_mean"], line["clients_rare_worst20"], line["clients_rare_count"]) == (7, 6, 3)
    never = run(metrics={"never": lambda outputs, y: float("nan")}).history[-1]
    assert never["test_never"] is None and never["clients_never_mean"] is None and never["clients_never_count"] == 0


def test_metrics_are_in_the_unit_of_the_targets():
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    y = x.sum(1)
    data = ua.Federation.from_arrays([(x, y)] * 2, test=(x, y), client_tests=[(x, y)] * 2)
    task = ua.model.Task(torch.nn.Linear(5, 1), "squared-error", unit=(100.0, 20.0))
    task.check(x, y)
    bound = task.live()
    bound.vector.copy_(task.start)
    found = ua.metrics.evaluate_set(task, bound, data.global_test)
    plain = ua.metrics.evaluate_set(ua.model.Task(task.module, "squared-error"), bound, data.global_test)
    assert found["rmse"] == pytest.approx(20 * plain["rmse"]) and found["mae"] == pytest.approx(20 * plain["mae"])
    assert found["r2"] == pytest.approx(plain["r2"], abs=1e-5) and found["loss"] == plain["loss"]
    assert plain["rmse"] == pytest.approx(plain["loss"] ** 0.5)


def test_the_default_for_numbers_needs_a_loss_that_is_a_distance():
    y = torch.zeros(2)
    task = lambda loss: ua.model.Task(torch.nn.Linear(5, 1), loss)  # noqa: E731
    assert list(task("squared-error").metrics_for(y)) == list(task(torch.nn.HuberLoss()).metrics_for(y))
    assert list(task("squared-error").metrics_for(y)) == ["rmse", "mae", "r2"]
    assert not task(torch.nn.BCEWithLogitsLoss()).metrics_for(y)  # its outputs are no targets
    assert list(task(None).metrics_for(y.long())) == ["accuracy"]


@pytest.mark.parametrize("times", [0.01, 0.1, 1, 20, 200])
def test_auc_from_bins_hardly_depends_on_how_sure_a_model_is(times):
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(2000) % 2
    odds = torch.randn(2000, generator=draw) + 1.4 * y
    output = torch.stack([torch.zeros(2000), odds * times], 1)
    exact = metrics.auc_grouped(output, y, np.array([2000]))[0]
    assert float(metrics.auc_of(metrics.auc_bins(output, y))) == pytest.approx(exact, abs=0.002)
