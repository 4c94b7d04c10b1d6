"""Draws as a function of their key."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from unalike import draws

KEYS = torch.from_numpy(draws.client_keys(0, 0, "test", np.arange(50)))


def test_splitmix64_as_published():
    """The first outputs of SplitMix64 for the seed 1234567 (Vigna's C program, as Rosetta Code lists them)."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    got = draws.bits(torch.tensor(1234567), torch.arange(5)).tolist()
    assert [z % (1 << 64) for z in got] == expected


@pytest.mark.parametrize("key", [0, 1, -5, 1 << 62])
def test_uniform_moments(key):
    u = draws.uniform(torch.tensor(key), (200, 500), torch.float64)
    n = u.numel()
    assert u.shape == (200, 500) and float(u.min()) >= 0 and float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(1 / 2, abs=4 * (1 / 12 / n) ** 0.5)
    assert float(u.var()) == pytest.approx(1 / 12, abs=4 * (1 / 180 / n) ** 0.5)
    flat = u.flatten() - 0.5
    assert abs(float((flat[1:] * flat[:-1]).mean() * 12)) < 4 / n**0.5  # neighbours know nothing of each other
    cells = torch.bincount((u.flatten() * 100).long(), minlength=100).double()
    assert float(((cells - n / 100) ** 2 / (n / 100)).sum()) < 161  # 99 degrees of freedom, one in 10,000


@pytest.mark.parametrize("key", [0, 1, -5, 1 << 62])
def test_normal_moments(key):
    z = draws.normal(torch.tensor(key), (100_000,), torch.float64)
    n = len(z)
    assert torch.isfinite(z).all()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert float((z**power).mean()) == pytest.approx(mean, abs=4 * (variance / n) ** 0.5)
    for level, below in ((-1.959964, 0.025), (0.674490, 0.75), (2.326348, 0.99)):
        assert float((z < level).double().mean()) == pytest.approx(below, abs=4 * (below * (1 - below) / n) ** 0.5)


def test_one_by_one_equals_stacked():
    stacked = vmap(lambda k: (draws.uniform(k, (3, 4)), draws.normal(k, (5,)), draws.fold(k, 7)))(KEYS)
    for k, key in enumerate(KEYS):
        for together, alone in zip(
            stacked, (draws.uniform(key, (3, 4)), draws.normal(key, (5,)), draws.fold(key, 7)), strict=True
        ):
            assert torch.equal(together[k], alone)


def test_float32_and_float64_draw_the_same_uniforms():
    for key in KEYS[:5]:
        single, double = (draws.uniform(key, (1000,), dtype) for dtype in (torch.float32, torch.float64))
        assert single.dtype == torch.float32 and double.dtype == torch.float64
        assert torch.equal(single.double(), double)
        near = (draws.normal(key, (1000,), dtype).double() for dtype in (torch.float32, torch.float64))
        torch.testing.assert_close(*near, atol=1e-4, rtol=0)


def test_a_longer_draw_begins_with_the_shorter():
    assert torch.equal(draws.uniform(KEYS[0], (10,))[:4], draws.uniform(KEYS[0], (4,)))


def test_keys_differ():
    keys = [
        draws.key(seed, *parts)
        for seed in range(5)
        for parts in ((), (0,), (1,), ("0",), ("a",), ("a", 0), ("a", "0"), ("a0",), (0, "a"), (0, 0))
    ]
    assert len(set(keys)) == len(keys)
    assert all(-(1 << 63) <= k < 1 << 63 for k in keys)
    clients = [
        draws.client_keys(seed, round, purpose, np.arange(1000))
        for seed in (0, 1)
        for round in (-1, 0, 1)
        for purpose in ("train 0", "train 1", "draws 0")
    ]
    assert len(np.unique(np.concatenate(clients))) == 18 * 1000


def test_keys_do_not_depend_on_company_or_number_type():
    ids = np.array([7, 0, 999_999_999])
    alone = [draws.client_keys(3, 2, "train", np.array([k]))[0] for k in ids]
    assert draws.client_keys(3, 2, "train", ids).tolist() == alone
    assert draws.client_keys(3, 2, "train", ids.astype(np.int32)).tolist() == alone
    assert draws.key(3, 2, "x") == draws.key(np.int64(3), np.int64(2), "x")
    assert draws.generator(3, "a", 1).random() == draws.generator(3, "a", np.int32(1)).random()
    assert draws.generator(3, "a", 1).random() != draws.generator(3, "a", 2).random()


def test_a_folded_key_is_a_new_one():
    children = torch.stack([draws.fold(KEYS, k) for k in range(20)])
    assert len(torch.unique(torch.cat([children.flatten(), KEYS]))) == 20 * 50 + 50
    assert torch.equal(draws.fold(KEYS, 3), draws.fold(KEYS, torch.tensor(3)))
