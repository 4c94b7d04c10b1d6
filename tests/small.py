"""A small federation and a small model for tests of everything around training."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unalike as ua

ENGINES = ("sequential", "workers", "batched", "loopback")
SIZES = (8, 4, 12, 10, 2, 6)


def federation(seed=0, sizes=SIZES, validation=False):
    """Ragged clients with a test set each, and a global test set."""
    draw = torch.Generator().manual_seed(seed)

    def samples(n, shift):
        return torch.randn(n, 5, generator=draw) + shift, torch.randint(0, 3, (n,), generator=draw)

    return ua.Federation.from_arrays(
        [samples(n, 0.2 * k) for k, n in enumerate(sizes)],
        test=samples(30, 0.5),
        client_tests=[samples(3 + k, 0.2 * k) for k in range(len(sizes))],
        client_validations=[samples(2 + k, 0.2 * k) for k in range(len(sizes))] if validation else None,
        classes=3,
    )


def model(batch_norm=False):
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(5, 4), nn.BatchNorm1d(4) if batch_norm else nn.Identity(), nn.Tanh(), nn.Linear(4, 3)
    )


LOCAL = ua.LocalTraining(epochs=1, batch_size=4, lr=0.1)


def run(method=None, *, module=None, data=None, **changes):
    given = {"rounds": 3, "clients_per_round": 3, "local": LOCAL, "engine": "sequential", "device": "cpu", **changes}
    return ua.simulate(module or model(), data or federation(), method or ua.FedAvg(), **given)


def timeless(lines):
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]


def logged(folder):
    return [json.loads(line) for line in (Path(folder) / "rounds.jsonl").read_text().splitlines()]


def states(run):
    """All that a run holds, by name."""
    out = {f"server.{n}": v for n, v in run.server.values.items()}
    for store, rows in run._stores.items():
        out |= {f"{store}.{k}.{n}": v for k in range(run.population) for n, v in rows[k].items()}
    return out


def assert_same(a, b):
    """Bit for bit: server, clients, tables, and every number of every round but the times."""
    mine, yours = states(a), states(b)
    assert mine.keys() == yours.keys()
    for name, value in mine.items():
        assert equal(value, yours[name]), name
    assert timeless(a.history) == timeless(b.history)
    if b.folder:
        assert timeless(logged(b.folder.path)) == timeless(a.history)


def equal(a, b):
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, Tensor) else a == b


def refused(match, kind=ua.UnalikeError):
    """The block must end with the project's error, in one line that matches."""
    return _Refused(match, kind)


class _Refused:
    def __init__(self, match, kind):
        self.raises = pytest.raises(kind, match=match)

    def __enter__(self):
        self.info = self.raises.__enter__()
        return self.info

    def __exit__(self, *exc):
        caught = self.raises.__exit__(*exc)
        text = str(self.info.value)
        assert text and "\n" not in text, text
        return caught
