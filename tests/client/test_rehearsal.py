"""A server rehearses a client function on two stand-in samples, one step a training: the fields that it sends."""

import numpy as np
import pytest
import small
import torch
from torch import nn

import unalike as ua
from unalike.client import ClientStore, Job, OneClient, Rehearsal, state_shapes
from unalike.contract import BUFFERS, Call
from unalike.nn.task import Task


def rehearsal(method, module=None, **local):
    local = ua.LocalTraining(**{"epochs": 7, "batch_size": 4, "lr": 0.1, **local})
    task, data = Task(module or small.model()), small.federation()
    task.check(data.train.x, data.train.y)
    states = ClientStore(state_shapes(method, task, local), len(data))
    return Rehearsal(Job(method, task, data, local, 0, states, float(np.mean(small.SIZES))))


def message(job, **more):
    shared = {"w": job.task.start, **more}
    if job.task.buffer_layout.size:
        shared[BUFFERS] = job.task.start_buffers
    return Call("client", shared, {}, 0, 0)


@pytest.fixture
def steps(monkeypatch):
    """How many steps were taken."""
    taken, descend = [], OneClient._descend
    monkeypatch.setattr(OneClient, "_descend", lambda *given: taken.append(1) or descend(*given))
    return taken


@pytest.mark.parametrize("method", [ua.FedAvg(), ua.OneShot(epochs=300)], ids=["the run's", "its own"])
def test_one_step_stands_for_a_training_of_any_length(method, steps):
    job = rehearsal(method, drop_last=True)  # two samples are less than a batch
    assert job.sends(message(job)) == {"delta"}
    assert len(steps) == 1


def test_state_and_statistics_too():
    job = rehearsal(ua.Scaffold(), small.model(batch_norm=True))
    assert job.sends(message(job, control=torch.zeros_like(job.task.start))) == {"delta", "control", BUFFERS}


class Contrast(nn.Module):
    """Looks at the differences within a batch, and refuses a batch of one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        if len(x) < 2:
            raise ValueError("a batch of one")
        return self.layer(x - x.mean(0))


def test_the_stand_in_has_as_many_samples_as_every_model_has_been_tried_on():
    job = rehearsal(ua.FedAvg(), Contrast())
    assert job.sends(message(job)) == {"delta"}


def test_the_stand_in_has_the_public_set_and_further_splits():
    method, local, task = ua.FedAvg(), ua.LocalTraining(), Task(small.model())
    data = small.federation().with_public(torch.zeros(9, 5)).named_splits(support=0.5)
    task.check(data.train.x, data.train.y)
    job = Job(method, task, data, local, 0, ClientStore(state_shapes(method, task, local), len(data)), 8.0)
    found = Rehearsal(job).data
    assert found.public_rows == 9 and found.public[1] is None and found.splits["support"].sizes.tolist() == [2]
