"""A real client's noise: from the operating system. What a curious server could do if it came from a key."""

import os

import numpy as np
import pytest
import torch
from test_network_messages import Direct, data, own, served, tables

from unalike import draws
from unalike.network.client import Client
from unalike.network.policy import Policy

METHOD = """
import torch
from unalike import Field, Method

class Bare(Method):  # noise on what the server knows to be zeros: a dead feature, a class that nobody has
    sends = {"noise": Field((4,), read="each"), "other": Field((4,), read="each"), "kick": Field((4,), read="each")}

    def client(self, me, s, m):
        return me.train(m.w, step=self.step, state={"kick": torch.zeros(4, dtype=m.w.dtype)}, steps=1).then(self.done)

    def step(self, theta, batches, lr, kick):
        return theta, {"kick": batches[0].normal("kick", (4,)) + batches[0].uniform("more", (4,))}

    def done(self, me, s, m, theta, kick):
        return {}, {"noise": me.normal("noise", (4,)), "other": me.normal("other", (4,)), "kick": kick}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        now = torch.stack([replies.each(name) for name in ("noise", "other", "kick")])
        server.seen = now if cohort.round == 0 else torch.cat([server.seen, now])
"""
STEP, MIX1, MIX2 = (draws._signed(n) for n in (draws._STEP, draws._MIX1, draws._MIX2))
SLICE = 8  # angles of 2^24 that are searched: a whole search takes hours of one core, minutes of a GPU


def seen(folder, rounds=2, **rules):
    """What a server sees of four clients: [exchange and field, client, 4]."""
    file = folder / "bare.py"
    folder.mkdir()
    file.write_text(METHOD)
    people = [Client(own(data(), k), folder / str(k), Policy.open(files=(file,), **rules)) for k in range(4)]
    settings = tables(rounds=rounds)
    settings["method"] = {"file": f"{file}:Bare"}
    return served(settings, Direct(people)).server.seen


def unshift(z, by):
    """Undo z ^ (z >> by)."""
    out = z
    for _ in range(64 // by):
        out = z ^ ((out >> by) & ((1 << (64 - by)) - 1))
    return out


def unhashed(z, counter):
    """Undo `draws.bits`: the key from 64 bits and the counter."""
    inverse = lambda odd: draws._signed(pow(odd % (1 << 64), -1, 1 << 64))  # noqa: E731
    z = unshift(unshift(z, 31) * inverse(MIX2), 27) * inverse(MIX1)
    return unshift(z, 30) - draws._signed((counter + 1) * STEP % (1 << 64))


def candidates(entry, angles):
    """(radius, angle), 24 bits each, of all that give this number with one of these angles."""
    turn = angles.to(torch.float32) * (2 * np.pi / (1 << 24))
    near = torch.exp(-0.5 * (entry.double() / torch.cos(turn.double())) ** 2) * (1 << 24)
    radius = near.long()[:, None] + torch.arange(-4, 4)
    share = (radius.to(torch.float32) + 1) / (1 << 24)
    found = (torch.sqrt(-2 * torch.log(share)) * torch.cos(turn)[:, None] == entry) & (radius >= 0)
    return radius[found], angles[:, None].expand_as(radius)[found]


def attacked(known, angles):
    """The keys that three numbers can have come from, if the first was made with one of these angles."""
    radius, angle = candidates(known[0], angles)
    rest = torch.arange(1 << 16)  # the bits of 64 that a number does not show
    z = ((radius << 40) | (angle << 8))[:, None] | ((rest >> 8) << 32) | (rest & 0xFF)
    keys = unhashed(z.flatten(), 0)
    for place in (1, 2):
        one = draws.bits(keys, torch.tensor(place))
        share, turn = (((one >> by) & 0xFFFFFF).to(torch.float32) for by in (40, 8))
        made = torch.sqrt(-2 * torch.log((share + 1) / (1 << 24))) * torch.cos(turn * (2 * np.pi / (1 << 24)))
        keys = keys[made == known[place]]
    return keys


def test_three_known_numbers_of_a_key_give_all_others_away(tmp_path):
    """So it would be if a real client drew its noise as a simulated one does."""
    found = seen(tmp_path / "keyed", rounds=1, repeatable=True)
    own_key = torch.tensor(draws.client_keys(0, 0, "draws 0", np.arange(4))[2])
    secret = int(draws.bits(draws.fold(own_key, draws.key(0, "noise")), torch.tensor(0)))
    around = ((secret >> 8) & 0xFFFFFF) // SLICE * SLICE + torch.arange(SLICE)  # a slice that holds the right angle
    (key,) = attacked(found[0, 2, :3], around)
    client = unhashed(key, draws.key(0, "noise"))  # of the purpose, and of the client
    assert torch.equal(draws.KeyedDraws(client).normal("noise", (4,))[3], found[0, 2, 3])
    assert torch.equal(draws.KeyedDraws(client).normal("other", (4,)), found[1, 2])


def test_numbers_of_a_real_client_come_from_no_key(tmp_path):
    found = seen(tmp_path / "secret", rounds=1)
    for client in range(4):
        for slice in range(3):
            assert not len(attacked(found[0, client, :3], slice * SLICE + torch.arange(SLICE)))
    for seed_keys in (draws.client_keys(0, 0, f"draws {exchange}", np.arange(4)) for exchange in range(3)):
        for purpose, row in (("noise", 0), ("other", 1)):
            known = draws.KeyedDraws(torch.from_numpy(seed_keys)).normal(purpose, (4,))
            assert not torch.isclose(known, found[row]).any()


def test_nothing_that_a_server_sees_decides_a_real_clients_noise(tmp_path, monkeypatch):
    """Whatever keys a job gives: the operating system's bytes decide, and nothing else."""
    once = seen(tmp_path / "once")
    assert len(once.unique()) == once.numel() == 2 * 3 * 4 * 4  # no number comes twice: not by client, round or field
    assert not torch.isin(seen(tmp_path / "again"), once).any()
    asked = []
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or bytes(k * 37 % 256 for k in range(n)))
    same, also = seen(tmp_path / "fixed", rounds=1), seen(tmp_path / "fixed too", rounds=1)
    assert torch.equal(same, also) and torch.equal(same[:, 0], same[:, 3])
    assert sum(asked) >= 2 * 4 * 4 * 4 * 8  # 64 bits for each of the 16 numbers that a client draws


@pytest.mark.parametrize("purpose", ["draws 0", "channel 0", "anything"])
def test_a_real_clients_job_gives_secret_draws_for_all_purposes(tmp_path, purpose):
    file = tmp_path / "bare.py"
    file.write_text(METHOD)
    people = [Client(own(data(), k), tmp_path / str(k), Policy.open(files=(file,))) for k in range(4)]
    settings = tables(rounds=0)
    settings["method"] = {"file": f"{file}:Bare"}
    served(settings, Direct(people))
    (node,) = people[0]._nodes.values()
    for who, shape in ((0, (5,)), (np.array([0]), (1, 5))):
        a, b = (node.job.draws(who, 0, purpose).normal("x", (5,)) for _ in range(2))
        assert a.shape == shape and not torch.equal(a, b)
