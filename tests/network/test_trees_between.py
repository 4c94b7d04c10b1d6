"""Boosted trees over the real network: the whole federation is killed by signal 9 after every tree, and goes on."""

import os
import signal

import pytest
import safetensors.torch
import torch
from test_flower import SECONDS, marked, nobody_left, unalike, wait_for  # noqa: F401 (a fixture of every test)

from unalike import config
from unalike.trees.forest import PARTS

TREES = 3
RUN = ("--data", "digits", "--partition", "dirichlet:0.3", "--method", "hist-boost", "--method.depth", 2)
RUN += ("--method.bins", 8, "--method.trees", TREES)


def lines(folder):
    file = folder / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.slow
def test_a_federation_killed_after_every_tree_grows_the_pooled_trees(tmp_path, nobody_left):  # noqa: F811
    folder, kills = tmp_path / "run", []
    words = (*RUN, "--rounds", TREES, "--folder", folder)
    while lines(folder) < TREES:
        reached = lines(folder)
        command = unalike("local-federation", 3, *(words if not reached else ("--resume", folder)), "-q")
        assert wait_for(lambda now=reached, run=command: lines(folder) > now or run.poll() is not None, 3 * SECONDS)
        if lines(folder) < TREES:
            os.kill(command.pid, signal.SIGKILL)
            kills.append(lines(folder))
        out, _ = command.communicate(timeout=SECONDS)
        assert command.returncode in (0, -9), out
        assert wait_for(lambda: not marked(nobody_left), 20)
    assert kills  # as a rule after each tree but the last; more than one may grow while this process sleeps
    found = {}
    for file in (folder / "checkpoint").rglob("*.safetensors"):
        found |= safetensors.torch.load_file(file)
    simulation = config.run(
        {
            "data": {"name": "digits", "partition": "dirichlet:0.3", "clients": 3},
            "method": {"name": "hist-boost", "depth": 2, "bins": 8, "trees": TREES},
            "run": {"rounds": TREES, "engine": "sequential"},
        }
    )
    wanted = simulation.server.values
    for name in (*PARTS, "cuts", "gain"):
        own = next(value for key, value in found.items() if key.split(".")[-1] == name)
        assert torch.equal(own, wanted[name]), name
