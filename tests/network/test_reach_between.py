"""What methods can ask for, between server and clients without a network: as in a simulation."""

from pathlib import Path

import pytest
import reach
import torch
from test_network_messages import Direct, data, own, same_as_simulated, served, tables
from test_public_set import public

from unalike.network.client import Client
from unalike.network.policy import Policy

FILE = Path(reach.__file__).resolve()
ROWS = 11  # of the public set, as the toys take them


@pytest.mark.parametrize("toy", reach.REACHING, ids=lambda toy: toy.__name__)
def test_a_federation_computes_what_a_simulation_does(toy, tmp_path):
    whole, pair = data(), public(ROWS)
    rules = Policy.open(repeatable=True, files=(FILE,))
    people = [Client(own(whole, k).replace(classes=3, public=pair), tmp_path / str(k), rules) for k in range(4)]
    settings = tables(rounds=2, run={"dtype": "float64"})
    settings["method"] = {"file": f"{FILE}:{toy.__name__}"}
    same_as_simulated(settings, Direct(people), public=pair)


def test_a_real_client_keeps_as_many_numbers_as_it_has_samples(tmp_path):
    fed = data()
    people = [Client(own(fed, k).replace(classes=3), tmp_path / str(k), Policy.open(files=(FILE,))) for k in range(4)]
    settings = tables(rounds=1)
    settings["method"] = {"file": f"{FILE}:Dual"}
    served(settings, Direct(people))
    for k, person in enumerate(people):
        (node,) = person._nodes.values()
        state, _ = node.state.read()
        assert tuple(state["alpha"].shape) == (int(fed.sizes[k]),) and bool((state["alpha"] > 0).all())


def test_the_server_does_not_know_what_a_real_client_draws(tmp_path):
    """Draws in a step may be noise that protects: at a real client they do not come from the run's seed."""
    fed = data()
    ends = []
    for rules in (Policy.open(files=(FILE,)), Policy.open(files=(FILE,)), Policy.open(files=(FILE,), repeatable=True)):
        folder = tmp_path / str(len(ends))
        people = [Client(own(fed, k).replace(classes=3), folder / str(k), rules) for k in range(4)]
        settings = tables(rounds=1)
        settings["method"] = {"file": f"{FILE}:Noisy"}
        ends.append(served(settings, Direct(people)).server.w)
    assert not torch.allclose(ends[0], ends[1]) and not torch.allclose(ends[0], ends[2])
