"""Using a run's model: rows in, classes with names or numbers in their unit out; a client's own model."""

import dataclasses as dc
import sys
import types

import numpy as np
import pytest
import torch
from small import ENGINES, LOCAL, federation, refused, run

import unalike as ua
from unalike.data.preparation import Preparation
from unalike.data.tables import from_table
from unalike.run.predict import Prediction
from unalike.testing.toys import SharedBody

X, Y = federation().global_test
# everything is halved, a gap becomes 0.5; what is predicted has mean 100 and deviation 10
HALVING = Preparation((0.0,) * 4, (2.0,) * 4, (0.5,) * 4, (True,) * 4, target=((100.0,), (10.0,)))
ROWS = [{"age": 61, "sex": "m"}, {"age": "", "sex": "f"}, {"sex": "x", "age": 20, "more": 1}]


@pytest.fixture(scope="module")
def table():
    """A run on a table with words, a gap and two units."""
    columns = {
        "site": ["north", "south"] * 10, "age": [*range(20, 39), None], "sex": ["f", "m", "m", "f"] * 5,
        "outcome": ["ill", "ill", "well", "well"] * 5,
    }  # fmt: skip
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with pytest.warns(UserWarning, match="missing"):
        fed = from_table(rows, client="site", label="outcome", categorical=["sex"])
    return ua.simulate(lambda: ua.models.linear(4, 2), fed, ua.FedAvg(), rounds=1, local=LOCAL, device="cpu")


def regression_run(**given):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=draw)
    fed = ua.Federation.from_arrays([(x[:6], x[:6].sum(1)), (x[6:], x[6:].sum(1))])
    return ua.simulate(torch.nn.Linear(4, 1), fed, ua.FedAvg(), rounds=1, local=LOCAL, loss="squared-error", **given)


def test_classes_are_what_the_model_says():
    done, x = run(), federation().global_test[0]
    found = done.predict(x.numpy())
    logits = done.model(x).detach()
    assert found.classes.tolist() == logits.argmax(1).tolist() == found.labels and len(found) == 30
    np.testing.assert_allclose(found.probabilities, logits.softmax(1), atol=1e-6)
    assert repr(found).startswith("Prediction(30 rows: ") and "\n" not in repr(found)
    assert done.predict(x.tolist()).labels == found.labels
    assert len(done.predict(x[:0])) == 0


def test_more_rows_than_fit_at_once(monkeypatch):
    done, x = run(), federation().global_test[0]
    monkeypatch.setattr("unalike.run.predict.SLICE", 7)
    assert done.predict(x).classes.tolist() == done.model(x).argmax(1).tolist()


def test_rows_of_a_table_and_names_of_classes(table):
    """Coded and prepared as the training table was: age, sex=f, sex=m, whether age is missing."""
    found, how = table.predict(ROWS), table.data.preparation
    z = [min(5, (age - how.center[0]) / how.scale[0]) for age in (61, how.center[0], 20)]  # 61 is far out
    f, m = (2 * mean for mean in how.center[1:])  # 0/1 features minus their mean, over a fair coin's deviation
    rows = [[z[0], -f, 2 - m, 0], [z[1], 2 - f, -m, 1], [z[2], -f, -m, 0]]
    x = torch.tensor(rows, dtype=torch.float32)
    logits = table.model(x).detach()
    np.testing.assert_allclose(found.probabilities, logits.softmax(1), atol=1e-6)
    assert found.labels == [["ill", "well"][k] for k in logits.argmax(1)]
    raw = np.array([[61.0, 0, 1], [np.nan, 1, 0], [20, 0, 0]])  # features are taken too
    assert np.array_equal(table.predict(raw).probabilities, found.probabilities)


def test_a_file_with_columns_in_any_order(table, tmp_path):
    (tmp_path / "rows.csv").write_text("more,sex,age,outcome\n1,m,61,ill\n2,f,,unheard of\n3,x,20,\n")
    assert np.array_equal(table.predict(tmp_path / "rows.csv").probabilities, table.predict(ROWS).probabilities)
    with refused("'sex'"):
        table.predict([{"age": 3}])


def test_what_was_prepared_is_prepared_again_and_numbers_have_their_unit():
    done = regression_run()
    done.data.preparation = HALVING
    x = torch.randn(5, 4, dtype=torch.float64)
    x[2, 1] = torch.nan
    seen = torch.where(x.isnan(), 0.5, x / 2).float()
    want = 100 + 10 * done.model(seen).detach()[:, 0]
    np.testing.assert_allclose(done.predict(x), want, rtol=1e-5)
    done.data.preparation = dc.replace(HALVING, target=None)
    np.testing.assert_allclose(done.predict(x), (want - 100) / 10, rtol=1e-3, atol=1e-5)
    with refused("NaN or infinite in row 0"):
        done.predict([[torch.inf, 0, 0, 0]])


def test_one_logit_for_two_classes():
    fed = ua.Federation.from_arrays([(torch.randn(8, 3), torch.arange(8) % 2)])
    loss = lambda out, y: torch.nn.functional.binary_cross_entropy_with_logits(out[:, 0], y.to(out), reduction="none")  # noqa: E731
    metrics = {"right": lambda out, y: ((out[:, 0] > 0) == y).float()}
    done = ua.simulate(lambda: torch.nn.Linear(3, 1), fed, ua.FedAvg(), rounds=1, loss=loss, metrics=metrics)
    x = torch.randn(4, 3)
    np.testing.assert_allclose(done.predict(x).probabilities[:, 1], done.model(x).detach()[:, 0].sigmoid(), atol=1e-6)


def own_losses(done):
    """The loss of each client's own model on its own test data, by `predict`."""
    pairs = [federation().test.of(k) for k in range(6)]
    found = [done.predict(x, client=k).probabilities[np.arange(len(y)), y] for k, (x, y) in enumerate(pairs)]
    return [-np.log(p).mean() for p in found]


@pytest.mark.parametrize("method", [SharedBody(), ua.FLHC(2, warmup=1), ua.LocalOnly()], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_s_own_model_is_the_one_that_was_evaluated(engine, method):
    done = run(method, engine=engine)
    assert done.client_values["client"].tolist() == list(range(6))
    np.testing.assert_allclose(own_losses(done), done.client_values["loss"], rtol=1e-4)


def test_a_client_s_own_model_is_not_the_global_one():
    done, x = run(SharedBody()), federation().test.of(2)[0]
    assert not np.array_equal(done.predict(x, client=2).probabilities, done.predict(x).probabilities)
    assert not np.array_equal(done.predict(x, client=2).probabilities, done.predict(x, client=3).probabilities)


def test_a_client_by_name_and_methods_without_own_models():
    data = federation()
    data.names = [f"site {k}" for k in range(6)]
    x, one = data.global_test[0], run(ua.LocalOnly(), data=data)
    assert np.array_equal(one.predict(x, client="site 3").probabilities, one.predict(x, client=3).probabilities)
    plain = run(data=data)
    assert np.array_equal(plain.predict(x, client=1).probabilities, plain.predict(x).probabilities)
    with refused(r"LocalOnly has no global model: run.predict\(x, client=0\)"):
        one.predict(x)
    for client, words in ((9, "its number from 0 to 5"), ("site 33", "Did you mean 'site 3'"), (True, "number from 0")):
        with refused(words):
            plain.predict(x, client=client)
    with refused("Clients have numbers here"):
        run().predict(x, client="north")


def test_a_client_s_own_statistics():
    from small import model

    done = run(module=model(batch_norm=True), buffers="local")
    x = federation().global_test[0]
    assert not np.array_equal(done.predict(x, client=2).probabilities, done.predict(x).probabilities)


@pytest.mark.parametrize(
    "x,words",
    [
        (torch.zeros(4), r"x has shape \[4\]: it must be \[n, 5\], one row per sample \(x\[None\]"),
        (torch.zeros(2, 4), r"x has shape \[2, 4\]"),
        (torch.zeros(2, 5).fill_(torch.nan), "NaN or infinite in row 0"),
        (torch.zeros(2, 5, dtype=torch.uint8), "x is uint8"),
        ("rows.csv", r"A str was given, and this model did not learn from a table: give an array of shape \[n, 5\]"),
        ([{"age": 3}], "did not learn from a table"),
        ([["a"] * 5], "cannot be taken as an array of numbers"),
    ],
)
def test_rows_that_do_not_fit_are_one_line(x, words):
    with refused(words):
        run(rounds=0).predict(x)


def test_outputs_by_the_hook_are_used():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(5, 3)

        def forward(self, x):
            return x, self.net(x)

    done, x = run(module=Two(), output=1), federation().global_test[0]
    assert done.predict(x).classes.tolist() == done.model(x)[1].argmax(1).tolist()


def test_repr_is_one_line(tmp_path):
    done = run(ua.Scaffold(), folder=tmp_path / "run")
    number = done.history[-1]["test_accuracy"]
    words = f"6 clients with 3 classes, round 3 of 3, test accuracy {number:.3f}, {tmp_path / 'run'}"
    assert repr(done) == f"Run(Scaffold, {words})"
    own = ua.Federation.from_arrays([(X, Y)], client_tests=[(X, Y)], classes=3)
    assert "accuracy mean over clients 0." in repr(run(data=own, clients_per_round=1))
    assert repr(run(rounds=0)) == "Run(FedAvg, 6 clients with 3 classes, round 0 of 0)"


def test_to_pandas(monkeypatch):
    done = run()
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
    assert done.to_pandas() == done.history
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("pip install pandas"):
        done.to_pandas()


def test_labels_without_names_are_numbers():
    assert Prediction(np.array([1, 0]), np.eye(2)).labels == [1, 0]
