"""What the peers that run PyTorch share: the module, and the local training that a user of Flower writes by hand."""

import functools

import torch
from torch.nn import functional as F
from work import Work


def module_of(work):
    """The very module that unalike gets: made of torch.nn's own classes alone, it can be read in every environment."""
    return torch.load(work.folder / "module.pt", weights_only=False)


@functools.cache
def loaded(folder):
    """The work and its module, read once a process."""
    work = Work(folder)
    return work, module_of(work)


def weights_of(module):
    return {name: value.detach().numpy().copy() for name, value in module.named_parameters()}


def train(module, x, y, work):
    """One client's epochs of SGD, as one would write them by hand."""
    optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        order = torch.randperm(len(y)) if work.shuffle else torch.arange(len(y))
        for i in range(0, len(y), work.batch):
            rows = order[i : i + work.batch]
            optimizer.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
