"""The numbers that are reported are those of the model that is handed over, and callbacks see them."""

import dataclasses as dc
import io
import json
import sys
import types

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from small import ENGINES, LOCAL, assert_same, federation, model, refused, run, states, timeless
from torch import nn
from torch.nn import functional as F

import unalike as ua
from unalike.metrics import spread
from unalike.nn import task as tasks
from unalike.run import callbacks


def naive(module, x, y):
    """Mean loss and accuracy, sample by sample."""
    with torch.no_grad():
        outputs = [module(x[k : k + 1]) for k in range(len(y))]
    losses = [float(F.cross_entropy(out, y[k : k + 1])) for k, out in enumerate(outputs)]
    return np.mean(losses), np.mean([int(out.argmax()) == int(y[k]) for k, out in enumerate(outputs)])


# ---------------------------------------------------------------- fairness


def test_spread_by_hand():
    """Ten clients at 10, 20, ..., 100 %: the worst two have 15 on average, the best two 95; the mean of the squared
    distances from 55 is (45² + 35² + 25² + 15² + 5²) · 2 / 10 = 825."""
    values = np.array([0.3, 1.0, 0.1, 0.8, 0.5, 0.6, 0.4, 0.9, 0.7, 0.2])
    expected = {"mean": 0.55, "worst20": 0.15, "best20": 0.95, "variance_pp2": 825.0}
    assert spread(values) == pytest.approx(expected, abs=1e-9)
    tenth = spread(values, share=0.1)
    assert (tenth["worst20"], tenth["best20"]) == (0.1, 1.0)
    assert values[0] == 0.3  # the caller's array keeps its order


def test_spread_of_few_clients_takes_one():
    assert spread(np.array([0.5, 0.1])) == pytest.approx(
        {"mean": 0.3, "worst20": 0.1, "best20": 0.5, "variance_pp2": 400.0}
    )
    assert spread(np.array([0.25])) == {"mean": 0.25, "worst20": 0.25, "best20": 0.25, "variance_pp2": 0.0}


# ---------------------------------------------------------------- the numbers of a round


@pytest.mark.parametrize("slice", (4, 2048))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_number_of_the_last_round(engine, slice, monkeypatch):
    monkeypatch.setattr(tasks, "SLICE", slice)
    data = federation(validation=True)
    done = run(ua.Scaffold(), data=data, engine=engine)
    line, module = done.history[-1], done.model
    loss, accuracy = naive(module, *data.global_test)
    assert line["test_accuracy"] == accuracy and line["test_loss"] == pytest.approx(loss, rel=1e-5)
    scores = [naive(module, *data.test.of(k)) for k in range(6)]
    np.testing.assert_allclose(done.client_values["accuracy"], [a for _, a in scores], rtol=0, atol=1e-12)
    np.testing.assert_allclose(done.client_values["loss"], [v for v, _ in scores], rtol=1e-5)
    assert done.client_values["client"].tolist() == list(range(6))
    assert line["clients_loss"] == pytest.approx(np.mean([v for v, _ in scores]), rel=1e-5)
    for name, value in spread(np.array([a for _, a in scores])).items():
        assert line[f"clients_accuracy_{name}"] == pytest.approx(value, abs=1e-9)
    loss, accuracy = naive(module, data.validation.x, data.validation.y)  # of all samples alike
    assert line["validation_accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert line["validation_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("buffers", ("average", "local", "freeze"))
def test_the_model_gives_the_reported_accuracy(buffers):
    data = federation()
    given = model(batch_norm=True)
    before = {k: v.clone() for k, v in given.state_dict().items()}
    done = run(data=data, module=given, buffers=buffers, rounds=4, clients_per_round=6)
    loss, accuracy = naive(done.model, *data.global_test)
    assert done.summary()["final"]["test_accuracy"] == accuracy
    assert done.history[-1]["test_loss"] == pytest.approx(loss, rel=1e-5)
    moved = not torch.equal(done.model[1].running_mean, before["1.running_mean"])
    assert moved == (buffers == "average")
    assert all(torch.equal(v, before[k]) for k, v in given.state_dict().items())  # the caller's module is untouched
    assert given.training and not done.model.training


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_are_evaluated_with_statistics_of_their_own(engine):
    data = federation()
    done = run(data=data, module=model(batch_norm=True), buffers="local", engine=engine, clients_per_round=[[0, 2, 5]])
    module = done.model
    layer = module[1]
    start = torch.cat([layer.running_mean, layer.running_var])
    for k in range(6):
        own = start + done.clients[k]["buffers"]  # kept as a difference; zeros for those who never took part
        assert bool(done.clients[k]["buffers"].any()) == (k in (0, 2, 5))
        layer.running_mean.copy_(own[:4])
        layer.running_var.copy_(own[4:])
        loss, accuracy = naive(module, *data.test.of(k))
        assert done.client_values["accuracy"][k] == pytest.approx(accuracy, abs=1e-6)
        assert done.client_values["loss"][k] == pytest.approx(loss, rel=1e-4)


class FineTuned(ua.FedAvg):
    """Each client's own model is the global one after a training of its own."""

    def personal(self, me, s, m):
        return me.train(m.w, steps=3).then(self.mine)

    def mine(self, me, s, m, theta):
        return theta


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("buffers", ("average", "local"))
def test_a_look_at_trained_personal_models_changes_nothing(buffers, engine):
    given = {
        "module": model(batch_norm=True), "buffers": buffers, "engine": engine,
        "local": dc.replace(LOCAL, momentum=0.9, keep_optimizer=True),
    }  # fmt: skip
    seen, unseen = run(FineTuned(), **given), run(FineTuned(), evaluate_clients="none", **given)
    assert seen.client_values.keys() >= {"client", "loss", "accuracy"}
    assert seen.history[-1]["clients_loss"] != run(**given).history[-1]["clients_loss"]  # they are trained
    mine, yours = states(seen), states(unseen)
    assert mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


def test_evaluate_every():
    done = run(rounds=5, evaluate_every=2)
    assert [("test_loss" in line, "clients_loss" in line) for line in done.history] == [
        (False, False), (True, True), (False, False), (True, True), (True, True),
    ]  # fmt: skip
    often = run(rounds=5)
    for a, b in zip(timeless(done.history), timeless(often.history), strict=True):
        assert a.items() <= b.items()
    assert torch.equal(done.server.w, often.server.w)


def test_which_clients_are_evaluated():
    everyone = run(evaluate_clients="all")
    assert run().client_values["client"].tolist() == everyone.client_values["client"].tolist() == list(range(6))
    everyone, some = run(evaluate_clients="all", seed=1), run(evaluate_clients=3, seed=1)
    ids = some.client_values["client"]
    assert len(set(ids.tolist())) == 3 and ids.tolist() == sorted(ids)
    assert ids.tolist() != [0, 1, 2]  # whose rows are the first
    again = run(evaluate_clients=3, seed=1, rounds=1)
    assert ids.tolist() == again.client_values["client"].tolist()  # the same ones each time
    np.testing.assert_allclose(some.client_values["loss"], everyone.client_values["loss"][ids], rtol=1e-6)
    assert run(evaluate_clients=99).client_values["client"].tolist() == list(range(6))
    none = run(evaluate_clients="none")
    assert none.client_values == {} and "test_loss" in none.history[0]
    assert not [name for name in none.history[0] if name.startswith("clients_")]


def test_clients_without_test_samples_are_passed_over():
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    tests = [(x, y), None, (x[3:], y[3:]), (x[1:3], y[1:3])]
    data = ua.Federation.from_arrays([(x, y)] * 4, client_tests=tests, classes=3)
    assert run(data=data).client_values["client"].tolist() == [0, 2, 3]
    done = run(data=data, evaluate_clients=3, seed=1)
    assert done.client_values["client"].tolist() == [2, 3]  # of clients 1, 2 and 3: their rows are not the first
    assert "test_loss" not in done.history[0]
    expected = [naive(done.model, *data.test.of(k))[0] for k in (2, 3)]
    np.testing.assert_allclose(done.client_values["loss"], expected, rtol=1e-5)


def test_an_empty_test_set_is_none():
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    data = ua.Federation.from_arrays([(x, y)], test=(x[:0], y[:0]), classes=3)
    assert "test_loss" not in run(data=data, clients_per_round=1).history[0]


def test_metrics_of_ones_own_and_regression():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(8, 5, generator=draw)
    data = ua.Federation.from_arrays([(x, x.sum(1))], test=(x, x.sum(1)))
    module = nn.Linear(5, 1)
    given = {"data": data, "module": module, "clients_per_round": 1, "loss": "squared-error"}
    done = run(**given)
    assert "test_accuracy" not in done.history[0]
    off = done.model(x).detach()[:, 0] - x.sum(1)
    assert done.history[-1]["test_loss"] == pytest.approx(float(off.square().mean()), rel=1e-5)
    done = run(metrics={"miss": lambda output, y: (output[:, 0] - y).abs()}, **given)
    assert done.history[-1]["test_miss"] == pytest.approx(float(off.abs().mean()), rel=1e-5)


# ---------------------------------------------------------------- metrics of a whole set

WHOLE = ["auc", "f1", "balanced_accuracy", "calibration_error", "brier", "log_loss", "accuracy"]


@pytest.mark.parametrize("slice", (4, 2048))
@pytest.mark.parametrize("engine", ENGINES)
def test_metrics_of_a_whole_set_by_scikit_learn(engine, slice, monkeypatch):
    """On the test set, on each client's samples, and over all samples together: of one global model."""
    monkeypatch.setattr(tasks, "SLICE", slice)
    data = federation(validation=True)
    done = run(ua.Scaffold(), data=data, engine=engine, metrics=WHOLE)
    line = done.history[-1]

    def scores(x, y):
        z = done.model(x).detach()
        p, label, guess = torch.softmax(z.double(), 1).numpy(), y.numpy(), z.argmax(1).numpy()
        both = [c for c in range(3) if 0 < (label == c).sum() < len(label)]
        curves = [sk.roc_auc_score(label == c, p[:, c]) for c in both]
        return {
            "auc": np.mean(curves) if curves else np.nan,
            "f1": sk.f1_score(label, guess, average="macro", labels=sorted({*label, *guess})),
            "balanced_accuracy": np.mean([(guess[label == c] == c).mean() for c in set(label)]),
        }

    for name, value in scores(*data.global_test).items():
        assert line[f"test_{name}"] == pytest.approx(value, abs=1e-9), name
    each = [scores(*data.test.of(k)) for k in range(6)]
    for name in each[0]:
        np.testing.assert_allclose(done.client_values[name], [one[name] for one in each], atol=1e-9)
        assert line[f"clients_{name}_mean"] == pytest.approx(np.nanmean([one[name] for one in each]))
    for where, columns in (("pooled", data.test), ("validation", data.validation)):
        for name, value in scores(columns.x, columns.y).items():
            near = 1e-2 if name == "auc" else 1e-9  # from bins: of few samples one pair counts much
            assert line[f"{where}_{name}"] == pytest.approx(value, abs=near), (where, name)


@pytest.mark.parametrize("buffers", ("average", "local"))
def test_engines_agree_on_metrics_of_personal_models(buffers):
    """Models that are trained for the evaluation, with statistics of their own."""
    given = {
        "module": model(batch_norm=True),
        "buffers": buffers,
        "metrics": WHOLE,
        "data": federation(validation=True),
    }
    first, *others = (run(FineTuned(), engine=engine, **given) for engine in ENGINES)
    for other in others:
        assert first.client_values.keys() == other.client_values.keys() >= {"client", "loss", *WHOLE}
        for name, values in first.client_values.items():
            np.testing.assert_allclose(other.client_values[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
        for key, value in first.history[-1].items():
            if key.startswith(("pooled_", "validation_", "clients_")):
                assert other.history[-1][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("engine", ENGINES)
def test_regression_has_rmse_mae_and_r2(engine):
    draw = torch.Generator().manual_seed(0)
    sizes = (7, 4, 1)

    def pair(n):
        x = torch.randn(n, 5, generator=draw)
        return x, x.sum(1) + 50

    data = ua.Federation.from_arrays([pair(8)] * 3, client_tests=[pair(n) for n in sizes])
    for method in (ua.FedAvg(), FineTuned()):
        done = run(method, module=nn.Linear(5, 1), data=data, engine=engine, loss="squared-error")
        line, values = done.history[-1], done.client_values
        np.testing.assert_allclose(values["rmse"] ** 2, values["loss"], rtol=1e-5)
        assert line["pooled_rmse"] == pytest.approx((values["loss"] @ np.array(sizes) / 12) ** 0.5, rel=1e-6)
        assert np.isnan(values["r2"]).tolist() == [False, False, True] and line["clients_r2_count"] == 2
        variance = data.test.y.double().var(correction=0)
        assert line["pooled_r2"] == pytest.approx(1 - line["pooled_rmse"] ** 2 / float(variance), rel=1e-5)
    json.loads(json.dumps(line, allow_nan=False))


def test_the_default_pays_nothing_for_metrics_of_a_whole_set(monkeypatch):
    """Personal models by their batches alone, in the stack."""
    monkeypatch.setattr(ua.model.Task, "measured", None)
    own = {"client", "loss", "accuracy", "global_accuracy"}
    assert run(FineTuned(), engine="batched").client_values.keys() == own


def test_by_class():
    data = federation()
    done = run(data=data)
    x, y = data.global_test
    guess = done.model(x).argmax(1)
    rows = done.by_class()
    assert [row["class"] for row in rows] == ["0", "1", "2"] and sum(row["samples"] for row in rows) == len(y)
    found = sk.precision_recall_fscore_support(y, guess, zero_division=0)
    for k, row in enumerate(rows):
        assert (row["precision"] or 0, row["recall"], row["f1"]) == pytest.approx([part[k] for part in found[:3]])
    own = run(data=data.replace(global_test=None), metrics=["f1"])
    assert sum(row["samples"] for row in own.by_class()) == len(data.test.y)
    assert own.by_class() == run(data=data.replace(global_test=None)).by_class()
    personal = run(FineTuned(), data=data.replace(global_test=None), metrics=["f1"])
    recalls = [row["samples"] * row["recall"] for row in personal.by_class()]
    right = personal.client_means["classes"].reshape(3, -1)[2].sum()
    assert sum(recalls) == pytest.approx(float(right) * len(data.test.y))
    with refused("There is nothing to count classes on"):
        run(FineTuned(), data=data.replace(global_test=None)).by_class()
    numbers = ua.Federation.from_arrays([(x, x.sum(1))])
    with refused("The labels are numbers"):
        run(data=numbers, module=nn.Linear(5, 1), loss="squared-error", clients_per_round=1).by_class()


# ---------------------------------------------------------------- summaries


def test_summary_never_takes_the_best_round_on_test_data():
    done = run(data=federation(validation=True))
    rows = [(0.9, 0.1, 3.0), (0.5, 0.8, 1.0), (0.4, 0.8, 2.0)]  # test accuracy, validation accuracy and loss
    for line, (test, accuracy, loss) in zip(done.history, rows, strict=True):
        line.update(test_accuracy=test, validation_accuracy=accuracy, validation_loss=loss)
    summary = done.summary()
    assert summary["final"] is done.history[2] and summary["selected"] is done.history[1]
    for line, loss in zip(done.history, (2.0, 3.0, 1.0), strict=True):
        del line["validation_accuracy"]
        line["validation_loss"] = loss
    assert done.summary()["selected"] is done.history[2]


def test_summary_of_a_run():
    done = run(data=federation(validation=True), rounds=5, evaluate_every=2)
    summary = done.summary()
    evaluated = [done.history[k] for k in (1, 3, 4)]
    assert summary["selected"] == max(evaluated, key=lambda line: line["validation_accuracy"])
    assert summary["final"] is done.history[-1] and summary["rounds"] == 5
    assert summary["bytes_up"] == sum(line["bytes_up"] for line in done.history) > 0
    assert summary["engine"] == "sequential: as asked"
    bare = run(rounds=0).summary()
    assert bare["final"] is None and bare["selected"] is None and bare["bytes_up"] == 0
    assert run().summary()["selected"] is None  # no validation data, no choice


# ---------------------------------------------------------------- callbacks


class Notes(ua.Callback):
    def __init__(self):
        self.seen = []

    def on_start(self, run):
        self.seen.append(("start", run.rounds_done))

    def on_round(self, run, line):
        self.seen.append(line["round"])

    def on_end(self, run):
        self.seen.append(("end", run.rounds_done))


def test_stop_at_and_go_on(tmp_path):
    """Stopped at the first round whose loss is low enough; then continued to more rounds."""
    whole = run(ua.Scaffold(), rounds=8)
    target = whole.history[3]["train_loss"]
    first = next(k for k, line in enumerate(whole.history, 1) if line["train_loss"] <= target)
    notes, stop = Notes(), ua.StopAt("train_loss", target, above=False)
    given = {"folder": tmp_path / "run", "checkpoint_every": 100}
    stopped = run(ua.Scaffold(), rounds=8, callbacks=[stop, notes], **given)
    assert stopped.rounds_done == first == len(stopped.history) < 8
    assert notes.seen == [("start", 0), *range(1, first + 1), ("end", first)]
    notes = Notes()
    resumed = run(ua.Scaffold(), rounds=8, resume=True, callbacks=[notes], **given)
    assert notes.seen == [("start", first), *range(first + 1, 9), ("end", 8)]
    assert_same(whole, resumed)


def test_stop_at_above():
    whole = run(rounds=6)
    target = max(line["test_accuracy"] for line in whole.history)
    first = next(k for k, line in enumerate(whole.history, 1) if line["test_accuracy"] >= target)
    assert run(rounds=6, callbacks=[ua.StopAt("test_accuracy", target)]).rounds_done == first
    assert run(rounds=6, callbacks=[ua.StopAt("test_accuracy", 1.1)]).rounds_done == 6


def test_stop_at_waits_for_an_evaluation():
    assert run(rounds=5, evaluate_every=3, callbacks=[ua.StopAt("test_accuracy", 0.0)]).rounds_done == 3


def test_stop_at_a_number_that_is_not_there():
    with refused("a round has no 'test_acuracy'. Did you mean 'test_accuracy'"):
        run(callbacks=[ua.StopAt("test_acuracy", 0.9)])


def test_progress_in_a_file():
    stream = io.StringIO()
    done = run(callbacks=[ua.Progress(stream)])
    first, *lines = stream.getvalue().splitlines()
    assert first == "engine sequential: as asked" and len(lines) == 3
    for k, (text, line) in enumerate(zip(lines, done.history, strict=True), 1):
        assert text.startswith(f"round {k}/3  train loss {line['train_loss']:.4f}  ")
        assert f"test accuracy {line['test_accuracy']:.4f}" in text and "936 bytes" in text and text.endswith(" s left")
    assert "\r" not in stream.getvalue() and stream.getvalue().endswith("\n")


def test_progress_on_a_terminal_rewrites_its_line():
    stream = io.StringIO()
    stream.isatty = lambda: True
    run(callbacks=[ua.Progress(stream)])
    assert stream.getvalue().count("\r") == 3 and stream.getvalue().count("\n") == 2


def test_progress_of_a_resumed_run(tmp_path, monkeypatch):
    run(folder=tmp_path / "run", rounds=2)
    stream, clock = io.StringIO(), iter(range(0, 100, 10))
    monkeypatch.setattr(callbacks, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    run(folder=tmp_path / "run", rounds=5, resume=True, callbacks=[ua.Progress(stream)])
    lines = [line.split("  ") for line in stream.getvalue().splitlines()[1:]]
    assert [line[0] for line in lines] == ["round 3/5", "round 4/5", "round 5/5"]
    assert [line[-1] for line in lines] == ["20 s left", "10 s left", "0 s left"]  # a round takes ten seconds here
    run(folder=tmp_path / "run", rounds=5, resume=True, callbacks=[ua.Progress(stream)])  # nothing left to do


def test_jsonl_appends(tmp_path):
    for _ in range(2):
        done = run(callbacks=[ua.JSONL(tmp_path / "lines.jsonl")])
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert len(lines) == 6 and lines[3:] == done.history
    with refused("JSONL cannot write to .*nowhere"):
        run(callbacks=[ua.JSONL(tmp_path / "nowhere" / "lines.jsonl")])


def test_tensorboard_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with refused(r"TensorBoard is not installed: pip install 'unalike\[tensorboard\]'"):
        run(callbacks=[ua.TensorBoard(tmp_path / "board")])


def test_tensorboard_gets_every_number(monkeypatch, tmp_path):
    written = {}

    class SummaryWriter:
        def __init__(self, folder):
            written["folder"] = folder

        def add_scalar(self, name, value, step):
            written[name, step] = value

        def close(self):
            written["closed"] = True

    fake = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    done = run(callbacks=[ua.TensorBoard(tmp_path / "board")])
    assert written.pop("closed") and written.pop("folder") == tmp_path / "board"
    assert written == {(n, line["round"]): v for line in done.history for n, v in line.items() if n != "round"}
