"""The time series: windows that do not overlap, clocks that are set apart, a test set that comes later."""

import numpy as np
import pytest
import torch

import unalike as ua


def test_defaults():
    data = ua.load("series")
    assert data.x.shape == (2000, 1, 12) and data.test[0].shape == (500, 1, 12) and data.classes is None
    fed = data.split()
    assert len(fed) == 20 and set(fed.sizes) == {100} and torch.equal(fed.train.x, ua.load("series").split().train.x)
    assert not torch.equal(data.x, ua.load("series", draw=1).x)


def test_without_noise_it_is_the_process():
    data = ua.load("series", sensors=2, offset=1.0, seasons=10, season=8, window=3, trend=0.0, noise=0.0)
    time = np.arange(4)[None] + np.array([[0], [4]])  # the second clock runs half a season of 8 ahead
    values = np.sin(np.pi * time / 4) + 0.5 * np.sin(np.pi * time / 2 + 1)
    for sensor in (0, 1):
        own = data.columns["sensor"] == sensor
        assert np.allclose(data.x[own][:, 0], values[sensor, :3], atol=1e-6)
        assert np.allclose(data.y[own], values[sensor, 3], atol=1e-6)


def test_the_trend_rises_from_the_first_season_to_the_last():
    data = ua.load("series", sensors=1, seasons=10, season=4, window=1, trend=2.0, noise=0.0)
    assert np.allclose(np.diff(data.x[:, 0, 0]), 2.0 / 10, atol=1e-6)


def test_noise_remembers_itself():
    data = ua.load("series", sensors=50, seasons=60, season=2, window=1, trend=0.0, noise=1.0, offset=0.0)
    x, y = data.x[:, 0, 0] - data.x.mean(), data.y - data.y.mean()
    assert abs(float(x.std()) - 1) < 0.05 and abs(float((x * y).mean() / x.var()) - 0.8) < 0.04
    assert not torch.equal(data.x[data.columns["sensor"] == 0], data.x[data.columns["sensor"] == 1])


def test_no_window_overlaps_and_the_test_set_comes_later():
    data = ua.load("series", seasons=30, offset=1.0)
    train, test = data.columns["time"], data.test_columns["time"]
    own = np.sort(train[data.columns["sensor"] == 3])
    assert (np.diff(own) >= 12 + 1).all() and set(test) == set(range(24 * 24, 30 * 24, 24))
    latest = train.max() + 24 + 12  # of a clock that runs a season ahead
    assert latest < test.min() + 24 and train.max() == 22 * 24


def test_periods_are_stretches_of_time():
    fed = ua.load("series").split("periods", 4)
    means = [float(fed.train.of(k)[1].mean()) for k in range(4)]
    assert means == sorted(means) and means[3] - means[0] > 0.3  # the trend


def test_it_is_learned():
    fed = ua.load("series", seasons=40).split()
    linear = torch.nn.Linear(12, 1)
    torch.nn.init.zeros_(linear.weight), torch.nn.init.zeros_(linear.bias)
    own = ua.LocalTraining(lr=0.05, batch_size=8)
    run = ua.simulate(torch.nn.Sequential(torch.nn.Flatten(), linear), fed, ua.FedAvg(), local=own, rounds=8)
    assert run.history[-1]["test_loss"] < 0.5 * float(fed.global_test[1].var())


@pytest.mark.parametrize(
    "options,said",
    [
        ({"window": 24}, "A window of 24 readings and the next do not fit into a season of 24 steps"),
        ({"offset": 1.5}, "offset=1.5"),
        ({"sensors": 0}, "sensors=0"),
        ({"seasons": 4}, "seasons=4"),
        ({"noise": -1.0}, "noise=-1.0"),
    ],
)
def test_mistakes(options, said):
    with pytest.raises(ua.UnalikeError) as error:
        ua.load("series", **options)
    assert said in str(error.value) and "\n" not in str(error.value)
