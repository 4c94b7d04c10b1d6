"""A time series with a number to predict, made here: one process that sensors see by clocks set apart."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from unalike import draws
from unalike.data.dataset import Dataset
from unalike.data.partition.tools import count, number
from unalike.data.sources.common import Facts
from unalike.errors import UnalikeError
from unalike.settings.knobs import Knob

SENSORS, SEASONS, SEASON, WINDOW = 20, 126, 24, 12
TEST = 0.2  # the last share of the seasons
# correlation of the noise from one step to the next
MEMORY = 0.8
FACTS = {
    "series": Facts(
        "sensors' readings of one process: forecast the next", 2_000, 500, 0, "", "made here", clients=SENSORS
    )
}


def series(
    sensors: Annotated[int, Knob("how many sensors, the natural clients", least=1)] = SENSORS,
    offset: Annotated[float, Knob("how far the clocks are apart: 0 alike, 1 over a whole season", least=0)] = 0.5,
    seasons: Annotated[int, Knob("seasons that are recorded, of which every sensor cuts one window each", least=5)] = (
        SEASONS
    ),
    season: Annotated[int, Knob("time steps in a season", least=2)] = SEASON,
    window: Annotated[int, Knob("readings in a sample; the one that follows is to be predicted", least=1)] = WINDOW,
    trend: Annotated[float, Knob("how far the process rises from the first season to the last")] = 1.0,
    noise: Annotated[float, Knob("standard deviation of a sensor's noise", least=0)] = 0.3,
    draw: Annotated[int, Knob("which of many such records", least=0)] = 0,
) -> Dataset:
    """Readings of sensors with clocks set apart, of one process: a season, a slow trend, and autoregressive noise of
    each sensor's own. Forecast the next reading: x [n, 1, window], y a number.

    Every sensor cuts the window at the begin of each season by its own clock; the k-th of K clocks runs offset·k/K of a
    season ahead. With `offset` 0 all see the same hours, with 1 each another part of the day: temporal skew, one
    process offset in time. `sensor` is the natural client, `time` the step at which a window begins by the sensor's
    clock. No two windows of a sensor overlap. The test set is the last fifth of the seasons, of all sensors; the season
    before it is left out.
    """
    count("series' sensors", sensors)
    count("series' season", season, least=2)
    count("series' window", window)
    number("series' offset", offset, 0, 1, 0.5)
    number("series' noise", noise, 0, 1e6, 0.3)
    number("series' trend", trend, -1e6, 1e6, 1.0)
    count("series' seasons", seasons, least=5)
    held_out = int(seasons * TEST)
    if window >= season:
        raise UnalikeError(f"A window of {window} readings and the next do not fit into a season of {season} steps.")
    ahead = np.round(offset * season * np.arange(sensors) / sensors).astype(np.int64)
    first = np.arange(seasons) * season
    steps = first[:, None] + np.arange(window + 1)  # by a sensor's clock, [seasons, window + 1]
    cut = _process(ahead[:, None, None] + steps, season) + trend * steps / (seasons * season)
    cut += noise * _noise(sensors, seasons * season, draw)[:, steps]
    time, sensor = np.broadcast_arrays(first, np.arange(sensors)[:, None])
    train, test = np.arange(seasons) < seasons - held_out - 1, np.arange(seasons) >= seasons - held_out

    def rows(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        some = cut[:, chosen].reshape(-1, 1, window + 1).astype(np.float32)
        columns = {"sensor": sensor[:, chosen].reshape(-1), "time": time[:, chosen].reshape(-1)}
        return some[:, :, :-1], some[:, 0, -1], columns

    (x, y, columns), (x_test, y_test, test_columns) = rows(train), rows(test)
    return Dataset(
        x,
        y,
        test=(x_test, y_test),
        name="series",
        columns=columns,
        test_columns=test_columns,
        natural="sensor",
        time="time",
    )


def _process(time: np.ndarray, season: int) -> np.ndarray:
    """Return the part that repeats every season: two waves."""
    phase = 2 * np.pi * time / season
    return np.sin(phase) + 0.5 * np.sin(2 * phase + 1)


def _noise(sensors: int, steps: int, draw: int) -> np.ndarray:
    """Return autocorrelated noise of variance 1, independent for each sensor, [sensors, steps]."""
    values = draws.generator(draws.check_seed(draw), "series").standard_normal((sensors, steps))
    for t in range(1, steps):
        values[:, t] = MEMORY * values[:, t - 1] + (1 - MEMORY**2) ** 0.5 * values[:, t]
    return values
