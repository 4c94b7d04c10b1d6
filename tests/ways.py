"""A reply's way through stages, without a run: what clients send, and what a server makes of the sums."""

import numpy as np
import torch
from torch import nn

import unalike as ua
from unalike import draws
from unalike.channel import Channel, Passage, Sums, parse
from unalike.channel.stage import Flight, Total, Way
from unalike.contract import Field, Outcome
from unalike.nn.task import Task


def rows(values):
    return torch.tensor(values, dtype=torch.float64)


def sent(stage, told=None, seed=0, layout=None, **fields):
    """Take stacks of replies through a stage; return the way."""
    count = len(next(iter(fields.values())))
    keys = torch.from_numpy(draws.client_keys(seed, 0, "way", np.arange(count)))
    flights = {name: Flight.of(value) for name, value in fields.items()}
    way = Way(flights, draws.KeyedDraws(keys, torch.float64), lambda _: None, told=told or {}, layout=layout)
    stage.client(way)
    return way


def total(sums, came=1, expected=1.0, extra=None, values=None, normals=None, lasting=None, when=(0, 0)):
    """Return the sums of an exchange, with given draws: by purpose, or the same for all."""

    def given(table):
        def draw(purpose, shape, like):
            found = table[purpose] if isinstance(table, dict) else table
            return torch.as_tensor(found, dtype=torch.float64).reshape(shape)

        return draw

    own = {} if values is None else values
    return Total(sums, came, expected, extra or {}, own, given(normals), given(lasting), *when)


def task(size):
    """A model of so many numbers."""
    found = Task(nn.Linear(size, 1, bias=False), "squared-error", dtype=torch.float64)
    found.check(torch.zeros(2, size, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))
    return found


def channel_of(stages, size, method=None):
    """Return a channel fitted to a model of so many numbers."""
    return Channel(parse(stages), method or ua.FedAvg(weights="uniform"), task(size))


def exchanged(channel, updates, expected, seed=0, when=(0, 0), values=None):
    """Return the sums of `delta` after a whole exchange of a simulation."""
    values, field = {} if values is None else values, Field(weight="one")

    def draw(ids):
        return draws.KeyedDraws(torch.from_numpy(draws.client_keys(seed, 0, "channel", ids)), torch.float64)

    passage = Passage(channel, None, values, draw, seed, when, expected)
    ids = np.arange(len(updates))
    sums = Sums({"delta": field}, None)
    outcome = Outcome(ids, {"delta": updates}, np.ones(len(ids)), np.zeros(len(ids)))
    passage.take(outcome)
    sums.add(outcome)
    sums.add_losses(outcome.loss)
    passage.close(sums)
    return sums
