"""What the methods for label skew must be beyond "knob off is FedAvg" (tests/contract): limits, special cases worked
out by hand, what is left alone, and what is refused. The programs' numbers are in test_golden_label_skew.py."""

import numpy as np
import pytest
import torch
from small import refused
from torch import nn
from torch.nn import functional as F

import unalike as ua
from unalike import testing
from unalike.methods.ccvr import pooled

EXACT = {"engine": "sequential", "dtype": "float64", "device": "cpu"}
ALL = {"clients_per_round": 1.0}
ONCE = ua.LocalTraining(steps=1, batch_size=None, lr=1.0)  # the step is the gradient
CLASSES = ([0, 0, 0, 1, 1, 0], [1, 2, 2, 1], [2, 2, 2])  # of three clients, out of four


def run(method, kind="mlp", **changes):
    return testing.run(method, kind, **{**EXACT, **changes})


def farthest(a, b):
    return float((a.server.w - b.server.w).abs().max())


def skewed(classes=4):
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(len(y), 5, generator=draw, dtype=torch.float64), torch.tensor(y)) for y in CLASSES]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, classes)).double()
    return module, ua.Federation.from_arrays(clients, classes=classes)


def on_skewed(method, **changes):
    return ua.simulate(*skewed(), method, **{"rounds": 1, "local": ONCE, "evaluate_every": 100, **EXACT, **changes})


def start(done):
    module, _ = skewed()
    return nn.utils.parameters_to_vector(module.parameters()).detach().to(done.server.w)


# ---- MOON


def test_moon_has_no_contrast_on_a_first_visit():
    """Round 1 is FedAvg's; so is a round of newcomers; a client that comes again is contrasted."""
    for cohorts, off in (([[0, 1]], True), ([[0, 1], [2, 3]], True), ([[0, 1], [0, 3]], False)):
        setting = {"clients_per_round": cohorts, "rounds": len(cohorts)}
        assert (farthest(run(ua.Moon(5.0), **setting), run(ua.FedAvg(), **setting)) < 1e-12) == off, cohorts


def test_moon_keeps_the_model_that_it_sent():
    done = on_skewed(ua.Moon(), clients_per_round=[[1]])
    assert torch.allclose(done.clients[1]["last"], done.server.w, atol=1e-15)
    assert not done.clients[0]["last"].any()


# ---- FedNTD


def test_fedntd_of_two_classes_is_fedavg():
    """There is one class that is not the true one: both distributions over it are 1."""
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fed = ua.Federation.from_arrays([(x[:7], torch.arange(7) % 2), (x[7:], torch.ones(5).long())], classes=2)
    torch.manual_seed(0)
    module, local = nn.Linear(4, 2), ua.LocalTraining(epochs=2, batch_size=3, lr=0.2)
    runs = [ua.simulate(module, fed, m, rounds=2, local=local, **EXACT) for m in (ua.FedNTD(5.0, 2.0), ua.FedAvg())]
    assert farthest(*runs) < 1e-12


def test_fedntds_first_step_is_fedavgs():
    """Student and teacher are the same model: the divergence is at its minimum, 0."""
    assert farthest(on_skewed(ua.FedNTD(5.0, 2.0)), on_skewed(ua.FedAvg())) < 1e-12
    more = {"local": ua.LocalTraining(steps=2, batch_size=None, lr=1.0)}
    assert farthest(on_skewed(ua.FedNTD(5.0, 2.0), **more), on_skewed(ua.FedAvg(), **more)) > 1e-4


# ---- FedLC, FedRS


def by_hand(client, changed):
    """The gradient of the mean cross-entropy of changed logits at the start."""
    module, fed = skewed()
    x, y = fed.train.of(client)
    counts = torch.bincount(y, minlength=4).double()
    changed(module(x), counts, y).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def margins(z, counts, y):
    there = counts > 0
    place = there.cumsum(0)[y] - 1  # of the true class among those that the client has
    return F.cross_entropy(z[:, there] - 0.7 * counts[there] ** -0.25, place)


def others(z, counts, y):
    there = counts > 0
    lowered = z[:, there] - 0.7 * counts[there] ** -0.25
    rows = [
        torch.cat([row[:k], row[k + 1 :]]).logsumexp(0) - row[k]
        for row, k in zip(lowered, there.cumsum(0)[y] - 1, strict=True)
    ]
    return torch.stack(rows).mean()


LOGITS = {
    "fedlc": (ua.FedLC(0.7), margins),
    "fedlc, others": (ua.FedLC(0.7, "others"), others),
    "fedrs": (ua.FedRS(0.3), lambda z, n, y: F.cross_entropy(torch.where(n > 0, z, 0.3 * z), y)),
    "fedrs, share": (ua.FedRS(0.3, "share"), lambda z, n, y: F.cross_entropy((0.3 + 0.7 * n / n.max()) * z, y)),
}


@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize("client", [0, 1])
def test_changed_logits_by_hand(name, client):
    method, changed = LOGITS[name]
    done = on_skewed(method, clients_per_round=[[client]])
    assert (start(done) - by_hand(client, changed) - done.server.w).abs().max() < 1e-12


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_fedlc_teaches_a_client_of_one_class_nothing(denominator):
    done = on_skewed(ua.FedLC(1.0, denominator), clients_per_round=[[2]])
    assert (done.server.w - start(done)).abs().max() < 1e-15
    alone = on_skewed(ua.FedRS(0.5), clients_per_round=[[2]])
    assert (alone.server.w - start(alone)).abs().max() > 1e-3


def test_fedlc_leaves_missing_classes_alone():
    done = on_skewed(ua.FedLC(1.0), clients_per_round=[[0]])  # of classes 0 and 1
    moved = (done.server.w - start(done))[-4 * 6 - 4 :]
    weight, bias = moved[:-4].view(4, 6), moved[-4:]
    assert not weight[2:].any() and not bias[2:].any() and weight[:2].abs().min() > 0


def test_fedrs_does_nothing_where_no_class_is_missing():
    module, _ = skewed()
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fed = ua.Federation.from_arrays([(x, torch.arange(8) % 4)], classes=4)
    runs = [ua.simulate(module, fed, m, rounds=1, local=ONCE, **EXACT) for m in (ua.FedRS(0.1), ua.FedAvg())]
    assert farthest(*runs) < 1e-12


@pytest.mark.parametrize("method", [ua.FedLC(), ua.FedRS(), ua.FedNTD(), ua.CCVR()], ids=lambda m: m.name)
def test_classes_are_needed(method):
    fed = ua.Federation.from_arrays([(torch.randn(6, 3), torch.randn(6))])
    with refused("one class a sample"):
        ua.simulate(nn.Linear(3, 1), fed, method, rounds=1, loss="squared-error", local=ONCE)


# ---- FedSAM, FedASAM


@pytest.mark.parametrize("kind", [ua.FedSAM, ua.FedASAM])
def test_sam_tends_to_fedavg_linearly(kind):
    plain = run(ua.FedAvg())
    far = [farthest(run(kind(rho)), plain) for rho in (1e-3, 1e-4, 1e-5)]
    assert far[0] > 1e-6
    np.testing.assert_allclose([far[0] / far[1], far[1] / far[2]], 10, rtol=0.02)


def test_sam_by_hand():
    """One step with the whole client, clipping and weight decay as the run has them."""
    module, fed = skewed()
    x, y = fed.train.of(0)
    parameters = list(module.parameters())

    def slope():
        return torch.cat([g.flatten() for g in torch.autograd.grad(F.cross_entropy(module(x), y), parameters)])

    theta, g = nn.utils.parameters_to_vector(parameters).detach(), slope()
    nn.utils.vector_to_parameters(theta + 0.5 * g / g.norm(), parameters)
    g = slope()
    wanted = theta - 0.2 * (0.1 * g / (g.norm() + 1e-6) + 0.01 * theta)
    local = ua.LocalTraining(steps=1, batch_size=None, lr=0.2, clip_norm=0.1, weight_decay=0.01)
    done = on_skewed(ua.FedSAM(0.5), clients_per_round=[[0]], local=local)
    assert g.norm() > 0.1 and (done.server.w - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize(
    "method", [ua.FedSAM(0.0), ua.FedLC(1e-300), ua.FedRS(1.0), ua.FedMix(0.0), ua.NaiveMix(0.0)], ids=lambda m: m.name
)
def test_norms_learn_their_statistics(method, engine):
    """Also where the loss is the method's own: those of FedAvg's models."""
    done, plain = (run(m, "norm", engine=engine, rounds=1) for m in (method, ua.FedAvg()))
    fresh = torch.cat([torch.zeros(4), torch.ones(4)])
    assert (plain.buffers - fresh).abs().max() > 1e-2
    same = 1e-12 if not isinstance(method, ua.FedLC) else 1.0  # its clients lack classes: other models
    assert (done.buffers - plain.buffers).abs().max() < same and (done.buffers - fresh).abs().max() > 1e-2


# ---- FedExP


def test_fedexp_of_clients_that_agree_is_fedavg():
    """Equal changes: ½ ‖Δ‖²/‖Δ‖² is under 1."""
    x, y = (torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double(), torch.arange(6) % 4)
    module, fed = skewed()[0], ua.Federation.from_arrays([(x, y)] * 3, classes=4)
    local = ua.LocalTraining(epochs=2, batch_size=None, lr=0.5)
    runs = [
        ua.simulate(module, fed, method, rounds=2, local=local, **EXACT)
        for method in (ua.FedExP(1e-9, judged="last"), ua.FedAvg())
    ]
    assert float(runs[0].server.rate) == 1 and farthest(*runs) < 1e-12


def test_fedexp_by_hand():
    """Two clients of equal size whose changes are known: (η_g, ε, participants)."""
    module, fed = skewed()
    x, y = fed.train.of(1)
    fed = ua.Federation.from_arrays([(x, 0 * y), (x, 0 * y + 1)], classes=4)
    alone = [{"rounds": 1, "local": ONCE, "clients_per_round": [[k]], **EXACT} for k in (0, 1)]
    changes = [ua.simulate(module, fed, ua.FedAvg(), **setting) for setting in alone]
    first = nn.utils.parameters_to_vector(module.parameters()).detach()
    a, b = (done.server.w - first for done in changes)
    mean, squares = (a + b) / 2, (a.square().sum() + b.square().sum()) / 2
    for method, epsilon in ((ua.FedExP(0.01), 0.01), (ua.FedExP(0.01, scaling="participants"), 0.02)):
        rate = 0.5 * squares / (mean.square().sum() + epsilon)
        assert rate > 1.01
        done = ua.simulate(module, fed, method, rounds=1, local=ONCE, **EXACT)
        assert (done.server.w - first - rate * mean).abs().max() < 1e-12
        assert abs(float(done.server.rate) - float(rate)) < 1e-12


def test_fedexp_judges_the_mean_of_the_last_two():
    one, two = (on_skewed(ua.FedExP(judged="last"), rounds=r) for r in (1, 2))
    mean = on_skewed(ua.FedExP(), rounds=2)
    assert torch.equal(on_skewed(ua.FedExP(), rounds=1).server.w, one.server.w)
    assert torch.equal(mean.server.last, two.server.w) and (one.server.w - two.server.w).abs().max() > 1e-3
    assert (mean.server.w - (one.server.w + two.server.w) / 2).abs().max() < 1e-15


# ---- CCVR


def test_pooled_covariance_is_that_of_pooled_features():
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, 4, generator=draw, dtype=torch.float64) + k for k, n in enumerate((5, 1, 8))]
    row, column = torch.triu_indices(4, 4)
    sums = [torch.tensor([14.0, 1.0, 0.0]).double(), torch.zeros(3, 4).double(), torch.zeros(3, 10).double()]
    for h in parts:
        sums[1][0] += h.sum(0)
        sums[2][0] += (h.T @ h)[row, column]
    sums[1][1], sums[2][1] = parts[0][0], torch.outer(parts[0][0], parts[0][0])[row, column]
    _, mean, cov = pooled(*sums)
    whole = torch.cat(parts)
    assert (mean[0] - whole.mean(0)).abs().max() < 1e-12 and (cov[0] - whole.T.cov()).abs().max() < 1e-12
    assert torch.equal(mean[1], parts[0][0]) and not mean[2].any()
    assert cov[1:].abs().max() < 1e-12  # one sample, and none


CALIBRATED = ua.CCVR(virtual=20, epochs=3, lr=0.5)


def test_ccvr_calibrates_the_head_and_leaves_training_alone():
    setting = {"rounds": 3, "clients_per_round": [[0, 1], [1, 2], [0, 2]]}
    done, plain = on_skewed(CALIBRATED, **setting), on_skewed(ua.FedAvg(), **setting)
    assert (done.server.trained - plain.server.w).abs().max() < 1e-12
    layout = done.server.layout
    assert torch.equal(layout.body(done.server.w), layout.body(done.server.trained))
    assert (layout.head(done.server.w) - layout.head(done.server.trained)).abs().max() > 1e-3


def test_ccvr_calibrates_every_so_many_rounds():
    done = {r: on_skewed(ua.CCVR(virtual=20, epochs=3, lr=0.5, every=2), rounds=r).server for r in (1, 2, 3)}
    assert [bool((s.w != s.trained).any()) for s in done.values()] == [False, True, False]


def test_ccvr_asks_all_or_the_rounds_clients():
    """With everybody in the round it is the same; otherwise the statistics are of others."""
    part = ua.CCVR(virtual=20, epochs=3, lr=0.5, asked="round")
    assert farthest(on_skewed(CALIBRATED, **ALL), on_skewed(part, **ALL)) == 0
    some = {"clients_per_round": [[0]]}
    assert farthest(on_skewed(CALIBRATED, **some), on_skewed(part, **some)) > 1e-3


def test_ccvr_draws_classes_that_there_are():
    seen = []

    class Noted(ua.CCVR):
        def drawn(self, server, *sums):
            seen.append(super().drawn(server, *sums))
            return seen[-1]

    on_skewed(Noted(virtual=5, epochs=1), rounds=2)
    assert seen[0]["y"].tolist() == [0, 1, 2] * 5  # nobody has class 3
    assert seen[0]["x"].shape == (15, 6) and (seen[0]["x"] != seen[1]["x"]).all()


def test_ccvr_reports_both_models():
    done = run(ua.CCVR(virtual=20, epochs=20, lr=1.0))
    line = done.history[-1]
    assert line["test_loss"] != line["test_uncalibrated_loss"]
    assert line["test_loss"] == run(ua.CCVR(virtual=20, epochs=20, lr=1.0)).history[-1]["test_loss"]
    assert abs(line["test_uncalibrated_loss"] - run(ua.FedAvg()).history[-1]["test_loss"]) < 1e-12


def test_ccvr_mends_a_head_that_skew_has_spoilt():
    """Clients of one class each: FedAvg's head forgets, and features tell the classes apart all the same."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.eye(3, 6, dtype=torch.float64)

    def samples(n, c):
        return centres[c] + 0.3 * torch.randn(n, 6, generator=draw, dtype=torch.float64), torch.full((n,), c)

    test = tuple(torch.cat(parts) for parts in zip(*(samples(40, c) for c in range(3)), strict=True))
    fed = ua.Federation.from_arrays([samples(30, c) for c in range(3)], test=test, classes=3)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    local = ua.LocalTraining(epochs=2, batch_size=5, lr=0.5)
    setting = {"rounds": 3, "clients_per_round": [[0], [1], [2]], "local": local, **EXACT}
    line = ua.simulate(module, fed, ua.CCVR(virtual=50, epochs=20, lr=0.2), **setting).history[-1]
    assert line["test_uncalibrated_accuracy"] < 0.6 and line["test_accuracy"] > 0.9, line


def test_ccvr_needs_one_network():
    module, fed = skewed()
    with refused("needs one network"):
        ua.simulate({"a": module, "b": module}, fed, ua.CCVR(), architecture=["a", "b", "a"], rounds=1, local=ONCE)


# ---- several networks


@pytest.mark.parametrize("method", [ua.Moon(), ua.FedNTD(), ua.FedRS(), ua.FedSAM(), ua.FedExP()], ids=lambda m: m.name)
def test_networks_are_apart(method):
    """Each network's clients are a federation of their own."""
    module, fed = skewed()
    setting = {"rounds": 2, "local": ua.LocalTraining(steps=2, batch_size=None, lr=0.5), **EXACT}
    both = ua.simulate({"a": module, "b": module}, fed, method, architecture=["a", "b", "a"], **setting)
    part = ua.Federation.from_arrays([fed.train.of(k) for k in (0, 2)], classes=4)
    assert (both.server.w["a"] - ua.simulate(module, part, method, **setting).server.w).abs().max() < 1e-12
