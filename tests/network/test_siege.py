"""benchmarks/siege.py: changed messages at both ends are refused with a reason, say the same, or are lies of their own
client's; none crashes, hangs, or changes a sum."""

import importlib.util
import sys

import pytest
import torch
from paths import ROOT

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def siege():
    spec = importlib.util.spec_from_file_location("siege", ROOT / "benchmarks" / "siege.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def counted(found):
    """The number of shots by fate, at both ends together."""
    out = dict.fromkeys(("refused", "harmless", "lie", "answered"), 0)
    for fate, count in found.fates.items():
        out[fate.rpartition(": ")[2]] += count
    return out


@pytest.mark.slow
def test_a_few_changes_of_every_kind(siege):
    found = siege.besiege(120, seed=1, scenes=("fedavg", "sealed", "prepared"), rounds=6)
    assert not found.faults, found.faults[:5]
    fates = counted(found)
    assert found.shots >= 120 and fates["refused"] > 60 and fates["lie"] and fates["answered"]


@pytest.mark.slow
def test_ten_thousand_changes(siege):
    found = siege.besiege(10_000, seed=2)
    assert not found.faults, found.faults[:5]
    assert found.shots >= 10_000 and counted(found)["refused"] > 5_000


# ---------------------------------------------------------------- the siege notices


def test_an_answer_that_counts_twice_is_noticed(siege, monkeypatch):
    """As it did once: a second answer of the same client was added to the sum."""
    field = sys.modules["_siege.field"]

    class Careless(field.server.Clients):
        def _answers(self, requests):
            for client, answer in self.link.exchange(requests, self.deadline):
                if isinstance(answer, field.Lost):
                    self.refuse(client, answer)
                else:
                    yield client, answer

    monkeypatch.setattr(field.server, "Clients", Careless)
    _, wrong = field.server_siege("fedavg", ("request",), 8, seed=0)
    assert "is not that of the run without these answers" in wrong


def test_a_client_that_breaks_is_noticed(siege, monkeypatch):
    from unalike.network import client

    field = sys.modules["_siege.field"]
    monkeypatch.setitem(client.ANSWERS, "hello", lambda self, request: request.header["version"]["major"])
    _, faults = field.client_siege("fedavg", 3, seed=0)
    assert faults
