"""LG-FedAvg with decoders and with new clients that ask all clients' models: by hand, its reductions, what travels."""

import dataclasses as dc

import numpy as np
import pytest
import small
import torch
from torch import nn

import unalike as ua
from unalike import testing
from unalike.errors import UnalikeError
from unalike.run.predict import predictor

PLAIN = dc.replace(testing.settings()["local"], clip_norm=None, weight_decay=0.0)
ENGINES = ("sequential", "batched", "workers", "loopback")


def run(method, kind="mlp", **changes):
    return testing.run(method, kind, **{"local": PLAIN, "engine": "sequential", "dtype": "float64", **changes})


def own(done, client):
    """The vector that a client predicts with."""
    return nn.utils.parameters_to_vector(predictor(done, client).module.parameters()).detach()


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()


def data():
    draw = np.random.default_rng(1)
    return [(draw.normal(size=(n, 3)), draw.integers(0, 2, n)) for n in (4, 6)]


def by_hand(clients, decoder, rounds, steps, lr, mu):
    """Bodies, the common head and decoders, by plain PyTorch on modules."""
    models, decoders = [net() for _ in clients], [nn.Sequential(*decoder()) for _ in clients]
    for _ in range(rounds):
        for model, back, (x, y) in zip(models, decoders, clients, strict=True):
            x, y = torch.tensor(x), torch.tensor(y)
            for _ in range(steps):
                model.zero_grad(), back.zero_grad()
                features = model[:2](x)
                error = (back(features) - x).square().mean()
                (nn.functional.cross_entropy(model[2](features), y) + mu * error).backward()
                with torch.no_grad():
                    for p in (*model.parameters(), *back.parameters()):
                        p -= lr * p.grad
        with torch.no_grad():
            for parts in zip(*(model[2].parameters() for model in models), strict=True):
                mean = torch.stack(parts).mean(0)
                for p in parts:
                    p.copy_(mean)
    return models, decoders


@pytest.mark.parametrize("engine", ENGINES)
def test_model_and_decoder_take_one_step_together(engine):
    clients, (lr, mu) = data(), (0.3, 0.7)
    local = ua.LocalTraining(steps=2, batch_size=None, lr=lr)
    done = ua.simulate(
        net(), ua.Federation.from_arrays(clients, classes=2), ua.LGFedAvg(mu=mu, hidden=4), rounds=2, local=local,
        engine=engine, dtype="float64",
    )  # fmt: skip
    start = done.task.nets["decoder"]

    def decoder():
        layers = nn.Linear(2, 4).double(), nn.ReLU(), nn.Linear(4, 3).double()
        nn.utils.vector_to_parameters(start.start.clone(), nn.Sequential(*layers).parameters())
        return layers

    models, decoders = by_hand(clients, decoder, 2, 2, lr, mu)
    for k, (model, back) in enumerate(zip(models, decoders, strict=True)):
        assert torch.allclose(
            own(done, k), nn.utils.parameters_to_vector(model.parameters()).detach(), atol=1e-12, rtol=0
        )
        wanted = nn.utils.parameters_to_vector(back.parameters()).detach()
        assert torch.allclose(done.clients[k]["decoder"], wanted, atol=1e-12, rtol=0)
        assert float((wanted - start.start).abs().max()) > 1e-2


def test_without_mu_it_is_the_supervised_one():
    wanted, none = run(ua.LGFedAvg()), run(ua.LGFedAvg(mu=0.0, hidden=3))
    assert torch.equal(wanted.server.w, none.server.w) and "decoder" not in none.clients[0]
    tiny, strong = run(ua.LGFedAvg(mu=1e-12)), run(ua.LGFedAvg(mu=1.0))
    assert max(float((own(tiny, k) - own(wanted, k)).abs().max()) for k in range(6)) < 1e-9
    assert float((own(strong, 0) - own(wanted, 0)).abs().max()) > 1e-4
    assert strong.history[-1]["bytes_up"] == wanted.history[-1]["bytes_up"]  # a decoder stays at home
    assert strong.history[-1]["bytes_down"] == wanted.history[-1]["bytes_down"]


def test_a_decoder_needs_the_heads_input_and_numbers():
    with pytest.raises(UnalikeError, match=r"LGFedAvg mu=0\.5 with shared='last 2': a decoder reads"):
        ua.LGFedAvg(mu=0.5, shared="last 2")
    with pytest.raises(UnalikeError, match="LGFedAvg mu: samples are tokens"):
        run(ua.LGFedAvg(mu=0.5), "lstm")


def test_bodies_travel_for_a_new_client_alone():
    seen = {"clients_per_round": [[0, 1], [1, 2]]}
    plain, asked = run(ua.LGFedAvg(), **seen), run(ua.LGFedAvg(newcomer="logits"), **seen)
    assert torch.equal(plain.server.w, asked.server.w)
    body = plain.task.layout.body_size
    assert asked.history[0]["bytes_up"] - plain.history[0]["bytes_up"] == 2 * 8 * body
    fresh = run(ua.LGFedAvg(newcomer="logits"), rounds=0)
    assert torch.equal(fresh.method.published(fresh.server)["models"], fresh.task.start[None])  # nobody's yet
    models = asked.method.published(asked.server)["models"]
    assert torch.equal(models, torch.stack([own(asked, k) for k in range(3)]))  # of those who took part


@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_client_asks_all_models(engine):
    done = small.run(ua.LGFedAvg(newcomer="logits"), new_clients=2, new_steps=3, engine=engine, dtype="float64")
    models = [own(done, k) for k in range(done.population)]
    losses, right, module = [], [], small.model().double()
    for k in range(2):
        x, y = done.newcomers.data.splits["test"].of(k)
        outputs = [torch.func.functional_call(module, done.task.layout.views(v), x.double()) for v in models]
        mean = torch.stack(outputs).mean(0)
        right.append(float((mean.argmax(1) == y).double().mean()))
        losses.append(float(nn.functional.cross_entropy(mean, y)))
    line = done.history[-1]
    assert line["new_loss"] == pytest.approx(np.mean(losses), abs=1e-9)
    assert line["new_accuracy_mean"] == line["new_accuracy_start"] == pytest.approx(np.mean(right), abs=1e-9)
