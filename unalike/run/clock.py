"""A virtual clock: how fast clients' devices are, when they are there, and which vanish in the middle of their work.

Everything is a function of (seed, client, round or time): the same on every engine, and after a resumed run. A device
takes, for a piece of work,

    latency + bytes down / download + mini-batches · step_seconds / speed + bytes up / upload        (seconds)
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.errors import UnalikeError, line_of
from unalike.settings.knobs import check_fields, knob

SPREAD = "a number, a list (one a client), lognormal:SIGMA or lognormal:SIGMA:MEDIAN, or a CSV file of devices"
SPEEDS = f"of devices: {SPREAD}"
THERE = "when clients are there: a share (0.3), day:0.5 (that share of a day, each at its own hour), or a CSV file"
SLOW = "who has the slow devices: classes:0,1 (whoever has most samples of these), large (whoever has most samples)"
CUTOFF = "seconds after which the server goes on without those that have not answered"
LATE = "what is done with a client that would be late: drop it, or let it do the steps that fit (partial)"
OVER = "so much more clients are asked than are waited for (0.3: the first 100 of 130)"
TIERS = "clients are put into so many tiers of equal speed, and a round takes its clients from one"
WRITTEN: dict[str, Any] = {"written": float | str | list[float]}
DAYTIME = "day:"
SPEED = "speed"  # the column of a trace; of upload and download too


@dc.dataclass(frozen=True, kw_only=True)
class Clock:
    """The time that clients take. A CSV file has a header, and the columns client, speed (or client, from, speed: the
    speed from that second on) or, for `available`, client, from, to. Its devices are dealt to clients in turn, and
    times when they are there come again when the file ends."""

    step_seconds: float = knob(1.0, "seconds of a mini-batch on a device of speed 1", above=0)
    speeds: Any = knob(1.0, SPEEDS, **WRITTEN)
    slow: str = knob("", SLOW)
    jitter: float = knob(0.0, "σ of a lognormal factor that is drawn for every piece of work", least=0)
    latency: float = knob(0.0, "seconds that every exchange takes besides", least=0)
    upload: Any = knob(None, f"bytes per second up: {SPREAD}", **WRITTEN)
    download: Any = knob(None, f"bytes per second down: {SPREAD}", **WRITTEN)
    available: Any = knob(1.0, THERE, written=float | str)
    spell: float = knob(3600.0, "seconds for which a client is there or away, where available is a share", above=0)
    day: float = knob(86400.0, "seconds of a day", above=0)
    dropout: float = knob(0.0, "share of clients that vanish in the middle of their work", least=0, below=1)
    cutoff: float | None = knob(None, CUTOFF, above=0)
    late: str = knob("drop", LATE, choices=("drop", "partial"))
    overselect: float = knob(0.0, OVER, least=0)
    tiers: int = knob(1, TIERS, least=1)

    def __post_init__(self) -> None:
        check_fields(self, "clock: ")
        if self.late == "partial" and self.cutoff is None:
            raise UnalikeError("clock: late='partial' is work that fits into a cutoff: give cutoff, in seconds.")
        for name in ("speeds", "upload", "download"):
            law(name, getattr(self, name))
        times(self)

    def facts(self) -> dict[str, Any]:
        """Return the settings that are not the usual ones."""
        given = {f.name: (getattr(self, f.name), f.default) for f in dc.fields(self)}
        chosen = {name: v for name, (v, default) in given.items() if _listed(v) or v != default}
        return {name: [*map(float, value)] if _listed(value) else value for name, value in chosen.items()}


Law = Callable[["Devices", np.ndarray, float], np.ndarray]  # of clients at a time


def law(name: str, value: Any) -> Law:
    """Return how speeds are spread over clients."""
    if value is None:
        return lambda devices, ids, time: np.full(len(ids), math.inf)
    if _listed(value):
        given = np.array([_positive(name, one) for one in value])
        return lambda devices, ids, time: _of_each(name, given, ids)
    if not isinstance(value, str):
        number = _positive(name, value)
        return lambda devices, ids, time: np.full(len(ids), number)
    kind, *rest = value.split(":")
    if kind != "lognormal":
        return Trace(value, name).speeds
    try:
        sigma, median = (*map(float, rest), 1.0)[:2]
        if len(rest) > 2 or sigma < 0 or not 0 < median < math.inf:
            raise ValueError
    except ValueError:
        raise UnalikeError(f"clock: {name}={value!r}: say lognormal:SIGMA or lognormal:SIGMA:MEDIAN.") from None
    return lambda devices, ids, time: median * np.exp(sigma * devices.normal(f"{name} of a device", 0, ids))


def _of_each(name: str, given: np.ndarray, ids: np.ndarray) -> np.ndarray:
    if len(ids) and int(ids.max()) >= len(given):
        raise UnalikeError(f"clock: {name} has {len(given)} entries, and there is a client {int(ids.max())}.")
    return given[ids]


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _positive(name: str, value: Any) -> float:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise UnalikeError(f"clock: {name} must be a number above 0; got {value!r}.")
    return float(value)


def _numbers(line: str, count: int, where: str) -> list[float]:
    """Return the numbers of a line of a trace."""
    try:
        found = [*map(float, line.split(","))]
    except ValueError:
        found = []
    if len(found) != count or not all(map(math.isfinite, found)):
        raise UnalikeError(f"{where}: must have {count} finite numbers; got {line.strip()!r}.")
    return found


class Trace:
    """A CSV file of devices, dealt to clients in turn."""

    def __init__(self, path: str, name: str):
        known = (("client", "from", "to"),) if name == "available" else (("client", SPEED), ("client", "from", SPEED))
        try:
            head, *lines = Path(path).read_text(encoding="utf-8-sig").splitlines() or [""]
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or line_of(error)
            listed = f" A speed for each client is a list: [{path}]." if name != "available" and "," in path else ""
            raise UnalikeError(f"clock: {name}={path!r} is no CSV file that can be read: {why}.{listed}") from None
        titles = tuple(part.strip(' "').lower() for part in head.split(","))
        given = [(number, line) for number, line in enumerate(lines, 2) if line.strip()]
        if titles not in known or not given:
            columns = " or ".join(", ".join(some) for some in known)
            raise UnalikeError(f"clock: {name}: {path} must have a header and rows of the columns {columns}.")
        rows = np.array(
            [_numbers(line, len(titles), f"clock: {name}: {path}, line {number}") for number, line in given]
        )
        if rows.shape[1] == 2:
            rows = np.insert(rows, 1, 0.0, axis=1)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        if (rows[:, 0] % 1).any():
            raise UnalikeError(f"clock: {name}: in {path}, client must be a whole number.")
        if name != "available" and not np.diff(rows[:, :2], axis=0).any(axis=1).all():
            raise UnalikeError(f"clock: {name}: in {path}, a client has two speeds at one moment.")
        self.devices = [rows[rows[:, 0] == device, 1:] for device in np.unique(rows[:, 0])]
        self.end = float(rows[:, 2].max())
        if name != "available":
            _positive(name, float(rows[:, 2].min()))
        elif not ((rows[:, 1] >= 0) & (rows[:, 1] < rows[:, 2])).all():
            raise UnalikeError(f"clock: {name}: in {path}, every from must be at least 0 and below its to.")

    def of(self, client: int) -> np.ndarray:
        """Return the rows of a client's device."""
        return self.devices[int(client) % len(self.devices)]

    def speeds(self, devices: Devices, ids: np.ndarray, time: float) -> np.ndarray:
        """Return the speeds from the last row that begins by this time; the first row's before it."""
        found = []
        for rows in map(self.of, ids):
            found.append(rows[max(0, int(np.searchsorted(rows[:, 0], time, "right")) - 1), 1])
        return np.array(found)

    def there(self, devices: Devices, ids: np.ndarray, time: float) -> np.ndarray:
        """Return which clients are there."""
        now = time % self.end
        return np.array([bool(((rows[:, 0] <= now) & (now < rows[:, 1])).any()) for rows in map(self.of, ids)])


def times(clock: Clock) -> tuple[Law, float]:
    """Return when clients are there, and after how many seconds to look again where nobody is; 0: all always are."""
    value = clock.available
    if isinstance(value, str) and not value.startswith(DAYTIME):
        trace = Trace(value, "available")
        return trace.there, max(1e-9, trace.end / 1000)
    daily = isinstance(value, str)
    try:
        share = float(value.removeprefix(DAYTIME)) if isinstance(value, str) else float(value)
        if isinstance(value, bool) or not 0 < share <= 1:
            raise ValueError
    except (TypeError, ValueError):
        raise UnalikeError(
            f"clock: available must be a share in (0, 1], day:SHARE, or a CSV file; got {value!r}."
        ) from None

    def by_day(devices: Devices, ids: np.ndarray, time: float) -> np.ndarray:
        begins = clock.day * devices.uniform("hour of a day", 0, ids)
        return (time - begins) % clock.day < share * clock.day

    def by_spell(devices: Devices, ids: np.ndarray, time: float) -> np.ndarray:
        return devices.uniform("there", int(time // clock.spell), ids) < share

    if share == 1.0:
        return (lambda devices, ids, time: np.ones(len(ids), dtype=bool)), 0.0
    return (by_day, clock.day / 100) if daily else (by_spell, clock.spell)


class Devices:
    """The clients' devices of a run. labels: gives each client's samples of some classes, for `slow`."""

    def __init__(self, clock: Clock, seed: int, samples: np.ndarray, labels: Callable[[list[int]], np.ndarray]):
        self.clock, self.seed, self.population = clock, seed, len(samples)
        self._laws = {name: law(name, getattr(clock, name)) for name in ("speeds", "upload", "download")}
        self._there, self.pause = times(clock)
        self._order = self._slow_order(samples, labels) if clock.slow else None
        self._tiers: list[np.ndarray] | None = None

    def _slow_order(self, samples: np.ndarray, labels: Callable[[list[int]], np.ndarray]) -> np.ndarray:
        """Return for every client the one whose drawn speed it has: slow ones where there is most of something."""
        kind, _, rest = self.clock.slow.partition(":")
        if kind == "classes" and all(part.strip().isdigit() for part in rest.split(",")):
            much = labels([int(part) for part in rest.split(",")]) / np.maximum(samples, 1)
        elif self.clock.slow == "large":
            much = samples
        else:
            raise UnalikeError(f"clock: slow must be classes:0,1 or large; got {self.clock.slow!r}.")
        everybody = np.arange(self.population)
        slowest_first = np.argsort(self._laws["speeds"](self, everybody, 0.0), kind="stable")
        out = np.empty(self.population, dtype=np.int64)
        out[np.argsort(-much, kind="stable")] = slowest_first
        return out

    def normal(self, purpose: str, when: int, ids: np.ndarray) -> np.ndarray:
        """Return a standard normal number for each client."""
        return draws.normal(self._keys(purpose, when, ids), (), torch.float64).numpy()

    def uniform(self, purpose: str, when: int, ids: np.ndarray) -> np.ndarray:
        """Return a uniform number in [0, 1) for each client."""
        return draws.uniform(self._keys(purpose, when, ids), (), torch.float64).numpy()

    def _keys(self, purpose: str, when: int, ids: np.ndarray) -> Tensor:
        return torch.from_numpy(draws.client_keys(self.seed, when, f"clock {purpose}", ids))

    def speeds(self, ids: np.ndarray, time: float) -> np.ndarray:
        """Return how fast these clients' devices are."""
        return self._laws["speeds"](self, ids if self._order is None else self._order[ids], time)

    def step_seconds(self, ids: np.ndarray, when: int, time: float = 0.0) -> np.ndarray:
        """Return the seconds of a mini-batch in round or version `when`."""
        factor = np.exp(self.clock.jitter * self.normal("jitter", when, ids)) if self.clock.jitter else 1.0
        return self.clock.step_seconds * factor / self.speeds(ids, time)

    def travel(self, ids: np.ndarray, time: float, down: float, up: float) -> np.ndarray:
        """Return the seconds that a message and its reply of these sizes are on their way."""
        rates = {name: self._laws[name](self, ids, time) for name in ("download", "upload")}
        return self.clock.latency + down / rates["download"] + up / rates["upload"]

    def seconds(self, ids: np.ndarray, when: int, time: float, steps: np.ndarray, down: float, up: float) -> np.ndarray:
        """Return how long these clients take for these numbers of mini-batches and bytes."""
        return self.travel(ids, time, down, up) + steps * self.step_seconds(ids, when, time)

    def there(self, ids: np.ndarray, time: float) -> np.ndarray:
        """Return which of these clients are there."""
        return self._there(self, ids, time)

    def vanishing(self, ids: np.ndarray, when: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which of these clients vanish in this round, or in the piece of work of this number, and after which
        share of their time."""
        if not self.clock.dropout:
            return np.zeros(len(ids), dtype=bool), np.ones(len(ids))
        gone = self.uniform("vanishes", when, ids) < self.clock.dropout
        return gone, self.uniform("vanishes after", when, ids)

    def tier(self, when: int, expected: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the clients of the tier of this round; expected: the seconds that clients are expected to take."""
        if self._tiers is None:
            order = np.argsort(expected(np.arange(self.population)), kind="stable")
            self._tiers = [np.sort(part) for part in np.array_split(order, min(self.clock.tiers, self.population))]
        return self._tiers[int(draws.generator(self.seed, "tier", when).integers(len(self._tiers)))]
