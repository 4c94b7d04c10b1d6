"""The clock of a run: who takes part and when, in synchronous rounds and in asynchronous ones."""

from __future__ import annotations

import contextlib
import dataclasses as dc
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from unalike import draws
from unalike.contract import Method
from unalike.data import Columns, Federation
from unalike.engines.engine import Engine
from unalike.errors import UnalikeError
from unalike.run.clock import Clock, Devices
from unalike.run.round import Round
from unalike.run.sampling import Listed, Uniform, draw
from unalike.run.settings import RunSettings
from unalike.run.timing import Timing, Work
from unalike.run.under_way import KEPT, PATIENCE, BetweenMachines, Posting, Replay, UnderWay
from unalike.training.settings import ShortenedTraining

if TYPE_CHECKING:
    from unalike.run.run import Run

TIME = KEPT + "time"  # among the server's values of a checkpoint of a synchronous run: its clock


class Arrivals:
    """What a run knows of time: nothing, where it has no clock and waits for everybody.

    devices: of the clients, where there is a clock; local: training, shorter for late clients where they do partial
    work; arriving: the method's name, where clients arrive when they can; time: virtual seconds so far.
    """

    def __init__(self, run: Run, clock: Clock | None, data: Federation, drifts: bool):
        """data: what clients train on; drifts: whether these change from round to round."""
        self.drifts = drifts
        self.run, self.local, self.time = run, run.local, 0.0
        self.devices: Devices | None = None
        self.sizes = data.train.sizes
        self.buffer = buffer_of(run.settings.asynchronous)
        own = run.method.asynchronous == "is"
        self.arriving = type(run.method).__name__ if own or self.buffer else ""
        if own and isinstance(run.settings.asynchronous, list | tuple):
            self.buffer = 0  # it asks itself for the arrivals that are listed
        if clock is None and not self.arriving:
            return
        self._check(clock)
        self.clock = clock or Clock()
        self.devices = Devices(self.clock, run.seed, self.sizes, functools.partial(_count, data.train))
        if self.clock.late == "partial":
            self.local = ShortenedTraining(**{f.name: getattr(run.local, f.name) for f in dc.fields(run.local)})
        self.under_way: UnderWay | None = None

    def _check(self, clock: Clock | None) -> None:
        run, name = self.run, type(self.run.method).__name__
        if run.data.remote and clock is not None:
            raise UnalikeError("A clock is of simulations: between machines, time passes by itself.")
        if run.architectures is not None:
            raise UnalikeError("clock: clients have different networks; a clock needs one for all.")
        if self.arriving:
            self._check_arriving(clock, name)
        elif not isinstance(run.sampling, Uniform) and clock is not None and (clock.tiers > 1 or clock.overselect):
            raise UnalikeError("clock: tiers and overselect need clients_per_round as a share or a count.")

    def _check_arriving(self, clock: Clock | None, name: str) -> None:
        run = self.run
        if self.buffer and run.method.asynchronous == "is":
            raise UnalikeError(f"{name} is asynchronous by itself: leave out asynchronous.")
        if self.buffer and (why := refusal(run.method)):
            raise UnalikeError(f"{name} does not run asynchronously: {why}.")
        if self.drifts:
            raise UnalikeError("asynchronous: the data drift from round to round, and a client's round is not known.")
        if not isinstance(run.sampling, Uniform | Listed):
            raise UnalikeError("asynchronous: clients_per_round is how many are at work: a share, a count, or lists.")
        if clock is not None and (clock.cutoff is not None or clock.overselect or clock.tiers > 1):
            raise UnalikeError("clock: cutoff, overselect and tiers are of synchronous rounds: leave them out.")

    def begin(self, engine: Engine) -> None:
        """Take the engine by which work is measured; let nobody be under way."""
        if self.devices is None:
            return
        self.work = Work(engine, self.run.channel)
        if self.arriving:
            self.under_way = self._new_under_way(self.devices)

    def _new_under_way(self, devices: Devices) -> UnderWay:
        run, listed = self.run, self.run.settings.asynchronous
        if isinstance(listed, list | tuple):
            return Replay(devices, listed)
        given = devices, run.seed, run.sampling.size(run.population), self.cohort, isinstance(run.sampling, Listed)
        if run.data.remote:
            return BetweenMachines(*given, engine=cast(Posting, run.engine))
        return UnderWay(*given)

    def facts(self) -> dict[str, Any]:
        """Return what decides the result, where there is a clock."""
        if self.devices is None:
            return {}
        arriving = {"asynchronous": str(self.run.settings.asynchronous), "staleness": self.run.settings.staleness}
        chosen = {"step_seconds": self.clock.step_seconds, **self.clock.facts()}
        return {"clock": {**chosen, **(arriving if self.run.settings.asynchronous else {})}}

    # ---- who takes part

    def cohort(self, t: int) -> np.ndarray:
        """Return the clients of a round, of those that are there; time goes on where nobody is."""
        assert self.devices is not None
        how, sizes, seed = self.run.sampling, self.sizes, self.run.seed
        if isinstance(how, Uniform):
            how = dc.replace(how, count=self._asked(how), fraction=None)
        if self.clock.tiers > 1 and isinstance(how, Uniform):
            tier = self.devices.tier(t, self._expected)
            few = Uniform(count=min(how.size(len(sizes)), len(tier)))
            return self._there(lambda: tier[draw(few, seed, t, sizes[tier])], tier)
        everybody = None if isinstance(how, Listed) else len(sizes)
        return self._there(lambda: draw(how, seed, t, sizes), everybody, how.size(len(sizes)), t)

    def _asked(self, how: Uniform) -> int:
        """Return how many clients a round asks, so that enough of them answer."""
        size = how.size(self.run.population)
        return min(self.run.population, int(np.ceil(size * (1 + self.clock.overselect) - 1e-9)))

    def _there(
        self, drawn: Callable[[], np.ndarray], others: np.ndarray | int | None, size: int = 0, t: int = 0
    ) -> np.ndarray:
        """Return the drawn clients that are there, and others in the place of those that are not."""
        assert self.devices is not None
        if not self.devices.pause:
            return drawn()
        for _ in range(PATIENCE):
            now = self.now
            ids = drawn()
            ids = ids[self.devices.there(ids, now)]
            if isinstance(others, int) and len(ids) < size:
                rest = draws.generator(self.run.seed, "in their place", t).permutation(others)
                rest = rest[self.devices.there(rest, now) & ~np.isin(rest, ids)]
                ids = np.sort(np.concatenate([ids, rest[: size - len(ids)]]))
            if len(ids):
                return ids
            self._wait(self.devices.pause - now % self.devices.pause)
        raise UnalikeError("Nobody is ever there (clock: available).")

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.time if self.under_way is None else self.under_way.time

    def _wait(self, seconds: float) -> None:
        if self.under_way is None:
            self.time += seconds
        else:
            self.under_way.time += seconds

    def _model_travel(self, ids: np.ndarray) -> np.ndarray:
        """Return the seconds that a model is on its way, down and up."""
        assert self.devices is not None
        size = self.run.task.start.nbytes
        return self.devices.travel(ids, 0.0, size, size)

    def _expected(self, ids: np.ndarray) -> np.ndarray:
        """Return the seconds that clients are expected to take for a round of local training."""
        assert self.devices is not None
        steps = self.run.local.counts(ids, self.sizes[ids], 0)
        return self._model_travel(ids) + steps * self.clock.step_seconds / self.devices.speeds(ids, 0.0)

    # ---- a round

    def of_round(self, t: int) -> dict[str, Any]:
        """Return what a round is given of the clock."""
        if self.devices is None:
            return {}
        if self.under_way is not None:
            how = {"buffer": self.buffer, "staleness": self.run.settings.staleness}
            return {"under_way": self.under_way, "work": self.work, **how}
        enough = self.run.sampling.size(self.run.population) if self.clock.overselect else None
        return {"timing": Timing(self.devices, self.work, t, self.time, enough, self._shortened)}

    @property
    def _shortened(self) -> ShortenedTraining | None:
        return self.local if isinstance(self.local, ShortenedTraining) else None

    def end(self, exchanges: Round) -> None:
        """Take the time at which a round ended."""
        if exchanges.timing is not None:
            self.time = exchanges.timing.time
        if self._shortened is not None:
            self._shortened.part.clear()  # evaluation is not on the clock

    def line(self, exchanges: Round) -> dict[str, Any]:
        """Return what a round's line says of time."""
        if self.devices is None:
            return {}
        out: dict[str, Any] = {} if self.run.data.remote else {"virtual_seconds": self.now}
        if self.under_way is not None:
            ages = exchanges.ages or [0]
            out |= {"staleness": float(np.mean(ages)), "staleness_most": max(ages)}
            out |= {"under_way": len(self.under_way.heap)}
            out |= {"lost": self.under_way.lost} if self.under_way.lost else {}
            self.under_way.lost = 0
        return out

    # ---- a checkpoint

    @contextlib.contextmanager
    def kept_in(self, values: dict[str, Any]) -> Iterator[None]:
        """Have time, and who is under way, among the server's values while a checkpoint is written."""
        kept = {} if self.devices is None else {TIME: self.time}
        kept |= {} if self.devices is None or self.under_way is None else self.under_way.state()
        values.update(kept)
        try:
            yield
        finally:
            for name in kept:
                del values[name]

    def restore(self, values: dict[str, Any]) -> None:
        """Take them out of what a checkpoint held."""
        self.time = values.pop(TIME, 0.0)
        if self.devices is not None and self.under_way is not None:
            self.under_way.restore(values)


def check_together(method: Method, settings: RunSettings, clock: Clock | None) -> None:
    """Refuse a clock, and clients that arrive when they can, for a channel that hides replies or adds noise."""
    own = method.asynchronous == "is"
    if clock is not None or settings.asynchronous or own:
        by_itself = f"{type(method).__name__} is asynchronous by itself, so leave out the channel."
        raise UnalikeError(
            "A channel that hides replies or adds noise needs cohorts that are drawn and stay together: "
            + (by_itself if own else "leave out clock and asynchronous, or the channel.")
        )


def buffer_of(given: Any) -> int:
    """Return the arrivals of a server step, of "buffer:10"; of lists of arrivals any number; 0: synchronous rounds."""
    if given is None or isinstance(given, list | tuple):
        return 0 if given is None else 1
    kind, _, count = str(given).partition(":")
    if kind != "buffer" or not count.isdigit() or int(count) < 1:
        raise UnalikeError(f"asynchronous must be buffer:COUNT, such as buffer:10; got {given!r}.")
    return int(count)


def refusal(method: Method) -> str:
    """Return why a method cannot be given replies of older versions; nothing where it can."""
    each = next((name for name, field in method.sends.items() if field.read != "sum"), None)
    reasons = {
        "it is asynchronous by itself, without this setting": method.asynchronous == "is",
        "it has no server": method.serverless,
        "its clients' data are pooled": method.pooled,
        "clients send samples": bool(method.ships),
        f"its server reads {each!r} of each client of a round": each is not None,
        f"its clients keep {next(iter(method.keeps), '')!r}, which belongs to a round": bool(method.keeps),
        "its server keeps a table of its clients": bool(method.tables),
        "its rounds ask by who takes part": method.sees_who,
    }
    if method.asynchronous == "can":
        return ""
    return next((why for why, holds in reasons.items() if holds), "its round is made for the clients of one version")


def _count(data: Columns, classes: list[int]) -> np.ndarray:
    """Return how many samples of these classes each client has."""
    inside = np.isin(data.y.cpu().numpy(), classes)
    return np.add.reduceat(np.append(inside, 0), data.offsets[:-1])[: len(data.sizes)]
