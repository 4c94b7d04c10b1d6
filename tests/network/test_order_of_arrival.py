"""Clients answer in any order; neither sums, nor rows, nor evaluations show which."""

import numpy as np
import pytest
import torch
from small import timeless
from test_network_messages import Direct, data, own, served, tables

from unalike.network.client import Client
from unalike.network.policy import Policy


class Backwards(Direct):
    """The client that was asked last answers first."""

    def exchange(self, requests, seconds):
        return super().exchange(dict(reversed(requests.items())), seconds)


def ran(link, folder, name):
    people = [Client(own(data(), k), folder / f"site-{k}", Policy.open(repeatable=True)) for k in range(4)]
    return served(tables(name), link(people))


@pytest.mark.parametrize("name", ["fedavg", "fedfa", "rfedavg", "local-only"])
def test_the_last_may_be_the_first(name, tmp_path):
    """FedFa reads every client's numbers and gives each its weight; rFedAvg keeps a row of each."""
    one, other = ran(Direct, tmp_path / "one", name), ran(Backwards, tmp_path / "other", name)
    assert torch.equal(one.server.w, other.server.w)
    assert timeless(one.history) == timeless(other.history)
    assert other.client_values["client"].tolist() == [0, 1, 2, 3]
    for key, values in one.client_values.items():
        np.testing.assert_array_equal(values, other.client_values[key], key)
    assert len(set(one.client_values["loss"])) == 4
