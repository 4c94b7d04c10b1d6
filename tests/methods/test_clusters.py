"""Clustered methods: who is where, what becomes of absent and new clients, and what is left at the ends of knobs."""

import dataclasses as dc
import itertools

import numpy as np
import pytest
import torch
from small import refused
from torch import nn

import unalike as ua
from unalike import config, testing
from unalike.methods.flhc import bipartition, cosines
from unalike.metrics.clusters import adjusted_rand
from unalike.run.predict import predictor

PLAIN = dc.replace(testing.settings()["local"], clip_norm=None, weight_decay=0.0, shuffle=False)
ALL = {"clients_per_round": 1.0, "local": PLAIN, "engine": "sequential", "dtype": "float64"}
SPLIT = ua.CFL(9.0, 0.0, after=0, gamma=0.0)  # splits every cluster of more than two participants


def run(method, kind="mlp", **changes):
    return testing.run(method, kind, **{**ALL, **changes})


def own(done, client):
    """The vector that a client predicts with."""
    return nn.utils.parameters_to_vector(predictor(done, client).module.parameters()).detach()


def planted(groups, clients=12, samples=20, seed=0):
    """Clients of a linear problem, of which each group calls the classes otherwise."""
    draw = np.random.default_rng(seed)
    truth, group = draw.normal(size=(5, 3)), np.arange(clients) % groups
    x = draw.normal(size=(clients, samples, 5))
    y = ((x @ truth).argmax(-1) + group[:, None]) % 3
    half = samples // 2
    fed = ua.Federation.from_arrays(
        [(x[k, :half], y[k, :half]) for k in range(clients)],
        client_tests=[(x[k, half:], y[k, half:]) for k in range(clients)],
        classes=3,
    )
    return fed, group


def found(method, groups, rounds=20, **changes):
    fed, group = planted(groups)
    torch.manual_seed(0)
    local = ua.LocalTraining(epochs=4, batch_size=None, lr=0.5)
    settings = {"local": local, "engine": "batched", "device": "cpu", "evaluate_every": rounds, **changes}
    return ua.simulate(nn.Linear(5, 3), fed, method, rounds=rounds, **settings), group


# ---- groups are found


def test_cfl_finds_planted_groups_and_leaves_clients_of_one_kind_together():
    done, group = found(ua.CFL(eps2=0.6, after=5), 3)
    assert adjusted_rand(done.server.cluster.numpy(), group) == 1.0
    assert [row[1:4] for row in done.server.tree] in ([[0, 1, 2], [1, 3, 4]], [[0, 1, 2], [2, 3, 4]])
    assert found(ua.CFL(eps2=0.6, after=5), 1)[0].server.tree == []


@pytest.mark.parametrize("method", [ua.IFCA(3, starts=5, trial=4), ua.HypCluster(3, starts=5, trial=4)])
def test_centres_find_planted_groups_with_several_starts(method):
    done, group = found(method, 3)
    assert adjusted_rand([int(done.clients[k]["cluster"]) for k in range(12)], group) == 1.0
    assert done.history[-1]["clients_accuracy_mean"] > 0.8


@pytest.mark.parametrize("method", [ua.FLHC(2), ua.IFCA(2), ua.FeSEM(2), ua.CFL(), ua.FedFMC(2)], ids=lambda m: m.name)
def test_clients_with_different_networks_are_refused(method):
    nets = {"small": nn.Linear(5, 3), "large": nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))}
    with pytest.raises(ua.UnalikeError, match="needs one network for all clients"):
        ua.simulate(nets, planted(1)[0], method, architecture=["small", "large"] * 6, rounds=1, engine="sequential")


def test_so_are_other_methods_that_need_one_network_and_nothing_is_written(tmp_path):
    """Each says why."""
    nets = {"small": nn.Linear(5, 3), "large": nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))}
    given = {"architecture": ["small", "large"] * 6, "rounds": 1, "allow_samples": True, "folder": tmp_path / "run"}
    why = {
        ua.Mocha(): "relates clients by their weights",
        ua.CCVR(): "pools features of one body",
        ua.Astraea(): "passes a model from client to client",
        ua.HybridFL(): "trains one more model",
        ua.HypCluster(): "compares clients' models",
    }
    for method, reason in why.items():
        with refused(f"{type(method).__name__} {reason}.*: it needs one network for all clients"):
            ua.simulate(nets, planted(1)[0], method, **given)
        assert not (tmp_path / "run").exists()


# ---- IFCA, HypCluster


@pytest.mark.parametrize("clustered", ["all", "head"])
@pytest.mark.parametrize("averaging", ["models", "gradients"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a_hidden_choice_and_a_told_one_give_the_same_centres(clustered, averaging, weights):
    hidden, told = (
        run(ua.IFCA(3, clustered=clustered, averaging=averaging, weights=weights, choice=choice))
        for choice in ("hidden", "told")
    )
    assert (hidden.server.centres - told.server.centres).abs().max() < 1e-12
    assert torch.equal(hidden.server.hits, told.server.hits)


def test_layers_that_are_not_clustered_are_common_to_all():
    done = run(ua.IFCA(3, clustered="head"))
    layout, centres = done.server.layout, done.server.centres
    assert torch.equal(layout.body(centres), layout.body(centres[:1]).expand(3, -1))
    assert not torch.equal(layout.head(centres[0]), layout.head(centres[1]))
    one = run(ua.IFCA(1, clustered="head"))  # a cluster of everybody: FedAvg
    assert (one.server.w - run(ua.FedAvg(weights="uniform")).server.w).abs().max() < 1e-12
    three = [run(ua.IFCA(3, clustered=part), rounds=1).history[0]["bytes_down"] for part in ("all", "head")]
    sizes = layout.size, layout.size + 2 * layout.head_size
    assert three == [6 * 8 * 3 * sizes[0], 6 * 8 * sizes[1]]  # what is common travels once


def test_gradients_are_divided_by_all_participants():
    """Two centres with half the clients each move half as far as with the members' own number."""
    done = run(ua.IFCA(2, averaging="gradients", inference="loss"), rounds=1, clients_per_round=[[0, 1, 2, 3]])
    before = torch.stack([done.server.init(2)[j] for j in range(2)])
    steps = torch.zeros_like(before)
    for k in range(4):
        x, y = done.data.train.of(k)
        j = int(done.clients[k]["cluster"])
        steps[j] += gradient(done, before[j], x, y)
    assert (done.server.centres - (before - 0.05 / 4 * steps)).abs().max() < 1e-12


def gradient(done, vector, x, y):
    module = predictor(done, 0).module.double()
    nn.utils.vector_to_parameters(vector.clone(), module.parameters())
    grads = torch.autograd.grad(nn.functional.cross_entropy(module(x.double()), y), list(module.parameters()))
    return torch.cat([g.reshape(-1) for g in grads])


class Given(ua.IFCA):
    """Two starts: centres that fit nobody, and good ones."""

    def drawn(self, server):
        good = server.init(4)
        return torch.cat([50 * good[:2], good[2:]])


def test_the_start_of_least_loss_goes_on():
    tried = run(Given(2, starts=2, trial=2), rounds=1)
    assert tried.server.sets.shape[:2] == (2, 2)
    assert torch.equal(tried.server.centres, tried.server.sets[1])  # the better one is shown
    done = run(Given(2, starts=2, trial=2), rounds=2)
    assert not len(done.server.sets)  # the others are gone
    assert (done.server.centres - tried.server.sets[1]).abs().max() < 1
    assert run(Given(2, starts=2, trial=2), rounds=3).server.centres.shape == done.server.centres.shape


def test_all_centres_are_asked_together():
    done, _ = found(ua.IFCA(3, inference="average"), 3, rounds=3)
    x, y = done.data.splits["test"].of(4)
    module, outputs = nn.Linear(5, 3), []
    for centre in done.server.centres:
        nn.utils.vector_to_parameters(centre, module.parameters())
        outputs.append(module(x.float()))
    loss = nn.functional.cross_entropy(torch.stack(outputs).mean(0), y)
    assert done.client_values["loss"][4] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("method", [ua.IFCA(3, starts=5, trial=4), ua.CFL(eps2=0.6, after=5)], ids=lambda m: m.name)
def test_a_client_that_comes_later_finds_its_kind(method):
    done, _ = found(method, 3, new_clients=3, new_steps=0)
    assert done.history[-1]["new_accuracy_start"] > 0.8


# ---- FeSEM


def test_fesem_begins_as_it_is_told():
    losses, drawn, near = (run(ua.FeSEM(3, first=first), rounds=1) for first in ("loss", "draw", "distance"))
    assert len(near.server.cluster.unique()) == 1  # all begin at one point
    assert drawn.server.cluster.tolist() != near.server.cluster.tolist()
    ifca = run(ua.IFCA(3), rounds=1)
    assert losses.server.cluster.tolist() == [int(ifca.clients[k]["cluster"]) for k in range(6)]
    assert (losses.server.centres - ifca.server.centres).abs().max() < 1e-12


def test_fesem_by_a_part_of_the_model():
    whole, head = (run(ua.FeSEM(3, by=by), rounds=1) for by in ("all", "head"))
    rows = torch.randn(2, whole.server.w.shape[0], dtype=torch.float64)
    far = whole.method.distances(whole.server, rows)
    layout = head.server.layout
    near = (layout.head(rows)[:, None] - layout.head(head.server.centres)[None]).square().sum(-1)
    assert (head.method.distances(head.server, rows) - near).abs().max() < 1e-12 < float((far - near).min())


def test_who_never_took_part_has_no_cluster_and_is_judged_by_loss():
    done = run(ua.FeSEM(2), clients_per_round=[[0, 1, 2], [0, 2, 3]])
    assert done.server.cluster.tolist()[4:] == [-1, -1] and min(done.server.cluster.tolist()[:4]) >= 0
    x, y = done.data.train.of(5)
    losses = []
    for centre in done.server.centres:
        module = predictor(done, 5).module
        nn.utils.vector_to_parameters(centre, module.parameters())
        losses.append(nn.functional.cross_entropy(module(x), y).item())
    assert torch.equal(own(done, 5), done.server.centres[int(np.argmin(losses))])
    assert torch.equal(own(done, 0), done.server.centres[done.server.cluster[0]])


# ---- CFL


def leaves(server):
    """Every node without children."""
    inner = {row[1] for row in server.tree}
    return set(range(len(server.models))) - inner


class Partition(ua.Callback):
    """After every round each client is in one node, inner nodes do not move, and those who took part are in leaves."""

    def __init__(self, cohorts):
        self.cohorts, self.frozen = cohorts, {}

    def on_round(self, run, line):
        server = run.server
        here = set(server.cluster[self.cohorts[line["round"] - 1]].tolist())
        assert here <= leaves(server)
        for node, model in self.frozen.items():
            assert torch.equal(model, server.models[node])
        self.frozen = {row[1]: server.models[row[1]] for row in server.tree}
        for _, node, left, right, *members in server.tree:
            below = {node}
            for row in server.tree:
                below |= {row[2], row[3]} if row[1] in below else set()
            assert {int(server.cluster[k]) for k in members} <= below  # others may have come from above since
            assert node < left < right < len(server.models)


@pytest.mark.parametrize("seed", range(4))
def test_cfl_clusters_always_divide_the_clients(seed):
    draw = np.random.default_rng(seed)
    cohorts = [sorted(draw.choice(6, draw.integers(3, 7), replace=False).tolist()) for _ in range(6)]
    watch = Partition(cohorts)
    done = run(SPLIT, rounds=6, clients_per_round=cohorts, callbacks=[watch])
    assert done.server.tree and watch.frozen


def test_an_absent_client_goes_down_the_tree_by_its_loss():
    cohorts = [[0, 1, 2, 3], [0, 1, 2, 3, 5]]
    one, two = (run(SPLIT, rounds=r, clients_per_round=cohorts) for r in (1, 2))
    assert one.server.cluster.tolist()[4:] == [0, 0] and int(two.server.cluster[4]) == 0
    x, y = one.data.train.of(5)
    losses = []
    for node in (1, 2):
        module = predictor(one, 0).module
        nn.utils.vector_to_parameters(one.server.models[node], module.parameters())
        losses.append(nn.functional.cross_entropy(module(x), y).item())
    best = 1 + int(np.argmin(losses))
    assert torch.equal(own(one, 5), one.server.models[best])  # judged by what it would be given
    below = {best} | {n for row in two.server.tree if row[1] == best for n in row[2:4]}
    assert int(two.server.cluster[5]) in below
    assert torch.equal(
        own(run(dc.replace(SPLIT, level=0), rounds=1, clients_per_round=cohorts), 5), one.server.models[0]
    )


def test_models_may_be_judged_higher_up_in_the_tree():
    done = run(SPLIT, rounds=3)
    level = run(dc.replace(SPLIT, level=1), rounds=3)
    assert done.server.cluster.tolist() == level.server.cluster.tolist()
    assert len({tuple(own(level, k).tolist()) for k in range(6)}) == 2
    for k in range(6):
        assert torch.equal(own(done, k), done.server.models[done.server.cluster[k]])
        assert k in next(row[4:] for row in done.server.tree if row[1] == 0)


def test_what_stands_still():
    """ε₁ is in units of the mean ‖Δ‖ (here 2), ε₂ in units of the first round's largest (here 4)."""
    norms = torch.tensor([1.0, 3.0])
    relative, absolute = ua.CFL(0.25, 0.5), ua.CFL(0.4, 1.6, "absolute")
    assert relative.stands(0.49, norms, 4.0) and not relative.stands(0.51, norms, 4.0)
    assert not relative.stands(0.49, norms, 6.1)
    assert absolute.stands(0.39, norms, 99.0) and not absolute.stands(0.41, norms, 99.0)
    assert not absolute.stands(0.39, norms / 2, 99.0)


def test_relative_thresholds_follow_the_rate():
    """A rate that falls by ten makes updates ten times as small, not calmer."""

    def split(decay):
        method = ua.CFL(9.0, 0.5, after=1, gamma=0.0)
        local = dc.replace(PLAIN, epochs=1, batch_size=None, lr_decay=decay)
        return run(method, "linear", rounds=2, local=local).server.tree

    assert split(1.0) and split(0.1)


def test_the_cut_of_least_cosine():
    """Of all ways to cut seven updates in two, single linkage finds the one whose largest cosine across is least."""
    rows = np.random.default_rng(1).normal(size=(7, 3))
    every = cosines(rows)
    ways = [np.array(way) for way in itertools.product([True, False], repeat=7) if any(way) and not all(way)]
    least = min(float(every[way][:, ~way].max()) for way in ways)
    assert bipartition(rows, "single")[1] == pytest.approx(least)
    assert bipartition(rows, "complete")[1] > least


def test_a_split_must_be_clear():
    assert len(run(dc.replace(SPLIT, gamma=0.3), rounds=2).server.tree) > 0
    assert run(dc.replace(SPLIT, gamma=0.99), rounds=2).server.tree == []


# ---- FedCluster


def test_as_many_clusters_as_clients_is_training_in_a_circle():
    circle = run(ua.FedCluster(6, "alternate", "fixed"), rounds=1)
    one_by_one = run(ua.FedAvg(), rounds=6, clients_per_round=[[k] for k in range(6)])
    assert (circle.server.w - one_by_one.server.w).abs().max() < 1e-12
    drawn = run(ua.FedCluster(6, "alternate"), rounds=1)
    assert (circle.server.w - drawn.server.w).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("members", "turns"), [("alternate", [0, 1, 2, 3, 0, 1]), ("blocks", [0, 0, 1, 2, 2, 3]), ("random", None)]
)
def test_clusters_of_turns(members, turns):
    found = run(ua.FedCluster(4, members), rounds=1).server.turn.tolist()
    assert turns is None or found == turns
    assert sorted(np.bincount(found, minlength=4)) == [1, 1, 2, 2]


# ---- FedFMC


def test_models_are_merged_by_samples():
    method = ua.FedFMC(2, fork=2, consolidate=1)
    forked, merged = (run(method, rounds=r) for r in (1, 2))
    assert not forked.server.merged and merged.server.merged
    assert len(torch.unique(forked.server.centres, dim=0)) == 2 and forked.server.hits.sum() == sum(testing.SIZES)
    server = merged.server
    mean = (server.hits[:, None] * server.centres).sum(0) / sum(testing.SIZES)
    assert (server.w - mean).abs().max() < 1e-12
    assert torch.equal(own(merged, 3), server.w) and not torch.equal(own(forked, 3), forked.server.w)


def test_what_forks_knew_is_kept_by_their_fisher_information():
    """Of one model the Fisher diagonal is the mean over all samples of squared gradients."""
    done = run(ua.FedFMC(1, 0.0, fork=1, consolidate=1), "linear", rounds=2)
    server, squares = done.server, []
    for k in range(6):
        x, y = done.data.train.of(k)
        squares += [gradient(done, server.centres[0], x[i : i + 1], y[i : i + 1]).square() for i in range(len(y))]
    assert (server.stiff - torch.stack(squares).mean(0)).abs().max() < 1e-12
    assert (server.rest - server.stiff * server.centres[0]).abs().max() < 1e-12
    loose, firm = (run(ua.FedFMC(2, lam, 1, 1), "linear", rounds=2) for lam in (0.0, 5.0))

    def left(done):
        """How far from the forks' models, in their own measure."""
        return float((done.server.stiff * done.server.w.square() - 2 * done.server.rest * done.server.w).sum())

    assert left(firm) < left(loose) - 1e-6


def test_fedfmc_merges_by_the_samples_of_the_last_round_of_a_fork():
    """Four clients are in the first round of a fork, one of them alone in its second."""
    cohorts = [[0, 1, 2, 3], [3]]
    done = run(ua.FedFMC(2, fork=2, consolidate=1), "linear", rounds=2, clients_per_round=cohorts)
    assert sorted(done.server.hits.tolist()) == [0.0, float(done.data.train.sizes[3])]
    assert torch.allclose(done.server.w, done.server.centres[done.server.hits.argmax()])


# ---- more clusters than clients


@pytest.mark.parametrize("kind", [ua.IFCA, ua.HypCluster, ua.FeSEM, ua.FLHC, ua.FedFMC])
def test_more_clusters_than_clients_are_refused_before_anything_is_written(kind, tmp_path):
    with refused(f"{kind.__name__} clusters=7 of 6 clients: give at most as many"):
        run(kind(7), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(run(kind(6), rounds=1).history) == 1
    tables = {"data": {"name": "mnist", "clients": 3}, "method": {"name": kind.name, "clusters": 4}}
    with refused("clusters=4 of 3 clients"):
        config.check({**tables, "run": {"rounds": 1}})  # before any data are there
