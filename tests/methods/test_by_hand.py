"""Methods' rules by numbers of their own: worked out on paper, or by a few lines of plain PyTorch.

Where a method's own function is called, what it is given are the tensors it would get from an engine; else a run on
softmax regression with full batches is done again by hand, round by round.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import unalike as ua
from unalike import testing

EVERYONE = range(len(testing.SIZES))


# ---------------------------------------------------------------- server optimizers, on given mean updates

DELTAS = ([2.0, 0.5], [1.0, 3.0])


def steps_of(method, deltas=DELTAS):
    """The server after each of these mean updates: w, and the second moment where there is one."""
    server = SimpleNamespace(w=torch.zeros(2, dtype=torch.float64))
    method.setup(server, None)
    out = []
    for delta in deltas:
        replies = SimpleNamespace(mean=lambda name, delta=delta: torch.tensor(delta, dtype=torch.float64))
        method.round(server, SimpleNamespace(call=lambda fn, replies=replies, **message: replies))
        out.append((server.w.tolist(), getattr(server, "square", torch.zeros(2)).tolist()))
    return out


def test_fedavgm():
    """v is (2, ½), then ½ (2, ½) + (1, 3) = (2, 3¼); w moves by twice v."""
    (first, _), (second, _) = steps_of(ua.FedAvgM(server_lr=2.0, server_momentum=0.5))
    assert first == [4.0, 1.0] and second == [8.0, 7.5]


@pytest.mark.parametrize(
    ("kind", "squares"),
    [
        (ua.FedAdagrad, ([1 + 4, 1 + 0.25], [5 + 1, 1.25 + 9])),
        (ua.FedAdam, ([0.75 + 1, 0.75 + 0.0625], [0.75 * 1.75 + 0.25, 0.75 * 0.8125 + 2.25])),
        (ua.FedYogi, ([1 + 1, 1 - 0.0625], [2 - 0.25, 0.9375 + 2.25])),
    ],
)
def test_adaptive_server_optimizers(kind, squares):
    """τ = 1, so v starts at 1; Δ² is (4, ¼) and (1, 9), 1 − β₂ a quarter; m is (1, ¼), then (1, 1⅝)."""
    found = steps_of(kind(server_lr=1.0, beta1=0.5, beta2=0.75, tau=1.0))
    w = np.zeros(2)
    for (moved, square), momentum, expected in zip(found, ([1, 0.25], [1, 1.625]), squares, strict=True):
        assert square == pytest.approx(expected, abs=1e-12)
        w = w + np.array(momentum) / (np.sqrt(expected) + 1)
        assert moved == pytest.approx(w, abs=1e-12)


# ---------------------------------------------------------------- runs done again


def task():
    """The loss of each client as a function of the model's vector (weight, then bias), and the first vector."""
    module, data = testing.task("linear")
    start = nn.utils.parameters_to_vector(module.double().parameters()).detach()

    def loss_of(k):
        x, y = data.train.of(k)
        return lambda w: nn.functional.cross_entropy(x @ w[:18].view(3, 6).T + w[18:], y)

    return [loss_of(k) for k in EVERYONE], start


def run(method, clients=1.0, **local):
    local = ua.LocalTraining(**{"epochs": 3, "batch_size": None, **local})
    settings = {"rounds": 2, "clients_per_round": clients, "local": local, "engine": "sequential", "dtype": "float64"}
    return testing.run(method, "linear", device="cpu", **settings)


def trained(loss, w, lr, steps=3, pull=0.0, push=0.0, clip=None, late=True):
    """Gradient steps; the push is in what is clipped, the pull only if it is not added late."""
    for _ in range(steps):
        leaf = w.detach().requires_grad_()
        g = torch.autograd.grad(loss(leaf), leaf)[0] + push + (0 if late else pull * w)
        if clip is not None:
            assert g.norm() > 2 * clip  # it bites
            g = g * clip / (g.norm() + 1e-6)
        w = w - lr * (g + (pull * w if late else 0))
    return w


def near(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_fedavg_goes_a_part_of_the_way():
    losses, w = task()
    p = torch.tensor(testing.SIZES, dtype=torch.float64) / sum(testing.SIZES)
    for _ in range(2):
        w = w + 0.3 * (p @ torch.stack([trained(losses[k], w, 0.1) - w for k in EVERYONE]))
    near(run(ua.FedAvg(server_lr=0.3), lr=0.1).server.w, w)


def test_fedprox_is_held_by_a_spring():
    """The gradient of μ/2 ‖θ − w‖² is μ (θ − w)."""
    losses, w = task()
    p = torch.tensor(testing.SIZES, dtype=torch.float64) / sum(testing.SIZES)
    for _ in range(2):
        w = p @ torch.stack([trained(losses[k], w, 0.1, pull=0.5, push=-0.5 * w) for k in EVERYONE])
    near(run(ua.FedProx(mu=0.5), lr=0.1).server.w, w)


def test_scaffold_divides_by_the_rounds_own_steps_and_rate():
    """Clients 0 to 3 in round 1, 2 to 5 in round 2, at half the rate; a client of K steps has 1/(Kη)."""
    losses, w = task()
    work, cohorts = [1, 3, 2, 1, 4, 2], ([0, 1, 2, 3], [2, 3, 4, 5])
    own, mean = [torch.zeros_like(w) for _ in EVERYONE], torch.zeros_like(w)
    for rate, cohort in zip((0.2, 0.1), cohorts, strict=True):
        deltas, changes = [], []
        for k in cohort:
            theta = trained(losses[k], w, rate, work[k], push=mean - own[k])
            deltas.append(theta - w)
            changes.append((w - theta) / (work[k] * rate) - mean)
            own[k] = own[k] + changes[-1]
        w, mean = w + 0.7 * sum(deltas) / 4, mean + sum(changes) / 6
    done = run(ua.Scaffold(server_lr=0.7), cohorts, lr=0.2, lr_decay=0.5, epochs=work)
    near(done.server.w, w)
    near(done.server.control, mean)
    for k in EVERYONE:
        near(done.clients[k]["control"], own[k])


@pytest.mark.parametrize(
    ("method", "late"),
    [(ua.FedDyn(alpha=0.5), True), (ua.FedDC(alpha=0.5, scaling="official", correction=False), False)],
)
def test_what_is_clipped(method, late):
    """In FedDyn's program the quadratic term is weight decay, which clipping does not see; in FedDC's it is a loss."""
    losses, w = task()
    sizes = torch.tensor(testing.SIZES, dtype=torch.float64)
    drift, mean_drift = [torch.zeros_like(w) for _ in EVERYONE], torch.zeros_like(w)
    for _ in range(2):
        deltas = []
        for k in EVERYONE:
            a = 0.5 / (sizes[k] / sizes.mean())
            theta = trained(losses[k], w, 0.1, pull=a, push=a * (drift[k] - w), clip=0.05, late=late)
            deltas.append(theta - w)
        drift = [h + delta for h, delta in zip(drift, deltas, strict=True)]
        mean = torch.stack(deltas).mean(0)  # everybody takes part
        mean_drift = mean_drift + mean
        w = w + mean + mean_drift
    done = run(method, lr=0.1, clip_norm=0.05)
    near(done.server.w, w)
    near(done.server.drift, mean_drift)


def test_fednova_momentum_is_in_units_of_the_rate():
    losses, w = task()
    sizes, work = torch.tensor(testing.SIZES, dtype=torch.float64), torch.tensor([1, 3, 2, 1, 4, 2])
    p, momentum = sizes / sizes.sum(), torch.zeros_like(w)
    for rate in (0.2, 0.1):
        directions = [(w - trained(losses[k], w, rate, int(work[k]))) / work[k] for k in EVERYONE]
        step = (p @ work.double()) * (p @ torch.stack(directions))
        momentum = 0.5 * momentum + step / rate
        w = w - rate * momentum
    done = run(ua.FedNova(server_momentum=0.5), lr=0.2, lr_decay=0.5, epochs=work.tolist())
    near(done.server.w, w)


def test_qfedavg_takes_its_constant_from_the_rounds_own_rate():
    losses, w = task()
    for rate in (0.2, 0.1):
        deltas, weights = [], []
        for k in EVERYONE:
            loss, step = losses[k](w) + 1e-10, (w - trained(losses[k], w, rate)) / rate
            deltas.append(loss**2 * step)
            weights.append(2 * loss * step.square().sum() + loss**2 / rate)
        w = w - sum(deltas) / sum(weights)
    near(run(ua.QFedAvg(q=2.0), lr=0.2, lr_decay=0.5).server.w, w)


@pytest.mark.parametrize("rule", ["literal", "corrected"])
def test_fedfa_as_printed_walks_away(rule):
    """m ← ½ m + η (agg − w) with the clients' η, w ← w − m: away from the aggregate. Corrected: η_s (w − agg)."""
    losses, w = task()
    momentum = torch.zeros_like(w)
    for rate in (0.2, 0.1):
        update = torch.stack([trained(losses[k], w, rate) for k in EVERYONE]).mean(0) - w
        momentum = 0.5 * momentum + (rate * update if rule == "literal" else -0.7 * update)
        w = w - momentum
    method = ua.FedFa(client_momentum=0.0, server_momentum=0.5, server_lr=0.7, weighting="uniform", rule=rule)
    near(run(method, lr=0.2, lr_decay=0.5).server.w, w)


# ---------------------------------------------------------------- FedAvgR's distributions


def mixture_of(method, means, spreads, sizes):
    """What all clients are told, from tables with these rows."""
    tables = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in (("mean", means), ("spread", spreads))}
    server = SimpleNamespace(w=torch.zeros(1, dtype=torch.float64), table=tables.get)
    everyone = SimpleNamespace(samples=np.array(sizes), ids=np.arange(len(sizes)))
    return method.mixture(server, everyone)


def drawn(method, mixture):
    draw = torch.Generator().manual_seed(0)
    me = SimpleNamespace(
        uniform=lambda purpose, shape: torch.rand(shape, generator=draw, dtype=torch.float64),
        normal=lambda purpose, shape: torch.randn(shape, generator=draw, dtype=torch.float64),
    )
    return method.draw(me, SimpleNamespace(**mixture))


def test_fedavgr_clients_count_by_their_samples():
    """Sizes 1, 3 and 4 at means 0, 10 and 20 with next to no spread: shares of ⅛, ⅜ and ½."""
    method = ua.FedAvgR(samples=100_000)
    mixture = mixture_of(method, [[0.0], [10.0], [20.0]], [[1e-4]] * 3, [1, 3, 4])
    assert mixture["shares"].tolist() == [0.125, 0.375, 0.5]
    values, counts = (drawn(method, mixture) / 10).round().unique(return_counts=True)
    assert values.tolist() == [0, 1, 2]
    assert (counts / 100_000).tolist() == pytest.approx([0.125, 0.375, 0.5], abs=0.01)


@pytest.mark.parametrize(
    ("distribution", "spread", "covariance"),
    [("diagonal", [9.0, 0.25], [[9.0, 0.0], [0.0, 0.25]]), ("full", [4.0, 1.0, 2.0], [[4.0, 1.0], [1.0, 2.0]])],
)
def test_fedavgr_draws_have_the_reported_moments(distribution, spread, covariance):
    """One client: variances (or the upper triangle of a covariance) go in, and come out of 100,000 draws."""
    method = ua.FedAvgR(distribution=distribution, samples=100_000)
    rows = drawn(method, mixture_of(method, [[3.0, -5.0]], [spread], [7]))
    assert rows.mean(0).tolist() == pytest.approx([3.0, -5.0], abs=0.05)
    np.testing.assert_allclose(np.cov(rows.numpy().T), covariance, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("distribution", ["diagonal", "full"])
def test_fedavgr_distributions_are_those_of_the_last_model_of_each_client(distribution):
    """Client 2 takes part alone, so the server's model after the round is its own; the others' rows are of setup."""
    module, data = testing.task("mlp")
    settings = {"engine": "sequential", "dtype": "float64", "device": "cpu", "rounds": 1, "clients_per_round": [[2]]}
    done = testing.run(ua.FedAvgR(distribution=distribution), "mlp", **settings)
    for k in EVERYONE:
        body = (done.model if k == 2 else module.double())[:-1]
        with torch.no_grad():
            rows = body(data.train.of(k)[0])
        centred = rows - rows.mean(0)
        spread = centred.T @ centred / len(rows)
        upper = tuple(torch.triu_indices(5, 5))
        near(done.server.table("mean")[[k]][0], rows.mean(0))
        near(done.server.table("spread")[[k]][0], spread.diagonal() if distribution == "diagonal" else spread[upper])


# ---------------------------------------------------------------- rFedAvg+'s privacy


def test_rfedavg_plus_cuts_features_to_the_clip():
    """Rows of norm 0.1 and 10 at clip 1: the first stays, the second keeps its direction (0.6, 0.8)."""
    rows = torch.tensor([[0.06, 0.08], [6.0, 8.0], [0.0, 0.0]], dtype=torch.float64)
    cut = ua.RFedAvgPlus(clip=1.0).features(SimpleNamespace(features=rows))
    near(cut, torch.tensor([[0.06, 0.08], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64))
    assert ua.RFedAvgPlus().features(SimpleNamespace(features=rows)) is rows


@pytest.mark.parametrize("samples", [10, 1000])
def test_rfedavg_plus_noise_falls_with_the_samples(samples):
    """Of 2000 numbers that are sent, the standard deviation is noise_std · clip / n (known to 1.6 % from so many)."""
    method = ua.RFedAvgPlus(noise_std=2.0, clip=3.0)
    draw = torch.Generator().manual_seed(0)
    me = SimpleNamespace(n=torch.tensor(float(samples)), normal=lambda _, shape: torch.randn(shape, generator=draw))
    _, sent = method.measured(me, None, SimpleNamespace(w=torch.zeros(1)), torch.full((2000,), 5.0))
    assert float(sent["mean"].double().sub(5).std()) == pytest.approx(6 / samples, rel=0.08)
    assert float(sent["mean"].mean()) == pytest.approx(5, abs=0.6 / samples)
