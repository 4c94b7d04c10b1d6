"""Sums under encryption as a stage, in simulation and loopback: the bits of a secure sum, everything inside."""

import pytest
import torch
from small import federation, refused, run

import unalike as ua
from unalike.channel import Ckks, Paillier, acting
from unalike.crypto import paillier, tags

DATA = federation(sizes=(8, 4, 12))
CHANNELS = {"paillier:1024": "secure-sum", "ckks:symmetric": "secure-sum:bits=30:limit=256", "ckks": None}


def summed(channel, method=None, rounds=1, **changes):
    return run(method, data=DATA, rounds=rounds, clients_per_round=1.0, channel=channel, **changes)


@pytest.mark.parametrize("channel", CHANNELS)
def test_simulation_and_loopback_have_the_same_bits(channel):
    done, real = summed(channel, ua.Scaffold()), summed(channel, ua.Scaffold(), engine="loopback")
    assert torch.equal(done.server.w, real.server.w)
    line, other = done.history[0], real.history[0]
    assert [line[n] for n in ("train_loss", "bytes_up", "bytes_down")] == [
        other[n] for n in ("train_loss", "bytes_up", "bytes_down")
    ]
    if CHANNELS[channel]:
        assert torch.equal(done.server.w, summed(CHANNELS[channel], ua.Scaffold()).server.w)


def test_short_codes_are_packed():
    """39 numbers of 8 bits and 2 for padding are one ciphertext; beside it one for loss, trained, samples, count and
    five tags; each has its row in the list, all vote, two clients open the sum."""
    channel = "clip:1.0,quantise:8:0.1,paillier:1024"
    done = summed(channel, ua.FedAvg(weights="uniform"))
    width = 2 * 1024 // 8
    opened = -(-39 * 10 // 8) + -(-(4 + 5) * 42 // 8)
    row, vote = 8 + 32 + 16, 32
    assert done.history[0]["bytes_up"] == 3 * (2 * width + row + vote) + 2 * opened
    plain = summed("clip:1.0,quantise:8:0.1", ua.FedAvg(weights="uniform"))
    torch.testing.assert_close(done.server.w, plain.server.w, rtol=0, atol=1e-6)


def test_trees_run_under_paillier_and_are_refused_by_ckks():
    """Their whole numbers are too long for CKKS."""
    small = ua.METHODS["hist-boost"](trees=1, depth=1, bins=4)
    go = lambda channel, engine="sequential": ua.simulate(  # noqa: E731
        None, DATA, small, rounds=1, clients_per_round=1.0, channel=channel, engine=engine
    )
    assert go("paillier:1024", "loopback").history[0]["train_loss"] == go("secure-sum").history[0]["train_loss"]
    with refused("is of whole numbers, too long for CKKS: take paillier or secure-sum"):
        go("ckks")


def test_single_values_are_refused_by_name():
    for stage in (Paillier(), Ckks()):
        with refused(f"channel: {stage}: FedAvgR reads 'mean' of every single client"):
            acting([stage], ua.METHODS["fedavgr"]())


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ("topk:0.1,paillier", "entries of each client's own choice"),
        ("quantise:8,ckks", "a unit of each client's own"),
        ("paillier,clip:1.0", "must come before"),
        ("secure-sum,paillier", "one of them is enough"),
        ("ckks:private", "key must be"),
        ("paillier:512", "key"),
        ("ckks:bits=36:limit=64", r"longer than the 38 bits .* at most 35 bits"),
        ("paillier:least=4", "paillier: 3 clients take part, and a sum of fewer than 4"),
        ("ckks:limit=1e-6", "'delta' goes to .*, beyond 1e-06: give ckks a larger limit"),
    ],
)
def test_what_cannot_be_is_refused(channel, words):
    data = federation(sizes=(8, 4, 12, 10, 6)) if "36" in channel else DATA
    with refused(words):
        run(data=data, rounds=1, clients_per_round=1.0, channel=channel)


def test_ckks_says_how_many_clients_it_adds():
    for name, bits in ((":tag 0", tags.BITS), ("delta", 28)):
        Ckks().check_codes(name, bits, 1024, False)
        with refused("1025 clients are too many for CKKS"):
            Ckks().check_codes(name, bits, 1025, False)
    with refused("give it at most 28 bits"):
        Ckks().check_codes("delta", 30, 1024, False)


def test_who_can_open_what_is_said():
    for channel, has in (
        ("paillier", "the public one"),
        ("ckks", "the public one"),
        ("ckks:symmetric", "no key at all"),
    ):
        said = [row.words for row in summed(channel).who_sees() if row.who == "together"]
        assert said == [
            f"all 3 clients hold the secret key, the server {has}: the server sees ciphertexts; together with any one "
            "client it opens everybody's reply; a server that lies has only sums opened that more than half of their "
            "clients agree to, each to one in an exchange: from one exchange it learns nothing of fewer than 3 clients "
            "together"
        ]
    rows = [row.words for row in summed("paillier").who_sees() if row.who == "the server"]
    assert any("everything, if one client gives it the common key" in words for words in rows)
    assert not any("loss" in words for words in rows)


def test_the_names_of_a_flag(monkeypatch):
    assert str(Paillier()) == "paillier:2048" and Paillier().key_bits == paillier.BITS
    assert [ua.channel.parse("ckks:symmetric")[0].scheme, Ckks().scheme] == ["ckks-symmetric", "ckks"]
