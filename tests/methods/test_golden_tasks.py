"""Numbers of restatements computed twice for the lifelong and multi-task methods: what servers hold and what clients
keep after every round that a file has."""

import json

import numpy as np
import pytest
import torch
from paths import GOLDEN
from torch import nn

import unalike as ua

everywhere = pytest.mark.parametrize(
    ("engine", "dtype"), [(e, d) for e in ("sequential", "batched") for d in ("float32", "float64")]
)


class Rounds(ua.Callback):
    """The server's values and every client's state after each round."""

    def __init__(self):
        self.server, self.clients = [], []

    def on_round(self, run, line):
        self.server.append(dict(run.server.values))
        self.clients.append([{n: v.clone() for n, v in run.clients[k].items()} for k in range(run.population)])


class Replay:
    """A golden file, and a method run on its data with everything looked at."""

    def __init__(self, file, engine, dtype):
        self.file = json.loads((GOLDEN / f"{file}.json").read_text())
        self.engine, self.dtype = engine, dtype

    def run(self, module, method, x, y, participants, classes, **local):
        fed = ua.Federation.from_arrays(
            [(np.array(a), np.array(b)) for a, b in zip(x, y, strict=True)], classes=classes
        )
        seen = Rounds()
        self.done = ua.simulate(
            module, fed, method, rounds=len(participants), engine=self.engine, dtype=self.dtype, evaluate_every=100,
            clients_per_round=participants, local=ua.LocalTraining(**local), callbacks=[seen],
        )  # fmt: skip
        return seen

    def near(self, value, wanted, single=2e-6):
        tolerance = single if self.dtype == "float32" else 1e-9
        np.testing.assert_allclose(np.asarray(value), wanted, atol=tolerance, rtol=0)


@everywhere
@pytest.mark.parametrize("case", ["full", "partial", "lambda0_is_fedavg"])
def test_fedcurv(case, engine, dtype):
    replay = Replay("own_fedcurv", engine, dtype)
    file, rows, hyper = replay.file, replay.file["results"][case], replay.file["hyper"]
    module = nn.Linear(4, 3).double()
    nn.utils.vector_to_parameters(torch.tensor(file["w0"], dtype=torch.float64), module.parameters())
    method = ua.FedCurv(0.0 if "lambda0" in case else hyper["lambda"])
    local = {"epochs": hyper["epochs"], "batch_size": hyper["batch_size"], "lr": hyper["lr"], "shuffle": False}
    seen = replay.run(module, method, file["x"], file["y"], [r["participants"] for r in rows], 3, **local)
    for row, server, clients in zip(rows, seen.server, seen.clients, strict=True):
        replay.near(server["w"], row["global_w"])
        replay.near(server["fisher"], row["U"])
        replay.near(server["anchor"], row["V"])
        for k, fisher in enumerate(row["fisher"]):
            replay.near(clients[k]["fisher"], fisher)
            if str(k) in row["local_w"]:
                replay.near(clients[k]["anchor"] / clients[k]["fisher"], row["local_w"][str(k)])


class Coordinates:
    """The file's order of samples in the place of the run's: clients are told apart by their number of samples."""

    def __init__(self, rows, monkeypatch):
        self.rows, self.round = rows, 0
        monkeypatch.setattr("unalike.training.order.Order.block", lambda order, *steps: self.block(order, *steps))

    def block(self, order, first, last):
        visited = {len(some): some for some in self.rows[self.round]["coordinates"]}
        each = [visited[int(n)] for n in order.sizes]
        found = [[some[k % len(some)] for some in each] for k in range(first, last)]
        index = torch.tensor(found)[..., None]
        return index, torch.ones_like(index, dtype=torch.bool)


@everywhere
@pytest.mark.parametrize("case", ["as_program", "remap"])
def test_mocha(case, engine, dtype, monkeypatch):
    """Two classes are two mirrored problems: the second class's is the file's, and values count twice."""
    replay = Replay("own_mocha", engine, dtype)
    file, rows, hyper = replay.file, replay.file["results"][case], replay.file["hyper"]
    order = Coordinates(rows, monkeypatch)

    class Given(ua.Mocha):
        def round(self, server, cohort):
            order.round = cohort.round
            super().round(server, cohort)

    passes = hyper["sdca_frac"]
    reading = "program" if case == "as_program" else "remap"
    method = Given(hyper["lam"], hyper["inner"][case], passes, passes, reading, certificate=True)
    y = [(np.array(some) > 0).astype(np.int64) for some in file["y"]]
    everybody = [[0, 1, 2]] * len(rows)
    seen = replay.run(nn.Linear(3, 2, bias=False), method, file["x"], y, everybody, 2)
    sigma = np.eye(3) / 3
    for row, server, clients in zip(rows, seen.server, seen.clients, strict=True):
        replay.near(server["primal"] / 2, row["primal"])
        replay.near(server["dual"] / 2, row["dual"])
        for k, alpha in enumerate(row["alpha"]):
            replay.near(clients[k]["alpha"][: len(alpha), 1], alpha)
            replay.near(clients[k]["alpha"][: len(alpha), 0], -np.array(alpha))
        if reading == "remap":
            replay.near(sigma @ server["b"].numpy()[:, 3:] / hyper["lam"], np.array(row["W"]).T)
        replay.near(server["own"][:, 3:].T, row.get("W_after", row["W"]))
        replay.near(server["own"][:, :3].T, -np.array(row.get("W_after", row["W"])))
        sigma = np.array(row.get("Sigma_after", sigma))
        replay.near(server["sigma"], sigma)
        replay.near(server["rho"], row.get("rho_after", row["rho"]))


@everywhere
def test_virtual_factors(engine, dtype):
    """The fits are given; cavities are those that the method's own fit would be asked with."""
    replay = Replay("own_virtual_factors", engine, dtype)
    rows, size = replay.file["results"], 5
    given = torch.zeros(len(rows), 4, 2, size, dtype=getattr(torch, dtype))  # by round and number of samples
    for t, row in enumerate(rows):
        for k, found in row["client_posterior"].items():
            mean, precision = (torch.tensor(found[name], dtype=torch.float64) for name in ("mean", "precision"))
            given[t, int(k) + 1] = torch.stack([mean, -0.5 * precision.log()])

    class Given(ua.Virtual):
        @property
        def keeps(self):
            return {**super().keeps, "cavity": ua.Field((2, "model")), "delta": ua.Field((2, "model"))}

        def client(self, me, s, m):
            asked = super().client(me, s, m)
            kept, sent = self.end(me, s, m, given[me.round][me.n.long()])
            return {**kept, **sent, "cavity": asked.args["cavity"]}, sent

    data = [np.ones((k + 1, size)) for k in range(3)], [np.zeros(k + 1) for k in range(3)]
    method = Given(replay.file["hyper"]["damping"], prior_sd=1.0, centre="zero")
    seen = replay.run(nn.Linear(size, 1, bias=False), method, *data, [r["participants"] for r in rows], None)
    for row, server, clients in zip(rows, seen.server, seen.clients, strict=True):
        for k in map(str, row["participants"]):
            mean, precision = method.moments(clients[int(k)]["cavity"])
            replay.near(mean, row["cavity"][k]["mean"])
            replay.near(precision, row["cavity"][k]["precision"])
            replay.near(clients[int(k)]["delta"], natural(row["delta_sent"][k]))
        for k, factor in enumerate(row["factors"]):
            if clients[k]["factor"].any():  # a client that has never come keeps nothing: a third of the prior
                replay.near(clients[k]["factor"], natural(factor))
            else:
                replay.near(method.prior(torch.zeros(size).double()) / 3, natural(factor))
        replay.near(server["w"], row["server"]["mean"])
        replay.near(server["posterior"][1], row["server"]["precision"])


def natural(gaussian):
    return [gaussian["precision_times_mean"], gaussian["precision"]]
