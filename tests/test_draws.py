"""Draws as a function of their key."""

import numpy as np
import pytest
import torch
from torch.func import vmap

import unalike as ua
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


# ---------------------------------------------------------------- what clients draw from


def keyed(keys, dtype=torch.float64):
    return draws.KeyedDraws(keys, dtype)


def test_a_client_of_a_stack_draws_what_it_draws_alone():
    kinds = (
        lambda d: d.uniform("a", (3, 4)),
        lambda d: d.normal("a", (5,)),
        lambda d: d.integers("a", (2, 3), 1000),
        lambda d: d.normal("a", ()),
        lambda d: d.at(7).uniform("a", (2,)),
        lambda d: d.key(),
    )
    for kind in kinds:
        together = kind(keyed(KEYS[:6]))
        for k in range(6):
            assert torch.equal(together[k], kind(keyed(KEYS[k])))
            assert torch.equal(together[k], kind(keyed(KEYS[k : k + 1]))[0])
        assert torch.equal(together, vmap(lambda key, kind=kind: kind(keyed(key)))(KEYS[:6]))
        assert len(together.reshape(6, -1)[:, 0].unique()) == 6


def test_purposes_and_numbers_draw_apart():
    one = keyed(KEYS[0])
    seen = [one.uniform("a", (4,)), one.uniform("b", (4,)), one.at(0).uniform("a", (4,)), one.at(1).uniform("a", (4,))]
    assert len(torch.cat(seen).unique()) == 16
    assert torch.equal(one.uniform("a", (4,)), seen[0])  # and come again: a simulation can be repeated


@pytest.mark.parametrize("count, shape", [(None, (3, 4)), (2, (5,)), (2, ()), (None, ()), (3, (0,))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_secret_draws_have_the_shape_and_never_come_again(count, shape, dtype):
    secret = draws.SecretDraws(count, "cpu", dtype)
    want = (*(() if count is None else (count,)), *shape)
    for kind in (secret.uniform, secret.normal, secret.at(3).normal):
        a, b = kind("same", shape), kind("same", shape)
        assert a.shape == b.shape == want and a.dtype == dtype
        assert not a.numel() or not torch.equal(a, b)
    assert secret.integers("x", shape, 10).shape == want and secret.key().shape == want[: len(want) - len(shape)]


def test_secret_draws_have_the_right_law():
    secret = draws.SecretDraws(2, "cpu", torch.float64)
    u, z, k = secret.uniform("u", (50_000,)), secret.normal("z", (50_001,)), secret.integers("k", (50_000,), 7)
    assert float(u.mean()) == pytest.approx(1 / 2, abs=6 * (1 / 12 / u.numel()) ** 0.5)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert float((z**power).mean()) == pytest.approx(mean, abs=6 * (variance / z.numel()) ** 0.5)
    flat = z.flatten()
    half = len(flat) // 2  # the two numbers of a pair know nothing of each other
    assert abs(float((flat[:half] * flat[half : 2 * half]).mean())) < 6 / half**0.5
    assert (torch.bincount(k.flatten(), minlength=7) - 100_000 / 7).abs().max() < 6 * (100_000 / 7) ** 0.5


def from_system(monkeypatch, word):
    """Let the operating system give this word of 64 bits, again and again."""
    monkeypatch.setattr(draws.os, "urandom", lambda n: word.to_bytes(8, "little") * (n // 8))


@pytest.mark.parametrize("dtype, digits", [(torch.float32, 24), (torch.float64, 53)])
def test_secret_uniforms_use_the_bits_that_the_dtype_holds(dtype, digits, monkeypatch):
    secret = draws.SecretDraws(None, "cpu", dtype)
    from_system(monkeypatch, (1 << 64) - 1)
    assert float(secret.uniform("u", ())) == 1 - 2.0**-digits  # not 1
    from_system(monkeypatch, 1 << (64 - digits))
    assert float(secret.uniform("u", ())) == 2.0**-digits


@pytest.mark.parametrize("word, wanted", [(0, (2 * 53 * np.log(2)) ** 0.5), ((1 << 64) - 1, 0.0)])
def test_secret_normals_at_the_ends(word, wanted, monkeypatch):
    from_system(monkeypatch, word)
    assert draws.SecretDraws(None, "cpu", torch.float64).normal("z", ()).item() == pytest.approx(wanted, abs=1e-7)


def test_no_whole_numbers_beyond_what_a_simulation_draws():
    for some in (keyed(KEYS[0]), draws.SecretDraws(None)):
        with pytest.raises(ua.UnalikeError, match="it must be from 1 to 2\\^24"):
            some.integers("k", (), (1 << 24) + 1)


# ---------------------------------------------------------------- many numbers, a block at a time

COUNTS = [0, 1, 7, 8, 9, 16, 35]  # with blocks of 8: none, parts of one, whole ones, and both


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("clients", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_numbers_are_drawn_a_block_at_a_time(dtype, clients, count, monkeypatch):
    keys = KEYS[:clients]
    whole = {law: law(keys, (count,), dtype) for law in (draws.uniform, draws.normal)}
    monkeypatch.setattr(draws, "BLOCK", 8)
    for law, wanted in whole.items():
        assert torch.equal(law(keys, (count,), dtype), wanted)
    pieces = torch.full((clients, count), torch.nan, dtype=dtype)
    for place, block in draws.KeyedDraws(keys, dtype).uniform_blocks("a", count):
        assert block.dtype == dtype and pieces[place].shape == block.shape and pieces[place].isnan().all()
        pieces[place] = block
        block.fill_(-1.0)  # a block is the caller's own
    assert torch.equal(pieces, draws.KeyedDraws(keys, dtype).uniform("a", (count,)))


def test_blocks_of_several_dimensions(monkeypatch):
    wanted = draws.uniform(KEYS[:2], (7, 5)), draws.normal(KEYS[:2], (7, 5))
    monkeypatch.setattr(draws, "BLOCK", 8)
    for found, whole in zip((draws.uniform(KEYS[:2], (7, 5)), draws.normal(KEYS[:2], (7, 5))), wanted, strict=True):
        assert torch.equal(found, whole)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("key", [0, 1, -5, 1 << 62])
def test_fine_normals_are_those_of_a_gpu(key, count, monkeypatch):
    """Two hashes make a number: the even ones its radius, the odd ones its angle, with 53 bits each."""
    shares = [(z % (1 << 64) >> 11) / 2**53 for z in draws.bits(torch.tensor(key), torch.arange(2 * count)).tolist()]
    radius, angle = (torch.tensor(shares[k::2], dtype=torch.float64) for k in (0, 1))
    wanted = torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * torch.pi * angle)
    assert torch.equal(draws.fine_normal(torch.tensor(key), (count,)), wanted)
    monkeypatch.setattr(draws, "SERIAL", 8)
    assert torch.equal(draws.fine_normal(torch.tensor(key), (1, count)), wanted[None])


def test_secret_numbers_come_all_at_once():
    [(place, block)] = draws.SecretDraws(2, "cpu", torch.float64).uniform_blocks("a", 5)
    assert torch.empty(2, 5)[place].shape == block.shape == (2, 5) and len(block.unique()) == 10
