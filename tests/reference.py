"""Federated averaging in a few lines of plain PyTorch: what the engines' results are held against."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

import unalike as ua
from unalike.contract import Field, Method
from unalike.nn.layers import copied

ENGINES = ("sequential", "workers", "batched", "loopback")


class Each(Method):
    """FedAvg whose server also keeps every client's own difference."""

    sends = {"delta": Field(read="each")}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        server.deltas = replies.each("delta")
        server.w = server.w + replies.mean("delta")


def federation(sizes, features=(3,), classes=3, seed=0, **more):
    """Clients of these sizes, float64."""
    draw = torch.Generator().manual_seed(seed)
    pairs = [
        (torch.randn(n, *features, generator=draw, dtype=torch.float64), torch.randint(classes, (n,), generator=draw))
        for n in sizes
    ]
    return ua.Federation.from_arrays(pairs, classes=classes, **more)


def seeded(make, seed=0):
    """A module with weights of its own, float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def mlp():
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))


def simulate(module, fed, local, engine="sequential", **more):
    """A short run in float64 without evaluation."""
    options = {"rounds": 1, "dtype": "float64", "evaluate_clients": "none", **more}
    return ua.simulate(module, fed, options.pop("method", Each()), local=local, engine=engine, **options)


def batches(n, batch_size, steps, drop_last=False):
    """The stored order cut into batches, again and again: slices."""
    size = batch_size or n
    starts = [a for a in range(0, n, size) if not drop_last or a + size <= n]
    return [slice(starts[k % len(starts)], min(starts[k % len(starts)] + size, n)) for k in range(steps)]


def train(module, x, y, slices, optimizer, clip_norm=None, loss=F.cross_entropy):
    """Plain PyTorch training, in place."""
    module.train()
    for rows in slices:
        optimizer.zero_grad()
        loss(module(x[rows]), y[rows]).backward()
        if clip_norm is not None:
            clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()


def vector(module):
    return parameters_to_vector([p for p in module.parameters() if p.requires_grad]).detach().clone()


def fedavg(module, fed, make_optimizer, slices, rounds=1, cohorts=None, kept=None, clip_norm=None):
    """FedAvg with `make_optimizer(parameters, client, round)` and `slices(client, round)`; float buffers are averaged.

    With a dict `kept` each client has one optimizer for the whole run. Returns the module and the last differences.
    """
    module = copied(module)
    for t in range(rounds):
        cohort = cohorts[t] if cohorts else range(len(fed))
        start = {n: v.clone() for n, v in module.state_dict().items()}
        total = {n: torch.zeros_like(v) for n, v in start.items() if v.is_floating_point()}
        weight, deltas = 0, []
        for k in cohort:
            x, y = fed.train.of(k)
            if kept is not None and k in kept:
                own, optimizer = kept[k]
            else:
                own = copied(module)
                optimizer = make_optimizer(own.parameters(), k, t)
            own.load_state_dict(start)
            for group in optimizer.param_groups:
                group["lr"] = make_optimizer(own.parameters(), k, t).param_groups[0]["lr"]
            train(own, x, y, slices(k, t), optimizer, clip_norm)
            if kept is not None:
                kept[k] = own, optimizer
            weight += len(y)
            for n in total:
                total[n] += len(y) * own.state_dict()[n]
            deltas.append(vector(own) - vector(module))
        module.load_state_dict({**start, **{n: v / weight for n, v in total.items()}})
    return module, torch.stack(deltas)
