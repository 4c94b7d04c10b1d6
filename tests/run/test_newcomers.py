"""Clients that take no part: left out of training, judged before and after so many steps on their own data."""

import tomllib

import numpy as np
import pytest
import torch
from small import ENGINES, LOCAL, federation, model, run, timeless
from torch import nn

import unalike as ua
from unalike.errors import UnalikeError

FULL = ua.LocalTraining(epochs=1, batch_size=None, lr=0.2)


def new_ones(seed=0, count=2, population=6):
    """Their numbers, found by looking at who is left."""
    made = run(rounds=0, new_clients=count, seed=seed)
    kept = {tuple(made.data.train.of(k)[1].tolist()) for k in range(len(made.data))}
    whole = federation().train
    return [k for k in range(population) if tuple(whole.of(k)[1].tolist()) not in kept]


def test_training_is_that_of_the_others_alone():
    made = run(new_clients=2)
    rest = np.setdiff1d(np.arange(6), new_ones())
    alone = run(data=federation().only(rest))
    assert made.population == 4 and len(made.newcomers.data) == 2
    assert torch.equal(made.server.w, alone.server.w)
    shared = [{k: v for k, v in line.items() if not k.startswith("new_")} for line in made.history]
    assert timeless(shared) == timeless(alone.history)


def by_hand(module, vector, client, steps, lr, part=None):
    """Full-batch gradient steps of plain PyTorch, and the accuracy and loss on the client's own test samples."""
    nn.utils.vector_to_parameters(vector.clone(), module.parameters())
    (x, y), (tx, ty) = (federation().splits[name].of(client) for name in ("train", "test"))
    moving = module[-1].parameters() if part == "head" else module.parameters()
    optimizer = torch.optim.SGD(moving, lr)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        out = module(tx)
        return float((out.argmax(1) == ty).float().mean()), float(nn.functional.cross_entropy(out, ty))


@pytest.mark.parametrize("method", [ua.FedAvg(), ua.FedPer(), ua.FineTune(part="head")], ids=lambda m: m.name)
def test_numbers_by_hand(method):
    made = run(method, new_clients=2, new_steps=3, local=FULL)
    part = "head" if method.adapts != "all" else None
    before = [by_hand(model(), made.server.w, k, 0, 0.2) for k in new_ones()]
    after = [by_hand(model(), made.server.w, k, 3, 0.2, part) for k in new_ones()]
    line = made.history[-1]
    assert line["new_accuracy_start"] == pytest.approx(np.mean([a for a, _ in before]), abs=1e-6)
    assert line["new_accuracy_mean"] == pytest.approx(np.mean([a for a, _ in after]), abs=1e-6)
    assert line["new_accuracy_worst20"] == pytest.approx(min(a for a, _ in after), abs=1e-6)
    assert line["new_loss"] == pytest.approx(np.mean([loss for _, loss in after]), abs=1e-5)


@pytest.mark.parametrize("method", [ua.Ditto(), ua.FedAMP(), ua.FLHC(2, warmup=0), ua.DefKT()], ids=lambda m: m.name)
def test_engines_agree(method):
    lines = [run(method, engine=e, new_clients=2, new_steps=3).history[-1] for e in ENGINES]
    for line in lines:
        assert line["new_loss"] == pytest.approx(lines[0]["new_loss"], rel=1e-4)
        assert line["new_accuracy_mean"] == pytest.approx(lines[0]["new_accuracy_mean"], abs=1e-6)


def test_a_look_leaves_nothing_behind_and_a_resumed_run_says_the_same(tmp_path):
    given = {"new_clients": 0.34, "local": ua.LocalTraining(batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=True)}
    module = lambda: model(batch_norm=True)  # noqa: E731
    whole = run(ua.FineTune(), module=module(), buffers="local", **given)
    run(ua.FineTune(), module=module(), buffers="local", rounds=1, folder=tmp_path / "run", **given)
    again = run(ua.FineTune(), module=module(), buffers="local", folder=tmp_path / "run", resume=True, **given)
    assert timeless(again.history) == timeless(whole.history)
    config = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert (config["run"]["new_clients"], config["run"]["new_steps"]) == (0.34, 10)
    with pytest.raises(UnalikeError, match="new_steps is 10, here 5"):
        more = given | {"new_steps": 5}
        run(ua.FineTune(), module=module(), buffers="local", folder=tmp_path / "run", resume=True, **more)


def test_a_method_finds_the_best_of_its_models_for_a_newcomer():
    """FL+HC: the cluster whose model has the least loss on the newcomer's own training samples."""
    made = run(ua.FLHC(2, warmup=0), new_clients=2, new_steps=0, clients_per_round=4)
    found = []
    for k in new_ones():
        losses = []
        for vector in made.server.models:
            module = model()
            nn.utils.vector_to_parameters(vector.clone(), module.parameters())
            x, y = federation().train.of(k)
            losses.append(nn.functional.cross_entropy(module(x), y).item())
        found.append(by_hand(model(), made.server.models[int(np.argmin(losses))], k, 0, 0.1)[1])
    assert made.history[-1]["new_loss"] == pytest.approx(np.mean(found), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"new_clients": 6}, "a whole number below the 6 clients"),
        ({"new_clients": 2.5}, "a share below 1"),
        ({"new_clients": -1}, "new_clients"),
        ({"new_clients": 1.0}, "a share below 1"),
        ({"new_clients": True}, "new_clients"),
        ({"new_clients": 2, "clients_per_round": [[0, 1], [2, 3]]}, "numbered anew: give a share or a count"),
        ({"new_clients": 1, "local": ua.LocalTraining(lr=[0.1] * 5)}, "lr is a list"),
    ],
)
def test_what_cannot_be_is_said(changes, words):
    with pytest.raises(UnalikeError, match=words):
        run(**changes)


def test_newcomers_need_test_samples():
    with pytest.raises(UnalikeError, match="test samples of their own"):
        run(data=federation().replace(test=None), new_clients=1)


# ---------------------------------------------------------------- several models asked together


class Both(ua.Method):
    """The common model and the run's first, asked together."""

    def personal(self, me, s, m):
        return torch.stack([m.w, me.start])


@pytest.mark.parametrize("engine", ENGINES)
def test_of_several_models_the_mean_output_is_judged(engine):
    made = run(Both(), engine=engine, metrics=["accuracy", "auc"])
    tests, wanted = federation().splits["test"], []
    for k in range(6):
        x, y = tests.of(k)
        outputs = []
        for vector in (made.server.w, made.task.start):
            module = model()
            nn.utils.vector_to_parameters(vector.clone(), module.parameters())
            outputs.append(module(x))
        mean = torch.stack(outputs).mean(0)
        wanted.append((nn.functional.cross_entropy(mean, y).item(), (mean.argmax(1) == y).float().mean().item()))
    np.testing.assert_allclose(made.client_values["loss"], [loss for loss, _ in wanted], rtol=1e-5)
    np.testing.assert_allclose(made.client_values["accuracy"], [a for _, a in wanted], atol=1e-6)
    x = tests.of(2)[0].numpy()
    both = [run(rounds=0).model, made.model]
    with torch.no_grad():
        mean = torch.stack([module(torch.from_numpy(x)) for module in both]).mean(0).softmax(1)
    np.testing.assert_allclose(made.predict(x, client=2).probabilities, mean.numpy(), atol=1e-6)
    with pytest.raises(UnalikeError, match="more than one network"):
        made.save("nowhere", client=2)


# ---------------------------------------------------------------- who gains


def test_gains_are_counted_against_the_runs_own_global_model():
    made = run(ua.FineTune(epochs=3))
    own, common = (made.client_values[name] for name in ("accuracy", "global_accuracy"))
    plain = run()
    np.testing.assert_allclose(common, plain.client_values["accuracy"], atol=1e-6)
    assert made.history[-1]["gain_share"] == np.mean(own > common + 1e-4)
    assert made.history[-1]["lose_share"] == np.mean(own < common - 1e-4)
    assert made.history[-1]["gain_share"] + made.history[-1]["lose_share"] > 0
    for method in (ua.FedAvg(), ua.FedPer(), ua.IFCA()):  # one model for all; no global model; several
        assert "gain_share" not in run(method).history[-1]
    apart = run(ua.Ditto(), module=model(batch_norm=True), buffers="local")  # the global model has no statistics
    assert "gain_share" not in apart.history[-1]


def test_without_metrics_who_gains_is_said_by_the_loss():
    """Numbers are predicted, and there is no metric but the loss, which is better when lower."""
    draw = torch.Generator().manual_seed(0)
    samples = lambda n: (torch.randn(n, 5, generator=draw), torch.randn(n, 1, generator=draw))  # noqa: E731
    data = ua.Federation.from_arrays([samples(n) for n in (6, 7, 8)], client_tests=[samples(5) for _ in range(3)])
    torch.manual_seed(0)
    loss = lambda output, y: (output - y).square().mean(-1)  # noqa: E731
    made = run(ua.Ditto(lam=0.0), module=nn.Linear(5, 1), data=data, loss=loss)
    own, common = made.client_values["loss"], made.client_values["global_loss"]
    gain, lose = np.mean(own < common - 1e-4), np.mean(own > common + 1e-4)
    assert gain != lose
    assert (made.history[-1]["gain_share"], made.history[-1]["lose_share"]) == (gain, lose)


def test_a_client_without_a_value_neither_gains_nor_loses():
    draw = torch.Generator().manual_seed(1)
    samples = lambda n, y=None: (torch.randn(n, 5, generator=draw), torch.arange(n) % 2 if y is None else y)  # noqa: E731
    tests = [samples(6, torch.zeros(6, dtype=torch.long)), samples(8), samples(8)]  # no AUC of one class
    data = ua.Federation.from_arrays([samples(n) for n in (8, 6, 10)], client_tests=tests, classes=2)
    torch.manual_seed(0)
    made = run(ua.Ditto(lam=0.0), module=nn.Linear(5, 2), data=data, metrics=["auc"], clients_per_round=3)
    own, common = (made.client_values[name][1:] for name in ("auc", "global_auc"))
    assert np.isnan(made.client_values["auc"][0])
    assert made.history[-1]["gain_share"] == np.mean(own > common + 1e-4)
    assert made.history[-1]["lose_share"] == np.mean(own < common - 1e-4)
    assert made.history[-1]["gain_share"] + made.history[-1]["lose_share"] > 0


# ---------------------------------------------------------------- mini-batches


@pytest.mark.parametrize("engine", ENGINES)
def test_mini_batches_are_counted(engine):
    """Sizes 8, 4, 12, 10, 2, 6 in batches of 4: 2 + 1 + 3 + 3 + 1 + 2."""
    given = {"engine": engine, "clients_per_round": 1.0, "rounds": 2}
    assert [line["batches"] for line in run(**given).history] == [12, 12]
    assert run(ua.Ditto(), **given).history[-1]["batches"] == 24  # trains twice
    assert run(ua.PerFedAvg(), **given).history[-1]["batches"] == 36  # three a step
    assert run(local=LOCAL, **given | {"clients_per_round": [[1, 4], [2]]}).history[0]["batches"] == 2


# ---------------------------------------------------------------- whose model


def test_of_a_model_for_each_kind_of_client_one_must_be_chosen():
    made = run(ua.FLHC(2, warmup=0), clients_per_round=1.0)
    x = federation().splits["test"].of(2)[0].numpy()
    with pytest.raises(UnalikeError, match=r"FLHC has 2 models \(cluster0, cluster1\), each for some clients"):
        made.predict(x)
    assert len(made.predict(x, client=2)) == len(x)


def test_a_newcomer_is_told_from_a_client_that_there_is_not():
    named = federation().replace(names=[f"site{k}" for k in range(6)])
    made = run(ua.FineTune(), data=named, new_clients=2)
    x = named.splits["test"].of(2)[0].numpy()
    new = made.newcomers.data.names[0]
    with pytest.raises(UnalikeError, match=f"no client '{new}'. It took no part in training"):
        made.predict(x, client=new)


def test_what_was_asked_for_is_compared_first(tmp_path):
    run(new_clients=1, folder=tmp_path / "run")
    with pytest.raises(UnalikeError, match=r"there run\.new_clients is 1, here 2"):
        run(new_clients=2, folder=tmp_path / "run", resume=True)
