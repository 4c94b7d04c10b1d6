"""Runs on pictures that are held as bytes: the bits of runs on the same numbers, on every engine."""

import pytest
import torch
from torch import nn

import unalike as ua
from unalike.data.pixels import Pixels, kept, numbers, pixels
from unalike.engines.batched.lockstep import together

G = torch.Generator().manual_seed(3)
BYTES, LABELS = torch.randint(0, 256, (60, 2, 6, 6), dtype=torch.uint8, generator=G), torch.arange(60) % 3
HELD = pixels(BYTES, (0.5, 0.25), (0.3, 0.2))
LOCAL = {"epochs": 2, "batch_size": 4, "lr": 0.1}


def federation(x):
    columns = ua.data.Columns(x, LABELS, [0, 12, 32, 39, 60])
    rows = torch.arange(9)
    fed = ua.Federation(columns, global_test=(kept(x, rows), LABELS[rows]), classes=3)
    return fed.split_clients(test=0.2, validation=0.2).with_public(kept(x, rows + 9), LABELS[rows])


def model(kind="flat"):
    torch.manual_seed(0)
    if kind == "cnn":
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 3))


def ran(x, method, kind, local=LOCAL, rounds=2, **options):
    run = ua.simulate(
        model(kind), federation(x), method, rounds=rounds, local=ua.LocalTraining(**local), device="cpu",
        metrics=["accuracy", "f1"], **options,
    )  # fmt: skip
    lines = [{name: value for name, value in line.items() if "seconds" not in name} for line in run.history]
    return run, [p.detach() for p in run.model.parameters()], lines


def same(got, want):
    assert all(torch.equal(a, b) for a, b in zip(got[1], want[1], strict=True)) and got[2] == want[2]


ENGINES = [
    {"engine": "sequential"},
    {"engine": "workers", "workers": 2},
    {"engine": "batched", "compile": False},
    {"engine": "batched", "compile": False, "clients_at_once": 2},
    {"engine": "loopback"},
]


@pytest.mark.parametrize("kind", ["flat", "cnn"])
@pytest.mark.parametrize("options", ENGINES, ids=lambda o: f"{o['engine']}-{len(o)}")
def test_every_engine_computes_the_same_bits(options, kind):
    same(ran(HELD, ua.FedAvg(), kind, **options), ran(numbers(HELD), ua.FedAvg(), kind, **options))


@pytest.mark.parametrize(
    ("method", "local", "options"),
    [
        (ua.FedDF(steps=4), LOCAL, {"engine": "sequential"}),
        (ua.DataSharing(), LOCAL, {"engine": "batched", "compile": False}),
        (ua.Moon(), LOCAL, {"engine": "batched", "compile": False}),
        (ua.Ditto(), {**LOCAL, "augment": "flip"}, {"engine": "batched", "compile": False}),
        (ua.FedAvg(), {**LOCAL, "augment": "flip"}, {"engine": "sequential"}),
        (ua.FedAvg(), LOCAL, {"engine": "sequential", "dtype": "float64"}),
    ],
    ids=lambda v: type(v).__name__ if hasattr(v, "round") else "",
)
def test_public_sets_own_models_augmentation_and_other_types(method, local, options):
    same(ran(HELD, method, "flat", local, **options), ran(numbers(HELD), method, "flat", local, **options))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_steps_compute_the_same(dtype):
    options = {"engine": "batched", "compile": True, "dtype": dtype}
    got, want = (ran(x, ua.FedAvg(), "flat", **options) for x in (HELD, numbers(HELD)))
    for a, b in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_the_samples_of_a_run_stay_bytes():
    """Counted by the tensors' bytes: the run's own splits, test set and public set."""
    run, *_ = ran(HELD, ua.FedAvg(), "flat", rounds=1, engine="batched", compile=False)
    tensors = [*(x for _, x, _, _ in run.data.sets()), run.data.public[0]]
    assert all(isinstance(x, Pixels) for x in tensors)
    assert sum(x.nbytes for x in tensors) == sum(x.numel() for x in tensors)


def test_several_runs_in_one_stack():
    def start(x, seed):
        return lambda member: ran(x, ua.FedAvg(), "flat", seed=seed, engine="batched", compile=False, member=member)

    for got, want in zip(*(together([start(x, seed) for seed in (0, 1)]) for x in (HELD, numbers(HELD))), strict=True):
        same(got, want)
