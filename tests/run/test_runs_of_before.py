"""Runs that an earlier version began are continued by this one, and end where they would have ended then.

tests/before/NAME is a run of four rounds that was broken off in the third, as version 0.1.0 left it at commit 7caa52d;
tests/before/NAME.safetensors is what server and clients held after the fourth, uninterrupted.
"""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import unalike as ua
from unalike import testing

BEFORE = next(folder / "before" for folder in Path(__file__).parents if (folder / "before").is_dir())
LOCAL = {"epochs": 2, "batch_size": 5, "lr": 0.05, "clip_norm": 10.0, "weight_decay": 1e-3}
# method, model and data, how clients train, the rest
CASES = {
    "scaffold": (ua.Scaffold(), "mlp", {"lr_decay": 0.9}, {"clients_per_round": 3}),
    "rfedavg": (
        ua.RFedAvg(lam=0.3), "mlp", {"momentum": 0.9, "keep_optimizer": True},
        {"clients_per_round": [[0, 1, 2, 4, 5], [1, 2, 3, 4]]},
    ),
    "fedavgm": (
        ua.FedAvgM(server_momentum=0.5), "norm", {}, {"clients_per_round": 4, "buffers": "average"},
    ),
}  # fmt: skip


def go(name, **changes):
    """The run, with data and a model that are made anew."""
    method, kind, local, settings = CASES[name]
    local = ua.LocalTraining(**LOCAL, **local)
    always = {"rounds": 4, "seed": 5, "dtype": "float64", "engine": "sequential", "device": "cpu", "local": local}
    module, data = testing.task(kind)
    data = data.replace(public=None, splits={})  # which no data had then
    return ua.simulate(module, data, method, **always, **settings, checkpoint_every=2, **changes)


def found(run, place):
    """What the run holds at "server.w", "table.means" or "client3.control"."""
    owner, _, name = place.partition(".")
    if owner == "table":
        return run.server.table(name)[range(run.population)]
    return getattr(run.server, name) if owner == "server" else run.clients[int(owner.removeprefix("client"))][name]


def assert_expected(run, name):
    """To 1e-12: another processor may add in another order."""
    expected = load_file(BEFORE / f"{name}.safetensors")
    assert "server.w" in expected
    for place, value in expected.items():
        assert (found(run, place) - value).abs().max() <= 1e-12, place


@pytest.mark.parametrize("name", CASES)
def test_a_run_of_before_goes_on(name, tmp_path):
    shutil.copytree(BEFORE / name, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]  # the third was logged and not kept
    resumed = go(name, folder=tmp_path / "run", resume=True)
    assert [line["round"] for line in resumed.history] == [1, 2, 3, 4]
    assert resumed.history[:2] == lines[:2]
    assert_expected(resumed, name)


@pytest.mark.parametrize("name", CASES)
def test_the_same_run_from_its_beginning(name):
    assert_expected(go(name), name)
