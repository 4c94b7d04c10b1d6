"""What lifelong and multi-task methods must be: sums and products that hold whoever came, certificates, and what they
become where a knob is at its end."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import unalike as ua
from unalike import testing
from unalike.methods import fedcurv
from unalike.run.predict import predictor

EXACT = {"engine": "sequential", "dtype": "float64", "device": "cpu"}
CLIENTS = len(testing.SIZES)
PATTERNS = st.lists(
    st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=CLIENTS, unique=True), min_size=1, max_size=4
)


def run(method, kind="linear", **changes):
    return testing.run(method, kind, **{**EXACT, **changes})


def some(pattern):
    pattern = [*pattern, pattern[0]]  # the first come again
    return {"rounds": len(pattern), "clients_per_round": pattern, "evaluate_every": 9}


def states(done, name):
    return torch.stack([done.clients[k][name] for k in range(done.population)])


def own(done, client):
    """The vector that a client predicts with."""
    return nn.utils.parameters_to_vector(predictor(done, client).module.parameters()).detach()


class EveryRound(ua.Callback):
    """What a function of the run gives after each round."""

    def __init__(self, look):
        self.look, self.seen = look, []

    def on_round(self, run, line):
        self.seen.append(self.look(run))


# ---- FedCurv


@settings(max_examples=3, deadline=None, derandomize=True)
@given(PATTERNS)
def test_fedcurvs_server_holds_the_sums_of_what_clients_keep(pattern):
    done = run(ua.FedCurv(0.3), **some(pattern))
    for name in ("fisher", "anchor"):
        total = states(done, name).sum(0)
        assert (getattr(done.server, name) - total).abs().max() < 1e-12 and total.abs().max() > 1e-6


def test_fedcurv_remembers_nothing_in_the_first_round():
    curved, plain = (run(m, "mlp", rounds=1) for m in (ua.FedCurv(5.0), ua.FedAvg()))
    assert torch.equal(curved.server.w, plain.server.w)
    two = [run(m, "mlp", rounds=2) for m in (ua.FedCurv(0.5), ua.FedAvg())]
    assert (two[0].server.w - two[1].server.w).abs().max() > 1e-4


def test_fisher_information_is_by_the_sample():
    """At the vector after training, in evaluation, from plain autograd."""
    done = run(ua.FedCurv(), "norm", rounds=1, clients_per_round=[[2]], buffers="freeze")
    module, (x, y) = predictor(done, 2).module.eval(), done.data.splits["train"].of(2)
    squares = []
    for one, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(module(one[None]), label[None])
        slopes = torch.autograd.grad(loss, list(module.parameters()))
        squares.append(torch.cat([g.reshape(-1) for g in slopes]).square())
    assert torch.allclose(done.clients[2]["fisher"], torch.stack(squares).mean(0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_gradients_may_be_held_a_few_at_a_time(engine, monkeypatch):
    sizes = []
    squares = ua.FedCurv.squares
    monkeypatch.setattr(
        ua.FedCurv, "squares", lambda self, batch: (sizes.append(len(batch.y)), squares(self, batch))[1]
    )
    whole = run(ua.FedCurv(0.3), engine=engine)
    most, cohort = max(sizes), 5 if engine == "batched" else 1
    monkeypatch.setattr(fedcurv, "NUMBERS", 2 * cohort * whole.server.w.numel())
    sizes.clear()
    parts = run(ua.FedCurv(0.3), engine=engine)
    assert testing.difference(whole, parts) < 1e-12
    assert most == 12 and min(sizes) <= 2 and max(sizes) < 12


def test_an_average_reads_a_sample_at_least():
    class Nothing(ua.FedAvg):
        def client(self, me, s, m):
            return me.average(lambda batch: batch.losses, m.w, at_once=0).then(self.done)

    with pytest.raises(ua.UnalikeError, match="at_once=0: an average reads one sample at a time, or more"):
        run(Nothing())


# ---- MOCHA

SVM = ua.Mocha(0.01, every=2, bottom=0.4, top=1.6, certificate=True)


def image(done):
    """b_t = mean_i α_i x_i of the clients' α, from the data; the last numbers are those of the constant 1."""
    rows = []
    for k, n in enumerate(testing.SIZES):
        x = done.data.splits["train"].of(k)[0].reshape(n, -1)
        alpha = done.clients[k]["alpha"][:n]
        rows.append(torch.cat([(alpha.T @ x / n).reshape(-1), alpha.mean(0)]))
    return torch.stack(rows)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(PATTERNS)
def test_the_weights_are_the_image_of_the_duals(pattern):
    done = run(SVM, **some(pattern))
    assert (done.server.b - image(done)).abs().max() < 1e-12
    assert (done.server.own - done.server.sigma @ image(done) / 0.01).abs().max() < 1e-9
    for k, n in enumerate(testing.SIZES):
        y = done.data.splits["train"].of(k)[1]
        share = done.clients[k]["alpha"][:n] * (2 * nn.functional.one_hot(y, 3) - 1)
        assert (share >= 0).all() and (share <= 1).all()
        assert not done.clients[k]["alpha"][n:].any()


def opposites(method, rounds, sizes=(5,) * 8, outputs=2, **changes):
    """A run on clients of whom every other calls everything by the other label; what they say when asked after each
    round."""
    draw = torch.Generator().manual_seed(1)
    common = torch.randn(6, generator=draw, dtype=torch.float64)

    def samples(n, k):
        x = torch.randn(n, 6, generator=draw, dtype=torch.float64)
        return x, ((x @ common > 0) ^ bool(k % 2)).long()

    clients = [samples(n, k) for k, n in enumerate(sizes)]
    tests = [samples(100, k) for k in range(len(sizes))]
    fed = ua.Federation.from_arrays(clients, client_tests=tests, classes=2)
    look = EveryRound(lambda r: (r.server.values.get("primal", 0.0), r.server.values.get("dual", 0.0)))
    given = {**EXACT, "engine": "batched", "evaluate_every": rounds, "callbacks": [look], **changes}
    return ua.simulate(nn.Linear(6, outputs), fed, method, rounds=rounds, **given), *np.array(look.seen).T


@pytest.mark.parametrize("share", [1.0, 3], ids=["full", "partial"])
def test_weak_duality_holds_in_every_round_and_the_gap_closes(share):
    stragglers = ua.Mocha(0.03, every=8, bottom=0.4, top=1.6, certificate=True)
    _, primal, dual = opposites(stragglers, 24, clients_per_round=share)
    assert (dual <= primal + 1e-9).all()
    for begin in (0, 8, 16):  # while Σ stays, the dual climbs
        assert (np.diff(dual[begin : begin + 8]) > -1e-9).all()
    gap = primal - dual
    assert gap[0] > 2 and gap[7] < 0.3 * gap[0]


def test_the_programs_reading_breaks_weak_duality():
    _, primal, dual = opposites(ua.Mocha(0.03, every=4, reading="program", certificate=True), 8)
    assert (dual[:4] <= primal[:4]).all() and (dual[4:] > primal[4:] + 1).all()


def svm(x, sign, strength):
    """The minimiser of mean hinge + strength/2 ‖w‖² by projected gradient ascent on its dual, with momentum."""
    rows = sign[:, None] * x
    gram = rows @ rows.T / (strength * len(x))
    step = 1 / torch.linalg.eigvalsh(gram)[-1]
    a = before = torch.zeros(len(x), dtype=x.dtype)
    for t in range(300):
        ahead = a + t / (t + 3) * (a - before)
        a, before = (ahead + step * (1 - gram @ ahead)).clamp(0, 1), a
    return rows.T @ a / (strength * len(x))


def test_without_coupling_every_client_has_its_own_svm():
    done, *_ = opposites(ua.Mocha(0.1, every=0), 25, sizes=(4, 6, 9))
    assert torch.equal(done.server.sigma, torch.eye(3).double() / 3)
    for k, n in enumerate((4, 6, 9)):
        x, y = done.data.splits["train"].of(k)
        w = svm(torch.cat([x, torch.ones(n, 1).double()], 1), 2.0 * y - 1, 0.1 * 3)
        wanted = torch.cat([-w[:-1], w[:-1], -w[-1:], w[-1:]])  # two classes: mirrored weights, then their biases
        assert (own(done, k) - wanted).abs().max() < 1e-6 and wanted.abs().max() > 0.1


def one_logit(output, y):
    return nn.functional.softplus((1 - 2 * y) * output[:, 0])


def test_one_output_is_the_papers_problem_and_two_are_it_and_its_mirror_image():
    method = ua.Mocha(0.03, every=3, certificate=True)
    two, primal, dual = opposites(method, 6)
    one, primal_one, dual_one = opposites(method, 6, outputs=1, loss=one_logit)
    weights, bias = two.server.own[:, :12], two.server.own[:, 12:]
    half = torch.cat([weights[:, 6:], bias[:, 1:]], 1)
    assert (half - one.server.own).abs().max() < 1e-9 and half.abs().max() > 0.1
    assert (two.server.sigma - one.server.sigma).abs().max() < 1e-9
    np.testing.assert_allclose([primal / 2, dual / 2], [primal_one, dual_one], atol=1e-9)
    assert one.client_values["accuracy"].mean() == two.client_values["accuracy"].mean() > 0.7


def test_relations_help_and_may_be_opposite():
    (alone, *_), (related, *_) = (opposites(ua.Mocha(0.01, every), 16) for every in (0, 4))
    sigma = related.server.sigma
    assert abs(float(sigma.trace()) - 1) < 1e-12 and (torch.linalg.eigvalsh(sigma) > 0).all()
    alike = torch.tensor([[(i + j) % 2 == 0 for i in range(8)] for j in range(8)])
    right = torch.where(alike, sigma > 0, sigma < 0)
    assert right.double().mean() > 0.9
    assert related.client_values["accuracy"].mean() > alone.client_values["accuracy"].mean() + 0.1


def test_stragglers_do_less():
    def moved(bottom, top, seed=0):
        # a strong regulariser: no margin is met, so whatever is visited moves
        done = run(ua.Mocha(100.0, 0, bottom, top), rounds=1, clients_per_round=1.0, seed=seed, engine="batched")
        return [int(alpha.any(1).sum()) for alpha in states(done, "alpha")]

    assert moved(0.5, 0.5) == [max(1, n // 2) for n in testing.SIZES] and moved(1.0, 1.0) == list(testing.SIZES)
    drawn = [moved(0.2, 1.0, seed) for seed in range(3)]
    assert len({tuple(counts) for counts in drawn}) == 3
    for counts in drawn:
        assert all(max(1, int(0.2 * n)) <= count <= n for count, n in zip(counts, testing.SIZES, strict=True))


def test_who_has_not_come_is_related_to_nobody():
    done = run(ua.Mocha(0.01, every=1), clients_per_round=[[0, 1, 2], [1, 2]])
    sigma, absent = done.server.sigma, [3, 4, 5]
    assert (sigma[absent] - torch.eye(CLIENTS).double()[absent] / CLIENTS).abs().max() == 0
    assert abs(float(sigma.trace()) - 1) < 1e-12 and sigma[0, 1] != 0
    assert not own(done, 4).any() and own(done, 0).any()  # a linear model is all head


def test_layers_before_the_last_stay_as_they_began():
    done = run(ua.Mocha(0.01, every=1), "mlp")
    layout, start = done.task.layout, done.task.start
    for k in range(CLIENTS):
        assert torch.equal(layout.body(own(done, k)), layout.body(start))
        assert torch.allclose(layout.head(own(done, k)), done.server.own[k], atol=0, rtol=0)
    assert torch.equal(layout.body(done.server.w), layout.body(start))


def test_what_mocha_refuses():
    with pytest.raises(ua.UnalikeError, match=r"bottom=0\.9, top=0\.5"):
        ua.Mocha(bottom=0.9, top=0.5)
    x = np.random.default_rng(0).normal(size=(2, 6, 4))
    numbers = ua.Federation.from_arrays([(a, a[:, 0]) for a in x])
    with pytest.raises(ua.UnalikeError, match="one class a sample, not numbers"):
        ua.simulate(nn.Linear(4, 1), numbers, ua.Mocha(), rounds=1)
    classes = ua.Federation.from_arrays([(a.reshape(6, 1, 2, 2), np.arange(6) % 2) for a in x], classes=2)
    pictures = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten())
    with pytest.raises(ua.UnalikeError, match="last layer, which must be linear; its tensors are"):
        ua.simulate(pictures, classes, ua.Mocha(), rounds=1)


# ---- VIRTUAL


@pytest.mark.parametrize("private", ["", "head", "first 1"])
def test_the_servers_posterior_is_the_product_of_the_factors(private):
    method = ua.Virtual(0.4, private=private)

    @settings(max_examples=4, deadline=None, derandomize=True)
    @given(PATTERNS)
    def check(pattern):
        done = run(method, "mlp", **some(pattern))
        came = sorted({k for ids in pattern for k in ids})
        prior = method.shared(done.server, method.prior(done.task.start))
        factors = sum(done.clients[k]["factor"] for k in came) + (CLIENTS - len(came)) / CLIENTS * prior
        assert (method.shared(done.server, done.server.posterior) - factors).abs().max() < 1e-9
        assert torch.equal(done.server.w, method.moments(done.server.posterior)[0])

    check()


def several(method):
    nets = {"small": nn.Linear(6, 3), "large": nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))}
    given = {"architecture": ["small", "large", "large"] * 2, "rounds": 2, "dtype": "float64"}
    return ua.simulate(nets, testing.task("linear")[1], method, **given)


def test_networks_have_posteriors_of_their_own():
    method = ua.Virtual(0.3)
    done = several(method)
    for name, ids in (("small", (0, 3)), ("large", (1, 2, 4, 5))):
        factors = sum(done.clients[k]["factor"] for k in ids)
        assert (done.server.posterior[name] - factors).abs().max() < 1e-9
    curved = several(ua.FedCurv(0.1))
    assert (curved.server.fisher["small"] - sum(curved.clients[k]["fisher"] for k in (0, 3))).abs().max() < 1e-12
    with pytest.raises(ua.UnalikeError, match=r"Mocha .* needs one network for all clients"):
        several(ua.Mocha())


def test_damping_scales_what_is_sent():
    whole, half = (run(ua.Virtual(gamma), "mlp", rounds=1) for gamma in (1.0, 0.5))
    prior = whole.method.prior(whole.task.start)
    gone = whole.server.posterior - prior
    assert (gone - 2 * (half.server.posterior - prior)).abs().max() < 1e-9 * gone.abs().max()
    assert gone.abs().max() > 1e-3


@pytest.mark.parametrize("engine", ["sequential", "loopback"])
def test_private_weights_stay_private(engine):
    method = ua.Virtual(0.4, private="head")
    done = run(method, "mlp", engine=engine)
    layout, prior = done.task.layout, method.prior(done.task.start)
    assert torch.equal(layout.head(done.server.posterior), layout.head(prior))
    assert torch.equal(layout.head(done.server.w), layout.head(method.moments(prior)[0]))
    sizes = {name: value.shape for name, value in done.clients[0].items()}
    assert sizes == {"factor": (2, layout.body_size), "own": (2, layout.head_size)}
    came = done.history[0]
    assert came["bytes_up"] == 5 * 8 * 2 * layout.body_size  # five clients came
    mean = [layout.head(own(done, k)) for k in range(CLIENTS)]
    assert all((a - b).abs().max() > 1e-6 for i, a in enumerate(mean) for b in mean[:i])
    for k in range(CLIENTS):
        kept = done.clients[k]["own"]
        assert torch.allclose(mean[k], kept[0] / kept[1], atol=1e-12)
        assert torch.equal(layout.body(own(done, k)), layout.body(done.server.w))


def test_factors_find_the_pooled_posterior():
    """Linear regression whose columns are orthogonal at every client: there the mean-field posterior is exact, and so
    is the product of what clients find one after another."""
    draw, sizes = torch.Generator().manual_seed(0), (4, 8, 12)
    walsh = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]).double()  # orthogonal columns
    true = torch.tensor([0.5, -1.0, 0.2]).double()
    x = [walsh.repeat(n // 4, 1) * (k + 1) / 2 for k, n in enumerate(sizes)]
    y = [a @ true + 0.5 * torch.randn(len(a), generator=draw, dtype=torch.float64) for a in x]
    fed = ua.Federation.from_arrays(list(zip(x, y, strict=True)))
    method = ua.Virtual(1.0, prior_sd=1.0, centre="zero", draws=50)
    done = ua.simulate(
        nn.Linear(3, 1, bias=False), fed, method, rounds=3, evaluate_every=100, **EXACT,
        clients_per_round=[[0], [2], [1]], local=ua.LocalTraining(steps=150, batch_size=None, lr=0.2),
    )  # fmt: skip
    # the squared error is minus the logarithm of a normal density of variance 1/2
    precision = 1 + sum(2 * a.square().sum(0) for a in x)
    mean = sum(2 * a.T @ b for a, b in zip(x, y, strict=True)) / precision
    assert torch.allclose(done.server.posterior[1], precision, rtol=0.05)
    assert torch.allclose(done.server.w, mean, atol=0.05)
    assert (mean.abs() > 0.1).all()


def test_a_fit_stays_near_a_prior_that_is_sure():
    start = run(ua.Virtual(), "mlp", rounds=1).task.start
    far, near = (run(ua.Virtual(1.0, kl_weight=k), "mlp", rounds=1, clients_per_round=[[2]]) for k in (0.0, 1e6))
    assert (far.server.w - start).abs().max() > 100 * (near.server.w - start).abs().max()


def test_drawn_models_predict_together():
    method = ua.Virtual(0.3, prior_sd=0.5, private="head", drawn=3)
    done = run(method, "mlp")
    testing.check_engines(method, "mlp", "float64", ("sequential", "batched"))
    x, y = done.data.splits["test"].of(1)
    drawn = predictor(done, 1)
    loss = nn.functional.cross_entropy(drawn.module(x), y)
    assert abs(float(loss.detach()) - done.client_values["loss"][1]) < 1e-12
    mean = run(ua.Virtual(0.3, prior_sd=0.5, private="head"), "mlp")
    assert torch.equal(mean.server.posterior, done.server.posterior)
    assert abs(mean.client_values["loss"] - done.client_values["loss"]).min() > 1e-6


@pytest.mark.parametrize("method", [ua.Mocha(0.01), ua.Virtual(private="head"), ua.Virtual(), ua.FedCurv()], ids=str)
def test_clients_that_come_later_adapt_the_part_that_is_a_clients_own(method):
    line = run(method, "mlp", new_clients=2, new_steps=3, clients_per_round=2).history[-1]
    assert line["new_loss"] > 0 and 0 <= line["new_accuracy_start"] <= 1
    assert method.adapts == ("head" if "head" in str(method) or method.name == "mocha" else "all")


def test_a_virtual_model_of_nearly_no_spread_is_plain_training():
    """With a prior that says nothing in the fit and weights that are nearly certain, q is where SGD goes."""
    local = ua.LocalTraining(epochs=2, batch_size=5, lr=0.05, shuffle=False)
    given = {"rounds": 1, "clients_per_round": [[2]], "local": local}
    sure = run(ua.Virtual(1.0, kl_weight=0.0, prior_sd=1e-6), "mlp", **given)
    assert (sure.server.w - run(ua.FedAvg(), "mlp", **given).server.w).abs().max() < 1e-6
