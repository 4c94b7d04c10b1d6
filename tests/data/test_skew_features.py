"""Noise, impulses and shifts, by hand."""

import numpy as np
import pytest
import torch

from unalike.data import Federation
from unalike.data.skew import Impulse, Noise, Shift, samples


def made(shape=(3,), clients=5, each=400, scale=(1.0, 10.0, 0.1)):
    """Features in units of their own."""
    rng = np.random.default_rng(1)
    units = np.array(scale, np.float32).reshape(-1, *[1] * (len(shape) - 1))
    pairs = [
        ((rng.random((each, *shape)).astype(np.float32)) * units, rng.integers(0, 2, each)) for _ in range(clients)
    ]
    return Federation.from_arrays(pairs)


def moved(fed, skewed, k):
    return (skewed.train.of(k)[0] - fed.train.of(k)[0]).double()


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 2)])
def test_noise_is_in_units_of_each_feature_or_channel(shape):
    fed = made(shape)
    unit = fed.train.x.double().transpose(0, 1).reshape(3, -1).std(1)
    for k, level in enumerate([0, 0.25, 0.5, 0.75, 1]):
        added = moved(fed, fed.skewed(Noise(0.8, strength=0.5)), k).transpose(0, 1).reshape(3, -1)
        assert torch.allclose(added.std(1) / unit, torch.tensor(0.4 * level).double(), rtol=0.1)
        assert (added.mean(1).abs() < 0.1 * unit).all()


def test_noise_is_normal_and_fresh_for_every_number():
    fed = made(clients=2, each=4000)
    z = moved(fed, fed.skewed(Noise(1.0)), 1) / samples.spread(fed.train.x)
    assert abs(float((z**4).mean()) - 3) < 0.25 and abs(float((z.abs() > 1.96).double().mean()) - 0.05) < 0.01
    assert abs(float((z[:-1] * z[1:]).mean())) < 0.05 and abs(float((z[:, 0] * z[:, 1]).mean())) < 0.05
    again = Federation.from_arrays([fed.train.of(0), fed.train.of(0), fed.train.of(0)]).skewed("noise:1:2", seed=3)
    noisy = [again.train.of(k)[0] for k in range(3) if again.planted["noise"][k] == 1]
    assert len(noisy) == 1 or not torch.equal(*noisy[:2])


def test_a_split_has_noise_of_its_own():
    fed = made(clients=2)
    fed = fed.replace(test=fed.train).skewed("noise:1")
    assert not torch.equal(fed.train.of(1)[0], fed.test.of(1)[0])


def test_the_units_are_those_of_the_training_samples():
    fed = made()
    fed = fed.replace(test=fed.train)
    other = fed.replace(test=fed.map(lambda c: type(c)(c.x * 100, c.y, c.offsets)).train)
    assert torch.equal(fed.skewed("noise:1").train.x, other.skewed("noise:1").train.x)
    x = torch.tensor([[1.7e9], [1.7e9 + 6]], dtype=torch.float64)
    assert samples.spread(x).item() == 3  # which a mean of squares would lose


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_impulses_are_the_least_and_the_largest_value(shape):
    fed = made(shape)
    skewed = fed.skewed(Impulse(0.4, strength=0.5))
    low, high = samples.reach(fed.train.x)
    for k, level in enumerate([0, 0.25, 0.5, 0.75, 1]):
        x, was = skewed.train.of(k)[0].double(), fed.train.of(k)[0].double()
        hit = x != was
        assert ((x == low) | (x == high))[hit].all()
        assert abs(float(hit.double().mean()) - 0.2 * level) < 0.02
        assert not hit.any() or abs(float((x == high)[hit].double().mean()) - 0.5) < 0.1


def test_impulses_are_kept_as_strength_grows():
    fed = made()
    weak, strong = (fed.skewed(Impulse(0.4, strength=s)).train.x for s in (0.3, 0.6))
    hit = weak != fed.train.x
    assert hit.any() and torch.equal(strong[hit], weak[hit])


@pytest.mark.parametrize("shape", [(3,), (3, 2, 2)])
def test_a_group_is_shifted_by_one_vector_of_the_size_asked_for(shape):
    fed = made(shape, clients=9)
    skewed = fed.skewed(Shift(2.0, 3, strength=0.5), seed=4)
    group, unit, vectors = skewed.planted["shift"], samples.spread(fed.train.x)[0], {}
    for k in range(9):
        by = moved(fed, skewed, k) / unit
        assert torch.allclose(by, by[:1].expand_as(by), atol=1e-5)
        vectors.setdefault(int(group[k]), by[0])
        assert torch.allclose(by[0], vectors[int(group[k])], atol=1e-5)
    assert not vectors[0].any()
    for g in (1, 2):
        assert float(vectors[g].square().mean().sqrt()) == pytest.approx(1, abs=1e-4)
    assert not torch.allclose(vectors[1], vectors[2], atol=0.1)


def test_without_groups_every_client_has_a_shift_of_its_own_and_all_are_as_large():
    fed = made(clients=4)
    skewed = fed.skewed("shift:1.5")
    assert skewed.planted["shift"].tolist() == [0, 1, 2, 3] and skewed.planted["shift"].dtype == np.int64
    by = [(moved(fed, skewed, k) / samples.spread(fed.train.x))[0] for k in range(4)]
    assert [float(v.square().mean().sqrt()) for v in by] == pytest.approx([0, 1.5, 1.5, 1.5], abs=1e-4)
    assert len({tuple(v.numpy().round(3)) for v in by}) == 4


def test_more_groups_than_clients_are_refused():
    with pytest.raises(Exception, match=r"^shift must make 6 groups of 5 clients: ask for at most 5\.$"):
        made().skewed("shift:1:6")
