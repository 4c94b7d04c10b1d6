"""What the data-based methods, Cronus and FD must be: by hand, with a knob off, what travels, and who must allow it.
The numbers of programs and restatements are in test_golden_data_based.py."""

import argparse
import shlex

import numpy as np
import pytest
import torch
from small import refused
from test_network_messages import Direct, data, own, served, tables
from torch import nn

import unalike as ua
from unalike import testing
from unalike.cli import main
from unalike.methods.astraea import schedule
from unalike.network import join
from unalike.network.client import Client
from unalike.network.policy import Policy

EXACT = {"engine": "sequential", "dtype": "float64", "device": "cpu"}
ALL = {"clients_per_round": 1.0}


def run(method, kind="mlp", **changes):
    return testing.run(method, kind, **{**EXACT, **changes})


def apart(a, b, name="theta", other="theta"):
    rows = [(a.clients[k], b.clients[k]) for k in range(a.population)]
    return max(float((mine[name] - yours[other]).abs().max()) for mine, yours in rows)


def farthest(a, b):
    return float((a.server.w - b.server.w).abs().max())


# ---- samples leave only where that is allowed

SHIPPING = [name for name, cls in ua.METHODS.items() if cls.ships]


def test_what_ships_samples():
    assert SHIPPING == ["hybrid-fl", "xormixfl"]
    sent = {name: {f.names[-1] for f in cls().sends.values()} for name, cls in ua.METHODS.items()}
    means, counts = {"fedmix", "naivemix"}, {"hist-boost", "tree-bagging", "tree-cyclic"}  # counts of each column
    assert {name for name, shapes in sent.items() if "input" in shapes} == {*SHIPPING} | means | counts


@pytest.mark.parametrize("name", SHIPPING)
def test_a_run_must_allow_samples_to_leave(name, capsys, tmp_path):
    method = ua.METHODS[name]()
    with refused(f"{type(method).__name__} sends clients' own samples to the server .* this run must allow it"):
        run(method, allow_samples=False)
    flags = shlex.split("--data digits --clients 4 --public 0.1 --rounds 1 --quiet")
    for command in (["run", "--method", name], ["compare", "fedavg", name]):
        assert main([*command, *flags, "--folder", str(tmp_path / command[0])]) == 2
        said = capsys.readouterr().err.strip()
        assert "must allow it, by --allow-samples" in said and "\n" not in said
    assert main(["run", "--method", name, *flags, "--folder", str(tmp_path / "allowed"), "--allow-samples"]) == 0


def test_a_client_must_allow_its_samples_to_leave(tmp_path):
    asked = tables("hybrid-fl", method={"volunteers": 1.0, "samples": 3}, run={"allow_samples": True})

    def people(folder, allow):
        named = {"methods": ("hybrid-fl",)} if allow else {}  # to name the method is not enough
        rules = Policy.open(**named, repeatable=True, allow_samples=allow)
        return Direct([Client(own(data(), k), tmp_path / folder / f"site-{k}", rules) for k in range(4)])

    with refused("site-0: HybridFL sends clients' own samples to the server .* this client must allow it"):
        served(asked, people("refusing", False))
    done = served(asked, people("allowing", True))
    assert done.server.x.shape == (12, 5)
    mine = {tuple(row) for row in data().train.x.numpy().tolist()}
    assert {tuple(row) for row in done.server.x.numpy().tolist()} <= mine


def test_join_takes_the_flag():
    parser = argparse.ArgumentParser()
    join.arguments(parser)
    needed = shlex.split("here:1 --ca a --key b --data c --state d")
    assert not parser.parse_args(needed).allow_samples and parser.parse_args([*needed, "--allow-samples"]).allow_samples


# ---- data sharing


def test_data_sharing_is_fedavg_of_clients_with_more_samples():
    """With all of the public set, from plain federations that have it at every client."""
    module, fed = testing.task("mlp")
    px, py = fed.public
    larger = [(torch.cat([x, px]), torch.cat([y, py])) for x, y in map(fed.train.of, range(6))]
    local = ua.LocalTraining(epochs=1, batch_size=None, lr=0.1)
    setting = {"rounds": 2, "clients_per_round": [[0, 2, 4], [1, 3]], "local": local, **EXACT}
    joined = ua.simulate(module, ua.Federation.from_arrays(larger, classes=3), ua.FedAvg(), **setting)
    assert farthest(ua.simulate(module, fed, ua.DataSharing(1.0, 0), **setting), joined) < 1e-12


def test_shares_are_drawn_once_and_differ():
    done, again = run(ua.DataSharing(0.4, 0), rounds=1), run(ua.DataSharing(0.4, 0), rounds=2)
    shares = done.server.shares
    assert shares.shape == (6, round(0.4 * testing.PUBLIC)) and torch.equal(shares, again.server.shares)
    assert all(len(set(row)) == len(row) for row in shares.tolist()) and len(set(map(str, shares.tolist()))) > 3
    assert done.history[0]["bytes_down"] == 5 * 8 * (done.task.layout.size + shares.shape[1])


def test_data_sharing_warms_up_only_once():
    warm, cold = run(ua.DataSharing(0.0, 2), rounds=0), run(ua.DataSharing(0.0, 0), rounds=0)
    assert farthest(warm, cold) > 1e-3
    with refused("works on a public set, and there is none"):
        ua.simulate(testing.task("mlp")[0], testing.task("mlp")[1].replace(public=None), ua.DataSharing(), rounds=1)


def test_label_emd_and_weight_divergence():
    emd = ua.metrics.label_emd([[4, 0], [0, 4], [2, 2], [0, 0]])
    assert emd[:3].tolist() == [1.0, 1.0, 0.0] and np.isnan(emd[3])
    assert ua.metrics.label_emd([[4, 0]], [0, 1]).tolist() == [2.0]
    assert ua.metrics.weight_divergence(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])) == 1.25
    for wrong in ([1, 2], [[-1, 2]]):
        with refused("counts of samples"):
            ua.metrics.label_emd(wrong)
    with refused("a count for each of 2 classes"):
        ua.metrics.label_emd([[4, 0]], [1])
    with refused("are not compared"):
        ua.metrics.weight_divergence(torch.zeros(2), torch.zeros(3))


# ---- Cronus


def test_cronus_without_liars_is_the_mean_of_predictions():
    off, mean = run(ua.Cronus(epsilon=0.0, warm_epochs=1)), run(ua.Cronus(aggregate="mean", warm_epochs=1))
    assert apart(off, mean) == 0.0
    filtered, median = (
        run(ua.Cronus(epsilon=0.4, tolerance=0.0, warm_epochs=1)),
        run(ua.Cronus("median", warm_epochs=1)),
    )
    assert apart(filtered, mean) > 1e-6 and apart(median, mean) > 1e-6 and apart(median, filtered) > 1e-6


def test_cronus_drops_the_liar():
    honest = torch.tensor([0.7, 0.2, 0.1]).double()
    wobble = torch.tensor([[0.0, 0.0, 0.0], [0.02, -0.02, 0.0], [-0.02, 0.0, 0.02], [0.0, 0.02, -0.02]]).double()
    odds = torch.cat([honest + wobble, torch.tensor([[0.0, 0.0, 1.0]])])[:, None].expand(-1, 2, -1)
    mean, kept = ua.Cronus(epsilon=0.2).filtered(odds)
    assert kept.tolist() == [[True, True, True, True, False]] * 2
    assert torch.allclose(mean, (honest + wobble).mean(0).expand(2, -1))
    assert ua.Cronus(epsilon=0.2, tolerance=1.0).filtered(odds)[1].all()  # so little variance needs no filter
    assert ua.Cronus(epsilon=0.4, tolerance=1e-2).filtered(odds)[1].sum() == 8  # and after one there is little
    assert not ua.Cronus(epsilon=0.4, tolerance=0.0).filtered(odds)[1][:, 4].any()


def test_cronus_sends_predictions_and_nothing_else():
    for method in (ua.Cronus(warm_epochs=0), ua.Cronus("mean", warm_epochs=0)):
        done = run(method, dtype="float32")
        for line in done.history:
            assert line["bytes_up"] == line["bytes_down"] == line["clients"] * 4 * testing.PUBLIC * 3
    assert ua.Cronus("mean").sends["odds"].read == "sum" and ua.Cronus().sends["odds"].read == "each"


# ---- FD


def test_fd_off_is_training_alone():
    alone = run(ua.LocalOnly())
    assert apart(run(ua.FD(0.0)), alone, "theta", "model") < 1e-12
    assert apart(run(ua.FD(1.0)), alone, "theta", "model") > 1e-6


def test_fd_learns_from_others_only():
    """Of two clients with no class in common neither hears anything; alone, a client hears nothing from itself."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(12, 6, generator=draw, dtype=torch.float64)
    fed = ua.Federation.from_arrays([(x[:6], torch.zeros(6).long()), (x[6:], 1 + torch.arange(6) % 2)], classes=3)
    module, _ = testing.task("mlp")
    setting = {"rounds": 3, "local": ua.LocalTraining(epochs=1, batch_size=3, lr=0.1), **EXACT}
    on, off = (ua.simulate(module, fed, ua.FD(beta), **setting) for beta in (5.0, 0.0))
    assert apart(on, off) == 0.0
    setting = {"clients_per_round": [[2]], "rounds": 3}
    assert (run(ua.FD(5.0), **setting).clients[2]["theta"] - run(ua.FD(0.0), **setting).clients[2]["theta"]).any() == 0


def test_what_fd_sends():
    done = run(ua.FD(), dtype="float32", rounds=2)
    first, second = done.history
    assert first["bytes_up"] == 5 * 4 * 12 and second["bytes_up"] == 4 * 4 * 12
    assert (first["bytes_down"], second["bytes_down"]) == (5 * 4, 4 * (4 * 12 + 8))
    assert {f.read for f in ua.FD(average=True).sends.values()} == {"sum"}
    with refused("knows SGD"):
        run(ua.FD(reading="program"))  # the shared settings clip gradients


@pytest.mark.parametrize("method", [ua.FD(), ua.Cronus(epsilon=0.25, warm_epochs=1)], ids=lambda m: m.name)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_copies_of_an_architecture_are_one(method, engine):
    module, fed = testing.task("mlp")
    setting = {**testing.settings(), **EXACT, "engine": engine}
    one = ua.simulate(module, fed, method, **setting)
    names = ["left", "right", "right", "left", "right", "left"]
    two = ua.simulate({"left": module, "right": module}, fed, method, architecture=names, **setting)
    assert apart(one, two) < 1e-12


# ---- local mixup


class Draws:
    """A batch of which only draws are asked, many at once."""

    def uniform(self, purpose, shape):
        return torch.rand(*shape, 40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("a", [0.2, 1.0, 4.0])
def test_lambda_is_a_beta_draw(a):
    """Mean ½, variance 1 / (4 (2a + 1)) and, by the second moment's growth, fourth central moment of Beta(a, a)."""
    lam = ua.LocalMixup(a).lam(Draws())
    assert ((lam >= 0) & (lam <= 1)).all() and abs(float(lam.mean()) - 0.5) < 0.01
    variance = 1 / (4 * (2 * a + 1))
    fourth = 3 / (16 * (2 * a + 1) * (2 * a + 3))
    assert abs(float(lam.var()) / variance - 1) < 0.02
    assert abs(float((lam - 0.5).pow(4).mean()) / fourth - 1) < 0.04


def test_partners_are_a_permutation_of_the_batch():
    seen = []

    class Noted(ua.LocalMixup):
        def partners(self, batch):
            seen.append(super().partners(batch).tolist())
            return super().partners(batch)

    local = ua.LocalTraining(steps=40, batch_size=3, lr=1e-6)
    run(Noted(), "linear", rounds=1, clients_per_round=[[1]], local=local)  # of four samples: batches of 3 and 1
    assert {len(order) for order in seen} == {1, 3} and all(sorted(o) == list(range(len(o))) for o in seen)
    assert len({str(order) for order in seen}) > 4


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize(
    "method", [ua.LocalMixup(), ua.FedMix(0.3, 3), ua.NaiveMix(0.3, 3), ua.Astraea(1.0, 1)], ids=lambda m: m.name
)
def test_losses_on_other_inputs_learn_statistics_of_the_samples(method, engine):
    """With a rate of nearly zero all models are the same, and so are BatchNorm's statistics."""
    setting = {"rounds": 1, "local": ua.LocalTraining(epochs=1, batch_size=None, lr=1e-12), "engine": engine, **ALL}
    done, plain = run(method, "norm", **setting), run(ua.FedAvg(), "norm", **setting)
    fresh = torch.cat([torch.zeros(4), torch.ones(4)])
    assert (plain.buffers - fresh).abs().max() > 1e-2
    if isinstance(method, ua.Astraea):  # rare samples come several times
        assert (done.buffers - fresh).abs().max() > 1e-2
    else:
        assert (done.buffers - plain.buffers).abs().max() < 1e-9


def test_mixup_needs_numbers():
    with refused("it needs numbers"):
        run(ua.LocalMixup(), "lstm")


def test_naivemix_is_fedmix_in_its_naive_variant():
    assert farthest(run(ua.NaiveMix(0.2, 3)), run(ua.FedMix(0.2, 3, variant="naive"))) == 0.0
    with refused("variant"):
        ua.NaiveMix(variant="fedmix")


# ---- XorMixFL


def pictures():
    draw = np.random.default_rng(0)
    sides = [(draw.integers(0, 256, (n, 1, 2, 2)) / 255, draw.integers(0, 3, n)) for n in (5, 3, 4)]
    sides.append((draw.integers(0, 256, (4, 1, 2, 2)) / 255, np.ones(4, np.int64)))  # one label: no pair
    fed = ua.Federation.from_arrays(sides, classes=3)
    return fed.with_public(draw.integers(0, 256, (6, 1, 2, 2)) / 255, np.arange(6) % 3)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("pairs", ["random", "next"])
def test_xor_of_two_samples_with_other_labels(pairs, engine):
    fed, seen = pictures(), []

    class Seen(ua.XorMixFL):
        def decoded(self, pairs, labels, x, y):
            seen.append((pairs.long(), labels, x.long(), y))
            return super().decoded(pairs, labels, x, y)

    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    setting = {"rounds": 1, "engine": engine, "allow_samples": True}
    done = ua.simulate(module, fed, Seen(4, pairs, epochs=1), **setting)
    (found, labels, base, y), possible = seen[0], set()
    for k in range(3):
        x, own = fed.train.of(k)
        x = (x * 255).round().long().flatten(1)
        for i in range(len(x)):
            possible |= {(*(x[i] ^ x[j]).tolist(), int(own[i]), int(own[j])) for j in range(len(x)) if own[i] != own[j]}
    sent = [(*pair, *both) for pair, both in zip(found.tolist(), labels.tolist(), strict=True)]
    assert set(sent) <= possible and len(sent) == 4 + 3 + 4
    assert done.server.x.shape == (6 + sum(int((y == b).sum()) for _, b in labels.tolist()), 4)
    assert torch.allclose(done.server.x[:6] * 255, base.to(done.server.x), atol=1e-3)  # the base comes first
    few = ua.simulate(module, fed, ua.XorMixFL(4, pairs, most=2, epochs=1), **setting)
    counts = torch.bincount(few.server.y[6:], minlength=3)
    assert counts.tolist() == torch.bincount(done.server.y[6:], minlength=3).clamp(max=2).tolist()


def test_xormixfl_needs_a_base_with_labels_and_numbers():
    setting = {"rounds": 1, "allow_samples": True, **EXACT}
    module, fed = testing.task("mlp")
    with refused("a public set with labels"):
        ua.simulate(module, fed.with_public(fed.public[0]), ua.XorMixFL(), **setting)
    with refused("no tokens"):
        run(ua.XorMixFL(), "lstm")
    with refused("must be below high"):
        ua.XorMixFL(low=1.0, high=1.0)


def test_samples_travel_once():
    done = run(ua.XorMixFL(4, low=-3.0, high=3.0, epochs=1), dtype="float32", rounds=2)
    assert done.history[0]["setup_bytes_up"] == 6 * 4 * 4 * (6 + 2)
    assert [line["bytes_up"] + line["bytes_down"] for line in done.history] == [0, 0]


# ---- Astraea


def test_copies_make_up_for_what_a_class_lacks():
    totals = torch.tensor([10.0, 30.0, 80.0, 0.0])  # the mean is 30: a class at the mean gets none, nor one without any
    assert ua.Astraea(1.0).copies(totals).tolist() == [3, 0, 0, 0]
    assert ua.Astraea(0.0).copies(totals).tolist() == [1, 0, 0, 0]
    assert ua.Astraea(2.0, most=5).copies(totals).tolist() == [5, 0, 0, 0]
    assert not ua.Astraea().copies(totals).any()


def test_copies_without_noise_are_samples_that_come_twice():
    """One client alone, in stored order, against a client that has its rare samples twice."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 6, generator=draw, dtype=torch.float64), torch.tensor([0, 0, 1, 0, 0, 2, 0])
    twice = [0, 1, 2, 2, 2, 3, 4, 5, 5, 5, 6]  # the mean class has 2 1/3: two copies each
    module, local = testing.task("mlp")[0], ua.LocalTraining(epochs=1, batch_size=4, lr=0.1, shuffle=False)
    setting = {"rounds": 2, "local": local, **EXACT}
    grown = ua.simulate(module, ua.Federation.from_arrays([(x[twice], y[twice])], classes=3), ua.FedAvg(), **setting)
    fed = ua.Federation.from_arrays([(x, y)], classes=3)
    assert farthest(ua.simulate(module, fed, ua.Astraea(1.0, noise=0.0), **setting), grown) < 1e-12
    assert farthest(ua.simulate(module, fed, ua.Astraea(1.0, noise=0.1), **setting), grown) > 1e-5


def test_one_mediator_is_a_model_that_goes_round():
    module, fed = testing.task("mlp")
    local = ua.LocalTraining(epochs=1, batch_size=None, lr=0.1)
    done = ua.simulate(module, fed, ua.Astraea(gamma=6), rounds=1, local=local, **EXACT)
    (order,), _ = schedule(fed.label_counts().astype(float), 6)
    plain = module.double()
    nn.utils.vector_to_parameters(done.task.start.clone(), plain.parameters())
    for k in order:
        sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
        x, y = fed.train.of(k)
        nn.functional.cross_entropy(plain(x), y).backward()
        sgd.step()
        sgd.zero_grad()
    assert (nn.utils.parameters_to_vector(plain.parameters()) - done.server.w).abs().max() < 1e-12


def test_mediators_balance_labels():
    groups, _ = schedule(np.array([[9, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9], [0, 9, 0], [0, 0, 9.0]]), 3)
    assert [sorted(group) for group in groups] == [[0, 2, 3], [1, 4, 5]]


# ---- Hybrid-FL


def test_the_server_is_one_more_client():
    """All clients volunteer all they have: the server's model is that of pooled samples, in one full batch."""
    module, fed = testing.task("mlp")
    local = ua.LocalTraining(epochs=1, batch_size=None, lr=0.1)
    setting = {"rounds": 1, "local": local, "allow_samples": True, **EXACT}
    one = ua.simulate(module, fed, ua.HybridFL(1.0, 12, 1.0, 1, 1000, 0.1), **setting)
    pooled, plain = (ua.simulate(module, fed, m, **setting) for m in (ua.Centralized(), ua.FedAvg()))
    assert one.server.x.shape == (sum(testing.SIZES), 6)
    assert farthest(pooled, plain) < 1e-12  # one full step each: they are the same, and so is their mean
    assert farthest(one, plain) < 1e-12
    heavy = ua.simulate(module, fed, ua.HybridFL(1.0, 12, 3.0, 2, 1000, 0.1), **setting)
    two = ua.simulate(
        module, fed, ua.Centralized(), **{**setting, "local": ua.LocalTraining(epochs=2, batch_size=None, lr=0.1)}
    )
    assert (heavy.server.w - (0.25 * plain.server.w + 0.75 * two.server.w)).abs().max() < 1e-12


def test_volunteers_send_some_of_their_own():
    done = run(ua.HybridFL(0.34, 3, epochs=1), rounds=1)
    assert done.history[0]["setup_bytes_up"] == 2 * 3 * (6 + 1) * 8
    mine = {tuple(row) for row in testing.task("mlp")[1].train.x.tolist()}
    assert {tuple(row) for row in done.server.x.tolist()} <= mine and 2 <= len(done.server.x) <= 6


@pytest.mark.parametrize("kind", ["cnn", "lstm"])
def test_uploaded_samples_have_their_shape_again(kind):
    done = run(ua.HybridFL(0.5, 3, epochs=1, lr=0.5), kind, rounds=1)
    assert farthest(done, run(ua.FedAvg(), kind, rounds=1)) > 1e-6
