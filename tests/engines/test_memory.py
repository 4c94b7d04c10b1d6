"""The batched engine's memory: as many clients as fit, and one clear line for what cannot."""

import pytest
import small
import torch

import unalike as ua
from unalike.engines.batched.engine import in_bytes
from unalike.errors import UnalikeError


@pytest.mark.parametrize(
    ("given", "want"),
    [(7, 7), ("7", 7), ("8GB", 8 * 10**9), ("8 gib", 8 << 30), ("1.5 MB", 1_500_000), ("2kib", 2048), ("9b", 9)],
)
def test_sizes_are_read(given, want):
    assert in_bytes(given) == want


@pytest.mark.parametrize("given", ["", "GB", "8 PB", "-3", "0", 0, "1e9", True, "8 G B"])
def test_sizes_that_are_none(given):
    with pytest.raises(UnalikeError, match="memory="):
        in_bytes(given)


def each(**options):
    return small.run(engine="batched", rounds=0, **options).engine._bytes_each()


def test_a_budget_decides_how_many_are_stacked_and_changes_nothing_else():
    room = small.run(engine="batched", memory=2 * each())
    assert room.engine.clients_at_once == 2
    assert torch.equal(room.server.w, small.run(engine="batched", clients_at_once=2).server.w)
    assert torch.allclose(room.server.w, small.run(engine="batched").server.w, rtol=0, atol=1e-6)


def test_a_client_of_a_larger_batch_needs_more():
    assert each(local=ua.LocalTraining(batch_size=8)) > each(local=ua.LocalTraining(batch_size=2))


def test_what_cannot_fit_is_said_before_the_start():
    one = each()
    with small.refused("One client needs about .* are available: take a smaller batch_size"):
        small.run(engine="batched", memory=one - 1)
    with small.refused("6 clients at once need about .* are available: use clients_at_once=3"):
        small.run(engine="batched", clients_at_once=6, memory=3 * one)
    with small.refused("only .* are free: give less"):
        small.run(engine="batched", memory="900000 GB")
    assert small.run(engine="batched", clients_at_once=3, memory=3 * one).engine.clients_at_once == 3


def test_data_larger_than_the_gpu_are_said_to_be(monkeypatch):
    fed = small.federation()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    with pytest.raises(UnalikeError, match=r"The data need .* GB on the GPU, 1e-06 GB are free"):
        fed.to("cuda")
