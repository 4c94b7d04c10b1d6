"""Numbers of the authors' programs, and of restatements computed twice, for the clustered methods: after every round
everything that a file's row holds (losses, distances, similarities, criteria, clusters, centres, clients' vectors). A
row with something that is not compared fails."""

import json

import numpy as np
import pytest
import torch
from paths import GOLDEN
from torch import nn

import unalike as ua
from unalike.contract import Field
from unalike.methods.flhc import cosines
from unalike.run.predict import predictor

everywhere = pytest.mark.parametrize(
    ("engine", "dtype"), [(e, d) for e in ("sequential", "batched") for d in ("float32", "float64")]
)
NETS = {
    "softmax": lambda: nn.Linear(4, 3),
    "relu": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)),
    "line": lambda: nn.Linear(3, 1, bias=False),
}


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


class Rounds(ua.Callback):
    """What the server held and what clients kept and sent, round by round."""

    def __init__(self):
        self.rounds, self._sent = [], {}

    def on_reply(self, run, outcome):
        for name, rows in outcome.up.items():
            self._sent.setdefault(name, {}).update(zip(outcome.ids.tolist(), rows, strict=True))

    def on_round(self, run, line):
        kept = {k: dict(run.clients[k]) for k in range(run.population)}
        self.rounds.append((dict(run.server.values), kept, self._sent))
        self._sent = {}


def replay(net, w0, data, method, rows, engine, dtype, rate, **local):
    """The rounds of a method on a file's data, and the run."""
    module = NETS[net]().double()
    nn.utils.vector_to_parameters(torch.tensor(w0, dtype=torch.float64), module.parameters())
    clients = [(np.array(x), np.array(y)) for x, y in zip(data["x"], data["y"], strict=True)]
    if net == "line":
        fed, task = ua.Federation.from_arrays([(x, y[:, None]) for x, y in clients]), {"loss": "squared-error"}
    else:
        fed, task = ua.Federation.from_arrays(clients, classes=3), {}
    seen = Rounds()
    run = ua.simulate(
        module, fed, method, rounds=len(rows), engine=engine, dtype=dtype, evaluate_every=100, callbacks=[seen],
        clients_per_round=[row.get("participants", list(range(len(fed)))) for row in rows],
        local=ua.LocalTraining(shuffle=False, lr=rate, **local), **task,
    )  # fmt: skip
    return seen.rounds, run


def compare(row, dtype, **found):
    """Every number of a file's row with the one of that name."""
    for name, wanted in row.items():
        if name in ("round", "participants"):
            continue
        if isinstance(wanted, dict):  # by client
            wanted, value = list(wanted.values()), [found[name][int(k)] for k in wanted]
        else:
            value = found[name]
        if torch.is_tensor(value[0]):
            value = torch.stack(list(value))
        near(value, wanted, dtype, name)


def near(value, wanted, dtype, name=""):
    value, wanted = np.asarray(value, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    size = max(1.0, np.abs(wanted).max())  # a loss of 100 has no seventh digit behind the point in float32
    tolerance = 2e-6 * size if dtype == "float32" else 1e-9
    np.testing.assert_allclose(value, wanted, atol=tolerance, rtol=0, err_msg=name)


def owned(run, client):
    """The vector that a client predicts with."""
    return nn.utils.parameters_to_vector(predictor(run, client).module.parameters()).detach()


def given_centres(kind, centres, **options):
    """A method with centres of least loss that begins with given ones; everybody's losses are looked at first."""

    class Given(kind):
        @property
        def sends(self):
            return {**super().sends, "losses": Field(("clusters",), "each", "one")}

        def drawn(self, server):
            return torch.tensor(centres, dtype=torch.float64).to(server.w)

        def look(self, me, s, m):
            return me.losses(self.centres(me, m)).then(self.looked)

        def looked(self, me, s, m, losses):
            return {}, {"losses": losses}

        def round(self, server, cohort):
            cohort.everyone.call(self.look, **self.message(server, server.centres))
            super().round(server, cohort)

    return Given(len(centres), **options)


@everywhere
@pytest.mark.parametrize("choice", ["hidden", "told"])
@pytest.mark.parametrize("case", ["two_centres", "one_centre_stays_empty"])
def test_ifca_of_models(case, choice, engine, dtype):
    file = golden("ifca_official")["model_averaging"]
    rows, centres = file["results"][case], file["centres0"][case]
    method = given_centres(ua.IFCA, centres, choice=choice)
    rounds, run = replay("relu", centres[0], file, method, rows, engine, dtype, 0.3, steps=5, batch_size=None)
    for row, (server, kept, sent) in zip(rows, rounds, strict=True):
        own = [kept[k]["cluster"] for k in range(6)]
        losses = [sent["losses"][k] for k in range(6)]
        compare(row, dtype, losses=losses, assignment=own, centres=server["centres"])
    assert server["centres"].dtype == getattr(torch, dtype)
    assert {tuple(owned(run, k).tolist()) for k in range(6)} <= {tuple(c) for c in server["centres"].tolist()}


@everywhere
@pytest.mark.parametrize("choice", ["hidden", "told"])
def test_ifca_of_gradients(choice, engine, dtype):
    file = golden("ifca_official")["gradient_averaging"]
    rows, centres = file["results"], file["centres0"]
    method = given_centres(ua.IFCA, centres, averaging="gradients", choice=choice)
    rounds, _ = replay("line", centres[0], file, method, rows, engine, dtype, 0.3)
    for row, (server, kept, sent) in zip(rows, rounds, strict=True):
        own = [kept[k]["cluster"] for k in range(6)]
        losses = [sent["losses"][k] for k in range(6)]
        found = {"losses": losses, "assignment": own, "assignment_counts": server["hits"], "centres": server["centres"]}
        compare(row, dtype, **found)


@everywhere
@pytest.mark.parametrize("case", ["hypcluster_full", "hypcluster_partial"])
def test_hypcluster(case, engine, dtype):
    file = golden("own_hypcluster_fesem")
    rows, centres = file["results"][case], file["centres0"]["hypcluster"]
    method = given_centres(ua.HypCluster, centres)
    rounds, _ = replay("softmax", centres[0], file, method, rows, engine, dtype, 0.2, epochs=2, batch_size=3)
    for row, (server, kept, sent) in zip(rows, rounds, strict=True):
        own = {k: kept[k].get("cluster") for k in kept}
        losses = [sent["losses"][k] for k in range(5)]
        compare(row, dtype, losses_all_clients=losses, assignment=own, centres=server["centres"])


def fesem_of(file, weights, first):
    class Given(ua.FeSEM):
        def setup(self, server, everyone):
            super().setup(server, everyone)
            server.centres = torch.tensor(file["centres0"]["fesem"], dtype=torch.float64).to(server.w)

        def placement(self, server, new):
            return new.ids, torch.tensor(file["hyper"]["fesem_first_assignment"])[new.ids]

        def round(self, server, cohort):
            super().round(server, cohort)
            everyone = np.arange(cohort.population)
            known, rows = server.table("models").known(everyone), server.table("models")[everyone]
            server.locals = torch.where(known[:, None], rows, server.begun)

        def assigned(self, server, cohort):
            table = server.table("models")
            rows = torch.where(table.known(cohort.ids)[:, None], table[cohort.ids], server.begun)
            server.seen = torch.zeros(cohort.population, 2).to(torch.float64)
            server.seen[cohort.ids] = self.distances(server, rows).cpu()
            return super().assigned(server, cohort)

    return Given(2, first=first, weights=weights)


@everywhere
@pytest.mark.parametrize(
    ("case", "weights", "first"),
    [
        ("full_uniform", "uniform", "draw"),
        ("full_samples", "samples", "draw"),
        ("partial_uniform", "uniform", "loss"),
        ("no_first_assignment_collapses", "uniform", "distance"),
    ],
)
def test_fesem(case, weights, first, engine, dtype):
    file = golden("own_hypcluster_fesem")
    rows, method = file["results"][f"fesem_{case}"], fesem_of(file, weights, first)
    rounds, run = replay("softmax", file["w0"], file, method, rows, engine, dtype, 0.2, epochs=2, batch_size=3)
    for row, (server, *_) in zip(rows, rounds, strict=True):
        found = {"squared_distances": server["seen"], "assignment": server["cluster"]}
        compare(row, dtype, **found, centres=server["centres"], local_w=server["locals"])
    for k in np.flatnonzero(server["cluster"].numpy() >= 0):
        assert torch.equal(owned(run, k), server["centres"][server["cluster"][k]])


@everywhere
@pytest.mark.parametrize("case", ["momentum0", "momentum0.9"])
def test_cfl(case, engine, dtype):
    file = golden("cfl_official")
    rows, hyper = file["results"][case], file["cases"][case]["hyper"]
    method = ua.CFL(hyper["eps1"], hyper["eps2"], "absolute", after=hyper["split_after_round"], gamma=0.0)
    local = {"epochs": hyper["local_epochs"], "batch_size": 4, "momentum": hyper["momentum"], "lr_decay": 0.99}
    local["keep_optimizer"] = hyper["momentum"] > 0  # never reset in the program
    rounds, run = replay("softmax", file["w0"], file, method, rows, engine, dtype, 0.99 * hyper["lr"], **local)
    for row, (server, _, sent) in zip(rows, rounds, strict=True):
        updates = torch.stack([sent["delta"][k] for k in range(7)])
        clusters, criteria, members = row.pop("clusters_after"), row.pop("criteria"), []
        for k in server["cluster"].unique():
            members.append((server["cluster"] == k).nonzero()[:, 0].tolist())
        assert sorted(members) == sorted(clusters)
        vectors = server["models"][server["cluster"]]
        compare(row, dtype, updates=updates, similarity=cosines(updates.double().numpy()), client_w=vectors)
        wanted = {tuple(c["members"]): (c["mean_norm"], c["max_norm"], c["split"]) for c in criteria}
        before = nodes(server)
        assert len(server["criteria"]) == len(wanted)
        for node, *numbers in server["criteria"]:
            near(numbers, wanted[tuple(before[node])], dtype, "criteria")
    assert [row[:4] for row in server["tree"]] == {
        "momentum0": [[2, 0, 1, 2], [4, 1, 3, 4], [4, 2, 5, 6]],
        "momentum0.9": [[2, 0, 1, 2], [4, 1, 3, 4], [5, 2, 5, 6]],
    }[case]
    for k in range(7):
        assert torch.equal(owned(run, k), server["models"][server["cluster"][k]])


def nodes(server):
    """Every node of the tree with its clients."""
    below = {int(k): (server["cluster"] == k).nonzero()[:, 0].tolist() for k in server["cluster"].unique()}
    for _, node, left, right, *members in reversed(server["tree"]):
        below[node] = sorted(below[left] + below[right])
        assert below[node] == members
    return below


@everywhere
@pytest.mark.parametrize("case", ["full", "partial", "one_cluster_is_fedavg"])
def test_fedcluster(case, engine, dtype):
    file = golden("own_fedcluster")
    rows = file["results"][case]

    class Watched(ua.FedCluster):
        def round(self, server, cohort):
            server.after = [server.w] * self.clusters
            super().round(server, cohort)

        def take_turn(self, server, part):
            super().take_turn(server, part)
            at = int(server.turn[part.ids[0]])  # a cluster without participants leaves what it found
            server.after = [*server.after[:at], *[server.w] * (self.clusters - at)]

    # the file's clusters are 0 and 3, 1 and 4, 2
    method = Watched(1 if case.startswith("one") else 3, members="alternate", order="fixed")
    rounds, run = replay("softmax", file["w0"], file, method, rows, engine, dtype, 0.1, epochs=1, batch_size=3)
    for row, (server, *_) in zip(rows, rounds, strict=True):
        compare(row, dtype, after_each_cluster=server["after"], global_w=server["w"])
    assert torch.equal(owned(run, 4), server["w"])
