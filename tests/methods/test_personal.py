"""Methods with personal models become what they should where a knob is at its end: FedAvg, or training alone."""

import dataclasses as dc

import pytest
import torch
from small import refused

import unalike as ua
from unalike import testing
from unalike.contract import Me
from unalike.run.predict import predictor

PLAIN = dc.replace(testing.settings()["local"], clip_norm=None, weight_decay=0.0, shuffle=False)
ALL = {"clients_per_round": 1.0, "local": PLAIN, "engine": "sequential", "dtype": "float64"}
UNIFORM = ua.FedAvg(weights="uniform")


def run(method, kind="mlp", **changes):
    return testing.run(method, kind, **{**ALL, **changes})


def own(done, client):
    """The vector that a client predicts with."""
    return torch.nn.utils.parameters_to_vector(predictor(done, client).module.parameters()).detach()


def apart(a, b):
    """The largest difference of what clients predict with."""
    return max(float((own(a, k) - own(b, k)).abs().max()) for k in range(a.population))


def common(a, b):
    return float((a.server.w - b.server.w).abs().max())


@pytest.mark.parametrize(
    "method",
    [ua.Ditto(0.7), ua.APFL(0.4, 0.1), ua.APFL(0.4, reading="program"), ua.FineTune(weights="uniform"), ua.FedBN()],
    ids=lambda m: f"{m.name}",
)
def test_the_common_model_is_fedavgs(method):
    assert common(run(method), run(UNIFORM)) < 1e-12


@pytest.mark.parametrize(
    "method",
    [ua.Ditto(0.0), ua.APFL(1.0), ua.Mapper((1.0,)), ua.L2GD(0.0, variant="steady"), ua.Dapper(1.0), ua.FedProto(0.0)],
    ids=lambda m: f"{m.name}",
)
def test_training_alone(method):
    # Dapper's mini-batches are of both sets: one that has all makes no difference
    changes = {"local": dc.replace(PLAIN, batch_size=None, epochs=3)} if method.name == "dapper" else {}
    assert apart(run(method, **changes), run(ua.LocalOnly(), **changes)) < 1e-12


def test_all_of_it_ones_own_is_training_alone_and_none_is_fedavg():
    whole = "first 3"  # of this model, everything
    assert apart(run(ua.FedPer(own=whole)), run(ua.LocalOnly())) < 1e-12
    assert common(run(ua.LGFedAvg(shared=whole)), run(UNIFORM)) < 1e-12


@pytest.mark.parametrize("method", [ua.PFedMe(0.0), ua.PFedMe(beta=0.0), ua.FedRep(body_epochs=0)], ids=str)
def test_nothing_common_moves(method):
    done = run(method)
    start = done.task.start
    assert torch.equal(done.server.w, start) and float((own(done, 0) - start).abs().max()) > 1e-3


def test_per_fedavg_without_a_step_of_ones_own_is_fedavg_on_second_batches():
    class Second(ua.FedAvg):
        def client(self, me, s, m):
            return me.train(m.w, step=lambda w, b, lr: w - lr * b[1].grad(w), batches=3).then(self.done)

    wanted = run(Second(weights="uniform"))
    for variant in ("exact", "hessian-free"):
        assert common(run(ua.PerFedAvg(0.0, variant)), wanted) < 1e-12


def test_fedmeta_without_a_step_of_ones_own_is_one_step_on_the_query_sets():
    done = run(ua.FedMeta(0.0, 0.3), rounds=1)
    data, slopes = done.data.splits["query"], []
    for k in range(done.population):
        vector = done.task.start.clone().requires_grad_(True)
        x, y = data.of(k)
        loss = torch.nn.functional.cross_entropy(
            done.task.pure()(vector, done.task.start_buffers, x, train=False)[0], y
        )
        slopes.append(torch.autograd.grad(loss, vector)[0])
    assert torch.allclose(done.server.w, done.task.start - 0.3 * torch.stack(slopes).mean(0), atol=1e-12, rtol=0)


class Heads(ua.L2GD):
    """The coin shows 0 in the first round and 1 after it."""

    def coin(self, server):
        server.shown = server.values.get("shown", -1) + 1
        return server.shown > 0


def test_l2gd_mixes_to_the_mean_and_sends_once():
    n, p, lr = len(testing.SIZES), 0.5, 0.05
    done = run(Heads(n * p / lr, p), rounds=3)  # η λ = N p
    models = torch.stack([own(done, k) for k in range(n)])
    assert torch.allclose(models, done.server.w.expand(n, -1), atol=1e-12, rtol=0)
    up = [line["bytes_up"] for line in done.history]
    assert up[1] > up[0] == up[2]  # models travel when the coin turns, and not again


def test_a_newcomer_has_the_start_or_the_others_mean():
    seen = {"clients_per_round": [[0, 1], [1, 2]]}
    initial, mean = (run(ua.FedPer(newcomer=word), **seen) for word in ("initial", "mean"))
    head = initial.task.layout.head
    assert torch.equal(head(own(initial, 5)), head(initial.task.start))
    assert torch.equal(own(mean, 5), mean.server.w) and not torch.equal(head(own(mean, 5)), head(mean.task.start))
    assert mean.history[0]["bytes_up"] > initial.history[0]["bytes_up"]


def test_fedamp_listens_to_those_who_are_like():
    done = run(ua.FedAMP(0.1, 0.5, 2.0), rounds=3)
    rows = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]])
    weights = done.method.attention(rows, torch.arange(3))
    assert weights[0, 1] > 100 * weights[0, 2] and (weights.diagonal() == 0).all()
    heuristic = ua.HeurFedAMP(self_weight=0.25).attention(torch.eye(3) + 1, torch.arange(3))
    assert torch.allclose(heuristic.sum(1), torch.full((3,), 0.75))
    alone = run(ua.HeurFedAMP(), clients_per_round=[[2], [2]])
    assert torch.isfinite(own(alone, 2)).all()


def test_tuning_has_its_own_passes_and_part():
    still = ua.FineTune(server_lr=0.0, epochs=3)  # tuned from the start, whatever a round does
    one, other = (run(still, local=dc.replace(PLAIN, epochs=epochs)) for epochs in (1, 2))
    assert apart(one, other) == 0.0 and apart(one, run(dc.replace(still, epochs=4))) > 1e-4
    slower, slow = run(dc.replace(still, slower=2.0)), run(still, local=dc.replace(PLAIN, lr=PLAIN.lr / 2))
    assert apart(slower, slow) == 0.0 and apart(slower, one) > 1e-4
    layout = one.task.layout
    tuned = run(ua.FineTune(part="head"))
    assert torch.equal(layout.body(own(tuned, 0)), layout.body(tuned.server.w))
    assert not torch.equal(layout.head(own(tuned, 0)), layout.head(tuned.server.w))


def test_fedbabus_server_has_a_rate():
    still = run(ua.FedBABU(server_lr=0.0))
    assert torch.equal(still.server.w, still.task.start)


def test_ones_own_is_what_was_kept_or_else_the_start():
    two, three = torch.tensor([2.0, 2.0]), torch.tensor([3.0, 3.0])
    numbers = {"first": torch.tensor([True, False]), "start": torch.zeros(2)}
    me = Me({**numbers, "first": numbers["first"][:, None]}, 0, None, None)  # two clients: one is new
    assert me.own(two).tolist() == [[0, 0], [2, 2]]
    assert me.own(two, three).tolist() == [[3, 3], [2, 2]]


def test_fedamp_shows_newcomers_the_mean_of_those_who_have_come():
    done = run(ua.FedAMP(), clients_per_round=[[1, 3], [3]])
    mean = (own(done, 1) + own(done, 3)) / 2
    assert torch.allclose(done.method.published(done.server)["w"], mean)


@pytest.mark.parametrize(
    "method, option",
    [
        (ua.FedPer(own="haed"), "own='haed'"),
        (ua.LGFedAvg(shared="haed"), "shared='haed'"),
        (ua.Virtual(private="haed"), "private='haed'"),
        (ua.FedPer(own="fc1 + haed"), r"own='fc1 \+ haed'"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_a_part_that_the_model_lacks_is_named_with_the_option(method, option, tmp_path):
    with refused(f"{type(method).__name__} {option}: the model has no part 'haed'. Did you mean 'head'"):
        run(method, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_parts_that_there_are_are_listed():
    with refused(
        "FedPer own='xyzzy': the model has no part 'xyzzy'. There are: body, fc1, fc2, first 2, head, last 2, norm"
    ):
        run(ua.FedPer(own="xyzzy"))
