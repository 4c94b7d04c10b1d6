"""Turned, blurred, paler and recoloured pictures, by hand."""

import numpy as np
import pytest
import torch

from unalike.data import Federation
from unalike.data.skew import Blur, Colour, Contrast, Rotate
from unalike.errors import UnalikeError


def made(shape=(1, 7, 7), clients=4, each=6, low=0.0):
    rng = np.random.default_rng(2)
    pairs = [(rng.random((each, *shape)).astype(np.float32) + low, rng.integers(0, 2, each)) for _ in range(clients)]
    return Federation.from_arrays(pairs)


def blob(height, width, down, right):
    """A soft spot at this place, the same picture for four clients."""
    i, j = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    x = np.exp(-((i - down) ** 2 + (j - right) ** 2) / 1.5).astype(np.float32)[None, None]
    return Federation.from_arrays([(x, [0])] * 4, classes=2)


def centre(x):
    """Where the weight of a picture lies: rows down, columns to the right."""
    x = x.double()[0, 0]
    i, j = (torch.arange(n).double() for n in x.shape)
    return float((x.sum(1) * i).sum() / x.sum()), float((x.sum(0) * j).sum() / x.sum())


def test_right_angles_are_exact():
    fed = made()
    skewed = fed.skewed("rotate:4", seed=5)
    assert sorted(skewed.planted["rotate"]) == [0, 1, 2, 3]
    for k, group in enumerate(skewed.planted["rotate"]):
        assert torch.equal(skewed.train.of(k)[0], torch.rot90(fed.train.of(k)[0], int(group), (2, 3)))


@pytest.mark.parametrize(("height", "width"), [(15, 15), (11, 17)])
def test_other_angles_turn_counter_clockwise_about_the_centre(height, width):
    """A spot 3 to the right of the centre, turned by 30°, is 3 sin 30° higher and 3 cos 30° to the right."""
    middle = (height - 1) / 2, (width - 1) / 2
    fed = blob(height, width, middle[0], middle[1] + 3)
    skewed = fed.skewed(Rotate(4, 120.0), seed=1)
    for k, group in enumerate(skewed.planted["rotate"]):
        angle = np.radians(30 * group)
        down, right = centre(skewed.train.of(k)[0])
        assert down == pytest.approx(middle[0] - 3 * np.sin(angle), abs=0.1)
        assert right == pytest.approx(middle[1] + 3 * np.cos(angle), abs=0.1)


def test_a_quarter_of_a_picture_that_is_not_square_is_interpolated():
    fed = blob(9, 13, 4, 8)
    skewed = fed.skewed("rotate:4", seed=1)
    k = int(np.flatnonzero(skewed.planted["rotate"] == 1)[0])
    assert centre(skewed.train.of(k)[0]) == pytest.approx((2, 6), abs=0.1)
    k = int(np.flatnonzero(skewed.planted["rotate"] == 2)[0])
    assert torch.equal(skewed.train.of(k)[0], torch.rot90(fed.train.of(k)[0], 2, (2, 3)))


def test_what_comes_in_from_outside_is_black():
    fed = made(low=-3.0)
    skewed = fed.skewed(Rotate(2, 90.0))  # by 45°: the corners come from outside
    k = int(np.flatnonzero(skewed.planted["rotate"] == 1)[0])
    least = fed.train.x.min()
    assert torch.allclose(skewed.train.of(k)[0][:, :, 0, 0], least) and skewed.train.x.min() >= least - 1e-6


def test_without_groups_angles_go_round_and_never_come_back():
    fed = made()
    skewed = fed.skewed("rotate:0")
    assert skewed.planted["rotate"].tolist() == [0, 0.25, 0.5, 0.75]
    assert torch.equal(skewed.train.of(3)[0], torch.rot90(fed.train.of(3)[0], 3, (2, 3)))


def test_strength_is_a_share_of_the_angle():
    fed = made()
    half, full = fed.skewed("rotate:4:360@0.5", seed=5), fed.skewed("rotate:4:180", seed=5)
    assert torch.equal(half.train.x, full.train.x)


def spot(shape, at):
    x = np.zeros((1, *shape), np.float32)
    x[(0, 0, *at)] = 1
    return Federation.from_arrays([(x, [0])] * 3, classes=2)


@pytest.mark.parametrize(("shape", "at"), [((1, 21, 21), (10, 10)), ((1, 41), (20,))])
def test_blur_is_a_gaussian_of_this_width(shape, at):
    skewed = spot(shape, at).skewed(Blur(0, 2.0))
    for k, sigma in ((1, 1.0), (2, 2.0)):
        x = skewed.train.of(k)[0].double().reshape(-1, shape[-1]).sum(0)
        place = torch.arange(shape[-1]).double() - at[-1]
        assert float(x.sum()) == pytest.approx(1, abs=1e-3)
        assert float((x * place**2).sum()) == pytest.approx(sigma**2, rel=0.02)


def test_blur_does_not_darken_edges():
    fed = Federation.from_arrays([(np.full((2, 2, 5, 6), 0.7, np.float32), [0, 1])] * 3)
    assert torch.allclose(fed.skewed("blur:0:3").train.x, fed.train.x)


def test_a_tiny_blur_changes_nothing_to_speak_of():
    fed = made()
    assert torch.allclose(fed.skewed(Blur(0, 1e-9)).train.x, fed.train.x)


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 9)])
def test_contrast_pulls_to_each_channels_own_mean(shape):
    fed = made(shape, clients=3)
    skewed = fed.skewed(Contrast(0, 0.2, strength=0.5))
    for k, kept in enumerate([1, 0.8, 0.6]):
        x, was = (f.train.of(k)[0].double().reshape(6, 2, -1) for f in (skewed, fed))
        assert torch.allclose(x.mean(2), was.mean(2), atol=1e-6)
        assert torch.allclose(x.std(2), kept * was.std(2), atol=1e-6)


def test_hues_are_turned_about_the_greys():
    """A third of the circle makes red green and green blue; greys stay."""
    x = np.zeros((2, 3, 2, 2), np.float32)
    x[0, 0], x[1] = 1, 0.5
    fed = Federation.from_arrays([(x, [0, 1])] * 3)
    skewed = fed.skewed("colour:3", seed=1)
    for k, group in enumerate(skewed.planted["colour"]):
        red, grey = skewed.train.of(k)[0]
        assert torch.allclose(red, torch.eye(3)[int(group)][:, None, None].expand_as(red), atol=1e-6)
        assert torch.allclose(grey, torch.full_like(grey, 0.5))
    turned = made((3, 4, 4)).skewed(Colour(strength=0.3))
    before, after = made((3, 4, 4)).train.x.norm(dim=1), turned.train.x.norm(dim=1)
    assert torch.allclose(before, after, atol=1e-5)


def test_one_channel_has_darker_tones():
    fed = Federation.from_arrays([(np.array([-1, 0, 1], np.float32).reshape(3, 1, 1, 1), [0, 1, 1])] * 3)
    fed = fed.replace(test=fed.map(lambda c: type(c)(c.x * 2, c.y, c.offsets)).train)  # beyond the training samples
    skewed = fed.skewed(Colour(strength=1 / 3))  # powers 1, 1.5 and 2
    for k, power in enumerate((1, 1.5, 2)):
        assert skewed.train.of(k)[0].reshape(-1).tolist() == pytest.approx([-1, -1 + 2 * 0.5**power, 1])
    assert skewed.test.of(2)[0].reshape(-1).tolist() == pytest.approx([-2, -0.5, -1 + 2 * 1.5**2])


def test_other_numbers_of_channels_have_no_colour():
    with pytest.raises(UnalikeError, match=r"^colour changes pictures of one channel or three, and these have 2: .*$"):
        made((2, 3, 3)).skewed("colour")
    with pytest.raises(UnalikeError, match=r"^rotate changes pictures .*, and a sample here has shape \[2, 9\]: .*$"):
        made((2, 9)).skewed("rotate:2")
