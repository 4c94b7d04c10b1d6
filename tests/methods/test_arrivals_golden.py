"""FedAsync, FedBuff and layer-wise updates: every number of channel_asynchronous.json, on every engine, and the reading
of the latter that has no golden numbers, by hand."""

import dataclasses as dc
import itertools

import numpy as np
import pytest
import torch
from goldens import golden
from torch import nn

import unalike as ua
from unalike import testing

CASES = {case["name"]: case for case in golden("channel_asynchronous")["cases"]}
EVERYWHERE = pytest.mark.parametrize("engine", ["sequential", "workers", "batched", "loopback"])


def written(a, b):
    return "constant" if a is None else f"polynomial:{a}" if b is None else f"hinge:{a}:{b}"


class Given:
    """Clients that reply, each time they are asked, with the next of the samples that they were given."""

    def client(self, me, s, m):
        return me.sum(self.pick, turn=s.turn).then(self.answer)

    def pick(self, batch, turn):
        return torch.where((batch.y == turn)[:, None], batch.x, 0.0)

    def answer(self, me, s, m, value):
        return {"turn": s.turn + 1}, {"delta": value - m.w if self.absolute else value}


@dc.dataclass(frozen=True)
class GivenAsync(Given, ua.FedAsync):
    absolute = True  # the file has models, not differences
    keeps = {"turn": ua.Field("scalar")}


@dc.dataclass(frozen=True)
class GivenBuff(Given, ua.FedBuff):
    absolute = False
    keeps = {"turn": ua.Field("scalar")}


@dc.dataclass(frozen=True)
class GivenLayers(ua.ASTW):
    @property
    def keeps(self):
        return {**super().keeps, "turn": ua.Field("scalar")}

    def client(self, me, s, m):
        return me.sum(self.pick, turn=s.turn).then(self.answer, whole=True)

    def lightly(self, me, s, m):
        return me.sum(self.pick, turn=s.turn).then(self.answer, whole=False)

    pick = Given.pick

    def answer(self, me, s, m, value, whole):
        kept, sent = self.trained(me, s, m, value, whole)
        return {**kept, "turn": s.turn + 1}, sent


def clients(replies, sizes):
    """Return the federation of clients that have these replies as samples, and others that nobody looks at."""
    width, data = max(len(r[0]) for r in replies if r), []
    for given, size in zip(replies, sizes, strict=True):
        x, y = np.zeros((size, width)), np.full(size, -1.0)
        for k, values in enumerate(given):
            x[k, : len(values)], y[k] = values, k
        data.append((x, y))
    return ua.Federation.from_arrays(data)


class Seen(ua.Callback):
    def __init__(self):
        self.w = []

    def on_round(self, run, line):
        self.w.append(run.server.w.tolist())


def simulate(module, fed, method, engine, **settings):
    seen, local = Seen(), ua.LocalTraining(steps=1, batch_size=None)
    settings = {"engine": engine, "dtype": "float64", "device": "cpu", "callbacks": [seen], "local": local, **settings}
    return seen, ua.simulate(ua.models.keep_start(module), fed, method, evaluate_clients="none", **settings)


@EVERYWHERE
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case["rule"] != "temporal_layerwise"])
def test_arrivals(name, engine):
    case = CASES[name]
    steps, size = case["steps"], case.get("buffer", 1)
    groups = [steps[k : k + size] for k in range(0, len(steps) - size + 1, size)]
    value = "delta" if case["rule"] == "fedbuff" else "trained"
    replies = [[s[value] for s in steps if s["client"] == k] for k in range(4)]
    if case["rule"] == "fedbuff":
        staleness = "polynomial:0.5" if case["scale_by_staleness"] else "constant"
        method = GivenBuff(size, case["server_lr"], staleness)
    else:
        method = GivenAsync(case["alpha"], written(case["a"], case["b"]))
    module = nn.Linear(len(case["w0"]), 1, bias=False)
    module.weight.data = torch.tensor([case["w0"]], dtype=torch.float64)
    arrivals = [[(s["client"], s["started_at_version"]) for s in group] for group in groups]
    settings = {"asynchronous": arrivals, "rounds": len(groups), "clients_per_round": 4}
    seen, run = simulate(module, clients(replies, [10] * 4), method, engine, **settings)
    for w, group, line in zip(seen.w, groups, run.history, strict=True):
        assert w == pytest.approx(group[-1]["w"], abs=1e-12)
        assert line["staleness"] == pytest.approx(np.mean([s["staleness"] for s in group]))


def layers(case, method, engine):
    """Return the models after each round of a case of layer-wise updates."""
    sent = [s for s in case["steps"] if "client" in s]
    replies = [[s["values"] for s in sent if s["client"] == k] for k in range(3)]
    cohorts = [[s["client"] for s in sent if s["round"] == t] for t in range(1, 6)]
    module = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False))
    for layer in module:
        nn.init.zeros_(layer.weight)
    fed = clients([[[*v, 0.0, 0.0][:4] for v in given] for given in replies], case["sizes"])
    fed = ua.Federation.from_arrays([(x, y) for x, y in map(fed.train.of, range(3))])
    return simulate(Wide(module), fed, method, engine, clients_per_round=cohorts, rounds=5)[0].w, cohorts, replies


class Wide(nn.Module):
    """A network of two layers of two weights, for samples of four numbers."""

    def __init__(self, layers):
        super().__init__()
        self.first, self.last = layers

    def forward(self, x):
        return self.last(self.first(x[..., :2]))[..., :1]


@EVERYWHERE
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case["rule"] == "temporal_layerwise"])
def test_layers(name, engine):
    case = CASES[name]
    found, *_ = layers(case, GivenLayers(5, 2, case["base"], deep="last"), engine)
    assert found == [pytest.approx(s["w"], abs=1e-12) for s in case["steps"] if "weights" in s]


def test_layers_may_have_their_own_rounds():
    case = CASES["temporal_layerwise_base_2"]
    found, _, replies = layers(case, GivenLayers(5, 2, 2.0, deep="last", stamp="layers"), "batched")
    sizes, ages = np.array(case["sizes"]), np.array([0.0, 4.0, 0.0])  # in round 4 client 1 has sent no deep layers yet
    deep = np.array([replies[0][-1][2:], [0.0, 0.0], replies[2][-1][2:]])
    weights = sizes * 2.0**-ages
    assert found[3][2:] == pytest.approx(weights @ deep / weights.sum(), abs=1e-12)
    one_stamp, *_ = layers(case, GivenLayers(5, 2, 2.0, deep="last"), "batched")
    assert found[3][:2] == pytest.approx(one_stamp[3][:2]) and found[3][2:] != pytest.approx(one_stamp[3][2:])


def test_deep_layers_change_only_when_they_travel():
    seen = Seen()
    run = testing.run(ua.ASTW(3, 1), "mlp", rounds=5, engine="sequential", callbacks=[seen])
    heads = [run.server.layout.head(torch.tensor(w)).tolist() for w in seen.w]
    bodies = [run.server.layout.body(torch.tensor(w)).tolist() for w in seen.w]
    assert heads[0] == heads[1] != heads[2] == heads[3] == heads[4]  # the third round of a loop is the deep one
    assert all(one != other for one, other in itertools.pairwise(bodies))
